"""Project Gutenberg's notices are cut off, the book is not."""

import pytest

from hf_seqmix.data.text.gutenberg import is_gutenberg, strip_gutenberg

BOOK = "PREFACE\n\nTo start of the story:\n\n***\n\nnaïve *** END OF PART ONE ***\n\n  ***FINIS***"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "start, end",
    [
        ("*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***", "*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***"),
        ("***START OF THE PROJECT GUTENBERG EBOOK A BOOK***", "***END OF THE PROJECT GUTENBERG EBOOK A BOOK***"),
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK A\nLONG TITLE ***",
            "*** END OF THE PROJECT GUTENBERG EBOOK A\nB ***",
        ),
    ],
)
def test_the_book_alone_is_left(start, end, newline):
    file = f"\ufeffThe Project Gutenberg EBook\n\nTitle: A Book\n\n{start}\n\n\n{BOOK}\n\n\n{end}\n"
    file += "***** This file should be named 1.txt *****\n*** START: FULL LICENSE ***\nlicense\n"
    file, book = file.replace("\n", newline), BOOK.replace("\n", newline)
    assert is_gutenberg(file)
    assert strip_gutenberg(file) == book
    assert not is_gutenberg(book)


START, END = "*** START OF THE PROJECT GUTENBERG EBOOK X ***\n", "*** END OF THE PROJECT GUTENBERG EBOOK X ***\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("a novel", "'a novel', has no line .* START OF"),
        (START + "a novel", "no line .* END OF"),
        (END + START + "a novel", "no line .* END OF"),
        (START + "\n \n" + END, "nothing between"),
    ],
)
def test_texts_that_are_no_whole_file_raise(text, message):
    with pytest.raises(ValueError, match=message):
        strip_gutenberg(text)
