"""The standard library as a corpus: by file, without tests, the same everywhere."""

import statistics
import sysconfig
from pathlib import Path

import pytest

from hf_seqmix.data import load_corpus, python_stdlib
from hf_seqmix.data.text.stdlib_corpus import split_of


@pytest.fixture(scope="module")
def corpus():
    return python_stdlib()


def test_splits_are_by_file_and_about_90_5_5(corpus) -> None:
    rows = {name: split.num_rows for name, split in corpus.items()}
    assert list(rows) == ["train", "validation", "test"]
    total = sum(rows.values())
    assert total > 300
    assert 0.85 < rows["train"] / total < 0.95
    assert 0.02 < rows["validation"] / total < 0.1
    assert 0.02 < rows["test"] / total < 0.1


def test_every_row_is_a_whole_file_of_its_split(corpus) -> None:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in ("argparse.py", "json/encoder.py", "calendar.py"):
        text = (root / path).read_bytes().decode("utf-8")
        assert [name for name, split in corpus.items() if text in split["text"]] == [split_of(path)]


def test_tests_and_installed_packages_are_left_out(corpus) -> None:
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = {text for split in corpus.values() for text in split["text"]}
    left_out = [*root.glob("test/test_j*/*.py"), *root.glob("test/test_a*.py")]
    left_out += list(root.glob("site-packages/pip/_internal/*.py"))
    for path in left_out:
        text = path.read_text(encoding="utf-8")
        assert not text.strip() or text not in texts, path


def test_the_split_is_a_fixed_function_of_the_path() -> None:
    # Anyone who changes the hash changes every published figure.
    paths = ("argparse.py", "json/encoder.py", "subprocess.py", "sched.py")
    assert [split_of(path) for path in paths] == ["train", "validation", "validation", "test"]


def test_held_out_files_can_leave_out_tables_that_training_files_hold_as_well(corpus) -> None:
    without = load_corpus("embedded:python-stdlib-without-tables")
    assert without["train"]["text"][:] == corpus["train"]["text"][:]
    known = {line for text in corpus["train"]["text"] for line in text.splitlines() if len(line) > 20}
    shares = {}
    for split in ("validation", "test"):
        for text in set(corpus[split]["text"]) - set(without[split]["text"]):
            lines = [line for line in text.splitlines() if len(line) > 20]
            shares[text] = sum(line in known for line in lines) / max(1, len(lines))
        assert set(without[split]["text"]) < set(corpus[split]["text"])
    large = [share for text, share in shares.items() if len(text) > 20_000]
    assert statistics.median(large) > 0.5


def test_order_is_that_of_the_paths_and_loading_twice_is_equal(corpus) -> None:
    assert corpus["test"]["text"][:] == load_corpus("embedded:python-stdlib")["test"]["text"][:]


def test_streaming_gives_the_same_rows(corpus) -> None:
    stream = load_corpus("embedded:python-stdlib", streaming=True)
    assert [row["text"] for row in stream["test"]] == corpus["test"]["text"][:]


def test_an_unknown_embedded_corpus_is_refused() -> None:
    with pytest.raises(ValueError, match="'embedded:python-stdlib'"):
        load_corpus("embedded:java")


def test_a_python_without_sources_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(ValueError, match="standard library unpacked"):
        python_stdlib()
