"""The data of the Long Range Arena as finetune.py takes it: files that are at hand, the Hub's, or generated ones."""

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
from PIL import Image

from hf_seqmix import __version__
from hf_seqmix._files import whole_files
from hf_seqmix.analysis.plots import plot_pathfinder_examples
from hf_seqmix.data import listops, load_documents, pathfinder, same_document_pairs
from hf_seqmix.data.labeled import load_labeled
from hf_seqmix.training.environment import file_digest

from ..listops_operators import accuracy_of_outermost
from ..lra_tasks import NUM_LABELS
from .pictures import picture_contents

SPLITS = ("train", "validation", "test")

RELEASED = {
    "listops": ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"),
    "retrieval": ("new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv", "new_aan_pairs.test.tsv"),
}
"""Names of the benchmark's own files."""

COLUMNS = {
    "listops": (("Source",), ("Target",)),
    "text": (("text", "sentence"), ("label",)),
    "retrieval": (("0",), ("3",), ("4",)),
    **dict.fromkeys(("image", "pathfinder", "path-x"), (("image", "img"), ("label",))),
}
"""Task -> the columns that finetune.py reads of files that are given, each by one of several names; numbers where the
files have no header."""

LABELS = {"listops": "Target", "retrieval": "0"}
"""Task -> its column of labels, where that is not "label"."""

HUB = {"text": "stanfordnlp/imdb", "image": "uoft-cs/cifar10"}
"""Names of the tasks' data there."""


@dataclass(frozen=True)
class TaskData:
    """What finetune.py reads.

    Attributes:
        fields: of finetune.py's data arguments.
        source: what it is, in words; tells data that is not the benchmark's from data that is.
        baselines: accuracies on the test split of rules that a model should beat.
        contents: what tells files that were given from others of the same name; generated ones are named by their
            settings.
    """

    fields: Mapping[str, Any]
    source: str
    baselines: Mapping[str, float] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)


def prepare_task(task: str, folder: Path | None, output_dir: Path, settings: Mapping[str, Any]) -> TaskData:
    """Find or make the data of a task.

    Args:
        task: its name.
        folder: with its files; None for the Hub's, or generated ones.
        output_dir: generated files go below its `data`.
        settings: of the generator: `rows`, split -> number, and what else it takes.

    Raises:
        ValueError: the folder holds no such files.
    """
    if folder is not None and not folder.is_dir():
        raise ValueError(f"the folder {folder} of --data {task}= does not exist.")
    return {
        "listops": _listops,
        "text": _text,
        "retrieval": _retrieval,
        "image": _image,
        "pathfinder": _pathfinder,
        "path-x": _pathfinder,
    }[task](task, folder, output_dir, settings)


def _listops(task: str, folder: Path | None, output_dir: Path, settings: Mapping[str, Any]) -> TaskData:
    if folder is not None:
        files = _released(task, folder)
        _check_tables(task, files)
        baselines = {"outermost operator": accuracy_of_outermost(load_labeled(files))}
        return TaskData(_files(files), "the benchmark's files", baselines, _contents(files))
    options = dict(settings)
    rows = options.pop("rows")
    files = _generated(output_dir, task, settings, lambda: listops(rows, seed=0, **options))
    low, high = options.get("min_length", 500), options.get("max_length", 2000)
    source = f"generated, seed 0, lengths {low + 1} to {high - 1}, {rows['train']:,} rows to train on"
    return TaskData(_files(files), source, {"outermost operator": accuracy_of_outermost(load_labeled(files))})


def _text(task: str, folder: Path | None, output_dir: Path, settings: Mapping[str, Any]) -> TaskData:
    if folder is None:
        return _from_hub(task, "IMDB")
    files = _tables(task, folder)
    _check_tables(task, files)
    return TaskData(_files(files), "IMDB, from files", contents=_contents(files))


