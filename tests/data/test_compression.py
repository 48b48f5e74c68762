"""Compressors as yardsticks: the size of the held-out text's own archive."""

import argparse
import gzip
import inspect
import lzma
import random
import re
from pathlib import Path

import pytest

from hf_seqmix.data import bits_per_byte_gzip, bits_per_byte_xz


def test_gzip_is_the_size_of_the_archive() -> None:
    texts = ["a line of text\n" * 20, "and a \u20ac line\n" * 5]
    raw = "".join(texts).encode()
    assert bits_per_byte_gzip(texts) == 8 * len(gzip.compress(raw, 9)) / len(raw)
    assert gzip.decompress(gzip.compress(raw, 9)) == raw


def test_xz_is_the_extreme_preset_as_its_label_says() -> None:
    raw = inspect.getsource(argparse).encode()
    plain, extreme = (len(lzma.compress(raw, preset=preset)) for preset in (9, 9 | lzma.PRESET_EXTREME))
    assert plain != extreme
    assert bits_per_byte_xz([raw.decode()]) == 8 * extreme / len(raw)
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    for name in ("quickstart.py", "benchmarks/language_modeling/causal_lm.py", "benchmarks/corpora/scoring.py"):
        assert re.findall(r'"(xz [^"]*)": bits_per_byte_xz', (scripts / name).read_text()) == ["xz -9e"]


def test_bytes_of_a_multibyte_text_are_counted() -> None:
    rng = random.Random(0)
    text = "".join(chr(rng.randrange(0x4E00, 0x9000)) for _ in range(2000))
    # Two random bytes in three: 14.2 of 24 bits a character.
    assert 4 < bits_per_byte_xz([text]) < 8


def test_xz_remembers_further_than_gzip() -> None:
    rng = random.Random(0)
    noise = "".join(rng.choices("0123456789abcdef", k=50_000))
    # gzip's window of 32 KiB has forgotten the beginning when it comes again.
    assert bits_per_byte_xz([noise, noise]) < 0.6 * bits_per_byte_gzip([noise, noise])


@pytest.mark.parametrize("compress", [bits_per_byte_gzip, bits_per_byte_xz])
def test_no_text_is_refused(compress) -> None:
    with pytest.raises(ValueError, match="empty"):
        compress([""])
