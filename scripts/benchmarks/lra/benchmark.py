"""The benchmark `lra` of run_benchmarks.py: classifiers of every family on the tasks of the Long Range Arena."""

import argparse
import itertools
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_seqmix.data.labeled import load_labeled
from hf_seqmix.training import merge_recipes, parse_overrides, read_recipe
from hf_seqmix.training.command import refuse_twice

from ..inputs import default_device
from ..jobs import LENGTHS, SCRIPTS, Job, make_run
from ..listops_operators import ONE_OPERATOR, PLACES, one_operator, score_operators
from ..results import Report, select, write_report
from ..training import check_jobs, train_all, training_arguments
from . import pretraining
from .data import TaskData, data_folders, prepare_task
from .library import left_out, library_model, library_type
from .report import describe, measure, published, rules
from .sizes import BATCH_NORMED, CONTROL, FAMILIES, FULL_UPDATES, LEARNING, LEARNING_BATCH_NORMED, LIBRARY, SIZES

RECIPES = SCRIPTS / "recipes" / "lra"

CUT = ("text", "retrieval")
"""Tasks whose texts are cut: the label of their beginning is that of the whole."""
OPERATOR_SEED = 1
"""Of the expressions of one operator; those that are trained on have seed 0."""

SHARE, MASKED = 0.5, 0.15
"""Of the seconds, and of the tokens: what --self-pretrain takes unless it is said."""

logger = logging.getLogger("run_benchmarks")


def add_lra(benchmarks: Any) -> None:
    """Add the sub-command `lra`."""
    parser = benchmarks.add_parser(
        "lra",
        parents=[training_arguments()],
        allow_abbrev=False,
        help="trains classifiers on the tasks of the Long Range Arena",
        description="Trains classifiers of every family on tasks of the Long Range Arena. The checkpoint that is best "
        "on validation data is scored on the test data, once. Data that has no name on the Hub is generated (ListOps, "
        "Pathfinder, Path-X) or stood in for by another task of the same form (Retrieval), unless --data gives it. "
        "Without --full, models are trained on less and easier data: their figures are not the benchmark's.",
    )
    parser.add_argument(
        "--task", nargs="+", required=True, choices=list(SIZES), dest="tasks", help="tasks to train on"
    )
    parser.add_argument(
        "--families",
        nargs="+",
        choices=FAMILIES,
        help=f"by default all but the control {CONTROL}, which mixes five tokens and no more; {LIBRARY} is the "
        "transformer of the library of the size and recipe of attention, ModernBERT for texts, ViT for pictures, and "
        "has no --self-pretrain",
    )
    parser.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="TASK=FOLDER",
        help="folders with the benchmark's files (listops, retrieval) or with train.parquet, test.parquet (or .csv, "
        ".tsv, .jsonl) and perhaps validation.parquet; for retrieval also one of texts, whose passages make the "
        "substitute",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--max-steps", type=int, help="updates of each run, instead of the size's")
    length.add_argument(
        "--max-seconds", type=float, help="seconds of each run instead: of CPU time on one thread, else of the wall"
    )
    parser.add_argument(
        "--self-pretrain",
        action="store_true",
        help="train each family a second time, first by language modeling on the texts of the task's own training "
        "data, then on the labels: both in the --max-seconds of the run without; listops: on the value of every list "
        "within the expressions, and on nothing else",
    )
    parser.add_argument(
        "--pretrain-objective",
        choices=("masked", "causal"),
        default="masked",
        help="what --self-pretrain learns from texts: masked tokens, or each next one, by models that are causal in "
        "both stages",
    )
    parser.add_argument(
        "--no-plain", action="store_true", help="with --self-pretrain: only the runs that begin with pretraining"
    )
    parser.add_argument(
        "--pretrain-share",
        type=float,
        help=f"share of --max-seconds that --self-pretrain spends first, by default {SHARE}; listops: all of them",
    )
    parser.add_argument(
        "--mlm-probability",
        type=float,
        help=f"share of the tokens that --self-pretrain masks, by default {MASKED}; listops: none",
    )
    parser.add_argument("--learning-rate", type=float, help="learning rate of every run, instead of the size's")
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="BYTES",
        help="bytes of a text that models and their bag of words read, instead of the size's (text, retrieval)",
    )
    parser.set_defaults(run=run_lra)


