"""Retrieval of the Long Range Arena: pairs of articles, from the files that the benchmark released."""

import ast
from collections.abc import Mapping
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..labeled.loading import load_labeled

__all__ = ["load_document_pairs"]

RELEASED = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
COLUMNS = ("label", "id1", "id2", "text1", "text2")


def load_document_pairs(
    source: str | Path | Mapping[str, str | Path], *, decode: bool = False, cache_dir: str | Path | None = None
) -> datasets.DatasetDict:
    r"""Load Retrieval of the Long Range Arena from its released files: does one of two articles cite the other?

    The articles are from the ACL Anthology Network. Each line of a file has a label (0.0 or 1.0), two identifiers and
    two texts, between tabs, without header or quotation. A text is written as Python writes bytes: `b'...'`, with `\n`
    for a line end and `\xe2` for a byte that is not ASCII. The readers of the benchmark and of S4 take these
    characters as they are, escapes included. The first 4000 characters therefore hold less than 4000 characters of the
    article. Leave the escapes in place to compare with published figures.

    Source: Tay et al. 2021 (arXiv 2011.04006), section 2.2.3, and the reader in its release. The form of the texts is
    taken from another public reader of these files; we have not seen the files. Texts in another form are read as they
    are.

    Args:
        source: the folder that holds `new_aan_pairs.train.tsv`, `.eval.tsv` and `.test.tsv`, or split -> file.
        decode: turn the texts back into the characters of the articles, with U+FFFD for bytes that are not UTF-8. A
            text that is not written as bytes stays as it is.
        cache_dir: where `datasets` keeps what was read; its default is in the home directory.

    Returns:
        Rows of `text1`, `text2` and `label`, 1 for a citation. From a folder: splits train, validation (the eval
        file), test.

    Raises:
        ValueError: a file is missing, or a line has other fields, no text or another label. With `decode`: a text has
            broken escapes.
    """
    files = source if isinstance(source, Mapping) else {s: Path(source) / name for s, name in RELEASED.items()}
    tables = load_labeled(files, header=False, columns=COLUMNS, cache_dir=cache_dir)
    return datasets.DatasetDict({split: _pairs(rows, str(files[split]), decode) for split, rows in tables.items()})


def _pairs(rows: datasets.Dataset, path: str, decode: bool) -> datasets.Dataset:
    """Return the texts of the table, and its labels as integers."""
    for name in COLUMNS[3:]:
        column = rows.data.column(name)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise ValueError(f"the field {name} of {path} holds no texts, but numbers ({column.type}).")
        empty = pc.index(column, pa.scalar("", column.type)).as_py()
        if empty >= 0:
            raise ValueError(f"line {empty + 1} of {path} has no {name}; give {', '.join(COLUMNS)} between tabs.")
    try:
        labels = np.asarray([float(label) for label in rows["label"]])
    except (TypeError, ValueError) as error:
        raise ValueError(f"the labels of {path} must be 0.0 or 1.0: {error}.") from error
    if not np.isin(labels, (0, 1)).all():
        row = int(np.flatnonzero(~np.isin(labels, (0, 1)))[0])
        raise ValueError(f"line {row + 1} of {path} has the label {labels[row]}; it must be 0.0 or 1.0.")
    texts = rows.select_columns(list(COLUMNS[3:]))
    if decode:
        options = {"batched": True, "batch_size": 200, "with_indices": True, "fn_kwargs": {"path": path}}
        texts = texts.map(_decode_rows, desc="Decoding texts", **options)
    return texts.add_column("label", labels.astype(np.int64).tolist())


def _decode_rows(batch: Mapping[str, list[str]], indices: list[int], path: str) -> dict[str, list[str]]:
    return {
        name: [_decode(text, f"{name} in line {row + 1} of {path}") for row, text in zip(indices, texts, strict=True)]
        for name, texts in batch.items()
    }


def _decode(text: str, where: str) -> str:
    """Return the text that a bytes literal of Python stands for."""
    if not text.startswith(("b'", 'b"')):
        return text
    try:
        content = ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{where} begins like bytes, {text[:40]!r}, but cannot be decoded: {error}.") from error
    return content.decode("utf-8", errors="replace")
