r"""Times prompt lookup and assisted decoding against plain greedy decoding by the same checkpoint.

    python scripts/speed/assisted.py --models model_cards/{tnn,fd-tnn,ipa-prod,poly3}-python-2m \
        --assistant model_cards/poly3-python-2m --threads 1 --output-dir runs/assisted

Candidates for the next tokens come from the prompt itself (`prompt_lookup_num_tokens`) or from a second checkpoint
(`assistant_model`); the model checks them in one call, and the cache takes back those that it refuses. Prompts are cut
from Python's standard library. Every way must give the tokens of greedy decoding in float64; otherwise nothing is
timed. Times, in --dtype, are medians over rounds in which every way runs once, in an order that rotates. Writes
assisted.jsonl and a table.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from generation.requests import alone, check_tokens, code_requests, load

from hf_seqmix.training.command import CommandParser, add_device_argument, explained, positive, refuse_twice
from hf_seqmix.training.folders.run_folder import prepare_run_folder
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.timing import Clock, interleave

COLUMNS = {
    "model": "model",
    "greedy_per_s": "greedy, tokens/s:.0f",
    "lookup_per_s": "prompt lookup, tokens/s:.0f",
    "lookup_times_faster": "times as fast:.2f",
    "lookup_per_call": "tokens a call:.2f",
    "assisted_per_s": "assisted, tokens/s:.0f",
    "assisted_times_faster": "times as fast :.2f",
    "assisted_per_call": "tokens a call :.2f",
}


class _Calls:
    """Counts the forward passes of a model."""

    def __init__(self, model: Any) -> None:
        self.number = 0
        self.hook = model.register_forward_pre_hook(self)

    def __call__(self, *_: Any) -> None:
        self.number += 1


def measure(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Check the ways of a model, count the tokens of a call, and time the ways."""
    requests = code_requests(name, arguments.prompts, (arguments.prompt_tokens,) * 2, (arguments.new_tokens,) * 2)
    row: dict[str, Any] = {"model": Path(name).name}
    tokens = sum(request.new_tokens for request in requests)

    def ways(dtype: torch.dtype) -> tuple[Any, dict[str, dict[str, Any]]]:
        model = load(name, dtype, arguments.device)
        options: dict[str, dict[str, Any]] = {"greedy": {}}
        options["lookup"] = {"prompt_lookup_num_tokens": arguments.candidates}
        if arguments.assistant is not None:
            assistant = load(arguments.assistant, dtype, arguments.device)
            assistant.generation_config.num_assistant_tokens = arguments.candidates
            options["assisted"] = {"assistant_model": assistant}
        return model, options

    model, options = ways(torch.float64)
    for way, given in options.items():
        calls = _Calls(model)
        found = [alone(model, request, **given) for request in requests]
        calls.hook.remove()
        check_tokens(f"{row['model']}, {way}", requests, found, partial(alone, model))
        row[f"{way}_per_call"] = tokens / calls.number

    model, options = ways(getattr(torch, arguments.dtype))

    def timed(given: dict[str, Any], clock: Clock) -> tuple[float, ...]:
        begin = clock.mark()
        for request in requests:
            alone(model, request, **given)
        return (clock.between(begin, clock.mark()),)

    clock = Clock(torch.device(arguments.device))
    seconds = interleave({way: partial(timed, given) for way, given in options.items()}, arguments.rounds, clock)
    row["clock"] = clock.kind
    for way, values in seconds.items():
        row[f"{way}_per_s"] = tokens / statistics.median(value for (value,) in values)
        row[f"{way}_times_faster"] = row[f"{way}_per_s"] / row["greedy_per_s"]
    print(f"{row['model']}: lookup {row['lookup_times_faster']:.2f} times as fast", file=sys.stderr)
    return row


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--models", nargs="+", required=True, help="folders of causal checkpoints with tokenizers")
    parser.add_argument(
        "--assistant",
        help="folder of a checkpoint that proposes tokens, with the same tokenizer; by default only the prompt does",
    )
    parser.add_argument("--candidates", type=int, default=10, help="proposed tokens that are checked in one call")
    parser.add_argument("--prompts", type=int, default=4, help="prompts, cut from Python's standard library")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--new-tokens", type=int, default=96, help="tokens to generate after each prompt")
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16", "float64"],
        default="float32",
        help="data type of the timed models",
    )
    add_device_argument(parser)
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, whose median counts")
    parser.add_argument("--output-dir", default="runs/assisted", help="where results and table go")
    arguments = parser.parse_args(argv)
    numbers = (arguments.candidates, arguments.prompts, arguments.prompt_tokens, arguments.new_tokens)
    if min(*numbers, arguments.rounds) < 1:
        parser.error("candidates, prompts, tokens and rounds must be at least 1.")
    refuse_twice(models=[Path(name).name for name in arguments.models])
    return arguments


@explained("assisted.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark and return its rows."""
    arguments = parse_arguments(argv)
    prepare_run_folder(arguments.output_dir, resume=True)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = [measure(arguments, name) for name in arguments.models]
    where = f"{arguments.prompts} prompts of {arguments.prompt_tokens} tokens, {arguments.new_tokens} new, "
    where += f"{arguments.candidates} candidates, {arguments.dtype}, {arguments.device}, "
    where += f"{arguments.threads} threads, {rows[0]['clock']}, torch {torch.__version__}"
    columns = {key: title for key, title in COLUMNS.items() if key in rows[0]}
    kept = row_results(rows, "assisted", "model")
    write_report(arguments, "assisted", [(f"Decoding with candidates against greedy: {where}", rows, columns)], kept)
    return rows


if __name__ == "__main__":
    main()
