r"""Times requests of mixed lengths, all at once by continuous batching against one after another by `generate`.

    python scripts/speed/serving.py --models model_cards/{tnn,fd-tnn,ipa-prod,poly3}-python-2m --llama --threads 2 \
        --output-dir runs/serving

Each request has a prompt of its own length, cut from Python's standard library, and asks for its own number of tokens,
greedily and without an end of sequence. Both ways must give the same tokens in float64; otherwise nothing is timed.
Times, in --dtype, are wall time from the first request to the last result: medians over rounds in which every number
of requests runs once each way, in an order that rotates. `--llama` adds a Llama of equal size with random weights,
under the library's own manager with its paged cache. Writes serving.jsonl and a table.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from generation.requests import Request, alone, check_tokens, code_requests, load
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

from hf_seqmix.training.command import CommandParser, add_device_argument, explained, positive, refuse_twice
from hf_seqmix.training.folders.run_folder import prepare_run_folder
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.timing import Clock, Timed, interleave

Work = Callable[[Sequence[Request]], Any]

LLAMA = "Llama, library's manager"


def llama(arguments: argparse.Namespace, dtype: torch.dtype) -> Any:
    """Build a Llama of 1.9 M parameters: the checkpoints' vocabulary, layers and width, its embeddings tied."""
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=192,
        intermediate_size=416,
        num_hidden_layers=4,
        num_attention_heads=4,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config).eval()
    model.to(device=arguments.device, dtype=dtype)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def together(manager: Any, requests: Sequence[Request]) -> list[list[int]]:
    """Return the tokens of requests that a running manager is given all at once."""
    names = [manager.add_request(request.prompt, max_new_tokens=request.new_tokens) for request in requests]
    results: dict[str, Any] = {}
    while len(results) < len(requests):
        result = manager.get_result(timeout=60)
        if result is None or result.error is not None:
            raise RuntimeError(f"a request failed: {getattr(result, 'error', 'no result in a minute')}")
        results[result.request_id] = result
    return [results[name].generated_tokens for name in names]


def managed(model: Any, most: int) -> Any:
    """Return the context of a manager of a model, by the library's own entry."""
    # A paged cache is allocated at once, and its masks are as large as the batch times the cache.
    batching = ContinuousBatchingConfig(max_requests_per_batch=most, num_blocks=16, max_batch_tokens=512)
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1)
    return model.continuous_batching_context_manager(greedy, continuous_batching_config=batching, warmup=False)


def measure(arguments: argparse.Namespace, name: str, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Check the two ways of a model, and time them for each number of requests."""
    most = max(arguments.requests)

    def make(dtype: torch.dtype) -> Any:
        return llama(arguments, dtype) if name == LLAMA else load(name, dtype, arguments.device)

    # A model of its own for each way: the library's manager may change how the model attends.
    with managed(make(torch.float64), most) as manager:
        found = together(manager, requests)
    check_tokens(name, requests, found, partial(alone, make(torch.float64)))
    dtype = getattr(torch, arguments.dtype)
    model = make(dtype)
    clock = Clock(torch.device("cpu"))
    clock.now = time.perf_counter  # the manager works in a thread of its own

    def timed(work: Work, count: int) -> Timed:
        def once(clock: Clock) -> tuple[float, ...]:
            begin = clock.mark()
            work(requests[:count])
            return (clock.between(begin, clock.mark()),)

        return once

    def in_turn(some: Sequence[Request]) -> None:
        for request in some:
            alone(model, request)

    with managed(make(dtype), most) as manager:
        ways: dict[str, Work] = {"alone": in_turn, "together": partial(together, manager)}
        candidates = {f"{way} {n}": timed(work, n) for n in arguments.requests for way, work in ways.items()}
        seconds = interleave(candidates, arguments.rounds, clock)
    rows = []
    for count in arguments.requests:
        row: dict[str, Any] = {"model": Path(name).name, "requests": count, "clock": clock.kind}
        row["tokens"] = sum(request.new_tokens for request in requests[:count])
        for way in ways:
            row[f"{way}_per_s"] = row["tokens"] / statistics.median(value for (value,) in seconds[f"{way} {count}"])
        row["times_faster"] = row["together_per_s"] / row["alone_per_s"]
        rows.append(row)
        print(f"{row['model']}, {count} requests: {row['times_faster']:.2f} times as fast", file=sys.stderr)
    return rows


COLUMNS = {
    "model": "model",
    "requests": "requests",
    "tokens": "new tokens",
    "alone_per_s": "one after another, tokens/s:.0f",
    "together_per_s": "together, tokens/s:.0f",
    "times_faster": "times as fast:.2f",
}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--models", nargs="+", required=True, help="folders of causal checkpoints with tokenizers")
    parser.add_argument("--llama", action="store_true", help="add a Llama of equal size with random weights")
    parser.add_argument(
        "--requests", type=int, nargs="+", default=[1, 4, 16], help="numbers of requests that are sent at once"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        nargs=2,
        default=[16, 96],
        metavar=("FEWEST", "MOST"),
        help="tokens of a prompt, at least and at most",
    )
    parser.add_argument(
        "--new-tokens",
        type=int,
        nargs=2,
        default=[32, 96],
        metavar=("FEWEST", "MOST"),
        help="tokens that a request asks for, at least and at most",
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16", "float64"],
        default="float32",
        help="data type of the timed models",
    )
    add_device_argument(parser)
    parser.add_argument("--threads", type=positive, default=2, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, whose median counts")
    parser.add_argument("--output-dir", default="runs/serving", help="where results and table go")
    arguments = parser.parse_args(argv)
    if min(*arguments.requests, *arguments.prompt_tokens, *arguments.new_tokens, arguments.rounds) < 1:
        parser.error("requests, tokens and rounds must be at least 1.")
    refuse_twice(models=[Path(name).name for name in arguments.models])
    for name in ("prompt_tokens", "new_tokens"):
        fewest, most = getattr(arguments, name)
        if fewest > most:
            parser.error(f"--{name.replace('_', '-')} is {fewest} {most}; give the fewest first, then the most.")
    return arguments


@explained("serving.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark and return its rows."""
    arguments = parse_arguments(argv)
    prepare_run_folder(arguments.output_dir, resume=True)
    torch.set_num_threads(arguments.threads)
    prompt, new = tuple(arguments.prompt_tokens), tuple(arguments.new_tokens)
    requests = code_requests(arguments.models[0], max(arguments.requests), prompt, new)
    rows = [row for name in arguments.models for row in measure(arguments, name, requests)]
    if arguments.llama:
        rows += measure(arguments, LLAMA, requests)
    where = f"{arguments.dtype}, {arguments.device}, {arguments.threads} threads, {rows[0]['clock']}, "
    where += f"torch {torch.__version__}"
    title = f"Requests of mixed lengths, one after another by generate and together by continuous batching: {where}"
    kept = row_results(rows, "serving", "model", setting=("requests",))
    write_report(arguments, "serving", [(title, rows, COLUMNS)], kept)
    return rows


if __name__ == "__main__":
    main()
