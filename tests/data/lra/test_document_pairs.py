"""The Long Range Arena's Retrieval files, as the release writes them."""

import pytest

from hf_seqmix.data import load_document_pairs

TEXTS = [
    'Introduction\nWe "quote" and don\'t care.\tTabs, too.',
    'It\'s "both"\\n',
    "na\u00efve \u2019quotes\u2019 \u4e2d",
    "NA",
    '"opened and never closed',
    "x" * 200_000,  # longer than the csv module's limit
]


def write(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def literal(text):
    return repr(text.encode("utf-8"))


@pytest.fixture
def folder(tmp_path):
    rows = [(f"{i % 2}.0", f"P0{i}-1001", f"W{i}", literal(text), literal(text[::-1])) for i, text in enumerate(TEXTS)]
    write(tmp_path / "new_aan_pairs.train.tsv", rows[::-1])
    write(tmp_path / "new_aan_pairs.eval.tsv", rows[:3])
    write(tmp_path / "new_aan_pairs.test.tsv", rows[3:5])
    return tmp_path


def test_texts_are_left_as_the_release_writes_them(folder):
    pairs = load_document_pairs(folder, cache_dir=folder / "cache")
    assert {split: rows.num_rows for split, rows in pairs.items()} == {"train": 6, "validation": 3, "test": 2}
    assert pairs["train"].column_names == ["text1", "text2", "label"]
    assert pairs["train"].features["label"].dtype == "int64"
    assert list(pairs["train"]["label"]) == [1, 0, 1, 0, 1, 0]
    assert list(pairs["train"]["text1"]) == [literal(text) for text in TEXTS[::-1]]
    assert list(pairs["validation"]["text2"]) == [literal(text[::-1]) for text in TEXTS[:3]]
    assert all(text.isascii() and text.startswith(("b'", 'b"')) for text in pairs["train"]["text1"])


def test_decoded_texts_are_the_articles_own(folder):
    pairs = load_document_pairs(folder, decode=True, cache_dir=folder / "cache")
    assert list(pairs["train"]["text1"]) == TEXTS[::-1]
    assert list(pairs["test"]["text2"]) == [text[::-1] for text in TEXTS[3:5]]
    assert list(pairs["train"]["label"]) == [1, 0, 1, 0, 1, 0]


def test_texts_that_are_no_literals_and_bytes_that_are_no_utf8(tmp_path):
    write(tmp_path / "a.tsv", [("1", "a", "b", 'b or "not b"', r"b'caf\xe9'")])
    pairs = load_document_pairs({"train": tmp_path / "a.tsv"}, decode=True, cache_dir=tmp_path / "cache")
    assert pairs["train"][0] == {"text1": 'b or "not b"', "text2": "caf\ufffd", "label": 1}


@pytest.mark.parametrize(
    "row, message",
    [
        (("2.0", "a", "b", "b'c'", "b'd'"), "line 2 of .* has the label 2.0"),
        (("yes", "a", "b", "b'c'", "b'd'"), "labels of .* must be 0.0 or 1.0"),
        (("1.0", "a", "b", "b'c'"), "line 2 of .* has no text2"),
        (("1.0", "a", "b", "b'c'", "b'd'", "e"), "Expected 5 fields in line 2, saw 6"),
        (("1.0", "a", "b", "b'c", "b'd'"), "text1 in line 2 of .* begins like bytes"),
    ],
)
def test_broken_lines_raise(tmp_path, row, message):
    write(tmp_path / "a.tsv", [("0.0", "a", "b", "b'c'", "b'd'"), row])
    with pytest.raises(ValueError, match=message):
        load_document_pairs({"train": tmp_path / "a.tsv"}, decode=True, cache_dir=tmp_path / "cache")


def test_files_of_another_form_raise(tmp_path):
    write(tmp_path / "six.tsv", [("0.0", "a", "b", "c", "d", "e")] * 2)
    with pytest.raises(ValueError, match=r"six\.tsv have more fields than the 5 columns"):
        load_document_pairs({"train": tmp_path / "six.tsv"}, cache_dir=tmp_path / "cache")
    write(tmp_path / "numbers.tsv", [("0.0", "a", "b", "1", "2")] * 2)
    with pytest.raises(ValueError, match=r"text1 of .* holds no texts"):
        load_document_pairs({"train": tmp_path / "numbers.tsv"}, cache_dir=tmp_path / "cache")
    with pytest.raises(ValueError, match=r"no file .*new_aan_pairs\.train\.tsv"):
        load_document_pairs(tmp_path)
