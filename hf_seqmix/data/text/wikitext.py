"""WikiText as articles to train on and running text to score, from its files or from the lines of the Hub."""

import itertools
import re
from pathlib import Path

import datasets

from ..local_files import check_file, is_local
from .corpora import load_from_hub

__all__ = ["load_wikitext", "wikitext_articles"]

# " = Robert Boulter = " between blank lines is the title of an article, " = = Career = = " one of its sections.
TITLE = re.compile(r"^ = (?!= )[^\n]*[^=\s] = ?\n(?=[ ]?\n)", re.MULTILINE)


def load_wikitext(source: str | Path) -> datasets.DatasetDict:
    """Load WikiText with one article a row for training, and the validation and the test text as one document each.

    A model is scored on running text, as in published figures: an article is often shorter than a long context. Line
    ends are text here. The papers replace line ends by end-of-sentence tokens, so perplexities per token are close to
    published perplexities, but not the same in kind.

    Args:
        source: a folder with `wiki.train.*`, `wiki.valid.*` and `wiki.test.*`, or a name and configuration of the Hub,
            such as `"Salesforce/wikitext:wikitext-103-raw-v1"`, whose rows are lines.

    Raises:
        ValueError: the files are missing, are not UTF-8 or hold no article, or the Hub cannot be reached.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        texts = {"train": _read(folder, "train"), "validation": _read(folder, "valid"), "test": _read(folder, "test")}
    else:
        texts = _of_hub(str(source))
    articles = wikitext_articles(texts["train"])
    rows = {"train": articles, "validation": [texts["validation"]], "test": [texts["test"]]}
    return datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": own}) for name, own in rows.items()})


def wikitext_articles(text: str) -> list[str]:
    """Return the articles of a split, each from its title on.

    Text before the first title belongs to the first article.

    Raises:
        ValueError: there is no title.
    """
    starts = [match.start() for match in TITLE.finditer(text)]
    if not starts:
        raise ValueError(
            f"the text, which begins {text[:60]!r}, has no title such as ' = Valkyria Chronicles III = '."
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
    check_file(found[0], binary=False)
    return found[0].read_text(encoding="utf-8-sig")


def _of_hub(source: str) -> dict[str, str]:
    """Return the text of each split; blank lines, which tell titles from other lines, are empty rows there."""
    if is_local(source):
        raise ValueError(f"there is no folder {source}. Check the spelling; paths start from {Path.cwd()}.")
    corpus = load_from_hub(source, streaming=False)
    names = ("train", "validation", "test")
    if not set(names) <= set(corpus):
        raise ValueError(f"{source!r} has the splits {', '.join(corpus)}; WikiText has {', '.join(names)}.")
    return {name: "".join(line if line.strip() else " \n" for line in corpus[name]["text"]) for name in names}
