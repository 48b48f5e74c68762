"""Books of Project Gutenberg: the text of the book without the notice and the license around the text."""

import re

__all__ = ["is_gutenberg", "strip_gutenberg"]

# "*** START OF THIS PROJECT GUTENBERG EBOOK MOBY DICK ***", in older files "***START OF THE ..."; long titles are
# broken over lines. Other lines begin with three stars, too ("***FINIS***", "*** START: FULL LICENSE ***").
MARKER = r"^\*\*\*[ \t]*{} OF (?:THE|THIS) PROJECT GUTENBERG EBOOK\b(?:[^*\n]*\n){{0,3}}?[^*\n]*\*\*\*[ \t\r]*$"
START, END = (re.compile(MARKER.format(word), re.MULTILINE | re.IGNORECASE) for word in ("START", "END"))


def is_gutenberg(text: str) -> bool:
    """Return whether a text has the line with which Project Gutenberg begins a book."""
    return START.search(text) is not None


def strip_gutenberg(text: str) -> str:
    """Return a book without everything up to its line `*** START OF ...` and from its line `*** END OF ...` on.

    Line ends are kept as they are. Empty lines at the beginning and at the end are removed.

    Raises:
        ValueError: one of the two lines is missing, or nothing is between them.
    """
    start = START.search(text)
    end = END.search(text, start.end()) if start else None
    if start is None or end is None:
        missing = "END" if start else "START"
        raise ValueError(
            f"the text, which begins {text[:60]!r}, has no line '*** {missing} OF THE PROJECT GUTENBERG EBOOK ... ***'"
            " where a book has it: give a whole file of Project Gutenberg, or use other texts as they are."
        )
    book = text[start.end() : end.start()].strip("\r\n")
    if not book.strip():
        raise ValueError(f"there is nothing between {start.group().strip()!r} and {end.group().strip()!r}.")
    return book
