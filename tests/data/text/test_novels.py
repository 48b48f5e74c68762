"""A folder of books: whole ones are held out, without the notices around them."""

import pytest

from hf_seqmix.data.text.novels import load_novels

START, END = (f"*** {word} OF THE PROJECT GUTENBERG EBOOK {{0}} ***" for word in ("START", "END"))
NOTICE = f"License\n{START}\r\n{{1}}\r\n{END}\nEnd"


def write(folder, **books):
    for name, text in books.items():
        (folder / f"{name}.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())


def test_the_shortest_books_are_held_out_whole(tmp_path):
    short = "Call me Ishmael."
    # With its notice the shortest book is the longest file.
    write(tmp_path, a=NOTICE.format("MOBY DICK" * 100, short), b="w" * 90, c="m\r\n" * 20, d="k" * 100)
    splits = load_novels(tmp_path)
    assert list(splits["test"]["text"]) == [short]
    assert list(splits["validation"]["text"]) == ["m\n" * 20]
    assert list(splits["train"]["text"]) == ["w" * 90, "k" * 100]


def test_one_in_twenty_is_held_out(tmp_path):
    write(tmp_path, **{f"b{length:02}": "x" * length for length in range(1, 41)})
    splits = load_novels(tmp_path)
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 36, "validation": 2, "test": 2}


def test_hidden_files_are_no_books(tmp_path):
    """Such as the notes that macOS puts beside a file; as the shortest ones they were held out."""
    write(tmp_path, a="a" * 10, b="b" * 20, c="c" * 30, **{"._a": "Mac OS X"})
    assert {name: list(rows["text"]) for name, rows in load_novels(tmp_path).items()} == {
        "train": ["c" * 30],
        "validation": ["b" * 20],
        "test": ["a" * 10],
    }


def test_folders_that_are_no_collection_raise(tmp_path):
    write(tmp_path, a="a", b="b")
    with pytest.raises(ValueError, match="has 2 files"):
        load_novels(tmp_path)
    write(tmp_path, c=" \n")
    with pytest.raises(ValueError, match=r"c\.txt is empty"):
        load_novels(tmp_path)
    (tmp_path / "c.txt").write_bytes(b"\xe9\xe8")
    with pytest.raises(ValueError, match="not UTF-8"):
        load_novels(tmp_path)
    write(tmp_path, c=NOTICE.format("C", "text").split("*** END")[0])
    with pytest.raises(ValueError, match=r"no line .* END OF"):
        load_novels(tmp_path)
