"""Pretraining on the texts of a task of the Long Range Arena: the first stage of `lra --self-pretrain`.

After Amos, Berant, Gupta 2024, "Never train from scratch" (arXiv 2310.02980): masked or causal language modeling on
the task's own training inputs, before the labels are learned. Departures: both stages together have the seconds of the
run that they are compared with, where the paper adds the pretraining; and the digits of ListOps, which are random, are
not masked: a model learns the value of every list within an expression instead, where the list closes. The labels of
the task say the value of the whole expression alone, so this is more supervision, from the same expressions. The whole
is among the lists, and nothing is learned afterwards.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import datasets
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from hf_seqmix import __version__
from hf_seqmix._files import whole_files
from hf_seqmix.data import build_tokenizer, listops_values
from hf_seqmix.data.labeled import TEXTS_READ, SequenceClassification, load_labeled
from hf_seqmix.training.run import Run

from ..jobs import REPLACED, Job

TASKS = ("listops", "text", "retrieval")
"""Tasks of texts. pretrain.py has no objective for the pixels of the others."""

OPERATOR = "-"
"""Label of the words of ListOps that close no list."""

VALUES = "values-to-the-end.parquet"
"""Beside the texts; the name tells it from files of version 0.2.0, whose ends had no value."""

CAUSAL = {"model": {"config_overrides": {"is_causal": True}}}
"""Of both stages, where the first learns each next token; statistics of a batch would let it see the next one."""

ROOM = 512
"""Tokens that short texts are packed into."""
OF_FINETUNING = (
    *(name for length in REPLACED for name in (length, *REPLACED[length])),
    *("load_best_model_at_end", "metric_for_best_model", "eval_strategy", "eval_steps"),
    *("save_strategy", "save_steps"),
)
"""Training arguments that say how long, ask for labels, or for checkpoints to choose from."""


def pretraining_job(
    run: Run, contents: Mapping[str, str], seconds: float, mlm_probability: float | None, folder: Path
) -> Job:
    """Return the stage before a run: the same model learns from the texts of its training data.

    That is masked or causal language modeling, and in ListOps the value of every list.

    Args:
        run: the training from scratch of a classifier.
        contents: what tells its files from others of the same name.
        seconds: that the stage may take.
        mlm_probability: share of the tokens that are masked; None for a causal model, which learns each next token.
        folder: where the texts are written.
    """
    kept = {name: value for name, value in run.training.items() if name not in OF_FINETUNING}
    length_of_stage = {
        "max_seconds": seconds,
        "warmup_steps": 0.1,
        "eval_strategy": "no",
        "save_strategy": "steps",
        "save_steps": 0.25,
        "save_total_limit": 1,
    }
    texts = training_texts(run, contents, folder)
    if run.task == "listops":
        data = {
            "task": "token-classification",
            "train_file": [str(training_values(texts, build_tokenizer(run.model["tokenizer"]).eos_token))],
            "validation_fraction": 0.02,
            "text_columns": ["words"],
            "label_column": ["values"],
            "max_length": run.data["max_length"],
        }
        stage = Run(run.task, run.model, data, {**kept, **length_of_stage}, run.seed)
        return Job("pretraining", "finetune.py", stage)
    batch, length = run.training["per_device_train_batch_size"], run.data["max_length"]
    overrides = dict(run.model.get("config_overrides", {}))
    if width := overrides.get("hidden_size"):
        # The head shares the embedding, which the recipes draw with unit variance: its first logits would be
        # sqrt(width) too large. Scaled, the embedding is drawn with 1 / sqrt(width), and the rest sees the same.
        overrides.setdefault("embedding_scale", math.sqrt(width))
    packed = max(number for number in range(1, max(1, ROOM // length) + 1) if batch % number == 0)
    model = {
        "objective": "causal" if mlm_probability is None else "masked",
        "model_type": run.model["model_type"],
        # Where texts share a sequence, the model is laid out for a text all the same.
        "config_overrides": {**overrides, "max_position_embeddings": length},
    }
    data = {
        "train_file": [str(texts)],
        "validation_fraction": 0.02,
        "tokenizer": run.model["tokenizer"],
        "block_size": packed * length,
        "respect_documents": True,
        "max_eval_blocks": 100,
    }
    if mlm_probability is not None:
        data["mlm_probability"] = mlm_probability
    training = {**kept, "per_device_train_batch_size": batch // packed, **length_of_stage}
    return Job("pretraining", "pretrain.py", Run(run.task, model, data, training, run.seed))


def scored_as_it_is(run: Run) -> Run:
    """Return the stage after that of ListOps, which trains nothing and scores what was learned.

    The first stage learns the values of whole expressions, too, which are the labels. More updates on these alone,
    with a tenth of the rates, lost a part of the sums: 0.457 instead of 0.530 of them right, 0.829 instead of 0.850
    of all (6 layers of 128, 78 minutes, one seed).
    """
    kept = {name: value for name, value in run.training.items() if name not in OF_FINETUNING}
    return dataclasses.replace(run, training={**kept, "num_train_epochs": 0})


def classifier_of_values(folder: Path) -> Path:
    """Write the classifier of whole expressions of ListOps that is in what knows the value of every list.

    Its head is that of the lists without the label of operators.

    Args:
        folder: of the first stage, a classifier of tokens whose labels are "-" and the digits.

    Returns:
        The folder of the classifier.
    """
    target = folder / "classifier"
    if (target / "config.json").is_file():
        return target
    values = AutoModelForTokenClassification.from_pretrained(folder)
    digits = sorted(set(values.config.label2id) - {OPERATOR})
    config = AutoConfig.from_pretrained(
        folder, id2label=dict(enumerate(digits)), label2id={digit: index for index, digit in enumerate(digits)}
    )
    classifier = AutoModelForSequenceClassification.from_config(config)
    classifier.model.load_state_dict(values.model.state_dict())
    rows = [values.config.label2id[digit] for digit in digits]
    head = {"weight": values.classifier.weight[rows], "bias": values.classifier.bias[rows]}
    classifier.classifier.out_proj.load_state_dict(head)
    with whole_files(target, last="config.json") as aside:
        classifier.save_pretrained(aside)
        AutoTokenizer.from_pretrained(folder).save_pretrained(aside)
    return target


def training_values(texts: Path, end: str | None) -> Path:
    """Write the words of expressions of ListOps and the value of each, "-" for an operator, unless that was done.

    Args:
        texts: the file of the expressions, as `training_texts` writes it.
        end: the token that ends a text, where a classifier of whole expressions reads the answer. So the value of the
            expression is learned there, too.

    Raises:
        ValueError: an expression was cut, since it is longer than the inputs of the classifier, or is none.
    """
    target = texts.with_name(VALUES)
    if target.is_file():
        return target
    try:
        read = [listops_values(text) for text in datasets.Dataset.from_parquet(str(texts))["text"]]
    except ValueError as error:
        raise ValueError(
            "--self-pretrain learns the value of every list, but an expression is longer than this size reads, or is "
            f"none: {error} Give shorter expressions, or train with --full."
        ) from error
    if end is not None:
        read = [[*words, (end, words[-1][1])] for words in read]
    columns = {
        "words": [[word for word, _ in words] for words in read],
        "values": [[OPERATOR if value is None else str(value) for _, value in words] for words in read],
    }
    with whole_files(target.parent, last=target.name) as aside:
        datasets.Dataset.from_dict(columns).to_parquet(str(aside / target.name))
    return target


def training_texts(run: Run, contents: Mapping[str, str], folder: Path) -> Path:
    """Write what a model reads of the texts of a task's training data, unless that was done before.

    Texts are cut as the inputs of the classifier are. A part of them may be held out for validation when labels are
    learned; the test data is not read.

    Args:
        run: the training of the classifier; says files, columns, length, tokenizer and number of rows.
        contents: as for `pretraining_job`.
        folder: where the file goes.
    """
    data = run.data
    places = {
        name: "/".join(Path(value).parts[-2:]) if name.endswith("_file") else value for name, value in data.items()
    }
    segments = run.model.get("config_overrides", {}).get("num_segments", 1)
    made_of = ["once each", __version__, places, dict(contents), run.model["tokenizer"], segments]
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:8]
    target = folder / f"{run.task}-texts-{digest}" / "train.parquet"
    if target.is_file():
        return target
    source = data.get("dataset") or {"train": data["train_file"]}
    rows = load_labeled(source, header=not data.get("no_header", False))["train"]
    limit = data.get("max_train_samples")
    rows = rows if limit is None else rows.shuffle(seed=0).take(limit)
    task = SequenceClassification.from_data(
        rows, data.get("text_columns", ["text"]), data.get("label_column", ["label"]), data.get("problem_type")
    )
    task = dataclasses.replace(task, num_segments=segments)
    encoded = task.encode(rows, build_tokenizer(run.model["tokenizer"]), data["max_length"], "train", keep_texts=True)
    # Once each: passages of pairs recur, and one that is held out must not be trained on.
    texts = list(dict.fromkeys(text for of_row in encoded[TEXTS_READ] for text in of_row))
    with whole_files(target.parent, last=target.name) as aside:
        datasets.Dataset.from_dict({"text": texts}).to_parquet(str(aside / target.name))
    return target
