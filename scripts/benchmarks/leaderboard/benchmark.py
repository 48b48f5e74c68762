"""The benchmark `leaderboard`: every mixer in one block, with controls and hybrids, under equal conditions."""

import argparse
import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.data import build_tokenizer
from hf_seqmix.training import parse_overrides
from hf_seqmix.training.command import device_name, refuse_twice

from ..equal_seconds import updates_in
from ..jobs import Job
from ..results import Report, keep_test_bytes, write_report
from ..training import check_jobs, precision_of, refuse_fixed, train_all, training_arguments
from .costs import TOKENS, run_costs
from .models import names_of, recipe_of
from .options import HELD_OUT, PARTS, UPDATES, fill_in, refuse_unused
from .report import BUDGETS, at_best, best_factors, describe
from .runs import CHOSEN_BY, LANGUAGE, language_job, measure, task_job
from .tasks import TASKS, tasks_of, write_rows

DATA = ("dataset", "tokenizer", "block_size")
"""Fields of the data of a recipe that language models may have otherwise."""
RIVAL = {"causal": "llama", "masked": "bert"}
"""Objective -> the model whose tokens, in its seconds, all models see in the table of equal tokens."""

logger = logging.getLogger("run_benchmarks")


def add_leaderboard(benchmarks: Any) -> None:
    """Add the sub-command `leaderboard`."""
    parser = benchmarks.add_parser(
        "leaderboard",
        parents=[training_arguments(refused=("--full", "--config-overrides"))],
        allow_abbrev=False,
        help="every mixer, the controls and hybrids in one block, under equal conditions",
        description="Trains models of equal parameters, within 1 %, that differ in their mixers alone: as language "
        "models for equal seconds and then on equal tokens, and as small models of synthetic tasks (recall, needles, "
        "copying, counting). Rates are swept with the first seed, for all models alike. Costs are of training and of "
        "decoding at several lengths. What the output folder holds already is not done again, so that models, parts "
        "and seeds may be added. The whole takes about 40 hours of a core, and an hour and a half with --fast, where "
        "three --models and one of --tasks take five minutes. There is no published size.",
    )
    parser.add_argument(
        "--objective", default="causal", choices=list(LANGUAGE), help="causal or masked language modeling"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        default=list(PARTS),
        choices=PARTS,
        help="what is compared: language models, synthetic tasks, costs",
    )
    known = "; ".join(f"{objective}: {', '.join(names_of(objective))}" for objective in LANGUAGE)
    parser.add_argument("--models", nargs="+", help=f"all by default; {known}")
    parser.add_argument(
        "--budgets",
        nargs="+",
        choices=list(BUDGETS),
        help="what is equal among language models, both by default; tokens are those of the rival in its seconds, so "
        "these come first",
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), help="synthetic ones; all by default")
    parser.add_argument(
        "--rate-factors",
        nargs="+",
        type=float,
        help="factors on the recipe's learning rates, 0.5 1 2 by default; the first seed chooses one",
    )
    parser.add_argument("--max-seconds", type=float, help="seconds of each language model, instead of the size's")
    parser.add_argument("--updates", type=int, help="updates on each synthetic task, instead of the size's")
    parser.add_argument("--evaluations", type=int, help="evaluations on validation text, for curves; 6 by default")
    parser.add_argument("--test-bytes", type=int, metavar="BYTES", help="bytes of held-out text to score; 0: none")
    parser.add_argument(
        "--time-in-turns", type=int, metavar="ROUNDS", help="rounds of timed updates, see recipes; 2 by default"
    )
    parser.add_argument("--lengths", nargs="+", type=int, help="tokens of timed rows; 512 2048 8192 by default")
    parser.add_argument("--prompts", nargs="+", type=int, help="tokens before timed decoding; 2048 16384 by default")
    parser.add_argument("--rounds", type=int, help="timed rounds of costs, instead of the size's")
    parser.add_argument(
        "--times-as-wide", type=int, default=1, help="factor on the channels of language models, and of costs"
    )
    parser.add_argument(
        "--data",
        nargs="+",
        action="extend",
        default=[],
        metavar="FIELD=VALUE",
        help=f"data of language models instead of the recipes': {', '.join(DATA)}",
    )
    parser.add_argument(
        "--tokens", type=int, help=f"tokens of an update whose costs are measured; {TOKENS} by default, --fast: a row"
    )
    parser.add_argument(
        "--device", type=device_name, help="where costs are measured; by default an accelerator if there is one"
    )
    parser.set_defaults(run=run_leaderboard)


