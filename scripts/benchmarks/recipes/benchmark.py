"""The benchmark `recipes` of run_benchmarks.py: what options of training and of a model are worth in equal seconds."""

import argparse
import dataclasses
import functools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_seqmix.analysis import iter_language_model_scores
from hf_seqmix.data import load_corpus
from hf_seqmix.training import merge_recipes, parse_overrides, read_recipe
from hf_seqmix.training.command import refuse_twice
from hf_seqmix.training.training_arguments import SeqMixTrainingArguments

from ..equal_seconds import timings_table, updates_in
from ..inputs import TEXT_OPTIONS, default_device, first_bytes, test_texts
from ..jobs import RATES, Job, contents_of, make_run
from ..language_results import TEST_METRICS, measure
from ..results import Report, keep_test_bytes, write_report
from ..training import check_jobs, refuse_fixed, train_all, training_arguments, with_precision
from .report import LONGER, PLAIN, best_factor, describe
from .variants import check_variants, parse_variants, refuse_hidden, sections_of, training_names

SECONDS = {"fast": 10.0, "reduced": 200.0, "full": 1200.0}

FAST_BYTES = 4000

logger = logging.getLogger("run_benchmarks")


def add_recipes(benchmarks: Any) -> None:
    """Add the sub-command `recipes`."""
    parser = benchmarks.add_parser(
        "recipes",
        parents=[training_arguments()],
        allow_abbrev=False,
        help="trains recipes with and without options, in equal seconds",
        description="Trains language models of recipes in equal seconds (CPU time on one thread, else of the wall), "
        "each plain and with options, each with several learning rates. Further seeds train with the best rate of the "
        "first seed alone. Every model is scored on the recipe's validation text, with --fast on four blocks, by "
        "which rates are chosen: in bits per byte, or in nats a token where the model is masked or the text was "
        "tokenized before. Causal models are scored once on the test split, too, if there is one, at the length of "
        f"training and at {LONGER} times that.",
    )
    parser.add_argument(
        "--recipe",
        nargs="+",
        required=True,
        type=Path,
        dest="recipes",
        help="recipes of pretrain.py, from scripts/recipes",
    )
    parser.add_argument(
        "--variant",
        nargs="+",
        action="append",
        default=[],
        dest="variants",
        metavar=("NAME", "FIELD=VALUE"),
        help="a name, and training arguments or fields of the configuration; several times for several variants",
    )
    parser.add_argument("--no-plain", action="store_true", help="only the variants, not the recipes as they are")
    parser.add_argument(
        "--rate-factors",
        nargs="+",
        type=float,
        default=[0.5, 1.0, 2.0],
        help="what the learning rates of a recipe or variant are multiplied by",
    )
    parser.add_argument("--max-seconds", type=float, help="seconds of each training, instead of the size's")
    parser.add_argument(
        "--evaluations",
        type=int,
        default=6,
        help="evaluations on the validation text, which make the curve of a training; 1 is the last alone",
    )
    parser.add_argument(
        "--test-bytes", type=int, metavar="BYTES", help="score the beginning of the test split alone; 0: nothing of it"
    )
    parser.add_argument(
        "--time-in-turns",
        type=int,
        metavar="ROUNDS",
        help="first time updates of all models in turns, so many rounds, and train each for the updates that take it "
        "the seconds by the median: the speed of the machine at one time or another favors none. By default each run "
        "times its own first updates",
    )
    parser.set_defaults(run=run_recipes)


