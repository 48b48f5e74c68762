"""enwik8 is cut where its sizes say, and between characters."""

import pytest

from hf_seqmix.data.text.enwik8 import load_enwik8


@pytest.fixture
def head(tmp_path):
    path = tmp_path / "enwik8.head"
    path.write_bytes(
        ("abcdefg" + "\u20ac" * 3 + "hij" + "\u00e9").encode()[:-1]
    )  # 7 + 9 + 3 + 1 bytes, cut in a character
    return path


@pytest.mark.parametrize(
    "train, validation, expected",
    [
        (7, 9, ["abcdefg", "\u20ac" * 3, "hij"]),
        (8, 9, ["abcdefg", "\u20ac" * 3 + "h", "ij"]),  # inside a character; between two
        (9, 6, ["abcdefg", "\u20ac" * 2, "\u20achij"]),
        (10, 8, ["abcdefg\u20ac", "\u20ac\u20achi", "j"]),
    ],
)
def test_borders_lie_between_characters(head, train, validation, expected):
    splits = load_enwik8(head, train_bytes=train, validation_bytes=validation)
    assert [list(splits[name]["text"]) for name in ("train", "validation", "test")] == [[text] for text in expected]


def test_files_that_do_not_fit_raise(head, tmp_path):
    with pytest.raises(ValueError, match="leaves no test text"):
        load_enwik8(head)
    with pytest.raises(ValueError, match="train_bytes is 0 and validation_bytes is 5000000; both must be at least 1"):
        load_enwik8(head, train_bytes=0)
    with pytest.raises(ValueError, match="there is no file"):
        load_enwik8(tmp_path / "enwik8")
    (tmp_path / "packed").write_bytes(b"PK\xff\xfe" * 10)
    with pytest.raises(ValueError, match="Is it still compressed"):
        load_enwik8(tmp_path / "packed", train_bytes=8, validation_bytes=8)
    (tmp_path / "late").write_bytes(b"abcdefgh" + b"i\xffj")
    with pytest.raises(ValueError, match="not UTF-8"):  # in the test text alone
        load_enwik8(tmp_path / "late", train_bytes=4, validation_bytes=4)
