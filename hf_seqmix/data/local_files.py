"""Files of data on this machine: which split each belongs to, of which format, and what is wrong with one."""

import codecs
import csv
import glob
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import datasets
import pyarrow
import pyarrow.parquet
from datasets.data_files import get_data_patterns

__all__ = [
    "FORMATS",
    "SPLITS",
    "Source",
    "check_fields",
    "check_file",
    "files_of_splits",
    "first_rows",
    "format_of",
    "is_local",
    "load_folder_or_hub",
    "other_separator",
    "refuse_compressed",
    "zero_padded",
]

Source: TypeAlias = str | Path

SPLITS = ("train", "validation", "test")

# `.raw` and `.tokens` are what WikiText's own files end in.
FORMATS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".raw": "text",
    ".tokens": "text",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")
"""What files of gzip, bzip2, xz and zstd begin with."""
_ZIP = b"PK\x03\x04"

SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev"},
    "test": {"test", "testing"},
}


def is_local(source: Source) -> bool:
    """Return whether `source` exists here or can only be meant as a path."""
    path = Path(source).expanduser()
    looks_like_path = str(source).startswith(("/", ".", "~")) or path.suffix.lower() in FORMATS
    return isinstance(source, Path) or path.exists() or looks_like_path


def load_folder_or_hub(source: str, cache_dir: str | Path | None = None) -> datasets.DatasetDict:
    """Load a local folder or a data set of the Hub as the `datasets` library reads it.

    Args:
        source: a folder; or "name" or "name:config" of the Hub. What is a folder as a whole is not split at a colon.
        cache_dir: where `datasets` keeps what was read; its default is in the home directory.

    Raises:
        ValueError: a file is not what its ending says.
    """
    cache = None if cache_dir is None else str(cache_dir)
    path, _, config = (source, "", "") if Path(source).expanduser().is_dir() else source.partition(":")
    folder = Path(path).expanduser()
    files = None
    if folder.is_dir():
        path = str(folder)
        escaped = glob.escape(str(folder.resolve()))
        if escaped != str(folder.resolve()):  # the library takes names for patterns
            found = get_data_patterns(escaped)
            files = {split: [f"{escaped}/{pattern}" for pattern in patterns] for split, patterns in found.items()}
    try:
        return datasets.load_dataset(path, config or None, data_files=files, cache_dir=cache)
    except datasets.exceptions.DatasetGenerationError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"{source} could not be read: {reason}. Check that each file is what its ending says, and that files of a "
            "split have the same columns of the same types; or name single files, and the message names the one."
        ) from error


def files_of_splits(
    source: Mapping[str, Source | Sequence[Source]] | Mapping[None, Source], file_format: str | None
) -> dict[str, list[Path]]:
    """Return the files of each split; a split of None lets the names of the files decide.

    Args:
        source: files and folders of each split.
        file_format: of files whose ending does not say the format; then every file of a folder is taken.

    Raises:
        ValueError: there is no such format, split, file or folder, a folder has no data files, a file does not say
            its split as others of its folder do, or a folder of one split holds a file of another.
    """
    allowed = sorted({*FORMATS.values()})
    if file_format is not None and file_format not in allowed:
        raise ValueError(f"file_format is {file_format!r}; allowed are {', '.join(allowed)}.")
    files: dict[str, list[Path]] = {}
    taken: dict[Path, tuple[str, Path]] = {}
    for split, given in source.items():
        if split is not None and split not in SPLITS:
            raise ValueError(f"there is no split {split!r}; allowed are {', '.join(SPLITS)}.")
        for entry in [given] if isinstance(given, (str, Path)) else given:
            path = Path(entry).expanduser()
            found = list(_walk(path, file_format))
            words = {file: _split_from_name(file.relative_to(path)) for file in found} if split is None else {}
            named = any(words.values())
            for file in found:
                name = split or (words[file] if named else "train")
                if name is None:
                    raise ValueError(
                        f"{file} does not say which split it belongs to, as other files of {path} do. Put one of the "
                        "words train, validation or test in its name, or name the files of each split."
                    )
                other, entry_of_other = taken.setdefault(file.resolve(), (name, path))
                if other != name and not (entry_of_other.is_file() and path.is_file()):
                    raise ValueError(
                        f"{file} is of the {name} and of the {other} split, since a folder that was given holds "
                        "it. Give folders without files of other splits, or the files of each split."
                    )
                files.setdefault(name, []).append(file)
    return {split: files[split] for split in SPLITS if split in files}


def _walk(path: Path, file_format: str | None) -> Iterator[Path]:
    """Yield the file itself, or the data files below a folder in order of name."""
    if path.is_file():
        yield path
    elif path.is_dir():
        found = [
            p
            for p in sorted(path.rglob("*"))
            if p.is_file()
            and not any(part.startswith(".") for part in p.relative_to(path).parts)
            and (file_format or p.suffix.lower() in FORMATS)
        ]
        if not found:
            raise ValueError(f"the folder {path} holds no data files; files ending in {', '.join(FORMATS)} are read.")
        yield from found
    else:
        raise ValueError(f"there is no file or folder {path}. Check the spelling; paths start from {Path.cwd()}.")


def _split_from_name(path: Path) -> str | None:
    """Return the split that a path names; of several, the outermost folder's: `test/training.txt` is test data."""
    for part in path.parts:
        words = set(re.split(r"[^a-z]+", part.lower()))
        for split, names in SPLIT_WORDS.items():
            if not names.isdisjoint(words):
                return split
    return None


