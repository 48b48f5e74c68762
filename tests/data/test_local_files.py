"""Which files belong to which split, their formats, and what is taken for a path."""

import bz2
import gzip
import io
import lzma
import re
import zipfile
from pathlib import Path

import pytest

from hf_seqmix.data import load_corpus, local_files
from hf_seqmix.data.labeled import load_labeled
from hf_seqmix.data.local_files import check_file, files_of_splits, format_of, is_local


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text", encoding="utf-8")


def test_names_of_files_say_the_split_in_whole_words(tmp_path: Path) -> None:
    touch(tmp_path, "b.train.txt", "a-training.txt", "DEV/x.md", "test_1.jsonl", ".train.txt", "image-train.png")
    found = files_of_splits({None: tmp_path}, None)
    names = {split: [path.relative_to(tmp_path).as_posix() for path in paths] for split, paths in found.items()}
    assert names == {"train": ["a-training.txt", "b.train.txt"], "validation": ["DEV/x.md"], "test": ["test_1.jsonl"]}
    touch(tmp_path, "contest.txt")  # not a test
    with pytest.raises(ValueError, match=r"contest\.txt does not say which split"):
        files_of_splits({None: tmp_path}, None)
    assert [path.name for path in files_of_splits({"test": tmp_path / "contest.txt"}, None)["test"]] == ["contest.txt"]


def test_the_outermost_folder_says_the_split(tmp_path: Path) -> None:
    touch(tmp_path, "test/training.txt", "valid/train/a.txt", "train/test_cases.txt")
    found = files_of_splits({None: tmp_path}, None)
    names = {split: [path.relative_to(tmp_path).as_posix() for path in paths] for split, paths in found.items()}
    assert names == {
        "train": ["train/test_cases.txt"],
        "validation": ["valid/train/a.txt"],
        "test": ["test/training.txt"],
    }


def test_a_folder_of_one_split_that_holds_a_file_of_another_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", "held/b.txt")
    for held_out in (tmp_path / "held", tmp_path / "held" / "b.txt"):
        with pytest.raises(ValueError, match=r"b\.txt is of the validation and of the train split"):
            files_of_splits({"train": tmp_path, "validation": held_out}, None)
    same = tmp_path / "a.txt"  # on purpose
    assert files_of_splits({"train": same, "validation": same}, None) == {"train": [same], "validation": [same]}


def test_a_given_format_takes_every_file_of_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "enwik8", "more.data")
    with pytest.raises(ValueError, match="holds no data files"):
        files_of_splits({"train": tmp_path}, None)
    assert [path.name for path in files_of_splits({"train": tmp_path}, "text")["train"]] == ["enwik8", "more.data"]


def test_the_ending_says_the_format() -> None:
    assert [format_of(Path(name)) for name in ("a.TXT", "wiki.test.tokens", "a.jsonl")] == ["text", "text", "json"]
    with pytest.raises(ValueError, match=r"a\.doc ends in '\.doc'"):
        format_of(Path("a.doc"))
    with pytest.raises(ValueError, match=r"data has no extension, which .* holds; .*--file-format of pretrain"):
        format_of(Path("data"))


def packed(kind: str) -> bytes:
    text = b"label,text\n1,a\n"
    if kind == "zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", text)
        return file.getvalue()
    zstd = b"\x28\xb5\x2f\xfd\x20\x0f"  # the library of Python has none before 3.14
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": lambda _: zstd}[kind](text)


@pytest.mark.parametrize("kind", ["gz", "zip", "bz2", "xz", "zst"])
def test_compressed_files_are_said_to_be(tmp_path: Path, kind: str) -> None:
    for name in (f"a.txt.{kind}", "b.csv"):
        (tmp_path / name).write_bytes(packed(kind))
        with pytest.raises(ValueError, match=rf"{re.escape(name)} is compressed: unpack it first\.$"):
            load_corpus(tmp_path / name)
        with pytest.raises(ValueError, match=rf"{re.escape(name)} is compressed: unpack it first\.$"):
            load_labeled({"train": tmp_path / name})


def test_text_that_begins_as_a_compressed_file_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("BZh is a name, and PK, too")
    check_file(tmp_path / "a.txt", binary=False)
    (tmp_path / "a.xlsx").write_bytes(packed("zip"))  # which unpacking makes no better
    with pytest.raises(ValueError, match=r"ends in '\.xlsx'"):
        format_of(tmp_path / "a.xlsx")


def test_only_what_can_be_a_path_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_local("wikitext") and is_local("./wikitext") and is_local("a.txt") and is_local(Path("wikitext"))
    touch(tmp_path, "wikitext")
    assert is_local("wikitext")


def test_a_file_without_bytes_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="is empty"):
        check_file(tmp_path / "a.txt", binary=False)


def test_hidden_folders_hold_no_data(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", ".ipynb_checkpoints/a-checkpoint.txt", "b/.cache/c.txt")
    assert [path.name for path in files_of_splits({"train": tmp_path}, None)["train"]] == ["a.txt"]
    touch(tmp_path, ".hidden/d.txt")  # unless the folder itself was given
    assert [path.name for path in files_of_splits({"train": tmp_path / ".hidden"}, None)["train"]] == ["d.txt"]


def test_rows_that_are_longer_than_their_header_are_refused(tmp_path):
    """Pandas makes their first field an index, and all others move by a column."""
    path = tmp_path / "long.csv"
    path.write_text("id,text,meta\n1,Good, really,pos\n2,Bad,neg\n3,ok,pos\n")
    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"long\.csv have more fields than the 3 columns"):
            load_corpus(path, streaming=streaming)
    path.write_text("text,label\nGood, really good,pos\nBad, awful,neg\n")
    with pytest.raises(ValueError, match=r"long\.csv have more fields than the 2 columns"):
        load_labeled({"train": path})
    path.write_text("\na,b\nc,d\n")
    assert load_labeled({"train": path}, header=False)["train"].column_names == ["0", "1"]


def test_rows_that_are_shorter_than_their_header_are_refused_wherever_they_are(tmp_path: Path) -> None:
    """A line break in a text made half of the text a label, and the other half disappear."""
    path = tmp_path / "short.tsv"
    path.write_text("label\ttext\npos\tgood\nneg\tfirst line\nsecond line\npos\tx\n")
    with pytest.raises(ValueError, match=r"short\.tsv have 1 fields and 2 columns: .* line 4"):
        load_labeled({"train": path})
    path = tmp_path / "short.csv"
    path.write_text('id,text\n1,"two\nlines"\n2\n')
    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"short\.csv have 1 fields and 2 columns: .* line 4"):
            load_corpus(path, streaming=streaming)
    path.write_text("id,text\n1,a\n\n  \n2,\n3,c\n")  # pandas leaves blank lines out
    assert load_labeled({"train": path})["train"].to_dict() == {"id": [1, 2, 3], "text": ["a", "", "c"]}


def test_a_stream_begins_before_all_of_a_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "long.csv", []
    path.write_text("id,text\n" + "1,a\n" * 3000)
    rows = local_files._rows
    monkeypatch.setattr(local_files, "_rows", lambda *args: (seen.append(row) or row for row in rows(*args)))
    load_corpus(path, streaming=True)
    assert 1000 < len(seen) < 1010
