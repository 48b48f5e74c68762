"""Tables of labeled examples from files or the Hub, as `datasets` objects."""

import csv
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from ..local_files import check_fields, check_file, first_rows, load_folder_or_hub, refuse_compressed, zero_padded

__all__ = ["GLUE_TASKS", "GlueTask", "load_glue", "load_labeled"]

FORMATS = {".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


@dataclass(frozen=True)
class GlueTask:
    """Where a GLUE task keeps its texts and labels, and which metrics score the task.

    Attributes:
        text_columns, label_column: in the files that the benchmark distributes.
        metrics: names for `load_metric`.
        folder: the usual name of the task's folder.
        validation: the file that holds the validation data.
        mismatched: the file that holds the second validation data of MNLI, from other sources than the training data.
        columns: names of the columns, for files without a header.
        hub_text_columns, hub_validation, hub_mismatched: names in the copy on the Hub, where they differ.
    """

    text_columns: tuple[str, ...]
    label_column: str
    metrics: tuple[str, ...]
    folder: str
    validation: str = "dev.tsv"
    mismatched: str | None = None
    columns: tuple[str, ...] | None = None
    hub_text_columns: tuple[str, ...] | None = None
    hub_validation: str = "validation"
    hub_mismatched: str | None = None


GLUE_TASKS = {
    "cola": GlueTask(
        ("sentence",), "label", ("matthews_correlation",), "CoLA", columns=("source", "label", "mark", "sentence")
    ),
    "sst2": GlueTask(("sentence",), "label", ("accuracy",), "SST-2"),
    "mrpc": GlueTask(
        ("#1 String", "#2 String"),
        "Quality",
        ("accuracy", "f1"),
        "MRPC",
        hub_text_columns=("sentence1", "sentence2"),
    ),
    "stsb": GlueTask(("sentence1", "sentence2"), "score", ("pearson", "spearman"), "STS-B"),
    "rte": GlueTask(("sentence1", "sentence2"), "label", ("accuracy",), "RTE"),
    "qnli": GlueTask(("question", "sentence"), "label", ("accuracy",), "QNLI"),
    "qqp": GlueTask(("question1", "question2"), "is_duplicate", ("accuracy", "f1"), "QQP"),
    "mnli": GlueTask(
        ("sentence1", "sentence2"),
        "gold_label",
        ("accuracy",),
        "MNLI",
        validation="dev_matched.tsv",
        mismatched="dev_mismatched.tsv",
        hub_text_columns=("premise", "hypothesis"),
        hub_validation="validation_matched",
        hub_mismatched="validation_mismatched",
    ),
    "wnli": GlueTask(("sentence1", "sentence2"), "label", ("accuracy",), "WNLI"),
}


def load_labeled(
    source: str | Mapping[str, str | Path],
    *,
    header: bool = True,
    columns: Sequence[str] | None = None,
    paths: Sequence[str] = (),
    cache_dir: str | Path | None = None,
) -> datasets.DatasetDict:
    """Load tables of examples, one split a file, with their columns unchanged but for `paths`.

    CSV follows RFC 4180: fields may be quoted. TSV has no quotes, as in the registration of IANA and in the files of
    GLUE: a quotation mark is text. Words such as "NA" or "null" stay words in both, and columns with numbers such as
    "01" stay text. JSON is a list or lines of objects, or has such a list as its one field `data`. The nested files of
    SQuAD are flattened into `id`, `title`, `context`, `question`, `answers`.

    Args:
        source: split -> file, a folder, or the name of a Hub data set, `"name"` or `"name:config"`.
        header: the first line of CSV and TSV files names the columns. Otherwise the columns are named "0", "1" ...
        columns: names of the columns, for CSV and TSV files without a header.
        paths: names of columns that may hold paths of files. A relative path starts from the folder of its table, as
            in `imagefolder`, or from the working directory where a file is there alone. Absolute paths and addresses
            stay as they are.
        cache_dir: where `datasets` keeps what was read; its default is in the home directory.

    Raises:
        ValueError: a file is missing, empty, compressed, not UTF-8, of an unknown kind or not what its extension says,
            or the Hub cannot be reached.
    """
    cache = None if cache_dir is None else str(cache_dir)
    if isinstance(source, str):
        try:
            loaded = load_folder_or_hub(source, cache)
        except (OSError, ValueError, datasets.exceptions.DatasetNotFoundError) as error:
            raise ValueError(f"the data set {source!r} could not be loaded: {error}") from error
        return loaded if isinstance(loaded, datasets.DatasetDict) else datasets.DatasetDict(loaded)
    loaded = {split: _load_file(Path(path).expanduser(), header, columns, cache) for split, path in source.items()}
    return datasets.DatasetDict(
        {split: _with_paths(rows, Path(source[split]).expanduser().parent, paths) for split, rows in loaded.items()}
    )


def load_glue(
    task: str, folder: str | Path | None = None, cache_dir: str | Path | None = None
) -> tuple[datasets.DatasetDict, GlueTask]:
    """Load the train and validation splits of a GLUE task, and the task with the names of their columns.

    MNLI has a third split, `validation_mismatched`. The test splits are left out, because their labels are not public.

    Args:
        task: a key of `GLUE_TASKS`.
        folder: holds the files that the benchmark distributes, directly or in the usual folder of the task; None for
            the Hub.
        cache_dir: as for [`load_labeled`].

    Raises:
        ValueError: there is no such task, or its data cannot be read.
    """
    if task not in GLUE_TASKS:
        raise ValueError(f"there is no GLUE task {task!r}; allowed are {', '.join(GLUE_TASKS)}.")
    entry = GLUE_TASKS[task]
    if folder is None:
        loaded = load_labeled(f"nyu-mll/glue:{task}", cache_dir=cache_dir)
        splits = {"train": loaded["train"], "validation": loaded[entry.hub_validation]}
        if entry.hub_mismatched is not None:
            splits["validation_mismatched"] = loaded[entry.hub_mismatched]
        texts = entry.hub_text_columns or entry.text_columns
        on_hub = GlueTask(texts, "label", entry.metrics, entry.folder)
        return datasets.DatasetDict(splits), on_hub
    folder = Path(folder).expanduser()
    if (folder / entry.folder).is_dir():
        folder = folder / entry.folder
    elif not (folder / "train.tsv").is_file():
        raise ValueError(
            f"there is neither {folder / entry.folder / 'train.tsv'} nor {folder / 'train.tsv'}: give the folder of "
            f"GLUE or of its task {task}; paths start from {Path.cwd()}."
        )
    files = {"train": folder / "train.tsv", "validation": folder / entry.validation}
    if entry.mismatched is not None:
        files["validation_mismatched"] = folder / entry.mismatched
    splits = load_labeled(files, header=entry.columns is None, columns=entry.columns, cache_dir=cache_dir)
    return splits, entry


def _load_file(path: Path, header: bool, columns: Sequence[str] | None, cache: str | None) -> datasets.Dataset:
    if not path.is_file():
        raise ValueError(f"there is no file {path}. Check the spelling; paths start from {Path.cwd()}.")
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        refuse_compressed(path)
        ending = f"ends in {path.suffix!r}" if path.suffix else "has no extension"
        raise ValueError(f"{path} {ending}; files that can be read end in {', '.join(FORMATS)}.")
    check_file(path, binary=kind == "parquet")
    options: dict[str, Any] = {}
    if kind in ("csv", "tsv"):
        # byte order marks are not part of the first column's name, and "NA" is a word
        options = {"encoding": "utf-8-sig", "keep_default_na": False}
        if kind == "tsv":
            options |= {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        form = {name: options[name] for name in ("delimiter", "quoting") if name in options}
        if not header:
            first = next(iter(first_rows(path, 1, **form)), [])
            options |= {"header": None, "column_names": list(columns or map(str, range(len(first))))}
        check_fields(path, None if header else len(options["column_names"]), **form)
        options["converters"] = dict.fromkeys(zero_padded(path, header, **form), str)
    try:
        split = datasets.load_dataset(
            "csv" if kind == "tsv" else kind,
            data_files=glob.escape(str(path)),  # the library takes names for patterns
            split="train",
            cache_dir=cache,
            **options,
        )
    except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
        reason = error.__cause__ or error
        raise ValueError(f"{path} could not be read as {kind}, or has no rows: {reason}") from error
    names = set(split.column_names)
    nested = {name for name, feature in split.features.items() if not isinstance(feature, datasets.Value)}
    has_articles = "paragraphs" in nested and _holds_articles(split.features["paragraphs"])
    if has_articles or ("data" in nested and names <= {"data", "version"}):
        split = _flatten(split, path)
    if len(split) == 0:
        raise ValueError(f"{path} has no rows.")
    return split


def _with_paths(split: datasets.Dataset, folder: Path, columns: Sequence[str]) -> datasets.Dataset:
    """Return rows whose relative paths start from a folder, in the columns of text among those named."""

    def located(path: str | None) -> str | None:
        if not path or "://" in path:
            return path
        beside = (folder / path).absolute()  # of an absolute path, the path itself
        return path if Path(path).exists() and not beside.exists() else str(beside)

    texts = ("string", "large_string")
    held = [column for column in columns if getattr(split.features.get(column), "dtype", None) in texts]
    if not held:
        return split
    # In memory: what is found depends on the files that there are now, which no cache knows.
    return split.map(
        lambda batch: {column: list(map(located, batch[column])) for column in held}, batched=True, keep_in_memory=True
    )


def _holds_articles(feature: Any) -> bool:
    """Return whether a column is the paragraphs of an article of SQuAD, and not one that is called so."""
    inner = getattr(feature, "feature", None)
    return isinstance(inner, Mapping) and {"context", "qas"} <= set(inner)


def _flatten(split: datasets.Dataset, path: Path) -> datasets.Dataset:
    """Turn articles of SQuAD, a row each or all in `data`, into rows of one question; other records are rows.

    Files to predict for have no answers, and no column of that name then.

    Raises:
        ValueError: an article has no paragraphs, a question no `id` or no text, or only some have answers.
    """
    articles = [article for row in split for article in row.get("data", [row])]
    if not all(isinstance(article, Mapping) for article in articles):
        return split
    if not any("paragraphs" in article for article in articles):
        names = dict.fromkeys(name for article in articles for name in article)
        return datasets.Dataset.from_list([{name: article.get(name) for name in names} for article in articles])
    rows = []
    for number, article in enumerate(articles):
        if article.get("paragraphs") is None:
            raise ValueError(
                f"article {number} of {path}, titled {article.get('title')!r}, has no paragraphs: give a list of "
                "these, each with a context and its questions (qas), or leave the article out."
            )
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                missing = [field for field in ("id", "question") if question.get(field) is None]
                if missing:
                    raise ValueError(f"a question has no {' and no '.join(missing)}: {question!r}.")
                row = {
                    "id": question["id"],
                    "title": article.get("title", ""),
                    "context": paragraph["context"],
                    "question": question["question"],
                }
                if question.get("answers") is not None:
                    row["answers"] = {
                        part: [answer[part] for answer in question["answers"]] for part in ("text", "answer_start")
                    }
                rows.append(row)
    without = [row["id"] for row in rows if "answers" not in row]
    if 0 < len(without) < len(rows):
        raise ValueError(
            f"{len(without)} of {len(rows)} questions have no answers, the first is {without[0]!r}: an empty list "
            "stands for a question without an answer."
        )
    return datasets.Dataset.from_list(rows)
