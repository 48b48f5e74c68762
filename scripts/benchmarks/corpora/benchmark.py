"""The benchmark `corpora`: language models of every family, scored far beyond their training length."""

import argparse
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_seqmix.data import count_bytes
from hf_seqmix.training import merge_recipes, parse_overrides, read_recipe
from hf_seqmix.training.command import device_name, refuse_twice
from hf_seqmix.training.environment import fingerprint
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result, group_results

from ..inputs import first_bytes
from ..jobs import SCRIPTS, Job, make_run
from ..results import LOG, Report, origin, write_report
from ..training import check_jobs, train_all, training_arguments
from .data import CORPORA, CorpusData, read_corpus
from .report import describe, published
from .scoring import ON_GRID, TrainedModel, references, score_lengths

RECIPES = SCRIPTS / "recipes"

FAMILIES = {
    "causal": ("tnn", "fd_tnn", "ipa", "ipa_prod", "poly3", "hybrid", "short_conv", "attention", "llama"),
    "masked": ("tnn", "ski_tnn", "fd_tnn", "ipa", "poly3", "attention"),
}

SMALL_ONLY = ("ipa_prod", "hybrid", "short_conv", "llama")
"""Families without settings at the published size."""

PUBLISHED_RECIPES = {
    ("causal", "tnn"): "tnn-wikitext103",
    ("causal", "fd_tnn"): "fd-tnn-wikitext103",
    ("masked", "tnn"): "tnn-wikitext103-masked",
    ("masked", "ski_tnn"): "ski-tnn-wikitext103-masked",
    ("masked", "fd_tnn"): "fd-tnn-wikitext103-masked",
}
"""Settings of the papers; recipes/corpora/wikitext103*.yaml hold the other families at their size."""

TRAINED_LENGTH = 512  # tokens, published
LENGTHS = {"fast": [512, 1024], "reduced": [512, 1024, 2048, 4096, 8192, 16384]}
MAX_BYTES = {"fast": 20_000, "reduced": 200_000, "full": None}
"""Of the test text that is scored."""

FAST: dict[str, dict[str, Any]] = {
    "model": {"config_overrides": {"hidden_size": 32, "num_hidden_layers": 2}},
    "data": {"max_eval_blocks": 8},
    "training": {
        "max_steps": 20,
        "warmup_steps": 5,
        "logging_steps": 5,
        "eval_strategy": "no",
        "save_steps": 10,
        "load_best_model_at_end": False,
    },
}
FAST_WIDTHS = {"ipa": 88, "ipa_prod": 88, "poly3": 59, "attention": 59}
FAST_TOKENIZER = "bpe:1024"
FAST_TRAIN_BYTES = 500_000  # more takes longer to tokenize than the models take to train

LENGTH_IN_SECONDS: dict[str, Any] = {"eval_steps": 0.25, "save_steps": 0.25, "warmup_steps": 0.1}
FREE = {"use_cpu", "disable_tqdm", "bf16", "report_to", "save_total_limit", "logging_steps"}
"""Arguments of training that change no setting that papers give."""
PASSES = 20  # of a smaller corpus than WikiText-103 at the full size, which 50,000 updates would learn by heart
BYTES_PER_TOKEN = 4.0  # about, of GPT-2's tokens in English


