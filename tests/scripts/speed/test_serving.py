"""The timing of continuous batching: every model is checked and timed both ways, the library's Llama among them."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_seqmix.training.result_files import read_results

ROOT = Path(__file__).resolve().parents[3]
CHECKPOINT = str(ROOT / "model_cards" / "poly3-python-2m")
SMALL = ["--rounds", "1", "--threads", "1"]


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts" / "speed"))
        threads = torch.get_num_threads()
        yield importlib.import_module("serving")
        torch.set_num_threads(threads)


def test_both_ways_are_timed(script, tmp_path):
    numbers = ["--requests", "1", "3", "--prompt-tokens", "2", "9", "--new-tokens", "1", "4"]
    rows = script.main(["--models", CHECKPOINT, "--llama", *SMALL, *numbers, "--output-dir", str(tmp_path)])
    assert [(row["model"], row["requests"]) for row in rows] == [
        ("poly3-python-2m", 1),
        ("poly3-python-2m", 3),
        (script.LLAMA, 1),
        (script.LLAMA, 3),
    ]
    for row in rows:
        assert row["times_faster"] == row["together_per_s"] / row["alone_per_s"]
    assert rows[0]["tokens"] < rows[1]["tokens"] == rows[3]["tokens"] <= 12
    written = {(r.model, r.setting["requests"], r.metric): r.value for r in read_results(tmp_path / "serving.jsonl")}
    for row in rows:
        for metric in ("alone_per_s", "together_per_s", "tokens", "times_faster"):
            assert written[row["model"], row["requests"], metric] == row[metric]


def test_prompts_longer_than_the_text_are_refused(script: Any) -> None:
    requests = importlib.import_module("generation.requests").code_requests
    with pytest.raises(ValueError, match="prompts of 1000000 tokens were asked for, and the text has"):
        requests(CHECKPOINT, 1, (1_000_000, 1_000_000), (1, 2))


def test_wrong_tokens_are_not_timed(script, tmp_path, monkeypatch):
    together = script.together
    monkeypatch.setattr(script, "together", lambda *given: [[*tokens[::-1], 0] for tokens in together(*given)])
    with pytest.raises(RuntimeError, match="differs from generate at token"):
        script.main(["--models", CHECKPOINT, *SMALL, "--requests", "1", "--output-dir", str(tmp_path)])


def test_a_model_that_is_not_there_is_said_in_a_line(script: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^serving\.py: .*no-such"):
        script.main(["--models", str(tmp_path / "no-such"), *SMALL, "--output-dir", str(tmp_path)])


@pytest.mark.parametrize("option", ["--prompt-tokens", "--new-tokens"])
def test_fewest_beyond_most_are_refused(script: Any, capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit):
        script.main(["--models", CHECKPOINT, option, "20", "10"])
    assert f"{option} is 20 10; give the fewest first, then the most." in capsys.readouterr().err