def run_leaderboard(arguments: argparse.Namespace) -> Report:
    """Do what the output folder does not hold yet, and report all of it.

    Raises:
        ValueError: an argument makes no sense.
    """
    check(arguments)
    if "language" in arguments.parts or "costs" in arguments.parts:
        arguments.vocab_size = _vocabulary(arguments)
    check_jobs(arguments, kinds(arguments))
    arguments.bf16 = precision_of(arguments, width=160)["dtype"] == "bfloat16"
    report = Report()
    for part, do in (("language", run_language), ("tasks", run_tasks), ("costs", run_costs)):
        if part in arguments.parts:
            found = do(arguments)
            report.results += found.results
            report.failures |= found.failures
    if not arguments.costs:
        write_report(arguments.output_dir, report, describe(arguments.output_dir, report.results))
    return report


def check(arguments: argparse.Namespace) -> None:
    """Fill in what depends on the size and the objective.

    Raises:
        ValueError: a model or task is not of the objective or named twice, a number is out of range, or models would
            no longer be equal.
    """
    if arguments.size == "full":
        raise ValueError("leaderboard has no published size: leave out --full.")
    if arguments.config_overrides:
        raise ValueError(
            f"--config-overrides {' '.join(arguments.config_overrides)} would change models after they were made equal"
            " in parameters, and none whose costs are measured: change the recipes in scripts/recipes/leaderboard."
        )
    refuse_fixed(
        arguments, "give rates in scripts/recipes/leaderboard, and the length with --max-seconds or --updates"
    )
    refuse_unused(arguments)
    fill_in(arguments)
    known, tasks = names_of(arguments.objective), tasks_of(arguments.objective)
    arguments.models = arguments.models or known
    arguments.tasks = arguments.tasks or tasks
    for option, given, allowed in (("--models", arguments.models, known), ("--tasks", arguments.tasks, tasks)):
        if wrong := [name for name in given if name not in allowed]:
            raise ValueError(
                f"there is no {arguments.objective} form of {', '.join(wrong)}; {option} may be {', '.join(allowed)}."
            )
    refuse_twice(
        **{name: getattr(arguments, name) for name in ("models", "tasks", "budgets", "seeds", "rate_factors")}
    )
    numbers = ("max_seconds", "updates", "evaluations", "time_in_turns", "rounds", "times_as_wide", "tokens")
    for name, given in [(n, [getattr(arguments, n)]) for n in numbers] + [
        (n, getattr(arguments, n)) for n in ("rate_factors", "lengths", "prompts")
    ]:
        if wrong := [value for value in given if value is not None and value <= 0]:
            raise ValueError(f"--{name.replace('_', '-')} must be positive; given {min(wrong)}.")
    if (arguments.times_as_wide > 1 or arguments.data) and "tasks" in arguments.parts:
        raise ValueError(
            "--times-as-wide and --data are of language models and of costs, and models of synthetic tasks have "
            "neither: give --parts language costs, and an --output-dir of its own."
        )
    if wrong := sorted(set(parse_overrides(arguments.data)) - set(DATA)):
        raise ValueError(f"--data says {', '.join(wrong)}; allowed are {', '.join(DATA)}.")
    if arguments.test_bytes < 0:
        raise ValueError(f"--test-bytes must be 0 or more; given {arguments.test_bytes}.")


def kinds(arguments: argparse.Namespace) -> list[Job]:
    """Return a training of each kind, to be checked before anything is written: rows and precision do not matter."""
    arguments.bf16, seed = False, arguments.seeds[0]
    jobs: list[Job] = []
    if "language" in arguments.parts:
        jobs += [language_job(arguments, name, 1.0, seed, "seconds", None) for name in with_rival(arguments)]
    if "tasks" in arguments.parts:
        unmade = defaultdict[str, Path](Path)
        jobs += [
            task_job(arguments, task, unmade, name, 1.0, seed) for task in arguments.tasks for name in arguments.models
        ]
    return jobs


def with_rival(arguments: argparse.Namespace) -> list[str]:
    """Return the models whose updates are timed."""
    return list(dict.fromkeys([*arguments.models, RIVAL[arguments.objective]]))