def add_corpora(benchmarks: Any) -> None:
    """Add the sub-command `corpora`."""
    parser = benchmarks.add_parser(
        "corpora",
        parents=[training_arguments()],
        allow_abbrev=False,
        help="trains language models and scores them at inference lengths beyond their training length",
        description="Trains a language model of every family on one corpus, each for as many seconds (20 minutes of "
        "one thread at the reduced size) or, with --max-steps, on as many tokens, and scores each on the test text at "
        "several inference lengths: perplexity per token and bits per byte, beside an n-gram and xz. Training keeps "
        "the checkpoint that is best on validation data; the test text is only scored. --full is the published "
        "setting for wikitext-103; elsewhere it is that model and schedule for 20 passes. Corpora but wikitext-103 "
        "(from the Hub, without --data-dir) and python-stdlib are read from --data-dir.",
    )
    parser.add_argument("--corpus", required=True, choices=list(CORPORA), help="the text to train on and to score")
    parser.add_argument("--data-dir", type=Path, help="folder with the corpus's files")
    parser.add_argument("--objective", default="causal", choices=list(FAMILIES), help="what models are trained for")
    known = "; ".join(f"{objective}: {', '.join(families)}" for objective, families in FAMILIES.items())
    small = f"with --full none of {', '.join(SMALL_ONLY)}"
    parser.add_argument("--families", nargs="+", help=f"all by default; {known}; {small}")
    parser.add_argument(
        "--tokenizer", help="byte, bpe:SIZE (trained on the training text), or a pretrained one's name or folder"
    )
    parser.add_argument("--context-length", type=int, default=TRAINED_LENGTH, help="tokens of context in training")
    parser.add_argument("--max-steps", type=int, help="updates of each run, instead of the size's length")
    parser.add_argument("--max-seconds", type=float, help="seconds of each training, instead of the size's length")
    parser.add_argument(
        "--inference-lengths", type=int, nargs="+", help="tokens of context in scoring; 512 to 16384, --fast: to 1024"
    )
    parser.add_argument("--max-bytes", type=int, help="score only the beginning of the test text; reduced: 200,000")
    kept = "score FD-TNN with kernels as long as trained, not on a grid for the inference length"
    parser.add_argument("--keep-grid", action="store_true", help=kept)
    parser.add_argument("--ngram", type=int, default=5, metavar="N", help="order of the n-gram of bytes")
    parser.add_argument(
        "--batch-size", type=int, help="sequences per forward in scoring; from their length by default"
    )
    parser.add_argument("--device", type=device_name, help="where to score; by default an accelerator if there is one")
    parser.add_argument(
        "--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="data type of scoring"
    )
    parser.set_defaults(run=run_corpora)


def run_corpora(arguments: argparse.Namespace) -> Report:
    """Train and score what the output folder does not hold yet, and report all of it.

    Raises:
        ValueError: an argument makes no sense, or the corpus cannot be read.
    """
    check(arguments)
    train_limit = FAST_TRAIN_BYTES if arguments.size == "fast" else None
    data = read_corpus(arguments.corpus, arguments.data_dir, arguments.output_dir, train_limit)
    texts = data.texts["test"]
    limit = arguments.max_bytes or MAX_BYTES[arguments.size]
    texts = texts if limit is None else first_bytes(texts, limit)

    scored = f"{sum(map(count_bytes, texts)):,} of {sum(map(count_bytes, data.texts['test'])):,} test bytes"
    title = f"{arguments.corpus}: {data.title}; trained at {arguments.context_length} tokens, {scored} scored"
    shared = {"task": task_of(arguments), "size": arguments.size, "setting": {"data": title}}
    jobs = [
        make_job(arguments, family, seed, data, shared) for family in arguments.families for seed in arguments.seeds
    ]
    check_jobs(arguments, jobs)
    data.write()
    report = train_all(arguments, jobs, measure)
    if arguments.costs:
        return report
    done = {(result.model, result.seed) for result in report.results}
    models = [
        TrainedModel(*who, job.folder(arguments.output_dir), job.portable(arguments.output_dir))
        for job in jobs
        if (who := (job.labels["model"], job.run.seed)) in done
    ]
    lost = [str(model.folder) for model in models if not (model.folder / "config.json").is_file()]
    if lost:
        raise ValueError(f"there is no model in {', '.join(lost)} any more: train it again with --overwrite.")
    log = ResultFile(arguments.output_dir / LOG)
    fields = {**shared, **origin(arguments.benchmark)}
    scores = score_lengths(arguments, models, texts, log, fields)
    report.results += scores.results
    if models:
        report.results += references(arguments, models, data.texts["train"], texts, log, fields)
        # What the log holds is the same whatever else an earlier command said of it: all of a report have one title.
        report.results = [dataclasses.replace(r, setting={**r.setting, "data": title}) for r in report.results]
        report.results += published(arguments.corpus, arguments.objective)
    parts = describe(arguments, report.results, scores.failures, title, models) if scores.results else []
    write_report(arguments.output_dir, report, parts)
    return report


