"""General-purpose compressors as yardsticks of text: bits per byte that need no model."""

import gzip
import lzma
from collections.abc import Iterable

__all__ = ["bits_per_byte_gzip", "bits_per_byte_xz"]


def bits_per_byte_gzip(texts: Iterable[str]) -> float:
    r"""Return the bits per byte of `gzip -9` on held-out text, $8 \cdot |\text{compressed}| / |\text{text}|$.

    The texts are joined without a separator, encoded as UTF-8 and compressed as one stream. The compressor sees no
    training text, which its window of 32 KiB would forget. The header and the checksum of the file count.

    Raises:
        ValueError: there is no text.
    """
    text = _joined(texts)
    return 8 * len(gzip.compress(text, compresslevel=9, mtime=0)) / len(text)


def bits_per_byte_xz(texts: Iterable[str]) -> float:
    r"""Return the bits per byte of `xz -9e` on held-out text, $8 \cdot |\text{compressed}| / |\text{text}|$.

    The rules are those of [`bits_per_byte_gzip`]: one stream, no training text, container included. The dictionary of
    64 MiB spans a whole held-out set, so a larger set compresses better.

    Raises:
        ValueError: there is no text.
    """
    text = _joined(texts)
    return 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text)


def _joined(texts: Iterable[str]) -> bytes:
    text = "".join(texts).encode("utf-8")
    if not text:
        raise ValueError("the text to compress is empty; bits per byte need at least one byte.")
    return text
