r"""Which relationships between sequences models learn: the experiments of Jiang and Li (arXiv 2305.18475), and more.

    python scripts/studies/approximation.py order --output-dir runs/order              # tables 2 and 3 of the paper
    python scripts/studies/approximation.py rate --output-dir runs/rate                # error against the head size
    python scripts/studies/approximation.py order --models rnn transformer tnn --seeds 0 1 2 --output-dir runs/order
    python scripts/studies/approximation.py rate --num-heads 1 2 --num-layers 1 2 --residual --positions none rotary \
        --head-sizes 4 8 16 --output-dir runs/rate
    python scripts/studies/approximation.py checkpoints --models runs/order/models/* --output-dir runs/checkpoints
    python scripts/studies/approximation.py theory --output-dir runs/theory

order        trains models on a convolution, on the same with its inputs or its kernel in another order, and on mixed
             inputs, beside the least error that is possible, and beside a linear recurrent network whose readout is
             the optimum
rate         trains the paper's transformer, with one head size after another, on a coupling of known singular values,
             and fits how the error falls; also with several heads, layers and position encodings
checkpoints  measures saved models as `order` does, as they are or trained on
theory       represents targets as theorem 4.1 does, by a coupling that knows nothing of them, cuts couplings to small
             heads as theorem 4.2 does, and computes the measure of complexity of proposition 6.3 before and after
             mixing

Each writes results and a table, and all but `theory` a plot.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from approximations.checkpoints import add_checkpoints
from approximations.log import logger, shared_arguments
from approximations.order import add_order
from approximations.rate import add_rate
from approximations.theory import add_theory

from hf_seqmix.training.command import CommandParser, explained, refuse_twice
from hf_seqmix.training.table_rows import TableRows


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog="approximation.py", description=__doc__, allow_abbrev=False)
    experiments = parser.add_subparsers(dest="experiment", required=True, metavar="experiment")
    shared = shared_arguments()
    for add in (add_order, add_rate, add_checkpoints, add_theory):
        add(experiments, shared)
    return parser


@explained("approximation.py")
def main(argv: Sequence[str] | None = None) -> TableRows:
    """Run the command line and return the rows of its table; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    refuse_twice(seeds=getattr(arguments, "seeds", []))
    return arguments.run(arguments)


if __name__ == "__main__":
    main()