def run_recipes(arguments: argparse.Namespace) -> Report:
    """Train what the output folder does not hold yet, and report all of it.

    Raises:
        ValueError: an argument makes no sense, or a recipe cannot be read.
    """
    variants = parse_variants(arguments.variants)
    if not arguments.no_plain:
        variants = {PLAIN: {}, **variants}
    if not variants:
        raise ValueError("--no-plain leaves nothing to train: give a --variant.")
    positive = {
        "--rate-factors": arguments.rate_factors,
        "--max-seconds": [arguments.max_seconds],
        "--time-in-turns": [arguments.time_in_turns],
        "--evaluations": [arguments.evaluations],
    }
    for name, numbers in positive.items():
        if any(number is not None and number <= 0 for number in numbers):
            raise ValueError(f"{name} must be positive; given {', '.join(map(str, numbers))}.")
    if arguments.test_bytes is not None and arguments.test_bytes < 0:
        raise ValueError(f"--test-bytes must be 0 or more; given {arguments.test_bytes}.")
    refuse_twice(rate_factors=arguments.rate_factors, seeds=arguments.seeds)
    refuse_fixed(arguments, "give rates in the recipe or in a --variant, and the length with --max-seconds")
    refuse_hidden(arguments, variants)
    models = {path.stem: read_recipe(path) for path in arguments.recipes}
    if len(models) < len(arguments.recipes):
        raise ValueError("two recipes have one name, by which results tell models apart: rename one.")
    check_variants(arguments, models, variants)
    for path, recipe in zip(arguments.recipes, models.values(), strict=True):
        check_validation(path, recipe)
    cases = [(model, variant) for model in models for variant in variants]

    updates: dict[str, int] = {}

    def job(model: str, variant: str, factor: float, seed: int) -> Job:
        number = updates.get(case_name(model, variant))
        return make_job(arguments, model, models[model], variant, variants[variant], factor, seed, number)

    first, *others = arguments.seeds
    if not arguments.costs:
        check_jobs(arguments, [job(*case, 1.0, first) for case in cases])
        redone = {"model": list(models), "variant": list(variants), "seed": arguments.seeds}
        redone |= {"rate_factor": arguments.rate_factors, "budget": [seconds_of(arguments)]}
        keep_test_bytes(arguments, test_bytes_of(arguments), **redone)
    if arguments.time_in_turns and not arguments.costs:
        kinds = [dataclasses.replace(job(*case, 1.0, first), name=case_name(*case)) for case in cases]
        seconds = seconds_of(arguments)
        check_jobs(arguments, kinds)
        kinds = with_precision(arguments, kinds)
        settings = "--recipe, --variant, --training, --config-overrides, --evaluations"
        updates |= updates_in(seconds, kinds, arguments.time_in_turns, arguments.output_dir, settings)
    tried = [job(*case, factor, first) for case in cases for factor in arguments.rate_factors]
    every = [*tried, *(job(*case, 1.0, seed) for case in cases for seed in others)]
    report = train_all(arguments, tried, measure, planned=every)
    if arguments.costs:
        return report
    best = {case: best_factor(report.results, *case) for case in cases}
    again = [job(*case, factor, seed) for case, factor in best.items() for seed in others if factor is not None]
    if again:
        later = train_all(arguments, again, measure, planned=[])
        report.results += later.results
        report.failures |= later.failures
    parts = describe(arguments.output_dir, report.results, best)
    if updates:
        parts.append("Updates timed in turns.\n\n" + timings_table(arguments.output_dir))
    write_report(arguments.output_dir, report, parts)
    return report


