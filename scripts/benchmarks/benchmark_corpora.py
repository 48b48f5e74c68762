"""The benchmark `corpora` of run_benchmarks.py: language models of every family, scored far beyond their training length."""

import argparse
import dataclasses
import math
import shlex
from pathlib import Path
from typing import Any

from pretrain import DataArguments, ModelArguments, RunArguments
from transformers import TrainingArguments

from hf_seqmix._files import write_json
from hf_seqmix.analysis.report import ResultLog
from hf_seqmix.data import count_bytes
from hf_seqmix.training import read_recipe, recipe_arguments
from hf_seqmix.training.results import run_environment

from .benchmark_inputs import first_bytes, text_hash
from .benchmark_training import SCRIPTS, TrainingRun, train_all, training_arguments
from .corpora_data import CORPORA, CorpusData, prepare_corpus
from .corpora_report import write_report
from .corpora_scoring import TrainedModel, references, score_lengths

RECIPES = SCRIPTS / "recipes"

FAMILIES = {
    "causal": ("tnn", "fd_tnn", "ipa", "poly3", "attention"),
    "masked": ("tnn", "ski_tnn", "fd_tnn", "ipa", "poly3", "attention"),
}

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

FAST = (
    "--config-overrides hidden_size=32 num_hidden_layers=2 --max-steps 20 --warmup-steps 5 --logging-steps 5"
    " --eval-strategy no --save-steps 10 --load-best-model-at-end false --max-eval-blocks 8"
)
FAST_WIDTHS = {"ipa": 88, "poly3": 59, "attention": 59}
FAST_TOKENIZER = "bpe:1024"
FAST_TRAIN_BYTES = 500_000  # more takes longer to tokenize than the models take to train

PASSES = 20  # of another corpus than WikiText-103 at the full size: 50,000 updates of a small one would only learn it by heart
BYTES_PER_TOKEN = 4.0  # about, of GPT-2's tokens in English


def add_corpora(benchmarks: Any) -> None:
    """Adds the sub-command `corpora`."""
    parser = benchmarks.add_parser(
        "corpora",
        parents=[training_arguments()],
        allow_abbrev=False,
        help="trains language models and scores them at inference lengths beyond their training length",
        description="Trains a language model of every family on one corpus, all on equally many tokens, and scores each on "
        "the test text at several inference lengths: perplexity per token and bits per byte, beside an n-gram and xz. "
        "Training keeps the checkpoint that is best on validation data; the test text is only scored. "
        "--full is the published setting for wikitext-103; elsewhere it is that model and schedule for 20 passes. "
        "Corpora but wikitext-103 (from the Hub, without --data-dir) and python-stdlib are read from --data-dir.",
    )
    parser.add_argument("--corpus", required=True, choices=list(CORPORA))
    parser.add_argument("--data-dir", type=Path, help="folder with the corpus's files")
    parser.add_argument("--objective", default="causal", choices=list(FAMILIES))
    parser.add_argument("--families", nargs="+", help="some of tnn, ski_tnn (masked), fd_tnn, ipa, poly3, attention")
    parser.add_argument(
        "--tokenizer", help="byte, bpe:SIZE (trained on the training text), or a pretrained one's name or folder"
    )
    parser.add_argument("--context-length", type=int, default=TRAINED_LENGTH, help="tokens of context in training")
    parser.add_argument("--max-steps", type=int, help="updates of each run, instead of the size's")
    parser.add_argument(
        "--inference-lengths", type=int, nargs="+", help="tokens of context in scoring; 512 to 16384, --fast: to 1024"
    )
    parser.add_argument("--max-bytes", type=int, help="score only the beginning of the test text; reduced: 200,000")
    parser.add_argument(
        "--keep-grid",
        action="store_true",
        help="score FD-TNN with kernels as long as trained, not on a grid for the inference length",
    )
    parser.add_argument("--ngram", type=int, default=5, metavar="N", help="order of the n-gram of bytes")
    parser.add_argument(
        "--batch-size", type=int, help="sequences per forward in scoring; from their length by default"
    )
    parser.add_argument("--device", help="of scoring, such as cpu; by default an accelerator if there is one")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="of scoring")
    parser.set_defaults(run=run_corpora)


