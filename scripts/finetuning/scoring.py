"""How finetune.py scores predictions, beside predictions that know nothing of the inputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
import numpy as np

from hf_seqmix._labels import IGNORED_LABEL
from hf_seqmix.analysis.baselines import bag_of_words, constant_labels, most_frequent, word_overlap
from hf_seqmix.data.labeled import (
    Classification,
    ImageClassification,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
)
from hf_seqmix.metrics import load_metric
from hf_seqmix.training.tables import markdown_table

Task = SequenceClassification | ImageClassification | TokenClassification | QuestionAnswering

OUTSIDE = "O"
"""Tag of tokens that belong to no entity."""


def trains_on_classes(task: Task) -> bool:
    """Whether each label is one class, whose cross-entropy is trained: of an input or of a token."""
    one_class = isinstance(task, Classification) and task.problem_type == "single_label_classification"
    return one_class or isinstance(task, TokenClassification)


def default_metrics(task: Task) -> list[str]:
    """Return the metrics of a task, the one that decides first."""
    if isinstance(task, QuestionAnswering):
        return ["squad"]
    if isinstance(task, Classification) and task.problem_type == "regression":
        return ["pearson", "spearman"]
    if isinstance(task, Classification) and task.problem_type == "multi_label_classification":
        return ["f1", "accuracy"]
    return ["accuracy", "f1"]


def score(task: Task, metrics: Sequence[str], predictions: Any, references: Any) -> dict[str, float]:
    """Return all metrics of predictions against references.

    Several classes: F1 is the mean over classes ("macro"); two: that of the second; several labels: of all decisions
    together ("micro"). Of tokens F1 is the mean over all tags but "O", which says that a token belongs to no entity.
    Means leave out classes and tags that neither side has.
    Regressions get their mean squared error too, the one figure that a constant has.
    """
    several = isinstance(task, Classification) and task.problem_type == "multi_label_classification"
    if isinstance(task, TokenClassification):
        predictions, references = (
            np.concatenate([np.asarray(row, dtype=int) for row in rows]) for rows in (predictions, references)
        )
        labeled = references != IGNORED_LABEL
        predictions, references = predictions[labeled], references[labeled]
    result: dict[str, float] = {}
    for name in metrics:
        options: dict[str, Any] = {}
        if name == "f1" and isinstance(task, TokenClassification):
            present = {*predictions.tolist(), *references.tolist()}
            entities = [index for index in sorted(present) if task.label_names[index] != OUTSIDE]
            options = {"average": "macro", "labels": entities or None}
        elif name == "f1" and isinstance(task, Classification):
            options = {"average": "micro" if several else "binary" if len(task.label_names) == 2 else "macro"}
        metric = load_metric(name, "multilabel" if several else None)
        result |= metric.compute(predictions=predictions, references=references, **options)
    if isinstance(task, Classification) and task.problem_type == "regression":
        result["mse"] = float(np.mean((predictions - references) ** 2))
    return result


def baselines(
    task: Task,
    metrics: Sequence[str],
    examples: datasets.DatasetDict,
    splits: Sequence[str],
    texts: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> dict[str, dict[str, dict[str, float]]]:
    """Score predictions that know only the training labels, or only words.

    Args:
        task: what the data asks for.
        metrics: names for `load_metric`.
        examples: its splits, `train` among them.
        splits: which of them are scored.
        texts: for a bag of words and, of pairs, the words that they share: what a model reads of each text, split ->
            one or two texts a row. Where that is not all of each text, both are fitted to whole texts, too.

    Returns:
        For each split scores by the name of the rule.
    """
    found = {split: _constant(task, metrics, examples, split) for split in splits}
    if texts is not None and isinstance(task, SequenceClassification):
        columns = {split: list(zip(*texts[split], strict=True)) for split in ("train", *splits)}
        whole = {split: [tuple(examples[split][column]) for column in task.text_columns] for split in columns}
        for of, name in ((columns, ""), (whole, ", whole texts"))[: 1 if columns == whole else 2]:
            for rule, predictions in _by_words(task, examples, splits, of).items():
                for split in splits:
                    references = task.references(examples[split], split)
                    found[split][f"{rule}{name}"] = score(task, metrics, predictions[split], references)
    return found


def _by_words(
    task: SequenceClassification,
    examples: datasets.DatasetDict,
    splits: Sequence[str],
    columns: Mapping[str, Sequence[Sequence[str]]],
) -> dict[str, dict[str, np.ndarray]]:
    """Return the predictions of each rule for each split; a rule is fitted once."""
    labels = task.references(examples["train"], "train")
    rules: dict[str, Callable[..., np.ndarray]] = {"bag of words": bag_of_words}
    if len(task.text_columns) == 2 and task.problem_type != "multi_label_classification":
        rules["shared words"] = word_overlap
    together = [[text for split in splits for text in columns[split][i]] for i in range(len(task.text_columns))]
    ends = np.cumsum([len(examples[split]) for split in splits])[:-1]
    return {
        name: dict(
            zip(splits, np.split(rule(columns["train"], labels, together, task.problem_type), ends), strict=True)
        )
        for name, rule in rules.items()
    }


def _constant(
    task: Task, metrics: Sequence[str], examples: datasets.DatasetDict, split: str
) -> dict[str, dict[str, float]]:
    """Return the scores of predictions that know only the training labels."""
    train, rows = examples["train"], examples[split]
    references = task.references(rows, split)
    if isinstance(task, QuestionAnswering):
        answers = [answer[0] if answer else "" for answer in task.references(train, "train")]
        constant: Any = [most_frequent(answers)] * len(rows)
        return {"most frequent answer": score(task, metrics, constant, references)}
    if isinstance(task, TokenClassification):
        tags = [tag for row in task.references(train, "train") for tag in row]
        tag = most_frequent([tag for tag in tags if tag != IGNORED_LABEL])
        constant = [[tag] * len(row) for row in references]
        return {"majority class": score(task, metrics, constant, references)}
    labels = task.references(train, "train")
    name = "mean" if task.problem_type == "regression" else "majority class"
    return {name: score(task, metrics, constant_labels(labels, task.problem_type, len(rows)), references)}


def results_table(model: str, evaluations: dict[str, dict[str, Any]]) -> str:
    """Return model and baselines, a row a split."""
    rows: list[dict[str, Any]] = []
    for split, values in evaluations.items():
        for name, figures in {model: values, **values.get("baselines", {})}.items():
            rows.append({"split": split, "by": name, **figures})
    hidden = {"split", "by", "examples", "baselines", "by_length", "loss"}
    keys = dict.fromkeys(key for row in rows for key in row if key not in hidden)
    columns = {"split": "split", "by": "predictions by", **{key: f"{key}:.4f" for key in keys}, "loss": "loss:.4f"}
    return markdown_table(rows, columns)