def task_of(arguments: argparse.Namespace) -> str:
    """Return what the models of an objective do."""
    return "language modeling" if arguments.objective == "causal" else "masked language modeling"


def check(arguments: argparse.Namespace) -> None:
    """Fill in what depends on other arguments.

    Raises:
        ValueError: a family does not do the objective, is unknown or given twice, or a number is out of range.
    """
    allowed, where = FAMILIES[arguments.objective], "here"
    if arguments.size == "full":
        allowed, where = tuple(family for family in allowed if family not in SMALL_ONLY), "at the published size"
    if arguments.families is None:
        arguments.families = list(allowed)
    wrong = [family for family in arguments.families if family not in allowed]
    if wrong:
        why = "SKI-TNN has no causal form. " if "ski_tnn" in wrong else ""
        raise ValueError(
            f"there is no {arguments.objective} model of {', '.join(wrong)} {where}. {why}"
            f"Choose from {', '.join(allowed)}."
        )
    refuse_twice(families=arguments.families, seeds=arguments.seeds)
    if arguments.keep_grid and ON_GRID not in arguments.families:
        raise ValueError(f"--keep-grid has no effect without {ON_GRID} among --families: leave it out, or add that.")
    if arguments.inference_lengths is None:
        arguments.inference_lengths = LENGTHS["fast" if arguments.size == "fast" else "reduced"]
    arguments.inference_lengths = sorted(set(arguments.inference_lengths))
    for option, value, least in (
        ("--inference-lengths", arguments.inference_lengths[0], 2),
        ("--context-length", arguments.context_length, 2),
        ("--max-steps", arguments.max_steps, 1),
        ("--max-seconds", arguments.max_seconds, 1),
        ("--max-bytes", arguments.max_bytes, 1),
        ("--batch-size", arguments.batch_size, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{option} is {value}; it must be at least {least}.")
    if arguments.max_steps is not None and arguments.max_seconds is not None:
        raise ValueError("--max-steps and --max-seconds both say how long to train; give one of them.")
    if not 1 <= arguments.ngram <= 7:
        raise ValueError(f"--ngram is {arguments.ngram}; an n-gram of bytes can have an order of 1 to 7.")


def make_job(
    arguments: argparse.Namespace, family: str, seed: int, data: CorpusData, shared: Mapping[str, Any]
) -> Job:
    """Return one training, with all settings of its recipe written out."""
    path, own_family = recipe_of(arguments, family)
    recipe = read_recipe(path, family=own_family)
    overrides, training = recipe["model"]["config_overrides"], recipe["training"]
    own_tokenizer = recipe["data"].pop("tokenizer", FAST_TOKENIZER if arguments.size == "fast" else data.tokenizer)
    tokenizer = arguments.tokenizer or ("byte" if data.tokenizer == "byte" else own_tokenizer)
    recipe["data"].pop("dataset", None)
    made = tokenizer == "byte" or tokenizer.startswith("bpe:")
    if made:
        overrides.pop("vocab_size", None)  # the published vocabulary's
    if arguments.size == "full":
        training |= {"load_best_model_at_end": True, "metric_for_best_model": "token_loss", "greater_is_better": False}
        if arguments.corpus != "wikitext-103":
            training |= passes(arguments, training, data, tokenizer)
    changes: dict[str, dict[str, Any]] = {
        "model": {"config_overrides": {"max_position_embeddings": arguments.context_length}},
        "data": {"tokenizer": tokenizer, "block_size": arguments.context_length, **data.fields},
    }
    if arguments.size == "fast":
        own: dict[str, Any] = {"intermediate_size": FAST_WIDTHS[family]} if family in FAST_WIDTHS else {}
        if "mixer_types" in overrides:
            own["mixer_types"] = list(dict.fromkeys(overrides["mixer_types"]))  # a layer of each kind
        changes = merge_recipes(changes, FAST, {"model": {"config_overrides": own}})
    if arguments.max_seconds is not None:
        changes.get("training", {}).pop("max_steps", None)  # of the fast size
        changes = merge_recipes(changes, {"training": {**LENGTH_IN_SECONDS, "max_seconds": arguments.max_seconds}})
    elif arguments.max_steps is not None:
        every = max(1, math.ceil(arguments.max_steps / 4))
        warmup = max(1, min(int(training["warmup_steps"]), arguments.max_steps // 10))
        steps = {"max_steps": arguments.max_steps, "eval_steps": every, "save_steps": every, "warmup_steps": warmup}
        changes = merge_recipes(changes, {"training": steps})
    run = make_run(str(shared["task"]), recipe, changes, arguments=arguments, seed=seed)
    changed = [arguments.max_steps, arguments.max_seconds, arguments.tokenizer]
    as_published = not any(value is not None for value in changed) and arguments.context_length == TRAINED_LENGTH
    own_training = set(parse_overrides(arguments.training)) - FREE
    as_published = as_published and not arguments.config_overrides and not own_training
    published_settings = arguments.corpus == "wikitext-103" and own_family is None and as_published
    setting = {**shared["setting"], "published_settings": published_settings}
    name = f"{data.name}/{arguments.objective}/{family}/seed-{seed}"
    contents = {} if made else {"tokenizer": fingerprint(Path(tokenizer), contents=True)}
    labels = {**shared, "model": family, "setting": setting}
    return Job(name, "pretrain.py", run, labels, run.training.get("max_steps"), contents)


def passes(
    arguments: argparse.Namespace, training: Mapping[str, Any], data: CorpusData, tokenizer: str
) -> dict[str, int]:
    """Return the length of a run of `PASSES` over the training text."""
    per_token = 1.0 if tokenizer == "byte" else BYTES_PER_TOKEN
    tokens = sum(map(count_bytes, data.texts["train"])) / per_token
    updates = math.ceil(PASSES * tokens / (training["global_batch_size"] * arguments.context_length))
    every = max(1, updates // 20)
    return {
        "max_steps": updates,
        "warmup_steps": max(1, updates // 12),
        "eval_steps": every,
        "save_steps": every,
        "logging_steps": max(1, updates // 100),
    }


def recipe_of(arguments: argparse.Namespace, family: str) -> tuple[Path, str | None]:
    """Return the recipe of a run, and which of its families it is, if it has several."""
    if arguments.size != "full":
        return RECIPES / "corpora" / f"{arguments.objective}.yaml", family
    published = PUBLISHED_RECIPES.get((arguments.objective, family))
    if published is not None:
        return RECIPES / f"{published}.yaml", None
    masked = "-masked" if arguments.objective == "masked" else ""
    return RECIPES / "corpora" / f"wikitext103{masked}.yaml", family


def measure(found: Mapping[str, Any], shared: dict[str, Any]) -> list[Result]:
    """Return the results of a run's results.json."""
    validation, memory = found["evaluation"], found["peak_memory_bytes"]
    shared["environment"] |= {"memory_of": found["memory_of"]}
    values = {
        "validation_perplexity": validation["perplexity"],
        "validation_bits_per_byte": validation.get("bits_per_byte"),
        "validation_tokens": validation["num_tokens"],
        "num_parameters": found["num_parameters"],
        "num_train_tokens": found["num_train_tokens"],
        "updates": found["num_updates"],
        "steps_per_second": found["steps_per_second"],
        "peak_memory_mib": memory / 2**20 if memory else None,
        # on the clock of the budget, which on one thread other work does not touch
        "train_seconds": (found["seconds_per_update"] or 0) * found["num_updates"] or found["train_seconds"],
    }
    curves = {"train_loss": found["train_loss_curve"], "validation_loss": found["eval_loss_curve"]}
    return group_results({**values, **curves}, **shared)
