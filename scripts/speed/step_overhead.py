"""Times one step of `generate()` at few tokens, where a small model costs calls and not arithmetic, beside a Llama.

    python scripts/speed/step_overhead.py --threads 1 --output-dir runs/step-overhead

Models are those of decoding.py, and polynomial ones of degree 2 and 3 with the parameters of TNN. Each generates
--tokens tokens after a prompt of --prompt. The time of a step is the processor time of its thread, the median of a
call's steps. Models take turns, and the ratio to Llama is the median over --rounds turns. Operations of torch and
calls of Python functions are counted without the first step, which reads the prompt.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from decoding import MODELS, VOCABULARY, TokenClock, build, generate
from layer_candidates import count
from protocol import Time
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result

NAMES = (*(name for name in MODELS if name not in ("poly_transformer", "llama")), "poly2", "poly3", "llama")
COLUMNS = {
    "model": "model",
    "parameters": "parameters:,",
    "ms": "ms a step:.2f",
    "llama": "times the step of Llama:.2f",
    "operations": "operations of torch:.0f",
    "calls": "calls of Python:.0f",
}


class StepClock(TokenClock):
    """Takes the processor time of the thread after every token."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return False for each row of (batch, length): nothing stops here."""
        self.times.append(time.thread_time())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class OperationCount(TorchDispatchMode):
    """Counts the operations of torch."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation."""
        self.number += 1
        return func(*args, **(kwargs or {}))


def build_equal(name: str, width: int, depth: int, longest: int) -> PreTrainedModel:
    """Return a model of decoding.py, or a polynomial one whose feed-forward gives it the parameters of TNN."""
    if not name.startswith("poly"):
        return build(name, width, depth, longest)
    torch.manual_seed(0)
    fields: dict[str, Any] = {"degree": int(name[4:]), "hidden_size": width, "vocab_size": VOCABULARY}
    fields |= {"max_position_embeddings": longest, "bos_token_id": None, "tie_word_embeddings": True}
    layer = count(build("tnn", width, 2, longest)) - count(build("tnn", width, 1, longest))
    # Beside the feed-forward, d + 1 maps of width^2.
    fields["intermediate_size"] = round((layer / width**2 - (fields["degree"] + 1)) * width / 3)
    config = AutoConfig.for_model("poly_transformer", num_hidden_layers=depth, **fields)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model.eval()


def counts(model: PreTrainedModel, prompt: torch.Tensor, tokens: int) -> tuple[float, float]:
    """Return operations of torch and calls of Python functions in a step."""
    operations, calls = [], []
    for length in (2, tokens):
        with OperationCount() as mode:
            generate(model, prompt, length, None, True)
        operations.append(mode.number)
        number = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal number
            number += event == "call"

        sys.setprofile(note)
        try:
            generate(model, prompt, length, None, True)
        finally:
            sys.setprofile(None)
        calls.append(number)
    return (operations[1] - operations[0]) / (tokens - 2), (calls[1] - calls[0]) / (tokens - 2)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command and return its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--prompt", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24, help="to generate in a call, at least 3")
    parser.add_argument("--hidden-size", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output-dir", default="runs/step-overhead")
    arguments = parser.parse_args(argv)
    if arguments.tokens < 3 or arguments.rounds < 1 or arguments.hidden_size % 64:
        parser.error("--tokens must be at least 3, --rounds at least 1, and --hidden-size a multiple of 64.")
    torch.set_num_threads(arguments.threads)
    prompt = torch.randint(3, VOCABULARY, (1, arguments.prompt), generator=torch.Generator().manual_seed(1))
    names = ["llama", *(name for name in arguments.models if name != "llama")]
    size = (arguments.hidden_size, arguments.layers, arguments.prompt + arguments.tokens)
    models = {name: build_equal(name, *size) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    with torch.inference_mode():
        for _ in range(arguments.rounds + 1):
            for name, model in models.items():
                clock = StepClock(torch.device("cpu"), Time(None))
                generate(model, prompt, arguments.tokens, clock, True)
                steps = [1e3 * (b - a) for a, b in zip(clock.times, clock.times[1:], strict=False)]
                times[name].append(statistics.median(steps))
        rows = []
        for name, model in models.items():
            found = times[name][1:]  # the first call allocates
            ratio = statistics.median(a / b for a, b in zip(found, times["llama"][1:], strict=True))
            operations, calls = counts(model, prompt, arguments.tokens)
            row = {"model": name, "parameters": count(model), "ms": statistics.median(found), "llama": ratio}
            rows.append(row | {"operations": operations, "calls": calls})
    metrics = ("ms", "llama", "operations", "calls")
    setting = {"hidden_size": arguments.hidden_size, "layers": arguments.layers, "tokens": arguments.tokens}
    results = [
        Result("step_overhead", row["model"], metric, row[metric], setting=setting | {"parameters": row["parameters"]})
        for row in rows
        for metric in metrics
    ]
    title = f"One step of generate(): width {size[0]}, {size[1]} layers, {arguments.prompt} to {size[2]} tokens, "
    title += f"CPU, {arguments.threads} threads, torch {torch.__version__}"
    write_report(arguments, "step_overhead", [(title, rows, COLUMNS)], results)
    return rows


if __name__ == "__main__":
    main()