def _retrieval(task: str, folder: Path | None, output_dir: Path, settings: Mapping[str, Any]) -> TaskData:
    if folder is not None and (folder / RELEASED[task][0]).is_file():
        files = _released(task, folder)
        _check_tables(task, files)
        return TaskData(_files(files), "AAN, the benchmark's files", contents=_contents(files))
    options = dict(settings)
    rows = options.pop("rows")
    origin = "embedded:python-stdlib" if folder is None else str(folder)
    texts = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
    made_from = [(path.name, file_digest(path)) for path in texts]
    files = _generated(
        output_dir,
        task,
        {**settings, "from": made_from},
        lambda: same_document_pairs(load_documents(origin), rows, seed=0, **options),
    )
    columns = {"text_columns": ["text1", "text2"], "label_column": ["label"]}
    name = "Python's standard library" if folder is None else f"the texts of {folder.name}"
    shared = _document_names(files["train"]) & _document_names(files["test"])
    apart = "each document in all splits" if shared else "each document in one split"
    source = f"a substitute, not AAN: two passages of one document? {name}, {apart}"
    return TaskData({**_files(files), **columns}, source)


def _document_names(path: Path) -> set[str]:
    return set(pq.read_table(path, columns=["document1"])["document1"].to_pylist())


def _image(task: str, folder: Path | None, output_dir: Path, settings: Mapping[str, Any]) -> TaskData:
    if folder is None:
        return _from_hub(task, "CIFAR-10")
    files = _tables(task, folder, (".parquet",))
    file = pq.ParquetFile(files["test"])
    column = next((name for name in ("img", "image") if name in file.schema_arrow.names), None)
    if column is None or not file.metadata.num_rows:
        raise ValueError(
            f"{files['test']} has {file.metadata.num_rows} rows and the columns {', '.join(file.schema_arrow.names)}; "
            "it must have pictures in a column 'img' or 'image', and labels in 'label'."
        )
    _check_tables(task, files)
    # Not decoded: the format of the first picture is asked for.
    rows = datasets.Dataset.from_parquet(str(files["test"]))
    assert isinstance(rows, datasets.Dataset)
    first = rows.select_columns([column])[0][column]
    data = first["bytes"] if isinstance(first, dict) else None
    lossy = (Image.open(io.BytesIO(data)) if data else first).format == "JPEG"
    source = "CIFAR-10 (JPEG)" if lossy else "CIFAR-10, from files"
    return TaskData(_files(files), source, contents=_contents(files) | _pictures(task, files))


