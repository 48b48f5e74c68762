"""A whole comparison: every model is trained, and the report is written after each."""

import logging
import sys

import torch

from hf_seqmix.training import explain_write_error

from .options import Options
from .report import write_report
from .runs import Comparison, OutOfTimeError

logger = logging.getLogger("compare_mixers")


def compare(arguments: Options) -> Comparison:
    """Train what is missing, as far as the time budget goes; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    try:
        torch.set_num_threads(arguments.threads)
        comparison = Comparison(arguments)
    except ValueError as error:
        sys.exit(f"compare_mixers.py: {error}")
    try:
        for model in arguments.models:
            comparison.complete(model)
            write_report(comparison)
    except OutOfTimeError:
        logger.warning("The time budget is used up; the same command goes on from here.")
    except OSError as error:
        message = explain_write_error(error, comparison.folder)
        if message is None:
            raise
        sys.exit(f"compare_mixers.py: {message}")
    return comparison
