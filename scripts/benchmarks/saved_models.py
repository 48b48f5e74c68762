"""The loop over saved models that benchmarks of text share: what is there already, what is scored, and what fails."""

import argparse
import logging
from collections.abc import Callable, Mapping
from typing import Any

from hf_seqmix.training.result_files import ResultFile

from .inputs import named, scoring_run, short_names
from .results import LOG, Report, origin

Keys = Mapping[int, dict[str, Any]]
"""Context length -> everything that the results depend on."""

logger = logging.getLogger("run_benchmarks")


def score_models(
    arguments: argparse.Namespace,
    task: str,
    title: str,
    keys_of: Callable[[str], Keys],
    score: Callable[[str, Keys, ResultFile, dict[str, Any]], None],
) -> Report:
    """Score every model where the output folder holds no results yet, and report all of them.

    Args:
        arguments: of the command line.
        task: of the results.
        title: the text that is scored, in words.
        keys_of: from a model to its keys in the log.
        score: adds the results of a model to the log, given the keys that are missing and the fields of all results.
            Its `ValueError` is the model's failure, and other models go on.
    """
    log = ResultFile(arguments.output_dir / LOG)
    report = Report()
    for model, name in zip(arguments.models, short_names(arguments.models), strict=True):
        keys = keys_of(model)
        if arguments.overwrite:
            for key in keys.values():
                log.forget(key)
        missing = {length: key for length, key in keys.items() if log.get(key) is None}
        if missing:
            run = scoring_run(arguments, task, model)
            shared = {"task": task, "model": name, "run": run, "seed": arguments.seed, "setting": {"data": title}}
            try:
                score(model, missing, log, shared | origin(arguments.benchmark))
            except ValueError as error:
                report.failures[name] = str(error)
                logger.error(f"{name}: {error}")
        if len(missing) < len(keys):
            logger.info(f"{name}: {len(keys) - len(missing)} of {len(keys)} results were there already")
        for key in keys.values():
            report.results += named(log.get(key), name)
    return report