def _pathfinder(task: str, folder: Path | None, output_dir: Path, settings: Mapping[str, Any]) -> TaskData:
    if folder is not None:
        files = _tables(task, folder)
        _check_tables(task, files)
        return TaskData(_files(files), "from files", contents=_contents(files) | _pictures(task, files))
    options = dict(settings)
    rows = options.pop("rows")
    files = _generated(output_dir, task, settings, lambda: pathfinder(rows, seed=0, **options))
    examples = files["test"].parent / "examples.png"
    sheet = min(4, rows["train"] // 6)  # lines of a sheet to look at, three pictures of each class in a line
    if sheet and not examples.is_file():
        pictures = datasets.Dataset.from_parquet(str(files["train"]))
        assert isinstance(pictures, datasets.Dataset)
        plot_pathfinder_examples(pictures, examples, rows=sheet)
    return TaskData(_files(files), f"generated, seed 0, {rows['train']:,} pictures to train on")


def _from_hub(task: str, name: str) -> TaskData:
    """Fetch the data once, before any run needs it, so that a machine without a network says so in a line."""
    try:
        load_labeled(HUB[task])
    except ValueError as error:
        raise ValueError(f"{error} Where there is no network, give --data {task}=FOLDER.") from error
    return TaskData({"dataset": HUB[task]}, f"{name}, from the Hub")


def _released(task: str, folder: Path) -> dict[str, Path]:
    files = {split: folder / name for split, name in zip(SPLITS, RELEASED[task], strict=True)}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        raise ValueError(
            f"--data {task}={folder} lacks {', '.join(missing)}; it must hold {', '.join(RELEASED[task])}, or leave "
            "it out to generate them."
        )
    return files


def _tables(
    task: str, folder: Path, suffixes: Sequence[str] = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
) -> dict[str, Path]:
    """Return the tables of a folder, by split: train and test at least."""
    files = {split: path for split in SPLITS for suffix in suffixes if (path := folder / f"{split}{suffix}").is_file()}
    if not {"train", "test"} <= files.keys():
        held = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise ValueError(
            f"--data {task}={folder} must hold train and test, and may hold validation, as {' or '.join(suffixes)}; "
            f"it has {held}."
        )
    return files


def _check_tables(task: str, files: Mapping[str, Path]) -> None:
    """Refuse files that lack a column, or have more classes than the task, before anything trains on them.

    Raises:
        ValueError: a column is missing, a label is of no class, or a file cannot be read.
    """
    header = not COLUMNS[task][0][0].isdecimal()
    labels: set[str] = set()
    for split, rows in load_labeled(files, header=header).items():
        has = rows.column_names
        if not all(any(name in has for name in names) for names in COLUMNS[task]):
            wanted = ", ".join(" or ".join(names) for names in COLUMNS[task])
            raise ValueError(
                f"{files[split]} has the columns {', '.join(has)}; for the task {task} it must have {wanted}"
                f"{'' if header else ', which are counted from 0'}: rename its columns, or give other files."
            )
        labels |= _labels(rows, LABELS.get(task, "label"))
    if len(labels) > NUM_LABELS[task]:
        shown = sorted(labels)[: NUM_LABELS[task] + 3]
        raise ValueError(
            f"{', '.join(map(str, files.values()))} have the labels {', '.join(shown)}"
            f"{', ...' if len(shown) < len(labels) else ''}; the task {task} has {NUM_LABELS[task]} classes: leave "
            "out the rows of other labels."
        )


def _labels(rows: datasets.Dataset, column: str) -> set[str]:
    """Return the names of the labels that rows have, or that their data set declares; 1, 1.0 and True are one."""
    feature = rows.features[column]
    if isinstance(feature, datasets.ClassLabel):
        return set(feature.names)
    if not isinstance(feature, datasets.Value):  # of which finetune.py says what is wrong
        return set()
    given = (label for label in rows.unique(column) if label is not None and label != "")
    return {str(int(label) if isinstance(label, (bool, float)) and label % 1 == 0 else label) for label in given}


def _files(files: Mapping[str, Path]) -> dict[str, str]:
    return {f"{split}_file": str(files[split]) for split in SPLITS if split in files}


def _contents(files: Mapping[str, Path]) -> dict[str, str]:
    return {split: file_digest(path) for split, path in files.items()}


def _pictures(task: str, files: Mapping[str, Path]) -> dict[str, str]:
    return picture_contents(files, COLUMNS[task][0])


def _generated(
    output_dir: Path, task: str, settings: Mapping[str, Any], make: Callable[[], datasets.DatasetDict]
) -> dict[str, Path]:
    """Write what `make` gives, unless the same was written before."""
    digest = hashlib.sha256(json.dumps([__version__, task, settings], sort_keys=True).encode()).hexdigest()[:8]
    target = output_dir / "data" / f"{task}-{digest}"
    files = {split: target / f"{split}.parquet" for split in SPLITS}
    if not files["test"].is_file():
        made = make()
        with whole_files(target, last="test.parquet") as aside:
            for split in SPLITS:
                made[split].to_parquet(str(aside / f"{split}.parquet"))
    return files


def data_folders(pairs: list[str], tasks: list[str]) -> dict[str, Path]:
    """Read `TASK=FOLDER` pairs.

    Raises:
        ValueError: a pair has no equals sign, or its task is not one of those that are run.
    """
    folders = {}
    for pair in pairs:
        task, equals, folder = pair.partition("=")
        if not equals or task not in tasks:
            raise ValueError(f"--data takes TASK=FOLDER for a task that is run ({', '.join(tasks)}); given {pair!r}.")
        folders[task] = Path(folder)
    return folders
