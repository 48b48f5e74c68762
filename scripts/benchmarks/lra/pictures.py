"""Picture files that tables of the Long Range Arena name: what tells them from others at the same paths."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.compute as pc

from hf_seqmix.data.labeled import load_labeled
from hf_seqmix.training.environment import file_digest


def picture_contents(files: Mapping[str, Path], columns: Sequence[str]) -> dict[str, str]:
    """Return digests of the picture files that tables name, by split.

    All of them are read, as finetune.py does before it trains: times would tell copies of one file apart.

    Args:
        files: split -> its table.
        columns: names that the column of pictures may have.

    Returns:
        "SPLIT pictures" -> digest; nothing of tables that hold the pictures themselves, or none.
    """
    found = {}
    for split, rows in load_labeled(files, paths=columns).items():
        column = next((name for name in columns if name in rows.column_names), None)
        paths = [] if column is None else list(_paths(rows.select_columns([column]), column))
        if paths:
            digest = hashlib.sha256("\n".join(map(_digest_of, paths)).encode())
            found[f"{split} pictures"] = digest.hexdigest()[:16]
    return found


def _paths(rows: datasets.Dataset, column: str) -> Iterator[str]:
    """Yield the paths of rows that hold no picture themselves."""
    for batch in rows.with_format("arrow").iter(batch_size=1000):
        values = batch[column]
        if pa.types.is_struct(values.type) and {"bytes", "path"} <= {field.name for field in values.type}:
            table = pa.Table.from_struct_array(values)  # of `datasets.Image`
            values = table.filter(pc.is_null(table["bytes"]))["path"]
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            yield from filter(None, values.to_pylist())


def _digest_of(path: str) -> str:
    """Return what changes with a picture: its digest, or the path of one that is elsewhere, or missing."""
    file = Path(path)
    return file_digest(file) if "://" not in path and file.is_file() else path