def run_lra(arguments: argparse.Namespace) -> Report:
    """Train every family on every task with every seed where the output folder has no result yet, and report all.

    Raises:
        ValueError: an argument makes no sense, or data cannot be found.
    """
    if arguments.max_steps is not None and arguments.max_steps < 1:
        raise ValueError(f"--max-steps must be positive; given {arguments.max_steps}.")
    if arguments.learning_rate is not None and not arguments.learning_rate > 0:
        raise ValueError(f"--learning-rate must be positive; given {arguments.learning_rate}.")
    check_length(arguments)
    if arguments.families is None:
        omitted = (CONTROL, LIBRARY) if arguments.self_pretrain else (CONTROL,)
        arguments.families = [family for family in FAMILIES if family not in omitted]
    refuse_twice(task=arguments.tasks, families=arguments.families, seeds=arguments.seeds)
    check_seconds(arguments)
    folders = data_folders(arguments.data, arguments.tasks)
    # Before data is made, which takes minutes; where it will lie makes no difference here.
    unmade = TaskData({"train_file": "train.parquet"}, "")
    kinds = list(itertools.product(arguments.tasks, arguments.families))
    firsts = [make_job(arguments, *kind, arguments.seeds[0], unmade) for kind in kinds]
    check_jobs(arguments, firsts)
    for (task, family), job in zip(kinds, firsts, strict=True):
        if family == LIBRARY and (unused := left_out(parse_overrides(arguments.config_overrides), job.run.model)):
            named = f"--config-overrides {', '.join(unused)}"
            logger.warning(f"{task}: {named} without effect on {job.run.model['model_type']} of the library")
    data = {
        task: prepare_task(task, folders.get(task), arguments.output_dir, SIZES[task][arguments.size].data)
        for task in arguments.tasks
    }
    stages = (True,) if arguments.no_plain else (False, True) if arguments.self_pretrain else (False,)
    jobs = [
        make_job(arguments, task, family, seed, data[task], pretrain)
        for task in arguments.tasks
        for family in arguments.families
        for pretrain in stages
        for seed in arguments.seeds
    ]
    report = train_all(arguments, jobs, measure)
    if not arguments.costs:  # which train nothing: what is there stays
        for task in arguments.tasks:
            of_task = select(report.results, task=task)
            report.results += rules(of_task, data[task].baselines) + published(task, arguments.families, of_task)
        write_report(arguments.output_dir, report, describe(arguments.output_dir, report, arguments.tasks))
    return report


def check_length(arguments: argparse.Namespace) -> None:
    """Check the bytes that are read of a text.

    Raises:
        ValueError: there are none, or a task has no texts that may be cut.
    """
    length = arguments.max_length
    if length is None:
        return
    if length < 1:
        raise ValueError(f"--max-length must be at least 1 byte; given {length}.")
    whole = [task for task in arguments.tasks if task not in CUT]
    if whole:
        raise ValueError(
            f"--max-length cuts the texts of {' and '.join(CUT)}; {', '.join(whole)} cannot be told from a part: "
            "leave the option out for them."
        )


def check_seconds(arguments: argparse.Namespace) -> None:
    """Check what is said of seconds and of pretraining.

    Raises:
        ValueError: a number is out of range, there is no budget to share, or a task or a family has no such stage.
    """
    seconds, share, masked = arguments.max_seconds, arguments.pretrain_share, arguments.mlm_probability
    if seconds is not None and seconds <= 0:
        raise ValueError(f"--max-seconds must be positive; given {seconds}.")
    if not arguments.self_pretrain:
        if arguments.no_plain:
            raise ValueError("--no-plain leaves nothing to train without --self-pretrain.")
        if arguments.pretrain_objective == "causal":
            raise ValueError("--pretrain-objective causal has no effect without --self-pretrain: give both.")
        for option, value in (("--pretrain-share", share), ("--mlm-probability", masked)):
            if value is not None:
                raise ValueError(f"{option} {value} has no effect without --self-pretrain: give both.")
        return
    if lengths := [name for name in LENGTHS if name in parse_overrides(arguments.training)]:
        raise ValueError(
            f"--self-pretrain shares out seconds, but --training says {', '.join(lengths)}: give --max-seconds."
        )
    if arguments.max_steps is not None:
        raise ValueError("--self-pretrain shares out seconds: give --max-seconds instead of --max-steps.")
    if seconds is None and any(SIZES[task][arguments.size].seconds is None for task in arguments.tasks):
        raise ValueError("--self-pretrain shares out the seconds of a run: give --max-seconds.")
    for option, value in (("--pretrain-share", share), ("--mlm-probability", masked)):
        if value is None:
            continue
        if not 0 < value < 1:
            raise ValueError(f"{option} must lie between 0 and 1; given {value}.")
        if set(arguments.tasks) == {"listops"}:
            raise ValueError(
                f"{option} {value} has no effect on listops, which learns values of lists all the time: leave it out."
            )
    if masked is not None and arguments.pretrain_objective == "causal":
        raise ValueError(
            f"--mlm-probability {masked} has no effect with --pretrain-objective causal: leave out one of them."
        )
    if arguments.pretrain_objective == "causal":
        fixed = [name for name in (*arguments.tasks, *arguments.families) if name in ("listops", "ski_tnn")]
        if fixed:
            raise ValueError(
                f"--pretrain-objective causal is for text and retrieval, and for families with a causal form: leave "
                f"out {', '.join(fixed)}."
            )
    if LIBRARY in arguments.families:
        raise ValueError(f"--self-pretrain is for the families of this package: leave {LIBRARY} out of --families.")
    images = [task for task in arguments.tasks if task not in pretraining.TASKS]
    if images:
        raise ValueError(
            f"--self-pretrain is for tasks of texts ({', '.join(pretraining.TASKS)}): pretrain.py has no "
            f"objective for the pixels of {', '.join(images)}."
        )


