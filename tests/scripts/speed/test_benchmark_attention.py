"""The benchmark against attention: every part runs, wrong products are not timed, and ratios are those of times."""

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hf_seqmix.training.result_files import read_results

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "speed"


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        threads = torch.get_num_threads()
        yield importlib.import_module("benchmark_attention")
        torch.set_num_threads(threads)


SMALL = ["--width", "16", "--heads", "2", "--rounds", "1", "--lengths", "12", "5"]


@pytest.mark.usefixtures("pictures")
def test_every_part_is_timed(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "DECODED", 3)
    rows = script.main([*SMALL, "--eager-limit", "8", "--output-dir", str(tmp_path)])
    assert [(row["part"], row["length"]) for row in rows] == [
        ("polynomial", 5),
        ("polynomial", 12),
        ("ipa", 5),
        ("decoding", 5),
        ("decoding", 12),
    ]
    polynomial, ipa = rows[:2], rows[2]
    assert polynomial[0]["degree_4_times_faster"] == polynomial[0]["attention_ms"] / polynomial[0]["degree_4_ms"]
    slope = math.log(polynomial[1]["degree_3_ms"] / polynomial[0]["degree_3_ms"]) / math.log(12 / 5)
    assert script.growth(polynomial, "degree_3") == pytest.approx(slope)
    assert ipa["ratio_ms"] == ipa["ipa_ms"] / ipa["eager_ms"]
    assert 0 < ipa["ipa_forward_ms"] < ipa["ipa_ms"]
    written = [r for r in read_results(tmp_path / "benchmark_attention.jsonl") if r.task == "ipa"]
    kept = {f"{r.model}_{r.metric}": r.value for r in written}
    assert kept.items() <= ipa.items() and len(kept) == 11
    assert "growth with the length" in (tmp_path / "benchmark_attention.md").read_text(encoding="utf-8")
    assert (tmp_path / "benchmark_attention.png").stat().st_size > 10_000


def test_a_wrong_product_is_not_timed(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    column = script.OPS["column"].forms["ours"]
    wrong = column._replace(product=lambda q, k, v, bias: column.product(q, k, v, bias) * 1.01)
    monkeypatch.setitem(script.OPS["column"].forms, "ours", wrong)
    with pytest.raises(RuntimeError, match=r"ipa differs from its definition in float64: .*nothing was timed"):
        script.main([*SMALL, "--parts", "ipa", "--output-dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width", "10", "--heads", "3"], "must divide --width 10"),
        (["--rounds", "0"], "must be at least 1"),
        (["--width", "0"], "must divide --width 0"),
    ],
)
def test_bad_sizes_are_refused(
    script: ModuleType, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script.main(arguments)
    assert message in capsys.readouterr().err


def test_no_length_for_eager_attention(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no length is within --eager-limit"):
        script.main([*SMALL, "--parts", "ipa", "--eager-limit", "2", "--output-dir", str(tmp_path)])
