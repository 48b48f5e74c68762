"""The timing of products whose inputs come one at a time."""

import pytest
import torch
from online_products import main
from timing.protocol import WrongResultError

ARGUMENTS = ["--channels", "64", "--batch", "2", "--lengths", "12", "40", "--blocks", "4", "--samples", "2"]


def test_all_products_are_compared_and_timed(tmp_path):
    rows = main([*ARGUMENTS, "--rounds", "1", "--threads", "1", "--output-dir", str(tmp_path)])
    names = {"recompute", "history", "product", "vecdot", "bmm", "attention", "online 4"}
    assert [(row["tokens"], row["product"]) for row in rows] and {row["product"] for row in rows} == names
    assert {row["tokens"] for row in rows} == {12, 40}
    assert all(row["error"] < 1e-5 for row in rows if row["product"] != "attention")
    attention = next(row for row in rows if row["product"] == "attention" and row["tokens"] == 40)
    assert attention["mib"] * 2**20 == 2 * 2 * 64 * 40 * 4 and attention["times"] == 1
    assert "online 4" in (tmp_path / "online_products.md").read_text()


def test_nothing_is_timed_that_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr("online_products.toeplitz_step", lambda history, taps: torch.zeros(2, 1, 64))
    with pytest.raises(WrongResultError, match="history differs"):
        main([*ARGUMENTS, "--rounds", "1", "--output-dir", str(tmp_path)])


@pytest.mark.parametrize("option", ["--batch", "--lengths", "--blocks", "--piece", "--samples", "--rounds"])
def test_numbers_below_one_are_refused(tmp_path, capsys, option):
    with pytest.raises(SystemExit):
        main([*ARGUMENTS, option, "0", "--output-dir", str(tmp_path)])
    assert f"argument {option}: '0' given; it must be a whole number of at least 1" in capsys.readouterr().err
