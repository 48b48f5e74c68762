"""Text from files, folders and names, and the messages for everything that is not text."""

import json
from pathlib import Path

import datasets
import pandas
import pyarrow.parquet
import pytest

from hf_seqmix.data import hold_out, load_corpus

TEXTS = ["first document\nof two lines\n", "second \u20ac \U0001f600\n"]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def write_texts(folder: Path, kind: str) -> Path:
    if kind == "json":
        return write(folder / "a.json", json.dumps([{"text": text, "label": 1} for text in TEXTS]))
    if kind == "jsonl":
        return write(folder / "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    table = pandas.DataFrame({"text": TEXTS, "label": [0, 1]})
    path = folder / f"a.{kind}"
    if kind == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path)
    return path


def rows(split) -> list[str]:
    return [row["text"] for row in split]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["json", "jsonl", "csv", "parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, kind: str, streaming: bool) -> None:
    corpus = load_corpus(write_texts(tmp_path, kind), streaming=streaming)
    assert isinstance(corpus, datasets.IterableDatasetDict if streaming else datasets.DatasetDict)
    assert list(corpus) == ["train"]
    assert rows(corpus["train"]) == TEXTS
    assert all(set(row) == {"text"} for row in corpus["train"])


@pytest.mark.parametrize("streaming", [False, True])
def test_a_text_file_is_one_document(tmp_path: Path, streaming: bool) -> None:
    path = write(tmp_path / "a.txt", "one\n\ntwo\u20ac\nthree")
    assert rows(load_corpus(str(path), streaming=streaming)["train"]) == ["one\n\ntwo\u20ac\nthree"]


def test_paragraphs_and_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n \ntwo\n\n\nthree")
    assert rows(load_corpus(path, sample_by="paragraph")["train"]) == ["one\n \ntwo", "\nthree"]
    assert rows(load_corpus(path, sample_by="line")["train"]) == ["one", "two", "three"]


def test_a_folder_is_split_by_the_names_of_its_files(tmp_path: Path) -> None:
    for name, text in [("wiki.train.tokens", "x"), ("wiki.valid.tokens", "y"), ("test/a.tokens", "z")]:
        write(tmp_path / name, text)
    write(tmp_path / "license.pdf", b"\xff")
    corpus = load_corpus(tmp_path)
    assert {name: rows(split) for name, split in corpus.items()} == {
        "train": ["x"],
        "validation": ["y"],
        "test": ["z"],
    }


def test_a_folder_without_such_names_is_training_text_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c/contest.txt"):
        write(tmp_path / name, name)
    assert rows(load_corpus(tmp_path)["train"]) == ["a.txt", "b.txt", "c/contest.txt"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("sample_by", ["document", "paragraph", "line"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, sample_by: str, streaming: bool) -> None:
    path = write(tmp_path / "a.txt", "\ufeffone\u20ac")
    assert rows(load_corpus(path, sample_by=sample_by, streaming=streaming)["train"]) == ["one\u20ac"]


@pytest.mark.parametrize("streaming", [False, True])
def test_words_of_csv_stay_words(tmp_path: Path, streaming: bool) -> None:
    path = write(tmp_path / "a.csv", 'text,id\nNA,1\nnull,2\n"",3\nnan,4\n')
    assert rows(load_corpus(path, streaming=streaming)["train"]) == ["NA", "null", "nan"]


def test_files_of_each_split(tmp_path: Path) -> None:
    a, b, c = (write(tmp_path / f"{name}.txt", name) for name in "abc")
    corpus = load_corpus({"train": [a, str(b)], "validation": c})
    assert {name: rows(split) for name, split in corpus.items()} == {"train": ["a", "b"], "validation": ["c"]}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("with_splits", [True, False])
def test_a_folder_written_by_save_to_disk(tmp_path: Path, with_splits: bool, streaming: bool) -> None:
    one = datasets.Dataset.from_dict({"text": TEXTS})
    (datasets.DatasetDict({"train": one}) if with_splits else one).save_to_disk(tmp_path / "saved")
    corpus = load_corpus(tmp_path / "saved", streaming=streaming)
    assert isinstance(corpus, datasets.IterableDatasetDict if streaming else datasets.DatasetDict)
    assert list(corpus) == ["train"]
    assert rows(corpus["train"]) == TEXTS


def test_an_unknown_ending_needs_the_format(tmp_path: Path) -> None:
    path = write(tmp_path / "enwik8", "text")
    assert rows(load_corpus(path, file_format="text")["train"]) == ["text"]
    with pytest.raises(ValueError, match=r"has no extension, which would say what it holds; known are \.txt"):
        load_corpus(path)
    with pytest.raises(ValueError, match="'xml'; allowed are csv, json, parquet, text"):
        load_corpus(path, file_format="xml")


@pytest.mark.parametrize("streaming", [False, True])
def test_another_text_column_and_blank_rows(tmp_path: Path, streaming: bool) -> None:
    lines = [{"body": "a", "id": 1}, {"body": " \n", "id": 2}, {"body": None, "id": 3}, {"body": "b", "id": 4}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert rows(load_corpus(path, text_column="body", streaming=streaming)["train"]) == ["a", "b"]
    with pytest.raises(ValueError, match="no column 'text'; its columns are body, id"):
        load_corpus(path, streaming=streaming)
    with pytest.raises(ValueError, match="holds int, not text"):
        load_corpus(path, text_column="id", streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_value_that_is_no_text_is_named(tmp_path: Path, streaming: bool) -> None:
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"body": value}) for value in ["a", None, 5, "b"]))
    ours = r"the column 'body' of the train split of .*a\.jsonl holds int, not text, in row 2\. Make all"
    # Before a column could have several types, datasets refused the file itself.
    earlier = r"a\.jsonl could not be read as json: .*\(/body\) changed from string to number in row 2\. Check"
    with pytest.raises(ValueError, match=ours if hasattr(datasets, "Json") else earlier):
        rows(load_corpus(path, text_column="body", streaming=streaming)["train"])


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt is empty \(0 bytes\)"),
        ("a.jsonl", b"", "is empty"),
        ("a.txt", b" \n\n\t", "every row is blank"),
        ("a.txt", b"caf\xe9 au lait", r"a\.txt is not UTF-8: invalid continuation byte at byte 3"),
        ("a.txt", b"x" * (1 << 20) + b"\xff", f"at byte {1 << 20}"),
        ("a.txt", b"x" * ((1 << 20) - 1) + b"\xe2\x82", f"unexpected end of data at byte {(1 << 20) - 1}"),
        ("a.csv", b"text\ncaf\xe9\n", "is not UTF-8.*iconv -f latin1 -t utf-8"),
        ("a.txt", "it was".encode("utf-16"), "is not UTF-8.*iconv -f utf-16 -t utf-8"),
    ],
)
def test_files_without_text_are_refused(
    tmp_path: Path, name: str, content: bytes, message: str, streaming: bool
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=message):
        load_corpus(path, streaming=streaming)


