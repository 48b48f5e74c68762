"""WikiText as articles to train on and running text to score, from its files or from the lines that the Hub holds."""

import itertools
import re
from pathlib import Path

import datasets

from .corpora import load_corpus

__all__ = ["load_wikitext", "wikitext_articles"]

# " = Robert Boulter = " between blank lines is the title of an article, " = = Career = = " one of its sections.
TITLE = re.compile(r"^ = (?!= )[^\n]*[^=\s] = ?\n(?=[ ]?\n)", re.MULTILINE)


def load_wikitext(source: str | Path) -> datasets.DatasetDict:
    """
    WikiText with one article a row for training, and the validation and test text as one document each.

    A model is scored on running text, as published figures are: an article is often shorter than a long context. Line ends
    are text here; the papers replace them by end-of-sentence tokens, so perplexities per token are close to theirs, not the
    same in kind.

    Args:
        source: a folder with `wiki.train.*`, `wiki.valid.*` and `wiki.test.*`, or the Hub's name and configuration,
            such as `"Salesforce/wikitext:wikitext-103-raw-v1"`, whose rows are lines.

    Raises:
        ValueError: the files are missing or hold no article, or the Hub cannot be reached.
    """
    folder = Path(source)
    if folder.is_dir():
        texts = {"train": _read(folder, "train"), "validation": _read(folder, "valid"), "test": _read(folder, "test")}
    else:
        # Rows without text are blank lines; they are left out there, and stand around every title here.
        corpus = load_corpus(str(source))
        texts = {
            name: "".join(map(_with_blank_lines, corpus[name]["text"])) for name in ("train", "validation", "test")
        }
    articles = wikitext_articles(texts["train"])
    rows = {"train": articles, "validation": [texts["validation"]], "test": [texts["test"]]}
    return datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": own}) for name, own in rows.items()})


def wikitext_articles(text: str) -> list[str]:
    """
    The articles of a split, each from its title on; what stands before the first title belongs to the first.

    Raises:
        ValueError: there is no title.
    """
    starts = [match.start() for match in TITLE.finditer(text)]
    if not starts:
        raise ValueError(
            f"The text, which begins {text[:60]!r}, has no title such as ' = Valkyria Chronicles III = '."
        )
    borders = [0, *starts[1:], len(text)]
    return [text[start:end] for start, end in itertools.pairwise(borders)]


def _read(folder: Path, split: str) -> str:
    found = sorted(path for path in folder.glob(f"wiki.{split}.*") if path.is_file())
    if len(found) != 1:
        raise ValueError(
            f"{folder} has {len(found)} files wiki.{split}.*; WikiText has one, such as wiki.{split}.tokens or"
            f" wiki.{split}.raw."
        )
    return found[0].read_text(encoding="utf-8")


def _with_blank_lines(line: str) -> str:
    """A heading between blank lines as in the files, any other line as it is."""
    return f" \n{line} \n" if re.match(r"^ (= )+[^\n]* =( =)*[ ]?\n?$", line) else line
