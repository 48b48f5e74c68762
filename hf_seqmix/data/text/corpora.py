"""Text corpora from anywhere, as `datasets` objects with one document a row."""

import glob
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import datasets

from ..local_files import Source, check_fields, check_file, files_of_splits, format_of, is_local, other_separator
from .stdlib_corpus import python_stdlib

__all__ = ["Corpus", "hold_out", "load_corpus", "read_files"]

Corpus: TypeAlias = datasets.DatasetDict | datasets.IterableDatasetDict

EMBEDDED: dict[str, Callable[[], datasets.DatasetDict]] = {
    "embedded:python-stdlib": python_stdlib,
    "embedded:python-stdlib-without-tables": partial(python_stdlib, held_out_tables=False),
}

# A byte order mark is no text, and "NA" is a word.
READING: dict[str, dict[str, Any]] = {"text": {"encoding": "utf-8-sig"}, "csv": {"keep_default_na": False}}


def load_corpus(
    source: Source | Mapping[str, Source | Sequence[Source]],
    *,
    text_column: str = "text",
    sample_by: Literal["document", "paragraph", "line"] = "document",
    file_format: str | None = None,
    streaming: bool = False,
) -> Corpus:
    r"""Load a corpus as a `DatasetDict` (`IterableDatasetDict` when streaming) whose splits have one column, `text`.

    Rows without any text are left out. Text files are read as UTF-8 with line ends turned into `\n`, without a byte
    order mark. Words such as "NA" or "null" in CSV stay words.

    Args:
        source: `"embedded:python-stdlib"`, or `"embedded:python-stdlib-without-tables"`, which scores no near copies
            of training files (both [`python_stdlib`]); a local file, or a folder whose files are
            assigned to splits by the words train, valid, validation, dev and test in their names, those of folders
            first (all to train if no name has such a word); a folder written by `save_to_disk`, all train if that had
            no splits; the name of a Hub data set, `"name"` or `"name:config"`; or a mapping from split to local files
            or folders.
        text_column: the column that holds the text; the column is renamed to `text`.
        sample_by: what one row of a text file is.
        file_format: "text", "json", "csv" or "parquet", for files whose extension does not say the format.
        streaming: read rows only when they are asked for, and never all rows into memory.

    Raises:
        ValueError: a file is missing, empty, without text, not UTF-8 or of an unknown kind, there is no such column,
            or the Hub cannot be reached.
    """
    if sample_by not in ("document", "paragraph", "line"):
        raise ValueError(f"sample_by is {sample_by!r}; allowed are 'document', 'paragraph' and 'line'.")
    if isinstance(source, Mapping):
        corpus = _load_files(files_of_splits(source, file_format), sample_by, file_format, streaming)
    elif str(source).startswith("embedded:"):
        return _load_embedded(str(source), streaming)
    elif is_local(source):
        folder = Path(source).expanduser()
        if _is_saved(folder):
            corpus = _load_saved(folder, streaming)
        else:
            corpus = _load_files(files_of_splits({None: folder}, file_format), sample_by, file_format, streaming)
    else:
        corpus = load_from_hub(str(source), streaming)
    return type(corpus)({name: _text_only(split, name, text_column, source) for name, split in corpus.items()})


def hold_out(split: datasets.Dataset, fraction: float = 0.05) -> datasets.DatasetDict:
    """Split off the last `fraction` of a corpus, counted in characters, as validation data.

    Only the document across the border is cut, after a line break. If that document is the first and has no line
    break, the cut is between two words. A corpus of a single document can therefore be split too.

    Raises:
        ValueError: `fraction` is not between 0 and 1, or one side would be left without text.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the held-out fraction is {fraction}; it must lie between 0 and 1, both excluded.")
    texts = list(split["text"])
    border = round((1 - fraction) * sum(len(text) for text in texts))
    train: list[str] = []
    held_out: list[str] = []
    for text in texts:
        cut = _cut(text, border, is_first=not train)
        train.append(text[:cut])
        held_out.append(text[cut:])
        border -= len(text)
    train, held_out = ([text for text in side if text.strip()] for side in (train, held_out))
    if not train or not held_out:
        raise ValueError(
            f"holding out {fraction} of {len(texts)} documents leaves no text on one side. Give a larger corpus, "
            "another fraction, or a validation file of its own."
        )
    return datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({"text": side})
            for name, side in (("train", train), ("validation", held_out))
        }
    )


def _cut(text: str, border: int, is_first: bool) -> int:
    """Return the nearest place before `border` where `text` may be cut; an end of `text` if the border is outside."""
    if border <= 0 or border >= len(text):
        return 0 if border <= 0 else len(text)
    for separator in ("\n", " ") if is_first else ("\n",):
        place = text.rfind(separator, 0, border)
        if place >= 0:
            return place + 1
    return border if is_first else 0


def _load_embedded(name: str, streaming: bool) -> Corpus:
    if name not in EMBEDDED:
        raise ValueError(f"there is no embedded corpus {name!r}; there is {', '.join(map(repr, EMBEDDED))}.")
    return _streamed(EMBEDDED[name](), streaming)


def _is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote a folder, of splits or of one data set."""
    return (folder / "dataset_dict.json").is_file() or all(
        (folder / name).is_file() for name in ("state.json", "dataset_info.json")
    )


