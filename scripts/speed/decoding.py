"""Times generation: the cost of a token at several lengths of history, of every family, beside a Llama as large.

    python scripts/speed/decoding.py --threads 1 --tokens 2048 --output-dir runs/decoding
    python scripts/speed/decoding.py --device cuda --dtype bfloat16 --hidden-size 1024 --batch 1 8 64

Models have random weights, equal width and depth. The library's Llama has the feed-forward width that makes its
parameters as many as those of TNN. Each model generates --tokens tokens greedily through `generate()` from a prompt of
--prompt tokens. The time of a token is the median over the --window tokens before a mark, 512, 1024, 2048 and so on;
the mean and the worst are over all tokens up to the mark. Models take turns, and the least of --rounds medians counts:
whatever else the machine does can only add time.

Before anything is timed, each model generates --checked tokens in float64, with its cache and without, and both texts
must be equal. Writes tables and a plot; decoding.jsonl takes every model and batch at once, and the same command goes
on from there.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from layer_candidates import count
from protocol import Time, WrongResultError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.generation import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from hf_seqmix.analysis.figures import draw_row, line, token_ticks
from hf_seqmix.training.result_files import ResultFile, write_report
from hf_seqmix.training.results import Result, with_run
from hf_seqmix.training.run import run_of

VOCABULARY = 512
MODELS = ("tnn", "fd_tnn", "ipa", "poly_transformer", "hybrid", "attention", "llama")
FIRST_MARK = 128
COLUMNS = {
    "batch": "batch",
    "history": "tokens of history",
    "model": "model",
    "parameters": "parameters:,",
    "ms": "ms a token:.2f",
    "mean_ms": "mean ms:.2f",
    "worst_ms": "worst ms:.1f",
    "tokens_per_s": "tokens/s:,.0f",
    "llama": "times as fast as Llama:.2f",
    "peak_mib": "peak MiB:.0f",
}


class TokenClock(StoppingCriteria):
    """Takes the time after every token, and stops generation when the time of the command is over."""

    def __init__(self, device: torch.device, left: Time) -> None:
        self.device, self.left = device, left
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return whether each row of (batch, length) stops here."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return torch.full((len(input_ids),), self.left.is_over(), device=input_ids.device)


def build(name: str, width: int, depth: int, longest: int) -> PreTrainedModel:
    """Return a causal language model with random weights."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": depth, "vocab_size": VOCABULARY}
    fields |= {"max_position_embeddings": longest, "bos_token_id": None, "tie_word_embeddings": True}
    model_type = name
    if name == "llama":
        layer = count(build("tnn", width, 2, longest)) - count(build("tnn", width, 1, longest))
        fields["intermediate_size"] = round((layer - 4 * width**2) / (3 * width))
        fields |= {"num_attention_heads": width // 64, "num_key_value_heads": width // 64}
    elif name in ("hybrid", "attention"):
        model_type = "seqmix_hybrid"
        types = ["attention" if name == "attention" or place % 4 == 3 else "tnn" for place in range(depth)]
        fields |= {"mixer_types": types, "mixer_configs": {"attention": {"num_heads": width // 64}}}
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields))
    return model.eval()


def generate(model: PreTrainedModel, prompt: torch.Tensor, tokens: int, clock: TokenClock | None, cache: bool) -> Any:
    """Return prompt and greedily generated tokens, (batch, length)."""
    config = GenerationConfig(do_sample=False, max_new_tokens=tokens, pad_token_id=0, use_cache=cache)
    config.eos_token_id = None
    criteria = StoppingCriteriaList([] if clock is None else [clock])
    generating: Any = model
    return generating.generate(prompt, generation_config=config, stopping_criteria=criteria)


def check(name: str, model: PreTrainedModel, prompt: torch.Tensor, tokens: int) -> None:
    """Compare the texts with and without a cache, in float64.

    Raises:
        WrongResultError: if they differ.
    """
    exact = model.double()
    texts = [generate(exact, prompt[:2], tokens, None, cache) for cache in (True, False)]
    if not torch.equal(*texts):
        raise WrongResultError(f"{name}: {tokens} tokens with a cache differ from those without; nothing was timed")


def measure(arguments: argparse.Namespace, name: str, batch: int, left: Time) -> list[dict[str, Any]]:
    """Return a row for each mark of one model at one batch."""
    device = torch.device(arguments.device)
    longest = arguments.prompt + arguments.tokens
    prompt = torch.randint(3, VOCABULARY, (batch, arguments.prompt), generator=torch.Generator().manual_seed(1))
    prompt = prompt.to(device)
    model: Any = build(name, arguments.hidden_size, arguments.layers, longest)
    model = model.to(device)
    check(name, model, prompt, arguments.checked)
    model = model.to(getattr(torch, arguments.dtype))
    generate(model, prompt, 4, None, True)  # compiles and allocates
    rounds = []
    for _ in range(arguments.rounds):
        clock = TokenClock(device, left)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        generate(model, prompt, arguments.tokens, clock, True)
        rounds.append([1e3 * (b - a) for a, b in zip(clock.times, clock.times[1:], strict=False)])
        if left.is_over():
            break
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None
    rows, mark = [], min(FIRST_MARK, arguments.tokens)
    while mark <= arguments.tokens:
        steps = mark - 1
        whole = [found[:steps] for found in rounds if len(found) >= steps]
        if whole and steps:
            ms = min(statistics.median(found[-arguments.window :]) for found in whole)
            row = {"batch": batch, "history": mark, "model": name, "parameters": count(model), "ms": ms}
            row |= {"mean_ms": min(map(statistics.fmean, whole)), "worst_ms": min(map(max, whole))}
            rows.append(row | {"tokens_per_s": 1e3 * batch / ms, "peak_mib": peak})
        mark *= 2
    return rows


def results_of(arguments: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> list[Result]:
    """Return the rows of one model and batch as results."""
    found = []
    for row in rows:
        setting = {name: row[name] for name in ("batch", "history", "parameters")}
        setting |= {"dtype": arguments.dtype, "hidden_size": arguments.hidden_size, "layers": arguments.layers}
        for metric in ("ms", "mean_ms", "worst_ms", "tokens_per_s", "peak_mib"):
            if row[metric] is not None:
                found.append(Result("decoding", row["model"], metric, row[metric], setting=setting))
    return with_run(found, run_of(arguments, "decoding"))


def rows_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the rows that results are."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for result in results:
        key = (result.model, *result.setting.values())
        row = rows.setdefault(key, {"model": result.model, "peak_mib": None, **result.setting})
        row[result.metric] = result.value
    return list(rows.values())


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=2048, help="to generate")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--checked", type=int, default=24)
    parser.add_argument("--hidden-size", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="after which generation stops, and no further model begins")
    parser.add_argument("--output-dir", default="runs/decoding")
    arguments = parser.parse_args(argv)
    if min(arguments.tokens, arguments.prompt, arguments.window, arguments.rounds, *arguments.batch) < 1:
        parser.error("tokens, prompt, window, rounds and batch must be at least 1.")
    if arguments.hidden_size % 64:
        parser.error(f"--hidden-size {arguments.hidden_size} must be a multiple of 64.")
    return arguments


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark and return its rows."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    folder = Path(arguments.output_dir)
    log = ResultFile(folder / "decoding.jsonl")
    left = Time(arguments.minutes)
    rows = []
    for batch in arguments.batch:
        for name in arguments.models:
            own = ("tokens", "prompt", "hidden_size", "layers", "dtype", "device", "threads", "rounds", "window")
            key = {"model": name, "batch": batch, "torch": torch.__version__}
            key |= {field: getattr(arguments, field) for field in own}
            found = log.get(key)
            if found is None and left.is_over():
                continue
            if found is None:
                with torch.inference_mode():
                    found = results_of(arguments, measure(arguments, name, batch, left))
                if not left.is_over():  # or a part would stand for the whole when the command goes on
                    log.append(key, found)
            rows += rows_of(found)
            ends = [f"{row['ms']:.2f} ms at {row['history']}" for row in rows_of(found)]
            print(f"batch {batch}, {name}: {', '.join(ends)}", file=sys.stderr)
    if not rows:
        sys.exit("decoding.py: nothing was measured: give more --minutes.")
    beside = {(row["batch"], row["history"]): row["ms"] for row in rows if row["model"] == "llama"}
    for row in rows:
        other = beside.get((row["batch"], row["history"]))
        row["llama"] = None if other is None else other / row["ms"]
    device = torch.cuda.get_device_name() if torch.device(arguments.device).type == "cuda" else arguments.device
    where = f"width {arguments.hidden_size}, {arguments.layers} layers, {arguments.dtype}, {device}, "
    where += f"torch {torch.__version__}"
    rows.sort(key=lambda row: (row["batch"], row["history"], MODELS.index(row["model"])))
    write_report(arguments, "decoding", [(f"Greedy generation: {where}", rows, COLUMNS)])
    plot(rows, folder / "decoding.png", where)
    return rows


def plot(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw the cost of a token against the history, a panel for each batch."""
    batches = sorted({row["batch"] for row in rows})
    with draw_row(path, 4.6 * len(batches), 4.0, len(batches), title) as (_, axes):
        for panel, batch in zip(axes, batches, strict=True):
            for index, name in enumerate(MODELS):
                mine = [row for row in rows if (row["batch"], row["model"]) == (batch, name)]
                if mine:
                    panel.plot([r["history"] for r in mine], [r["ms"] for r in mine], label=name, **line(index))
            marks = sorted({row["history"] for row in rows})
            token_ticks(panel, marks, title=f"batch {batch}", xlabel="tokens of history", ylabel="ms a token")
            panel.legend()


if __name__ == "__main__":
    main()