def make_job(
    arguments: argparse.Namespace, task: str, family: str, seed: int, data: TaskData, pretrain: bool = False
) -> Job:
    """Return one training, as the size and the arguments say, with all settings of its recipe written out.

    Args:
        arguments: of the command line.
        task: of the Long Range Arena.
        family: of the task's recipe.
        seed: of the run.
        data: of the task.
        pretrain: whether a stage of pretraining takes its share of the seconds first.
    """
    size = SIZES[task][arguments.size]
    recipe = read_recipe(RECIPES / f"{task}.yaml", family="attention" if family == LIBRARY else family)
    if "train_file" in data.fields:
        recipe.get("data", {}).pop("dataset", None)
    training: dict[str, Any] = {}
    if size.batch is not None:
        training |= {"per_device_train_batch_size": size.batch, "per_device_eval_batch_size": size.batch}
    seconds = arguments.max_seconds or (None if arguments.max_steps else size.seconds)
    share = (1.0 if task == "listops" else arguments.pretrain_share or SHARE) if pretrain else 0.0
    updates = None if seconds else arguments.max_steps or size.updates
    if seconds or updates:
        # As many evaluations whatever the length: where that is in seconds, a share of the updates.
        every = max(1, math.ceil(updates / size.evaluations)) if updates else 1 / size.evaluations
        left = {"max_seconds": (seconds or 0) * (1 - share) if share else seconds, "warmup_steps": 0.1}
        training |= {"max_steps": updates} if updates else left
        training |= {"eval_strategy": "steps", "eval_steps": every, "save_strategy": "steps", "save_steps": every}
    learning = {}
    if size.seconds is not None:
        learning = merge_recipes(LEARNING, LEARNING_BATCH_NORMED if family in BATCH_NORMED else {})
    causal = pretrain and arguments.pretrain_objective == "causal"
    length = {} if arguments.max_length is None else {"max_length": arguments.max_length}
    rate = arguments.learning_rate or (size.learning_rates and size.learning_rates[family not in BATCH_NORMED])
    if rate:
        training["learning_rate"] = rate
    run = make_run(
        task,
        recipe,
        {"data": data.fields},
        learning,
        size.recipe,
        size.families.get(family, {}),
        {"data": length, "training": training},
        pretraining.CAUSAL if causal else {},
        LEARNING_BATCH_NORMED if causal and family in BATCH_NORMED else {},
        arguments=arguments,
        seed=seed,
    )
    patch, model, name = run.model.get("config_overrides", {}).get("patch_size", 1), family, family
    if family == LIBRARY:
        reads_images = "image_size" in run.model["config_overrides"]
        run, model = replace(run, model=library_model(run.model, reads_images)), library_type(reads_images)
    probe = None
    if task == "listops":
        probe = partial(probe_operators, fields=data.fields, use_cpu=bool(run.training.get("use_cpu")))
    source = data.source if patch == 1 else f"{data.source}, in patches of {patch} pixels a side"
    source += f", the first {arguments.max_length} bytes of a text" if length else ""
    expected = None if seconds else updates or FULL_UPDATES.get((family, task), 50_000)
    if not parse_overrides(arguments.training).keys().isdisjoint(LENGTHS):
        expected = run.training.get("max_steps")
    before, start = None, None
    if pretrain:
        masked = None if causal else arguments.mlm_probability or MASKED
        before = pretraining.pretraining_job(
            run, data.contents, share * (seconds or 0), masked, arguments.output_dir / "data"
        )
        if task == "listops":
            run, start = pretraining.scored_as_it_is(run), pretraining.classifier_of_values
        kind = f"{family}, causal" if causal else family
        model, name = f"{kind}, pretrained on the task", f"{family}-pretrained"
    return Job(
        f"{task}/{name}/seed-{seed}",
        "finetune.py",
        run,
        {"task": task, "model": model, "size": arguments.size, "setting": {"data": source}},
        expected,
        data.contents,
        probe,
        before,
        start,
    )


def probe_operators(folder: Path, fields: Mapping[str, Any], use_cpu: bool) -> dict[str, Any]:
    """Score the ListOps classifier of a finished run by operator, on the test data and on single operators.

    Args:
        folder: of the run.
        fields: of finetune.py's data arguments.
        use_cpu: whether an accelerator is left alone.
    """
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    rows = load_labeled({split: fields[f"{split}_file"] for split in ("train", "test")})
    splits = dict(zip(PLACES, (rows, one_operator(ONE_OPERATOR, OPERATOR_SEED)), strict=True))
    device = torch.device("cpu" if use_cpu else default_device())
    return {"operators": score_operators(model, AutoTokenizer.from_pretrained(folder), splits, device)}
