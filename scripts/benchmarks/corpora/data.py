"""The corpora of `run_benchmarks.py corpora`: where their text comes from, and how pretrain.py is given it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from hf_seqmix._files import whole_files
from hf_seqmix.data import count_bytes, load_enwik8, load_novels, load_wikitext, python_stdlib

from ..inputs import first_bytes

SPLITS = ("train", "validation", "test")
WIKITEXT = "Salesforce/wikitext:wikitext-103-raw-v1"

# The published splits are of the whole file; a head of it is cut where the last of these leave a test of its own.
ENWIK8_HEAD = {"train_bytes": 3_750_000, "validation_bytes": 200_000}


@dataclass(frozen=True)
class Corpus:
    """A corpus by its name.

    Attributes:
        load: its three splits, from the folder of `--data-dir` or None.
        files: what the folder has to hold, in words; empty where none is needed.
        tokenizer: of models that are not of the published size.
        title: how results name it. Those of a part never bear the name of the whole.
    """

    load: Callable[[Path | None], datasets.DatasetDict]
    files: str
    tokenizer: str
    title: str


@dataclass(frozen=True)
class CorpusData:
    """What a run needs of a corpus.

    Attributes:
        texts: split -> documents.
        title: what it is, in words.
        tokenizer: of models that are not of the published size.
        name: its name and a piece of the text's hash, which tells runs on other text apart.
        fields: of pretrain.py's data arguments; `write` makes the files that they name.
    """

    texts: dict[str, list[str]]
    title: str
    tokenizer: str
    name: str
    fields: dict[str, Any]

    def write(self) -> None:
        """Write the training and validation text for pretrain.py, unless that was done before."""
        files = {split: Path(self.fields[f"{split}_file"][0]) for split in ("train", "validation")}
        if all(path.is_file() for path in files.values()):
            return
        with whole_files(files["train"].parent, last="train.jsonl") as aside:
            for split, path in files.items():
                with (aside / path.name).open("w", encoding="utf-8") as file:
                    file.writelines(
                        json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in self.texts[split]
                    )


def _folder(folder: Path | None) -> Path:
    assert folder is not None
    return folder


CORPORA = {
    "wikitext-103": Corpus(
        lambda folder: load_wikitext(folder or WIKITEXT), "", "bpe:4096", "WikiText-103 (raw, articles)"
    ),
    "wikitext-103-head": Corpus(
        lambda folder: load_wikitext(_folder(folder)),
        "wiki.train.head.tokens, wiki.valid.tokens, wiki.test.tokens",
        "bpe:4096",
        "trained on the first part of WikiText-103's training text alone; its test text",
    ),
    "enwik8": Corpus(lambda folder: load_enwik8(_folder(folder) / "enwik8"), "enwik8", "byte", "enwik8"),
    "enwik8-head": Corpus(
        lambda folder: load_enwik8(_folder(folder) / "enwik8.head", **ENWIK8_HEAD),
        "enwik8.head",
        "byte",
        "first 4.15 MB of enwik8 (3.75 MB to train on, 0.2 MB to validate, the rest is the test)",
    ),
    "gutenberg": Corpus(
        lambda folder: load_novels(_folder(folder)),
        "at least three novels, *.txt",
        "bpe:4096",
        "novels of Project Gutenberg, whole ones held out",
    ),
    "python-stdlib": Corpus(
        lambda folder: python_stdlib(), "", "bpe:4096", "sources of Python's standard library, files held out"
    ),
}


def read_corpus(name: str, data_dir: Path | None, output_dir: Path, train_limit: int | None = None) -> CorpusData:
    """Read a corpus, whose training and validation text `CorpusData.write` puts below the output folder's `data`.

    Args:
        name: of `CORPORA`.
        data_dir: with its files.
        output_dir: of the benchmark.
        train_limit: bytes of the training and of the validation text, from their beginnings; None for all.

    Raises:
        ValueError: it needs a folder and none is given, there is no such folder, or it does not hold the corpus.
    """
    corpus = CORPORA[name]
    if data_dir is None and corpus.files:
        raise ValueError(f"{name} is read from local files: give --data-dir, a folder with {corpus.files}.")
    if data_dir is not None and not data_dir.is_dir():
        raise ValueError(f"the folder {data_dir} of --data-dir does not exist. Check the spelling.")
    if data_dir is not None and name == "python-stdlib":
        raise ValueError("python-stdlib is this Python's own standard library: leave --data-dir out.")
    splits = corpus.load(data_dir)
    texts = {split: list(splits[split]["text"]) for split in SPLITS}
    title = corpus.title
    if train_limit is not None:
        for split in ("train", "validation"):
            texts[split] = first_bytes(texts[split], train_limit)
        title += f"; trained on {sum(map(count_bytes, texts['train'])):,} bytes"
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(json.dumps(texts[split]).encode())
    own_name = f"{name}-{digest.hexdigest()[:8]}"
    folder = output_dir / "data" / own_name
    fields = {f"{split}_file": [str(folder / f"{split}.jsonl")] for split in ("train", "validation")}
    return CorpusData(texts, title, corpus.tokenizer, own_name, fields)
