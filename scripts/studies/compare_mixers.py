r"""Trains models of equal size on equal data, with a sweep of the learning rate and several seeds, and tabulates them.

    python scripts/studies/compare_mixers.py --task lm-causal --models tnn attention fd_tnn-cosine-gelu --threads 1 \
        --train-file wiki.train.head.tokens --validation-file wiki.valid.tokens --test-file wiki.test.tokens \
        --output-dir runs/causal
    python scripts/studies/compare_mixers.py --task recall --models tnn attention --output-dir runs/recall

Each model is trained with every learning rate on the first seed. While the rate of least validation loss lies at the
edge of the sweep, the sweep goes on beyond it (--extend-sweep). The best rate is then trained on the other seeds. All
models have the number of parameters of `tnn`, made up by the width of their feed-forwards unless --feed-forward is
given, and see the same batches in the same order. Each run is a line of results.jsonl; a killed comparison goes on
where it stopped when the command is given again, also with more models, rates or seeds. Writes table.md and plot.png
after each model, and for the task repetition bins.png, accuracy by frequency of the word and distance of its first
occurrence.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparison.compare import compare
from comparison.models import MODELS
from comparison.options import Options, add_arguments
from comparison.report import write_report
from comparison.tasks import TASKS

from hf_seqmix.training.command import CommandParser, explained


def parse_arguments(argv: Sequence[str]) -> Options:
    """Read the command line; sizes that are not given are the task's.

    Raises:
        ValueError: if an argument makes no sense.
    """
    parser = CommandParser("compare_mixers.py", description=__doc__)
    parser.add_argument("--task", required=True, choices=TASKS, help=f"what is learned: {', '.join(TASKS)}")
    parser.add_argument(
        "--output-dir",
        required=True,
        type=Path,
        help="where results, table and plot go; the same command goes on there",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=["tnn", "attention"],
        choices=MODELS,
        metavar="MODEL",
        help=f"models to train, of: {', '.join(MODELS)}",
    )
    parser.add_argument("--block-size", type=int, help="tokens of a sequence; the task's by default")
    add_arguments(parser)
    return Options.of(**vars(parser.parse_args(argv)))


@explained("compare_mixers.py")
def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Run the command line and return what the table shows; exit with a message on wrong input."""
    return write_report(compare(parse_arguments(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
    main()
