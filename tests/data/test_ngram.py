"""The n-gram model against hand counts and a direct implementation of the formula."""

import collections
import math
import random

import numpy as np
import pytest

from hf_seqmix.data import ByteNGram

ALPHABET = "abcde \u00e9"


def random_text(length: int, seed: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choices(ALPHABET, weights=range(1, len(ALPHABET) + 1), k=length))


def witten_bell(train: bytes, context: bytes, byte: int, order: int) -> float:
    """The interpolated probability, by the recursion as it is written."""
    padded = bytes(order - 1) + train
    probability = 1 / 256
    for k in range(1, order + 1):
        history = context[len(context) - k + 1 :]
        followers = collections.Counter(
            padded[end] for end in range(order - 1, len(padded)) if padded[end - k + 1 : end] == history
        )
        if followers:
            total, types = followers.total(), len(followers)
            probability = (followers[byte] + types * probability) / (total + types)
    return probability


def next_byte(model: ByteNGram, context: bytes) -> np.ndarray:
    """The distribution of the byte after a context: 256 probabilities."""
    context = (bytes(model.order - 1) + context)[len(context) :]
    return model.probability((int.from_bytes(context, "big") << 8) + np.arange(256, dtype=np.int64))


@pytest.mark.parametrize("order", [1, 2, 3, 5, 7])
def test_probabilities_follow_the_formula(order: int) -> None:
    text = random_text(300, seed=0)
    model = ByteNGram(order).fit([text])
    rng = random.Random(1)
    for _ in range(5):
        start = rng.randrange(len(text) - order)
        context = text.encode()[start : start + order - 1]
        expected = [witten_bell(text.encode(), context, byte, order) for byte in range(256)]
        np.testing.assert_allclose(next_byte(model, context), expected, rtol=1e-12)


@pytest.mark.parametrize("context", [b"", b"a", b"abcd", b"\xff\xfe\x00\x01", b"long ago and abcd"])
def test_probabilities_sum_to_one_whatever_the_context(context: bytes) -> None:
    model = ByteNGram(5).fit([random_text(2000, seed=2)])
    distribution = next_byte(model, context)
    assert distribution.shape == (256,)
    assert (distribution > 0).all()
    assert distribution.sum() == pytest.approx(1, abs=1e-12)


def test_only_the_last_bytes_of_a_context_count() -> None:
    model = ByteNGram(3).fit([random_text(500, seed=3)])
    assert model.code_lengths("xyzabc")[-1] == model.code_lengths("abc")[-1]


@pytest.mark.parametrize("order", [1, 4])
def test_bits_per_byte_is_the_mean_of_the_bytes_own(order: int) -> None:
    model = ByteNGram(order).fit([random_text(500, seed=4)])
    held_out = ["ab\u00e9", "cad"]
    text = "".join(held_out).encode()
    bits = [-math.log2(next_byte(model, text[:i])[byte]) for i, byte in enumerate(text)]
    assert model.bits_per_byte(held_out) == pytest.approx(sum(bits) / len(text), rel=1e-12)


def test_unigram_of_two_equal_bytes() -> None:
    # c = 5 each of 10, 2 types: (5 + 2 / 256) / 12 for either byte.
    assert ByteNGram(1).fit(["ab" * 5]).bits_per_byte(["ba"]) == pytest.approx(-math.log2((5 + 2 / 256) / 12))


def test_longer_contexts_predict_better() -> None:
    text = "the cat sat on the mat and the dog sat on the log. " * 50
    unigram, fivegram = (ByteNGram(order).fit([text]).bits_per_byte([text]) for order in (1, 5))
    assert fivegram < 0.5 < 3 < unigram


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 7"):
        ByteNGram(8)
    with pytest.raises(ValueError, match="training text is empty"):
        ByteNGram(2).fit([""])
    with pytest.raises(ValueError, match="call `fit"):
        ByteNGram(2).bits_per_byte(["a"])
    with pytest.raises(ValueError, match="score is empty"):
        ByteNGram(2).fit(["a"]).bits_per_byte([])


def test_code_lengths_of_bytes_add_up_to_the_text():
    train, text = random_text(500, 1), random_text(101, 2)
    model = ByteNGram(3).fit([train])
    lengths = model.code_lengths(text)
    assert lengths.shape == (len(text.encode()),)
    assert lengths.mean() == pytest.approx(model.bits_per_byte([text]))
    data = text.encode()
    assert lengths[7] == pytest.approx(-math.log2(next_byte(model, data[:7])[data[7]]))
