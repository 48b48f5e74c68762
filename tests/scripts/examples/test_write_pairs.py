"""The example that writes pairs of sentences for fine-tuning."""

import importlib
from pathlib import Path
from typing import Any

import datasets
import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "examples"
TEXT = "The first sentence has six words. The second sentence has as many as seven! And a third ends this line here\n"


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("write_pairs")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def test_pairs_are_written_and_shown(script: Any, text: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "new" / "pairs.parquet"
    script.main([str(text), "--rows", "20", "--output", str(output)])
    pairs = datasets.Dataset.from_parquet(str(output), cache_dir=str(tmp_path / "cache"))
    assert pairs.column_names == ["sentence1", "sentence2", "score"] and len(pairs) == 20
    assert all(0 <= score <= 5 for score in pairs["score"])
    assert f"sentence2: {pairs[0]['sentence2']}" in capsys.readouterr().out
    assert [path.name for path in output.parent.iterdir()] == ["pairs.parquet"]


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        (TEXT, ["--output", "pairs.csv"], r"write_pairs\.py: --output is pairs\.csv; its name must end in \.parquet"),
        ("Two words.", [], "the texts have 0 sentences"),
        ("\udcff" + TEXT, [], r"is no text in UTF-8 \(invalid start byte at byte 0\)"),
    ],
)
def test_what_cannot_be_done_is_said(
    script: Any, text: Path, tmp_path: Path, content: str, more: list[str], message: str
) -> None:
    text.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(SystemExit, match=message):
        script.main([str(text), "--output", str(tmp_path / "pairs.parquet"), *more])
    assert not (tmp_path / "pairs.parquet").exists()


def test_a_missing_text_is_named(script: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no-such\.txt: No such file or directory\. Check the path"):
        script.main([str(tmp_path / "no-such.txt"), "--output", str(tmp_path / "pairs.parquet")])


def test_a_file_whose_name_would_match_a_pattern_stays(script: Any, text: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs 1.parquet").write_text("of somebody")
    script.main([str(text), "--rows", "5", "--output", str(tmp_path / "pairs [v1].parquet")])
    assert (tmp_path / "pairs 1.parquet").read_text() == "of somebody"