def test_a_character_across_two_chunks_is_fine(tmp_path: Path) -> None:
    text = "x" * ((1 << 20) - 1) + "\u20ac"
    assert rows(load_corpus(write(tmp_path / "a.txt", text))["train"]) == [text]


def test_missing_files_and_wrong_content_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no file or folder .*b\.txt"):
        load_corpus(tmp_path / "b.txt")
    with pytest.raises(ValueError, match=r"no file or folder b\.txt"):
        load_corpus("b.txt")
    with pytest.raises(ValueError, match="holds no data files"):
        load_corpus(tmp_path)
    write(tmp_path / "a.txt", "x")
    write(tmp_path / "b.json", '{"text": ')
    with pytest.raises(ValueError, match="several kinds"):
        load_corpus(tmp_path)
    with pytest.raises(ValueError, match="could not be read as json"):
        load_corpus(tmp_path / "b.json")
    with pytest.raises(ValueError, match="no split 'dev'; allowed are train, validation, test"):
        load_corpus({"dev": tmp_path / "a.txt"})
    with pytest.raises(ValueError, match="'sentence'; allowed are 'document'"):
        load_corpus(tmp_path / "a.txt", sample_by="sentence")


def test_a_file_of_no_split_among_files_of_splits_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", "x")
    write(tmp_path / "notes.txt", "x")
    with pytest.raises(ValueError, match=r"notes\.txt does not say which split"):
        load_corpus(tmp_path)


