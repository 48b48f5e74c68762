"""The timing of generation: models are checked, take turns, and an interrupted command goes on."""

from itertools import product
from pathlib import Path
from typing import Any

import decoding
import pytest
import torch
from generation import session
from timing.protocol import WrongResultError

SIZES = ["--hidden-size", "64", "--layers", "1", "--prompt", "3", "--tokens", "8", "--turn", "4", "--window", "4"]
SIZES += ["--marks", "8", "16", "--counted", "2", "--checked", "4", "--check-at", "8", "--device", "cpu"]
MODELS = ["--models", "tnn", "tnn:recompute", "llama"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoding")
    threads = torch.get_num_threads()
    yield folder, decoding.main([*MODELS, *SIZES, "--batch", "1", "2", "--output-dir", str(folder)])
    torch.set_num_threads(threads)


def test_every_model_has_a_row_at_every_mark(rows):
    folder, found = rows
    places = {(row["batch"], row["tokens"], row["model"]): row for row in found}
    assert set(places) == set(product((1, 2), (8, 16), MODELS[1:]))
    for (batch, tokens, model), row in places.items():
        assert row["tokens_per_s"] == batch * tokens / row["seconds"]
        assert 0 < row["median_ms"] <= row["worst_ms"]
        assert row["llama"] == places[batch, tokens, "llama"]["seconds"] / row["seconds"]
        has_cache = model != "tnn:recompute"
        assert (row["error"] is not None) == (batch == 1 and has_cache)
        assert (row["measured"] == "in full") == (batch == 1 and tokens == 8 and has_cache)
        assert row["mflop"] > 0 and row["mb"] > 0 and row["peak_mib"] > 0
        assert (row["cache_mib"] > row["kernel_mib"]) == has_cache
    sizes = [places[1, 8, name]["parameters"] for name in ("tnn", "llama")]
    assert abs(sizes[0] - sizes[1]) < 0.02 * max(sizes)
    assert "~" in (folder / "decoding.md").read_text()
    assert (folder / "decoding.png").exists() and (folder / "decoding_costs.png").exists()


def test_a_command_goes_on_where_it_stopped(rows, monkeypatch):
    folder, before = rows
    log = folder / "stretches.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[1:]))  # without the first turn of whole texts
    started = []
    text = session.text_after

    def noted(*given: Any, **more: Any) -> Any:
        started.append(given[3])
        return text(*given, **more)

    monkeypatch.setattr(session, "text_after", noted)
    for name in ("plot_times", "plot_costs"):
        monkeypatch.setattr(decoding, name, lambda *_: None)
    again = decoding.main([*MODELS, *SIZES, "--batch", "1", "2", "--output-dir", str(folder)])
    assert set(started) == {0}
    kept = ("model", "batch", "tokens", "median_ms", "mflop")
    assert [[row[name] for name in kept] for row in again] == [[row[name] for name in kept] for row in before]


def test_nothing_is_timed_that_is_wrong(tmp_path, monkeypatch):
    def wrong(*_: object) -> None:
        raise WrongResultError("differs")

    monkeypatch.setattr(session, "check", wrong)
    with pytest.raises(WrongResultError):
        decoding.main(["--models", "llama", *SIZES, "--output-dir", str(tmp_path)])
    assert not list(Path(tmp_path).iterdir())


def test_a_check_may_be_longer_than_the_texts(tmp_path: Path) -> None:
    short = ["--prompt", "3", "--tokens", "8", "--turn", "4", "--marks", "8", "--window", "4", "--checked", "4"]
    sizes = ["--hidden-size", "64", "--layers", "1", "--counted", "2", "--check-at", "64"]
    found = decoding.main(["--models", "llama:static", *short, *sizes, "--output-dir", str(tmp_path)])
    assert {row["model"] for row in found} == {"llama:static"}


def test_arguments_that_cannot_be_measured_are_refused(tmp_path, capsys):
    for arguments, said in (
        (["--models", "tnn:fast"], "'tnn:fast' is no model"),
        (["--tokens", "100", "--turn", "64"], "must divide"),
        (["--hidden-size", "96"], "multiple of 64"),
        (["--marks", "0"], "at least 1"),
        (["--whole-batch", "0"], "at least 1"),
        (["--layers", "0"], "at least 1"),
    ):
        with pytest.raises(SystemExit):
            decoding.main([*arguments, "--output-dir", str(tmp_path)])
        assert said in capsys.readouterr().err
