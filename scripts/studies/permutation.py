"""What another order of its tokens costs a trained model: Table 1 of Jiang and Li (arXiv 2305.18475), Section 6.

    python scripts/studies/permutation.py images --model PATH_OR_NAME --output-dir runs/permuted
    python scripts/studies/permutation.py translation --model Helsinki-NLP/opus-mt-en-de --output-dir runs/permuted

images       accuracy of classifiers of images, CIFAR-10 by default
translation  BLEU of models with an encoder and a decoder, WMT14 by default; what the encoder reads is permuted

The first 10 tokens are moved to the end, before positions are known. The paper does not say whether the models, which
begin with their original weights, are trained on in the new order. Both readings are measured, and beside the second
one stands the same training in the original order, without which its figure says little. Writes results and a table.
"""

import argparse
import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from permutations.images import ImageTask
from permutations.task import Task
from permutations.translation import TranslationTask
from vision.training import Training, add_image_arguments, add_training_arguments

from hf_seqmix.analysis.token_order import first_to_end, permuted_tokens
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, explained, refuse_twice
from hf_seqmix.training.environment import environment_of, fingerprint, portable_command, portable_path
from hf_seqmix.training.result_files import ResultFile, write_report
from hf_seqmix.training.results import Result, summarize
from hf_seqmix.training.run import Run
from hf_seqmix.training.table_rows import TableRows

CONDITIONS: dict[str, tuple[bool, bool]] = {
    "as it is": (False, False),
    "permuted": (True, False),
    "trained on": (False, True),
    "trained on, permuted": (True, True),
}
"""Name -> whether the order is changed, and whether the model is trained on in that order."""
PAPER = {"accuracy": (0.98, 0.96), "bleu": (26.85, 25.91)}
"""The paper's figures in the original and the changed order: ViT on CIFAR-10, a Transformer on WMT14 En-De."""

logger = logging.getLogger("permutation")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog="permutation.py", description=__doc__, allow_abbrev=False)
    tasks = parser.add_subparsers(dest="task", required=True, metavar="task")
    shared = CommandParser(add_help=False)
    shared.add_argument("--model", nargs="+", required=True, metavar="NAME_OR_PATH", help="trained models")
    shared.add_argument("--output-dir", type=Path, required=True, help="where results and table go")
    shared.add_argument("--moved", type=int, default=10, help="tokens that are moved to the end")
    images = tasks.add_parser("images", parents=[shared], allow_abbrev=False, description=ImageTask.__doc__)
    add_image_arguments(images)
    add_training_arguments(images, steps=200)
    images.set_defaults(make=ImageTask)
    text = tasks.add_parser("translation", parents=[shared], allow_abbrev=False, description=TranslationTask.__doc__)
    text.add_argument("--dataset", default="wmt/wmt14:de-en", help="on the Hub, with splits train and test")
    for split in ("train", "test"):
        text.add_argument(f"--{split}-file", type=Path, help="a table with a column a language, instead of --dataset")
    text.add_argument(
        "--languages",
        nargs=2,
        default=["en", "de"],
        metavar=("FROM", "TO"),
        help="columns of the data: the language that is read, and that of the translation",
    )
    text.add_argument("--prefix", default="", help="before each text, such as 'translate English to German: ' for T5")
    text.add_argument("--train-rows", type=int, default=20_000, help="pairs to train on, the first ones")
    text.add_argument("--test-rows", type=int, default=500, help="held-out pairs, the first ones")
    text.add_argument("--max-tokens", type=int, default=128, help="tokens of a text; longer ones are cut")
    text.add_argument("--num-beams", type=int, default=4, help="beams of the search; 1 is greedy")
    text.add_argument(
        "--metric", default="sacrebleu", help="of the library evaluate, or the folder of one with a score"
    )
    add_training_arguments(text, steps=200)
    text.set_defaults(make=TranslationTask)
    return parser


def figures_of(task: Task, condition: str, seed: int) -> Mapping[str, float]:
    """Return the scores of a fresh copy of the model in one of `CONDITIONS`."""
    is_permuted, is_trained = CONDITIONS[condition]
    model = task.load()
    with permuted_tokens(model, task.order) if is_permuted else contextlib.nullcontext():
        if is_trained:
            task.train(model, seed)
        return task.score(model)


def run(arguments: argparse.Namespace) -> TableRows:
    """Score each model in each condition; runs that the results file has are read."""
    file = ResultFile(arguments.output_dir / "results.jsonl")
    training = Training(arguments.steps, arguments.batch_size, arguments.learning_rate)
    results: list[Result] = []
    for name in arguments.model:
        task: Task = arguments.make(name, arguments, training)
        for condition, seed in _conditions(arguments.seeds):
            is_trained = CONDITIONS[condition][1]
            how: dict[str, Any] = {"condition": condition, "moved": arguments.moved}
            how |= dataclasses.asdict(training) if is_trained else {}
            model = {
                "name": Path(name).name,
                "model": portable_path(name),
                "digest": fingerprint(Path(name), contents=True),
            }
            key = Run(f"permutation-{arguments.task}", model, task.data, how, seed or 0)
            found = file.get(key)
            if found is None:
                scores = figures_of(task, condition, seed or 0)
                shared: dict[str, Any] = {"command": portable_command("permutation"), "environment": environment_of()}
                shared |= {"run": key, "setting": {"condition": condition, "data": task.source}}
                found = [Result(key.task, Path(name).name, each, scores[each], seed, **shared) for each in scores]
                file.append(key, found)
                logger.info(f"{name}, {condition}: {', '.join(f'{n} {v:.4f}' for n, v in scores.items())}")
            results += found
    rows = _rows(results)
    columns = {"model": "model", "metric": "metric"} | {name: f"{name}:.4f" for name in CONDITIONS}
    columns |= {"spread": "sd of seeds:.4f", "paper": "paper, as it is and permuted"}
    title = (
        f"The first {arguments.moved} tokens moved to the end, {results[0].get('data')}; trained on for "
        f"{training.steps} updates, means of seeds ({len(arguments.seeds)})"
    )
    write_report(arguments, "results", [(title, rows, columns)])
    return rows


def _conditions(seeds: Sequence[int]) -> Iterator[tuple[str, int | None]]:
    """Yield the conditions; those without training have no seed."""
    for condition, (_, is_trained) in CONDITIONS.items():
        yield from ((condition, seed) for seed in (seeds if is_trained else [None]))


def _rows(results: Sequence[Result]) -> TableRows:
    """Return a row a model and metric, a column a condition."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for summary in summarize(results):
        model, metric = summary.result.model, summary.result.metric
        row = rows.setdefault((model, metric), {"model": model, "metric": metric})
        row[str(summary.result.get("condition"))] = summary.mean
        if summary.spread is not None:
            row["spread"] = max(summary.spread, row.get("spread", 0.0))
        if metric in PAPER:
            row["paper"] = " and ".join(map(str, PAPER[metric]))
    return list(rows.values())


@explained("permutation.py")
def main(argv: Sequence[str] | None = None) -> TableRows:
    """Run the command line and return the rows of its table; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    if min(arguments.steps, arguments.batch_size, arguments.train_rows, arguments.test_rows) < 1:
        raise ValueError("--steps, --batch-size, --train-rows and --test-rows must be at least 1.")
    refuse_twice(seeds=arguments.seeds, model=[Path(name).name for name in arguments.model])
    first_to_end(1, arguments.moved)
    prepare_run_folder(arguments.output_dir, resume=True)
    return run(arguments)


if __name__ == "__main__":
    main()
