"""The timing of decoding with candidates: every way gives greedy's tokens, and is timed."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_seqmix.training.result_files import read_results

ROOT = Path(__file__).resolve().parents[3]
CHECKPOINT = str(ROOT / "model_cards" / "poly3-python-2m")


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts" / "speed"))
        threads = torch.get_num_threads()
        yield importlib.import_module("assisted")
        torch.set_num_threads(threads)


# The library's own call of the assistant.
@pytest.mark.filterwarnings("ignore:.*generation-related arguments")
def test_every_way_is_timed(script, tmp_path):
    numbers = ["--prompts", "1", "--prompt-tokens", "20", "--new-tokens", "6", "--candidates", "3", "--rounds", "1"]
    (row,) = script.main(
        ["--models", f"{CHECKPOINT}/", "--assistant", CHECKPOINT, *numbers, "--output-dir", str(tmp_path)]
    )
    assert row["model"] == "poly3-python-2m"
    assert row["greedy_per_call"] == 1 and row["greedy_times_faster"] == 1
    # The model agrees with itself, so that each call gives several tokens.
    assert row["assisted_per_call"] > 1
    assert row["lookup_times_faster"] == row["lookup_per_s"] / row["greedy_per_s"]
    written = {(r.model, r.metric): r.value for r in read_results(tmp_path / "assisted.jsonl")}
    for way in ("greedy", "lookup", "assisted"):
        assert written[row["model"], f"{way}_per_s"] == row[f"{way}_per_s"]
    assert "tokens a call" in (tmp_path / "assisted.md").read_text(encoding="utf-8")


def test_what_would_be_lost_is_refused_first(script, tmp_path):
    with pytest.raises(SystemExit, match="--models names poly3-python-2m twice"):
        script.main(["--models", CHECKPOINT, f"{CHECKPOINT}/", "--output-dir", str(tmp_path)])
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"the output folder .*file is a file"):
        script.main(["--models", CHECKPOINT, "--output-dir", str(tmp_path / "file")])