def check_validation(path: Path, recipe: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a recipe that streams data without a validation split, of which pretrain.py holds out none.

    Raises:
        ValueError: nothing would be evaluated.
    """
    data = recipe.get("data") or {}
    if not data.get("streaming") or data.get("validation_file"):
        return
    if data.get("dataset"):
        options = {name: data[name] for name in TEXT_OPTIONS if name in data}
        if "validation" in load_corpus(data["dataset"], streaming=True, **options):
            return
    raise ValueError(
        f"{path} streams data without a validation split, by which rates are chosen: give validation_file in its "
        "section data, or leave out streaming, so that a part is held out."
    )


def case_name(model: str, variant: str) -> str:
    """Return what a recipe with a variant is called in paths."""
    return f"{model}/{variant.replace(' ', '-')}"


def seconds_of(arguments: argparse.Namespace) -> float:
    """Return the budget of a training."""
    return float(arguments.max_seconds or SECONDS[arguments.size])


def test_bytes_of(arguments: argparse.Namespace) -> int | None:
    """Return how much of the test split is scored; None for all."""
    usual = FAST_BYTES if arguments.size == "fast" else None
    return usual if arguments.test_bytes is None else int(arguments.test_bytes)


def make_job(
    arguments: argparse.Namespace,
    model: str,
    recipe: Mapping[str, Mapping[str, Any]],
    variant: str,
    fields: Mapping[str, Any],
    factor: float,
    seed: int,
    updates: int | None,
) -> Job:
    """Return one training, with all settings of its recipe written out.

    Args:
        arguments: of the command line.
        model: name of the recipe.
        recipe: as read.
        variant: name of the variant.
        fields: of the variant.
        factor: of the rates.
        seed: of the training.
        updates: that take the model its seconds; None where the run finds out by a trial of its own.
    """
    seconds = seconds_of(arguments)
    merged = merge_recipes(recipe, sections_of(fields, training_names(arguments)))
    training = merged["training"]
    # As a float: YAML reads 1e-3 as text.
    rates = {name: float(training[name]) * factor for name in RATES if training.get(name) is not None}
    # What a recipe leaves to the script is multiplied, too.
    rates.setdefault("learning_rate", SeqMixTrainingArguments.learning_rate * factor)
    if {**training, **parse_overrides(arguments.training)}.get("optim") == "muon":
        rates.setdefault("muon_learning_rate", SeqMixTrainingArguments.muon_learning_rate * factor)
    every = 1 / arguments.evaluations
    # The script itself evaluates at the end.
    strategy = "steps" if arguments.evaluations > 1 else "no"
    # A share of the run is below 1: 1 would be every update.
    length: dict[str, Any] = {"eval_strategy": strategy, "eval_steps": every, "save_steps": min(every, 0.5)}
    if updates is None:
        length["max_seconds"] = seconds
    else:
        # A warm-up in updates stays as the recipe says, and would go with the length that it was laid out for.
        kept = {name: training[name] for name in ("warmup_steps",) if training.get(name) is not None}
        length |= {"max_steps": updates, **kept}
    data = {"max_eval_blocks": 4} if arguments.size == "fast" else {}
    run = make_run(
        "language modeling", merged, {"training": {**rates, **length}, "data": data}, arguments=arguments, seed=seed
    )
    labels = {
        "task": "language modeling",
        "model": model,
        "size": arguments.size,
        "setting": {"variant": variant, "rate_factor": factor, "budget": seconds},
    }
    name = f"{case_name(model, variant)}/factor-{factor:g}/seed-{seed}"
    probe = functools.partial(score_test, max_bytes=test_bytes_of(arguments))
    return Job(name, "pretrain.py", run, labels, updates, contents=contents_of(run), probe=probe)


def score_test(folder: Path, max_bytes: int | None = None) -> dict[str, Any]:
    """Return bits per byte of the test split of a run's data, at the length of training and `LONGER` times it.

    Args:
        folder: of the finished run.
        max_bytes: of the split's beginning that are scored; all by default.

    Returns:
        Nothing for masked models, for data from files or of tokens, and where there is no test split.
    """
    sections = json.loads((folder / "results.json").read_text(encoding="utf-8"))["arguments"]
    data = sections["data"]
    if max_bytes == 0 or sections["model"]["objective"] != "causal":
        return {}
    texts = test_texts(data)
    if texts is None:
        return {}
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = texts if max_bytes is None else first_bytes(texts, max_bytes)
    found = {}
    for metric, length in zip(TEST_METRICS, (data["block_size"], LONGER * data["block_size"]), strict=True):
        try:
            scores = iter_language_model_scores(
                model, tokenizer, texts, context_lengths=[length], device=default_device()
            )
            found[metric] = next(iter(scores)).bits_per_byte
        except ValueError as error:  # of a model whose positions end before
            logger.warning(f"{folder.name} is not scored at {length} tokens: {error}")
    return found
