"""A whole comparison: every model is trained, and the report is written after each."""

import logging

import torch

from .options import Options
from .report import write_report
from .runs import Comparison, OutOfTimeError

logger = logging.getLogger("compare_mixers")


def compare(arguments: Options) -> Comparison:
    """Train what is missing, as far as the time budget goes.

    Raises:
        ValueError: the arguments fit no comparison.
        OSError: a file could not be written.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    torch.set_num_threads(arguments.threads)
    comparison = Comparison(arguments)
    try:
        for model in arguments.models:
            comparison.complete(model)
            write_report(comparison)
    except OutOfTimeError:
        logger.warning("The time budget is used up; the same command goes on from here.")
    return comparison