def format_of(path: Path) -> str:
    """Return the format that the ending of a file stands for.

    Raises:
        ValueError: the ending is not known, or the file is compressed.
    """
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        refuse_compressed(path)
        ending = f"ends in {path.suffix!r}, which does not say" if path.suffix else "has no extension, which would say"
        raise ValueError(
            f"{path} {ending} what it holds; known are {', '.join(FORMATS)}. Rename it or give the format "
            f"(file_format, or --file-format of pretrain.py), one of {', '.join(sorted(set(FORMATS.values())))}."
        )
    return kind


def refuse_compressed(path: Path) -> None:
    """Refuse a file that begins as compressed ones do.

    Raises:
        ValueError: it does.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        begins = file.read(6)
    # Documents such as .xlsx are archives, too, and unpacking those does not help.
    is_zip = begins.startswith(_ZIP) and path.suffix.lower() in (".zip", ".tsv", *FORMATS)
    if is_zip or begins.startswith(_COMPRESSED):
        raise ValueError(f"{path} is compressed: unpack it first.")


def check_file(path: Path, binary: bool) -> None:
    """Read a file once to see whether the data can be text.

    Args:
        path: the file.
        binary: whether the format is Parquet.

    Raises:
        ValueError: the file is empty or compressed, has two columns of one name, or bytes that are not UTF-8, which
            are named by their place.
    """
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes); give a file with text in it.")
    if binary:
        _check_columns(path)
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        while True:
            start = file.tell() - len(decoder.getstate()[0])
            chunk = file.read(1 << 20)
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                refuse_compressed(path)
                given = "utf-16" if _begins_as_utf16(path) else "latin1"
                raise ValueError(
                    f"{path} is not UTF-8: {error.reason} at byte {start + error.start}. Convert it first, for "
                    f"example with `iconv -f {given} -t utf-8`."
                ) from error
            if not chunk:
                return


def _check_columns(path: Path) -> None:
    """Raise a `ValueError` if two columns of a Parquet file have one name, which can be read as neither."""
    try:
        names = pyarrow.parquet.read_schema(path).names
    except pyarrow.ArrowInvalid:  # not Parquet, as reading it says
        return
    _refuse_twins(path, names)


def _refuse_twins(path: Path, names: Sequence[str]) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise ValueError(f"{path} has several columns named {', '.join(map(repr, twins))}; rename all but one.")


def _begins_as_utf16(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def first_rows(
    path: Path, count: int, delimiter: str = ",", quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
) -> list[list[str]]:
    """Return the fields of the first rows of a table of text that are not blank, as pandas reads it."""
    return [row for _, row in itertools.islice(_rows(path, delimiter, quoting), count)]


def zero_padded(path: Path, header: bool = True, **form: Any) -> list[int]:
    """Return the places of columns with numbers such as 01, which pandas reads without the zero; see `first_rows`."""
    rows = itertools.islice(_rows(path, **form), int(header), None)
    fields = ((place, field) for _, row in rows for place, field in enumerate(row))
    return sorted({place for place, field in fields if field[:1] == "0" and field[1:].isdecimal()})


def _rows(
    path: Path, delimiter: str = ",", quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
) -> Iterator[tuple[int, list[str]]]:
    """Yield the last line, from 1, and the fields of each row that is not blank."""
    limit = csv.field_size_limit(2**31 - 1)  # the module's own, 131,072 characters, is less than an article may have
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter, quoting=quoting)
            for row in rows:
                if len(row) > 1 or any(field.strip() for field in row):
                    yield rows.line_num, row
    finally:
        csv.field_size_limit(limit)


def other_separator(columns: Sequence[str]) -> str:
    """Return a sentence on the separator where the name of the one column holds another; nothing else."""
    if len(columns) == 1 and any(mark in columns[0] for mark in ";\t,"):
        return " The separator seems to be another: CSV needs commas, and TSV tabs."
    return ""


def check_fields(path: Path, names: int | None = None, most: int | None = None, **form: Any) -> None:
    """Refuse a table with a row of more or fewer fields than there are names, or two columns of one name.

    pandas moves all columns where there are more, and fills what is not there.

    Args:
        path: of a table of text.
        names: how many columns there are; None where the first row names them.
        most: rows that are looked at; None for all.
        **form: as `first_rows` takes it.

    Raises:
        ValueError: a row is longer or shorter, there is none, or two columns have one name.
    """
    rows: Iterator[tuple[int, list[str]]] = _rows(path, **form)
    expected = names or 0
    if names is None:
        _, header = next(rows, (0, []))
        _refuse_twins(path, header)
        expected = len(header)
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{path} has no rows below its header.")
        if len(first[1]) != expected and (other := other_separator(header)):
            raise ValueError(f"{path} has the one column {header[0]!r}.{other}")
        rows = itertools.chain([first], rows)
    for line, row in itertools.islice(rows, most):
        if len(row) < expected:
            raise ValueError(
                f"rows of {path} have {len(row)} fields and {expected} columns: give a field for each, in the "
                f"delimiter that the ending says, and close all quotes. The first ends in line {line}."
            )
        if len(row) > expected:
            raise ValueError(
                f"rows of {path} have more fields than the {expected} columns: put fields that contain the "
                f"delimiter in quotes. The first ends in line {line}."
            )
