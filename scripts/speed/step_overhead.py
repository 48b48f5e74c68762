"""Times one step of `generate()` at few tokens, where a small model costs calls and not arithmetic, beside a Llama.

    python scripts/speed/step_overhead.py --threads 1 --output-dir runs/step-overhead

Models are those of decoding.py, polynomial ones with the parameters of TNN. Each generates --tokens tokens after a
prompt of --prompt. The time of a step is the median of a call's steps; with one thread, its processor time. Models
take turns, and the ratio to Llama is the median over --rounds turns. Operations of torch and calls of Python functions
are counted without the first step, which reads the prompt. Writes step_overhead.jsonl and a table.
"""

import statistics
import sys
from collections.abc import Sequence
from typing import Any

import torch
from generation.models import FAMILIES, VOCABULARY, Sizes, build
from timing.parameters import count
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM
from transformers.generation import GenerationConfig, StoppingCriteriaList

from hf_seqmix.training.command import CommandParser, explained, positive
from hf_seqmix.training.folders.run_folder import prepare_run_folder
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result
from hf_seqmix.training.timing import TokenClock

COLUMNS = {
    "model": "model",
    "parameters": "parameters:,",
    "ms": "ms a step:.2f",
    "llama": "times the step of Llama:.2f",
    "operations": "operations of torch:.0f",
    "calls": "calls of Python:.0f",
}


class OperationCount(TorchDispatchMode):
    """Counts the operations of torch."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation."""
        self.number += 1
        return func(*args, **(kwargs or {}))


def model_of(family: str, sizes: Sizes) -> Any:
    """Return a model of decoding.py; a polynomial one gets the feed-forward that makes a layer as large as TNN's."""
    model = build(family, sizes)
    if family.startswith("poly"):
        excess = [
            count(build(name, sizes._replace(depth=2))) - count(build(name, sizes._replace(depth=1)))
            for name in (family, "tnn")
        ]
        model.config.intermediate_size -= round((excess[0] - excess[1]) / (3 * sizes.width))
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(model.config).eval()
    return model


def generate(model: Any, prompt: torch.Tensor, tokens: int) -> list[float]:
    """Generate greedily, and return the milliseconds of each step after the prompt."""
    config = GenerationConfig(do_sample=False, max_new_tokens=tokens, pad_token_id=0)
    clock = TokenClock(prompt.device)
    model.generate(prompt, generation_config=config, stopping_criteria=StoppingCriteriaList([clock]))
    return [1e3 * seconds for seconds in clock.seconds[1:]]


def counts(model: Any, prompt: torch.Tensor, tokens: int) -> tuple[float, float]:
    """Return operations of torch and calls of Python functions in a step."""
    operations, calls = [], []
    for length in (2, tokens):
        with OperationCount() as mode:
            generate(model, prompt, length)
        operations.append(mode.number)
        number = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal number
            number += event == "call"

        sys.setprofile(note)
        try:
            generate(model, prompt, length)
        finally:
            sys.setprofile(None)
        calls.append(number)
    return (operations[1] - operations[0]) / (tokens - 2), (calls[1] - calls[0]) / (tokens - 2)


@explained("step_overhead.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command and return its rows."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--models",
        nargs="+",
        choices=FAMILIES,
        default=list(FAMILIES),
        help="models that are timed; the Llama always is",
    )
    parser.add_argument("--prompt", type=positive, default=4, help="tokens of the prompt")
    parser.add_argument("--tokens", type=positive, default=24, help="tokens to generate in a call, at least 3")
    parser.add_argument("--hidden-size", type=positive, default=256, help="width of the models, a multiple of 64")
    parser.add_argument("--layers", type=positive, default=4, help="layers of each model")
    parser.add_argument("--rounds", type=positive, default=20, help="calls of each model that are timed, in turns")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--output-dir", default="runs/step-overhead", help="where results and table go")
    arguments = parser.parse_args(argv)
    if arguments.tokens < 3 or arguments.hidden_size % 64:
        parser.error("--tokens must be at least 3, and --hidden-size a multiple of 64.")
    prepare_run_folder(arguments.output_dir, resume=True)
    torch.set_num_threads(arguments.threads)
    prompt = torch.randint(3, VOCABULARY, (1, arguments.prompt), generator=torch.Generator().manual_seed(1))
    names = ["llama", *(name for name in arguments.models if name != "llama")]
    sizes = Sizes(arguments.hidden_size, arguments.layers, arguments.tokens, arguments.prompt)
    models = {name: model_of(name, sizes) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    with torch.inference_mode():
        for _ in range(arguments.rounds + 1):
            for name, model in models.items():
                times[name].append(statistics.median(generate(model, prompt, arguments.tokens)))
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
    title = f"One step of generate(): width {sizes.width}, {sizes.depth} layers, tokens {sizes.prompt} to "
    title += f"{sizes.prompt + sizes.longest}, CPU, {arguments.threads} threads, torch {torch.__version__}"
    write_report(arguments, "step_overhead", [(title, rows, COLUMNS)], results)
    return rows


if __name__ == "__main__":
    main()