def test_hub_names_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        return datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS})})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert rows(load_corpus("owner/name:config")["train"]) == TEXTS
    load_corpus("name")
    assert asked == [(("owner/name", "config"), {"streaming": False}), (("name", None), {"streaming": False})]


def test_a_hub_that_cannot_be_reached_is_said_so() -> None:
    with pytest.raises(ValueError, match="neither a file or folder here nor a data set"):
        load_corpus("no-such-owner/no-such-name")


def dataset(texts: list[str]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": texts})


def test_holding_out_keeps_whole_documents_and_all_text() -> None:
    texts = [f"document {i:02}\n" * 10 for i in range(20)]
    parts = hold_out(dataset(texts), 0.1)
    assert parts["train"]["text"][:] == texts[:18]
    assert parts["validation"]["text"][:] == texts[18:]


def test_holding_out_cuts_a_single_document_after_a_line() -> None:
    text = "".join(f"line {i}\n" for i in range(100))
    parts = hold_out(dataset([text]), 0.2)
    train, held_out = (parts[name]["text"][0] for name in ("train", "validation"))
    assert train + held_out == text
    assert train.endswith("\n")
    assert 0.2 <= len(held_out) / len(text) < 0.22


def test_holding_out_cuts_a_line_between_words_and_a_word_anywhere() -> None:
    assert hold_out(dataset(["one two three"]), 0.4)["validation"]["text"][0] == "three"
    assert hold_out(dataset(["x" * 10]), 0.3)["validation"]["text"][0] == "xxx"


@pytest.mark.parametrize(("texts", "fraction"), [(["x"], 0.1), (["text"], 0.0), (["text"], 1.0)])
def test_holding_out_nothing_or_everything_is_refused(texts: list[str], fraction: float) -> None:
    with pytest.raises(ValueError, match=r"fraction|no text on one side"):
        hold_out(dataset(texts), fraction)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b'{"text": "a"}\n{"text": 3'),
        ("a.jsonl", b"hello"),
        ("a.csv", b'text,b\na,"b\nc,d\n'),
        ("a.parquet", b"text"),
    ],
)
def test_content_of_another_kind_is_refused_by_the_name_of_the_file(
    tmp_path: Path, name: str, content: bytes, streaming: bool
) -> None:
    with pytest.raises(ValueError, match=rf"{name} could not be read as \w+: .*what the extension says\.$"):
        load_corpus(write(tmp_path / name, content), streaming=streaming)


@pytest.mark.parametrize("files", [{}, {"train": []}])
def test_a_mapping_without_files_is_refused(files: dict) -> None:
    with pytest.raises(ValueError, match="no file is named; give, for example"):
        load_corpus(files)


@pytest.mark.parametrize("streaming", [False, True])
def test_two_columns_of_one_name_are_refused_in_a_line(tmp_path: Path, streaming: bool) -> None:
    columns = [pyarrow.array(["a"]), pyarrow.array(["b"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet has several columns named 'text'; rename all but one\.$"):
        load_corpus(tmp_path / "a.parquet", streaming=streaming)


def test_names_of_files_are_no_patterns(tmp_path):
    for name, text in {"book[1].txt": "right", "book1.txt": "another"}.items():
        (tmp_path / name).write_text(text)
    assert load_corpus({"train": tmp_path / "book[1].txt"})["train"]["text"][:] == ["right"]


def test_another_separator_is_said(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "text;label\ngood;1\nbad;0\n")
    with pytest.raises(ValueError, match=r"text;label.* The separator seems to be another"):
        load_corpus(tmp_path / "a.csv")