def run_corpora(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains and scores what the output folder does not hold yet, and reports all of it.

    Raises:
        ValueError: an argument makes no sense, or the corpus cannot be read.
    """
    check(arguments)
    train_limit = FAST_TRAIN_BYTES if arguments.size == "fast" else None
    data = prepare_corpus(arguments.corpus, arguments.data_dir, arguments.output_dir, train_limit)
    texts = data.texts["test"]
    limit = arguments.max_bytes or MAX_BYTES[arguments.size]
    texts = texts if limit is None else first_bytes(texts, limit)

    runs = [make_run(arguments, family, seed, data) for family in arguments.families for seed in arguments.seeds]
    trained, failures = train_all(arguments, runs, measure)
    done = {(row["family"], row["seed"]) for row in trained}
    models = [
        TrainedModel(run.labels["family"], run.labels["seed"], run.folder(arguments.output_dir))
        for run in runs
        if (run.labels["family"], run.labels["seed"]) in done
    ]
    lost = [str(model.folder) for model in models if not (model.folder / "config.json").is_file()]
    if lost:
        raise ValueError(f"There is no model in {', '.join(lost)} any more: train it again with --overwrite.")
    log = ResultLog(arguments.output_dir / "results.jsonl")
    if arguments.costs:
        models = []
    scores, impossible = score_lengths(arguments, models, texts, log)
    report = {
        "benchmark": arguments.benchmark,
        "corpus": arguments.corpus,
        "size": arguments.size,
        "objective": arguments.objective,
        "context_length": arguments.context_length,
        "seeds": arguments.seeds,
        "text": {
            "source": data.title,
            "sha256": text_hash(texts),
            "documents": len(texts),
            "bytes": sum(map(count_bytes, texts)),
            "all_test_bytes": sum(map(count_bytes, data.texts["test"])),
            "train_bytes": sum(map(count_bytes, data.texts["train"])),
        },
        "references": references(arguments, models, data.texts["train"], texts, log) if models else {},
        "training": trained,
        "results": scores,
        "impossible": impossible,
        "failures": failures,
        "environment": run_environment(),
    }
    if not arguments.costs:
        write_json(arguments.output_dir / "results.json", report)
        if scores:
            write_report(arguments.output_dir, report)
    return report


def check(arguments: argparse.Namespace) -> None:
    """Fills in what depends on other arguments.

    Raises:
        ValueError: a family does not do the objective, is unknown or given twice, or a number is out of range.
    """
    allowed = FAMILIES[arguments.objective]
    if arguments.families is None:
        arguments.families = list(allowed)
    wrong = [family for family in arguments.families if family not in allowed]
    if wrong:
        why = "SKI-TNN has no causal form. " if "ski_tnn" in wrong else ""
        raise ValueError(
            f"There is no {arguments.objective} model of {', '.join(wrong)} here. {why}Choose from {', '.join(allowed)}."
        )
    for option, values in (("--families", arguments.families), ("--seeds", arguments.seeds)):
        if len(set(values)) < len(values):
            raise ValueError(f"{option} has one twice: {', '.join(map(str, values))}.")
    if arguments.inference_lengths is None:
        arguments.inference_lengths = LENGTHS["fast" if arguments.size == "fast" else "reduced"]
    arguments.inference_lengths = sorted(set(arguments.inference_lengths))
    for option, value, least in (
        ("--inference-lengths", arguments.inference_lengths[0], 2),
        ("--context-length", arguments.context_length, 2),
        ("--max-steps", arguments.max_steps, 1),
        ("--max-bytes", arguments.max_bytes, 1),
        ("--batch-size", arguments.batch_size, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{option} is {value}; it must be at least {least}.")
    if not 1 <= arguments.ngram <= 7:
        raise ValueError(f"--ngram is {arguments.ngram}; an n-gram of bytes can have an order of 1 to 7.")


def make_run(arguments: argparse.Namespace, family: str, seed: int, data: CorpusData) -> TrainingRun:
    """One training, with all its settings written out: it does not change when a recipe does."""
    path, own_family = recipe_of(arguments, family)
    recipe = read_recipe(path, allowed_keys(), own_family)
    overrides = recipe["model"]["config_overrides"]
    own_tokenizer = recipe["data"].pop("tokenizer", FAST_TOKENIZER if arguments.size == "fast" else data.tokenizer)
    tokenizer = arguments.tokenizer or ("byte" if data.tokenizer == "byte" else own_tokenizer)
    recipe["data"].pop("dataset", None)
    recipe["data"] |= {"tokenizer": tokenizer, "block_size": arguments.context_length}
    overrides["max_position_embeddings"] = arguments.context_length
    if tokenizer == "byte" or tokenizer.startswith("bpe:"):
        overrides.pop("vocab_size", None)  # the published vocabulary's
    training = recipe["training"]
    if arguments.size == "full" and arguments.corpus != "wikitext-103":
        per_token = 1.0 if tokenizer == "byte" else BYTES_PER_TOKEN
        tokens = sum(map(count_bytes, data.texts["train"])) / per_token
        updates = math.ceil(PASSES * tokens / (training["global_batch_size"] * arguments.context_length))
        every = max(1, updates // 20)
        training |= {"max_steps": updates, "warmup_steps": max(1, updates // 12), "eval_steps": every}
        training |= {"save_steps": every, "logging_steps": max(1, updates // 100)}
    if arguments.size == "full":
        training |= {"load_best_model_at_end": True, "metric_for_best_model": "token_loss", "greater_is_better": False}
    words = recipe_arguments(recipe)
    if arguments.size == "fast":
        words += shlex.split(FAST)
        if family in FAST_WIDTHS:
            words += ["--config-overrides", f"intermediate_size={FAST_WIDTHS[family]}"]
        if family == "attention":
            words += ["--config-overrides", 'mixer_types=["attention", "attention"]']
    updates = arguments.max_steps or (20 if arguments.size == "fast" else training["max_steps"])
    if arguments.max_steps is not None:
        every = str(max(1, math.ceil(arguments.max_steps / 4)))
        words += ["--max-steps", str(arguments.max_steps), "--eval-steps", every, "--save-steps", every]
        words += ["--warmup-steps", str(max(1, min(int(training["warmup_steps"]), arguments.max_steps // 10)))]
    words += [*data.arguments, "--seed", str(seed), *shlex.split(arguments.training_arguments)]
    labels = {
        "corpus": arguments.corpus,
        "size": arguments.size,
        "objective": arguments.objective,
        "family": family,
        "seed": seed,
        "tokenizer": tokenizer if tokenizer == "byte" or tokenizer.startswith("bpe:") else Path(tokenizer).name,
        "published_settings": arguments.corpus == "wikitext-103"
        and own_family is None
        and arguments.max_steps is None,
    }
    name = f"{data.name}/{arguments.objective}/{family}/seed-{seed}"
    return TrainingRun(name, "pretrain.py", tuple(words), labels, updates)


def recipe_of(arguments: argparse.Namespace, family: str) -> tuple[Path, str | None]:
    """The recipe of a run, and which of its families it is, if it has several."""
    if arguments.size != "full":
        return RECIPES / "corpora" / f"{arguments.objective}.yaml", family
    published = PUBLISHED_RECIPES.get((arguments.objective, family))
    if published is not None:
        return RECIPES / f"{published}.yaml", None
    masked = "-masked" if arguments.objective == "masked" else ""
    return RECIPES / "corpora" / f"wikitext103{masked}.yaml", family


def allowed_keys() -> dict[str, set[str]]:
    """Sections and keys of a recipe of pretrain.py."""
    sections: dict[str, tuple[Any, ...]] = {
        "model": (ModelArguments,),
        "data": (DataArguments,),
        "training": (RunArguments, TrainingArguments),
    }
    return {
        section: {entry.name for kind in kinds for entry in dataclasses.fields(kind) if entry.init}
        for section, kinds in sections.items()
    }


def measure(results: dict[str, Any]) -> dict[str, Any]:
    """What a row shows of a run's results.json."""
    validation, memory = results["evaluation"], results["peak_memory_bytes"]
    return {
        "validation_perplexity": validation["perplexity"],
        "validation_bits_per_byte": validation.get("bits_per_byte"),
        "validation_tokens": validation["num_tokens"],
        "num_parameters": results["num_parameters"],
        "num_train_tokens": results["num_train_tokens"],
        "steps_per_second": results["steps_per_second"],
        "peak_memory_mib": memory / 2**20 if memory else None,
        "memory_of": results["memory_of"],
        "train_seconds": results["train_seconds"],
        "train_loss_curve": results["train_loss_curve"],
        "validation_curve": results["eval_loss_curve"],
    }
