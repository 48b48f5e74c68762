"""What pretrain.py trains on where rows hold tokens already: blocks as they are, with their labels."""

import os
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from hf_seqmix._labels import IGNORED_LABEL
from hf_seqmix.data.local_files import load_folder_or_hub
from hf_seqmix.data.text.corpora import read_files

from .arguments import Arguments, DataArguments

_COLUMNS = ("input_ids", "labels")
_MASK = "attention_mask"
_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}


def load_blocks(arguments: Arguments) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Return training and validation blocks: rows of `input_ids` and `labels`, -100 where nothing is predicted.

    Without a validation split, the last rows of the training split are held out.

    Raises:
        ValueError: a file is empty, damaged or no Parquet or JSON file, there is no training split, rows have no
            `input_ids`, those of a masked model have no `labels`, a row is not as long as the block size, or pads
            would be read as text.
    """
    data = arguments.data
    splits = _load(data)
    if "train" not in splits:
        raise ValueError(f"the data has no training split; its splits are {', '.join(splits)}.")
    if "validation" not in splits:
        parts = splits["train"].train_test_split(data.validation_fraction, shuffle=False)
        splits = {"train": parts["train"], "validation": parts["test"]}
    causal = arguments.model.objective == "causal"
    train, validation = (_checked(splits[name], name, data.block_size, causal) for name in ("train", "validation"))
    if data.max_eval_blocks is not None:
        validation = validation.take(min(data.max_eval_blocks, len(validation)))
    return train, validation


def _load(data: DataArguments) -> Any:
    own = {"validation": data.validation_file} if data.validation_file else {}
    if data.dataset is None:
        return _load_files({"train": data.train_file, **own}, data.file_format)
    folder = os.path.expanduser(data.dataset)
    try:
        if os.path.isfile(os.path.join(folder, "dataset_dict.json")):
            splits: Any = datasets.load_from_disk(folder)
        else:
            splits = load_folder_or_hub(data.dataset)
    except (OSError, datasets.exceptions.DatasetNotFoundError) as error:
        raise ValueError(
            f"--dataset {data.dataset} is neither a folder here nor a data set that could be loaded from the Hub "
            f"({error}). Check the spelling and the network."
        ) from error
    return {**splits, **_load_files(own, data.file_format)} if own else splits


def _load_files(files: dict[str, list[str]], file_format: str | None) -> Any:
    kinds = {_FORMATS.get(os.path.splitext(path)[1].lower()) for paths in files.values() for path in paths}
    kind = file_format or (kinds.pop() if len(kinds) == 1 else None)
    if kind not in _FORMATS.values():
        given = ", ".join(path for paths in files.values() for path in paths)
        raise ValueError(f"--tokenized rows are read from Parquet or JSON files of one kind; given {given}.")
    missing = [path for paths in files.values() for path in paths if not os.path.isfile(path)]
    if missing:
        raise ValueError(f"there is no file {', '.join(missing)}. Check the spelling.")
    return read_files(str(kind), {split: [Path(path) for path in paths] for split, paths in files.items()})


def _checked(rows: datasets.Dataset, name: str, block_size: int, causal: bool) -> datasets.Dataset:
    needed = _COLUMNS[:1] if causal else _COLUMNS
    missing = [column for column in needed if column not in rows.column_names]
    if missing:
        raise ValueError(
            f"--tokenized rows of a {'causal' if causal else 'masked'} model need the column{'s' * (len(needed) > 1)} "
            f"{' and '.join(needed)}; those of the {name} split have {', '.join(rows.column_names)}."
        )
    if _MASK in rows.column_names and not (causal and "labels" in rows.column_names) and _has_pads(rows):
        raise ValueError(
            f"--tokenized rows of the {name} split have pads by their {_MASK}, which would be read and predicted as "
            "text: give full rows, or for a causal model, padded on the right, labels of -100 at pads."
        )
    rows = rows.select_columns([column for column in _COLUMNS if column in rows.column_names])
    if "labels" not in rows.column_names:
        rows = rows.map(lambda batch: {"labels": batch["input_ids"]}, batched=True, desc="Labels")
    for column in _COLUMNS:
        feature = getattr(rows.features[column], "feature", None)
        if not isinstance(feature, datasets.Value) or "int" not in feature.dtype:
            raise ValueError(
                f"{column} of the {name} split are {rows.features[column]}; --tokenized rows hold lists of whole "
                "numbers."
            )
        held = rows.select_columns([column]).with_format("arrow")
        chunks = (chunk for batch in held.iter(1000) for chunk in batch[column].chunks)
        if missing := sum(chunk.null_count + chunk.flatten().null_count for chunk in chunks):
            raise ValueError(f"{missing} {column} of the {name} split are missing.")
        lengths = np.fromiter((len(row) for batch in rows.iter(1000) for row in batch[column]), int)
        if (wrong := np.flatnonzero(lengths != block_size)).size:
            raise ValueError(
                f"row {wrong[0]} of the {name} split has {lengths[wrong[0]]} {column}; --tokenized rows all have "
                f"--block-size of them, which is {block_size}."
            )
    return rows


def _has_pads(rows: datasets.Dataset) -> bool:
    batches = rows.select_columns([_MASK]).iter(1000)
    return any(0 in (row or ()) for batch in batches for row in batch[_MASK])


def check_ids(vocab_size: int, *splits: datasets.Dataset) -> None:
    """Raise a `ValueError` where a row has a token or label that the vocabulary does not have."""
    for rows in splits:
        for batch in rows.iter(1000):
            ids = [np.asarray(batch[column]) for column in _COLUMNS]
            low = min(int(of[of != IGNORED_LABEL].min(initial=0)) for of in ids)
            low = min(low, int(ids[0].min()))  # where -100 is no mark
            high = max(int(of.max()) for of in ids)
            if low < 0 or high >= vocab_size:
                raise ValueError(
                    f"the rows have tokens from {low} to {high}, but vocab_size is {vocab_size}: ids count from 0 and "
                    "lie below the vocabulary's size."
                )


def check_labels(rows: Any, name: str, causal: bool) -> None:
    """Raise a `ValueError` where no token of a split is predicted, which has no loss."""
    first = 1 if causal else 0  # nothing stands before the first token
    for batch in rows.iter(1000):
        if any(label != IGNORED_LABEL for row in batch["labels"] for label in row[first:]):
            return
    raise ValueError(
        f"no token of the {name} data is predicted ({len(rows)} rows). Give rows with labels other than -100, or more "
        "text (--validation-fraction, --max-eval-blocks); of a masked model also a larger --mlm-probability."
    )