def _load_saved(folder: Path, streaming: bool) -> Corpus:
    saved = datasets.load_from_disk(str(folder))
    return _streamed(saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}, streaming)


def _streamed(splits: Mapping[str, datasets.Dataset], streaming: bool) -> Corpus:
    if not streaming:
        return datasets.DatasetDict(splits)
    return datasets.IterableDatasetDict({split: rows.to_iterable_dataset() for split, rows in splits.items()})


def load_from_hub(name: str, streaming: bool) -> Corpus:
    """Load a data set of the Hub, all columns and rows as they are.

    Args:
        name: "name" or "name:config".
        streaming: whether rows are read as they are asked for.

    Raises:
        ValueError: there is no such data set or configuration, or the Hub cannot be reached.
    """
    path, _, config = name.partition(":")
    try:
        return datasets.load_dataset(path, config or None, streaming=streaming)
    except (OSError, datasets.exceptions.DatasetNotFoundError) as error:
        raise ValueError(
            f"{name!r} is neither a file or folder here nor a data set that could be loaded from the Hub ({error}). "
            f"Check the spelling and the network, or use a local file or one of {', '.join(map(repr, EMBEDDED))}."
        ) from error


def _load_files(files: dict[str, list[Path]], sample_by: str, file_format: str | None, streaming: bool) -> Corpus:
    paths = [path for group in files.values() for path in group]
    if not paths:
        raise ValueError("no file is named; give, for example, {'train': 'a.txt', 'validation': 'b.txt'}.")
    formats = {path: file_format or format_of(path) for path in paths}
    kinds = sorted(set(formats.values()))
    if len(kinds) > 1:
        raise ValueError(
            f"the files are of several kinds ({', '.join(kinds)}): {', '.join(map(str, paths[:5]))}. Give files of"
            " one kind."
        )
    options = READING.get(kinds[0], {}) | ({"sample_by": sample_by} if kinds[0] == "text" else {})
    return read_files(kinds[0], files, streaming, **options)


def read_files(kind: str, files: Mapping[str, Sequence[Path]], streaming: bool = False, **options: Any) -> Corpus:
    """Load files of one kind, all columns and rows as they are.

    Args:
        kind: "text", "json", "csv" or "parquet".
        files: split -> files that there are.
        streaming: whether rows are read as they are asked for.
        **options: as `datasets.load_dataset` takes them for the kind.

    Raises:
        ValueError: a file is empty, not UTF-8 or not what its kind says, or files have other columns than others.
    """
    paths = [path for group in files.values() for path in group]
    for path in paths:
        check_file(path, binary=kind == "parquet")
        if kind == "csv":
            check_fields(path, most=1000 if streaming else None)  # a stream begins before all is read
    # The library takes names for patterns.
    data_files = {split: [glob.escape(str(path)) for path in group] for split, group in files.items()}
    try:
        corpus = datasets.load_dataset(kind, data_files=data_files, streaming=streaming, **options)
        if streaming:  # which reads nothing before its first row
            for rows in corpus.values():
                next(iter(rows), None)
        return corpus
    except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
        alike = ", and that all files have the same columns of the same types" if len(paths) > 1 else ""
        raise ValueError(
            f"{', '.join(map(str, paths[:5]))} could not be read as {kind}: {reason}. Check that the content is "
            f"what the extension says{alike}."
        ) from error


def _text_only(split: Any, name: str, text_column: str, source: Any) -> Any:
    """Return the split with the one column `text`, rows without text left out."""
    columns = split.column_names
    if columns is None:  # a stream does not know its columns before its first row
        columns = list(next(iter(split), {}))
    if text_column not in columns:
        raise ValueError(
            f"the {name} split of {source} has no column {text_column!r}; its columns are "
            f"{', '.join(columns) or 'none'}. Name the one that holds the text (text_column, --text-column)."
            f"{other_separator(columns)}"
        )
    split = split.select_columns([text_column])
    if text_column != "text":
        split = split.rename_column(text_column, "text")
    column = f"the column {text_column!r} of the {name} split of {source}"
    split = split.filter(partial(_has_text, column=column), input_columns="text", with_indices=True)
    if next(iter(split), None) is None:
        raise ValueError(
            f"the {name} split of {source} has no text: every row is blank. Give a corpus with text in it."
        )
    return split


def _has_text(text: Any, row: int, column: str) -> bool:
    """Return whether a row has text; a value of another type, which JSON can have in any row, is a `ValueError`."""
    if text is None:
        return False
    if not isinstance(text, str):
        raise ValueError(
            f"{column} holds {type(text).__name__}, not text, in row {row}. Make all of its values text, or name the"
            " column that holds the text (text_column, --text-column)."
        )
    return bool(text.strip())
