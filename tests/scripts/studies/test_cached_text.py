"""The comparison of texts with a cache and without."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_seqmix.ops.toeplitz.online import OnlineConvolution

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts" / "studies"))
        threads = torch.get_num_threads()
        yield importlib.import_module("cached_text")
        torch.set_num_threads(threads)


def test_equal_texts_are_called_so(script, tmp_path):
    (row,) = script.main(["--models", "tnn", "--tokens", "30", "--prompt", "9", "--output-dir", str(tmp_path)])
    assert {row[way] for way in ("greedy", "sampled", "beams", "lookup", "assisted")} == {"equal"}
    assert 0 < row["float32_error"] < 1e-4
    assert "prompt lookup" in (tmp_path / "cached_text.md").read_text(encoding="utf-8")


def test_a_cache_that_is_wrong_is_found(script, tmp_path, monkeypatch):
    step = OnlineConvolution.step
    monkeypatch.setattr(OnlineConvolution, "step", lambda self, x: step(self, x) - 1)
    with pytest.raises(script.TextDiffersError, match=r"tnn, greedy: row 0 differs .* at token"):
        script.main(["--models", "tnn", "--tokens", "30", "--prompt", "9", "--output-dir", str(tmp_path)])
