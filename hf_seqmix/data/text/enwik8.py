"""enwik8, the first 10^8 bytes of a dump of Wikipedia, or the head of that file, cut into splits."""

import codecs
from pathlib import Path

import datasets

__all__ = ["load_enwik8"]


def load_enwik8(
    path: str | Path, *, train_bytes: int = 90_000_000, validation_bytes: int = 5_000_000
) -> datasets.DatasetDict:
    """Load the splits of enwik8, each one document: first the training text, then validation, the rest for the test.

    The usual splits are 90, 5 and 5 million bytes (Mahoney, "Large Text Compression Benchmark"; Al-Rfou et al. 2019,
    arXiv 1808.04444). A border inside a character is moved before that character, so that every split is text. A
    character that the end of the file cuts is left out.

    Args:
        path: the file, uncompressed.
        train_bytes: size of the training split; must be given for a head of the file.
        validation_bytes: size of the validation split; must be given for a head of the file.

    Raises:
        ValueError: there is no such file, a size is not positive, the file leaves nothing for the test, or the file is
            not UTF-8.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {path}. Give the uncompressed enwik8, or the head of it.")
    if min(train_bytes, validation_bytes) < 1:
        raise ValueError(
            f"train_bytes is {train_bytes} and validation_bytes is {validation_bytes}; both must be at least 1."
        )
    data = path.read_bytes()
    if len(data) <= train_bytes + validation_bytes:
        raise ValueError(
            f"{path} has {len(data):,} bytes, which leaves no test text after {train_bytes:,} to train on and"
            f" {validation_bytes:,} to validate on: give a longer file, or smaller splits."
        )
    first = _character_start(data, train_bytes)
    second = _character_start(data, train_bytes + validation_bytes)
    parts = {"train": data[:first], "validation": data[first:second], "test": data[second:]}
    try:
        # An incremental decoder leaves out a character that the end of the file cuts, and no other fault.
        texts = {name: codecs.getincrementaldecoder("utf-8")().decode(part) for name, part in parts.items()}
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}. Is it still compressed?") from error
    return datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": [text]}) for name, text in texts.items()})


def _character_start(data: bytes, place: int) -> int:
    """Return the last place up to `place` at which a UTF-8 character begins."""
    while place > 0 and data[place] & 0xC0 == 0x80:
        place -= 1
    return place
