"""WikiText: articles begin at titles, not at sections or at lines that only look like them."""

import datasets
import pytest

from hf_seqmix.data.text.wikitext import load_wikitext, wikitext_articles

FIRST = " \n = One = \n \n A sentence .\n = = Early = years = = \n \n = Goals ; A = \n = Assists ; P = Points\n \n"
SECOND = " = Two = = 2 = \n \n Another = one = .\n"


def test_articles_begin_at_their_titles():
    assert wikitext_articles(FIRST + SECOND) == [FIRST, SECOND]
    with pytest.raises(ValueError, match="has no title"):
        wikitext_articles(" = = Section = = \n \n text\n")


def test_files_are_articles_to_train_on_and_running_text_to_score(tmp_path):
    for split in ("train.head", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text(FIRST + SECOND, encoding="utf-8")
    splits = load_wikitext(tmp_path)
    assert list(splits["train"]["text"]) == [FIRST, SECOND]
    assert list(splits["validation"]["text"]) == list(splits["test"]["text"]) == [FIRST + SECOND]
    (tmp_path / "wiki.test.raw").write_text("another")
    with pytest.raises(ValueError, match=r"has 2 files wiki\.test"):
        load_wikitext(tmp_path)


def test_rows_of_the_hub_give_the_text_of_the_files(monkeypatch):
    file = FIRST + SECOND
    rows = [line if line.strip() else "" for line in file.splitlines(keepends=True)]  # as the Hub has blank lines
    hub = datasets.DatasetDict(
        {name: datasets.Dataset.from_dict({"text": rows}) for name in ("train", "validation", "test")}
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, streaming: hub)
    splits = load_wikitext("Salesforce/wikitext:wikitext-103-raw-v1")
    assert list(splits["train"]["text"]) == [FIRST, SECOND]
    assert list(splits["test"]["text"]) == [file]
    del hub["test"]
    with pytest.raises(ValueError, match="has the splits train, validation; WikiText has train, validation, test"):
        load_wikitext("Salesforce/wikitext:wikitext-103-raw-v1")


def test_a_folder_that_is_missing_is_no_name_of_the_hub(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*wiki"):
        load_wikitext(tmp_path / "wiki")


def test_files_that_are_not_utf8_are_named(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.raw").write_text("\ufeff" + FIRST, encoding="utf-8")
    assert list(load_wikitext(tmp_path)["train"]["text"]) == [FIRST]
    (tmp_path / "wiki.valid.raw").write_bytes(FIRST.encode() + b"\xe9")
    with pytest.raises(ValueError, match=r"wiki\.valid\.raw is not UTF-8: .* at byte"):
        load_wikitext(tmp_path)