def run_language(arguments: argparse.Namespace) -> Report:
    """Train language models: rates in equal seconds, then further seeds, and, if wanted, the best on equal tokens."""
    updates: dict[str, int] = {}
    if not arguments.costs:
        timed = [
            dataclasses.replace(language_job(arguments, name, 1.0, arguments.seeds[0], "seconds", None), name=name)
            for name in with_rival(arguments)
        ]
        redone = {"model": arguments.models, "seed": arguments.seeds, "budget": arguments.budgets}
        keep_test_bytes(arguments, arguments.test_bytes, **redone, rate_factor=arguments.rate_factors)
        settings = "--training, --data, --times-as-wide, --evaluations"
        rival = RIVAL[arguments.objective]
        rounds = arguments.time_in_turns
        updates = updates_in(arguments.max_seconds, timed, rounds, arguments.output_dir, settings, rival)

    def job(budget: str, name: str, factor: float, seed: int) -> Job:
        worth = updates.get(name if budget == "seconds" else RIVAL[arguments.objective])
        return language_job(arguments, name, factor, seed, budget, worth)

    def trained_for(budget: str, cases: Sequence[tuple[str, float, int]]) -> Report:
        return train_all(arguments, [job(budget, *case) for case in cases], measure)

    report = _swept(
        arguments, lambda cases: trained_for("seconds", cases), CHOSEN_BY[arguments.objective], arguments.models
    )
    metric, rival = CHOSEN_BY[arguments.objective], RIVAL[arguments.objective]
    if "tokens" not in arguments.budgets:
        return report
    if arguments.costs:
        logger.info(
            f"Equal tokens come on top: those that {rival} sees in its seconds, which others see in more or fewer."
        )
        return report
    best = best_factors(report.results, metric)
    again = [(name, best[name], seed) for name in arguments.models if name in best for seed in arguments.seeds]
    tokens = trained_for("tokens", [case for case in again if case[0] != rival])
    # The tokens are those that the rival had in its seconds.
    same = [result for result in at_best(report.results, metric) if result.model == rival]
    tokens.results += [dataclasses.replace(r, setting={**r.setting, "budget": "tokens"}) for r in same]
    return Report(report.results + tokens.results, report.failures | tokens.failures)


def run_tasks(arguments: argparse.Namespace) -> Report:
    """Train small models of each synthetic task, all on the same rows."""
    report = Report()
    for task in arguments.tasks:
        num_rows = min(arguments.updates, UPDATES["reduced"]) * 32
        files = write_rows(
            task, arguments.objective, num_rows, HELD_OUT[arguments.size], arguments.output_dir / "data"
        )

        def train(cases: Sequence[tuple[str, float, int]], task: str = task, files: Any = files) -> Report:
            return train_all(arguments, [task_job(arguments, task, files, *case) for case in cases], measure)

        found = _swept(arguments, train, "token_loss", arguments.models)
        report.results += found.results
        report.failures |= found.failures
    return report


def _swept(
    arguments: argparse.Namespace,
    train: Callable[[Sequence[tuple[str, float, int]]], Report],
    metric: str,
    names: Sequence[str],
) -> Report:
    """Train each model with every rate on the first seed, and with the best rate on the others.

    Where only costs are said, which the rates do not change, that is of all seeds at once.
    """
    first, *others = arguments.seeds
    cases = [(name, factor, first) for name in names for factor in arguments.rate_factors]
    if arguments.costs:
        return train([*cases, *((name, arguments.rate_factors[0], seed) for name in names for seed in others)])
    report = train(cases)
    best = best_factors(report.results, metric)
    again = [(name, best[name], seed) for name in names if name in best for seed in others]
    if again:
        later = train(again)
        report = Report(report.results + later.results, report.failures | later.failures)
    return report


def _vocabulary(arguments: argparse.Namespace) -> int:
    """Return how many tokens the tokenizer has: as its name says, where one is to be trained."""
    recipe = recipe_of(arguments.objective, RIVAL[arguments.objective])
    tokenizer = str({**recipe["data"], **parse_overrides(arguments.data)}["tokenizer"])
    size = tokenizer.removeprefix("bpe:")
    return int(size) if size.isdecimal() else len(build_tokenizer(tokenizer))
