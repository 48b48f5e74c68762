"""A folder of books as a corpus of long documents, whole books held out."""

from pathlib import Path

import datasets

from .gutenberg import is_gutenberg, strip_gutenberg

__all__ = ["load_novels"]

HELD_OUT = 20  # one book in 20 is in the test split, and one in 20 in the validation split


def load_novels(folder: str | Path) -> datasets.DatasetDict:
    r"""Load books, one text file each, as documents of a column `text`.

    Whole books are held out, as in PG-19 (Rae et al. 2020, arXiv 1911.05507), so that no name or phrase of a held-out
    book occurs in training. Each held-out split has one book in twenty, at least one. The shortest books are for the
    test, the next shortest for validation: most text stays for training, and the choice does not depend on file names.
    The notices of Project Gutenberg are cut off where a file has them. Line ends become `\n`.

    Args:
        folder: its files `*.txt` are read, in order of name; subfolders and hidden files are not read.

    Raises:
        ValueError: there are fewer than three books, or a book is empty, not UTF-8, or has only one of the two lines
            of Project Gutenberg.
    """
    folder = Path(folder).expanduser()
    paths = sorted(path for path in folder.glob("*.txt") if not path.name.startswith("."))
    if len(paths) < 3:
        raise ValueError(
            f"{folder} has {len(paths)} files *.txt; give at least three books, since one is held out for validation "
            "and one for the test."
        )
    books = [_read(path) for path in paths]
    count = max(1, len(books) // HELD_OUT)
    shortest = sorted(range(len(books)), key=lambda index: (len(books[index].encode("utf-8")), index))
    held_out = {"test": shortest[:count], "validation": shortest[count : 2 * count]}
    splits = {"train": shortest[2 * count :], **{name: held_out[name] for name in ("validation", "test")}}
    return datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({"text": [books[index] for index in sorted(chosen)]})
            for name, chosen in splits.items()
        }
    )


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}. Convert it first, for example with `iconv`.") from error
    if not text.strip():
        raise ValueError(f"{path} is empty; give a book, or move the file away.")
    return strip_gutenberg(text) if is_gutenberg(text) else text
