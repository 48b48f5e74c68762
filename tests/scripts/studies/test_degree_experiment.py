"""The degree experiment as its users run it: training, going on after a kill, tables, ranks, wrong arguments."""

import importlib
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hf_seqmix.data import separation_task
from hf_seqmix.training.result_files import ResultFile, read_results

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "studies"

SMALL = [
    *["--token-width", "2", "--width", "4", "--steps", "4", "--batch-size", "4", "--learning-rates", "1e-3", "1e-2"],
    *["--sweep-seeds", "7", "--seeds", "0", "1", "--min-depth", "4"],
]


@pytest.fixture(scope="module")
def load() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module


@pytest.fixture
def script(load: Any) -> ModuleType:
    return load("degree_experiment")


def arguments(folder: Path, form: str, *more: str) -> list[str]:
    return ["train", "--form", form, "--output-dir", str(folder), *SMALL, *more]


@pytest.mark.parametrize("form", ["fully-connected", pytest.param("sequence", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("pictures")
def test_from_end_to_end(script: ModuleType, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = ["paired_product", *(["paired_product_control"] if form == "sequence" else [])]
    command = arguments(tmp_path, form, "--projections", "affine", "--tasks", *tasks)
    report = script.main(command)
    texts = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    keys = [json.loads(text)["key"] for text in texts]
    assert {key["task"] for key in keys} == set(tasks)
    kept = ResultFile(tmp_path / "results.jsonl")
    for key in keys:
        result = script.run_of(kept.get(key))
        assert len(result["errors"]) == 2
        assert [len(curve) for curve in result["curves"]] == [len(result["curve_steps"])] * 2
        assert result["rate"] in (1e-3, 1e-2)
    results = read_results(tmp_path / "results.jsonl")
    assert {(r.seed, r.run.seed) for r in results if r.run} == {(None, 0), (0, 0), (1, 1)}
    assert all(r.run and r.run.model["degrees"] and r.run.data["num_tokens"] == 4 and r.command for r in results)
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "e signed power" in text and "2.4 mixed layers" in text
    for name in ("errors", "equal", "curves"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    equal = {(row["accounting"], row["first"], row["second"]): row for row in report["comparisons"]}
    assert equal["d", "2", "3"]["matrices"] == 12
    assert equal["d + 1", "3", "4"]["matrices"] == 20

    if form == "fully-connected":
        options = ["--projections", "affine", "--norm-type", "batch", "--activation", "tanh", "--num-heads", "2"]
        options += ["--whole-only", "--tasks", "paired_product"]
        other = script.main(arguments(tmp_path / "notes", form, *options))["results"]
        assert [(each["kind"], each["depth"]) for each in other] == [("2", 6), ("3", 4)]
        written = [each for each in read_results(tmp_path / "notes" / "results.jsonl") if each.metric == "error"]
        layers = {"norm_type": "batch", "activation": "tanh", "num_heads": 2}
        assert all(layers.items() <= dict(each.setting).items() for each in written)
        assert all(each.run and layers.items() <= dict(each.run.model).items() for each in written)
        assert "were they whole; their 2 blocks have 1/2" in (tmp_path / "notes" / "table.md").read_text(
            encoding="utf-8"
        )
        # Such layers are no polynomials, so they have no rank; keys of polynomials are as they were.
        assert all(each["separation_rank"] is None for each in other) and "norm_type" not in keys[0]

    # What is there is not trained again.
    monkeypatch.setattr(script.Experiment, "_train", lambda *_: pytest.fail("trained twice"))
    again = script.main([*command, "--report-only"])
    assert again["results"] == report["results"]


@pytest.mark.usefixtures("pictures")
def test_a_target_between_the_ranks_of_nets_of_equal_size(script: ModuleType, tmp_path: Path) -> None:
    tasks = ["legendre_products_8", "legendre_products_9"]
    options = ["--projections", "affine", "--whole-only", "--budget", "6", "--min-depth", "2", "--tasks", *tasks]
    rows = script.main([*arguments(tmp_path, "fully-connected"), *options])["results"]
    found = {(row["task"], row["kind"]): (row["separation_rank"], row["task_rank"], row["bound"]) for row in rows}
    eight, nine = tasks
    assert found == {
        (eight, "2"): (9, 9, 0),
        (eight, "3"): (10, 9, 0),
        (eight, "4, 2"): (9, 9, 0),
        (nine, "2"): (9, 10, 1),  # degree 8
        (nine, "3"): (10, 10, 0),
        (nine, "4, 2"): (9, 10, 1),
    }
    assert {row["matrices"] for row in rows} == {6}
    keys = [json.loads(line)["key"] for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {(key["num_tokens"], key["token_width"]) for key in keys} == {(2, 1)}
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "2 tokens of 1 number," in table and "| 4, 2 " in table


def test_sizes_are_equal(load: Any) -> None:
    nets = load("degree.nets")
    task = separation_task("paired_product", num_tokens=4, width=2)
    for form in nets.FORMS:
        for net in nets.architectures(form, 10, 12, True):
            built = nets.build_net(net, task, 0)
            matrices = sum(
                parameter.numel()
                for name, parameter in built.named_parameters()
                if parameter.ndim > 1 and "bias" not in name and "positions" not in name
            )
            outside = sum(built.get_parameter(name).numel() for name in _maps(form))
            assert matrices - outside == net.with_overhead, net
        equal = [net for net in nets.architectures(form, 10, 12, False) if net.projections == 1200]
        depths = {(net.kind, net.depth) for net in equal if net.overhead == (form == "sequence")}
        assert depths == {("2", 6), ("3", 4), ("4", 3), ("2.4 mixed layers", 5), ("2.4 signed power", 5)}


def _maps(form: str) -> list[str]:
    inside = "" if form == "sequence" else "net."
    return [f"{inside}in_proj.weight", f"{inside}out_proj.weight"]


def test_nets_side_by_side_are_nets_alone(load: Any) -> None:
    nets, training = load("degree.nets"), load("degree.training")
    task = separation_task("paired_product", num_tokens=2, width=2)
    net = nets.architectures("sequence", 4, 12, True)[1]
    built = [nets.build_net(net, task, seed) for seed in (0, 1)]
    before = [parameter.clone() for parameter in built[0].parameters()]
    schedule = training.Schedule(steps=3, batch_size=8, curve_points=3, eval_rows=64)
    draw = nets.draw_rows(task)
    both = training.train_nets(built, [1e-2, 3e-3], [0, 1], draw, schedule)
    assert all(map(torch.equal, before, built[0].parameters()))
    for i in range(2):
        alone = training.train_nets(built[i : i + 1], [[1e-2, 3e-3][i]], [i], draw, schedule)
        torch.testing.assert_close(both.curves[i], alone.curves[0], rtol=1e-4, atol=1e-6)
    assert both.curve_steps == [0, 1, 2, 3]

    # And the updates are Adam's with clipping.
    single = built[0]
    optimizer = torch.optim.Adam(single.parameters(), lr=1e-2, betas=(0.9, 0.99))
    rows = draw(50 * 8, torch.Generator().manual_seed(1000))
    for step in range(1, 4):
        inputs, targets = (part[(step - 1) * 8 : step * 8] for part in rows)
        optimizer.param_groups[0]["lr"] = 1e-2 * training._factor(step, schedule)
        optimizer.zero_grad()
        (single(inputs).squeeze(-1) - targets).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(single.parameters(), 1.0)
        optimizer.step()
    inputs, targets = draw(64, torch.Generator().manual_seed(8))
    error = (single(inputs).squeeze(-1) - targets).square().sum() / targets.square().sum()
    assert both.errors[0].item() == pytest.approx(error.item(), rel=1e-3)


def test_bounds_of_shallow_nets(load: Any) -> None:
    nets = load("degree.nets")
    task = separation_task("paired_product", num_tokens=4, width=4)
    shallow = [net for net in nets.architectures("fully-connected", 20, 12, False) if net.depth == 1]
    # x + (l1 l2): two functions of one half, and the bilinear part, of rank 8 for 8 inputs a half.
    assert [nets.rank_of(net, task, 17) for net in shallow] == [10, 17, 17]
    sequence = [net for net in nets.architectures("sequence", 10, 12, False) if net.depth == 1]
    small = separation_task("paired_product", num_tokens=4, width=2)
    assert nets.rank_of(sequence[0], small, 5) == 3  # the last token times a mean over both halves
    assert nets.rank_of(nets.architectures("sequence", 10, 12, False)[-1], small, 5) is None


def test_verdicts(load: Any) -> None:
    report = load("degree.report")
    a = {"kind": "3", "errors": [1e-4, 1e-5, 1e-4, 3e-5]}
    b = {"kind": "2", "errors": [1e-2, 1e-3, None, 5e-3]}
    found = report.compare(a, b)
    assert found["verdict"] == "3 is better"
    assert found["mean"] == pytest.approx((-2 - 2 - 4 + math.log10(3e-5 / 5e-3)) / 4)
    assert found["high"] < 0
    assert report.compare(a, {"kind": "4", "errors": [1e-5, 1e-4, 2e-5, 4e-4]})["verdict"] == "undecided"
    assert report.clipped(None) == report.clipped(7.0) == 1
    assert report.clipped(0.0) == report.FLOOR


def test_ranks(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], load: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(load("degree.tables"), "SIZES", ((2, 1, True),))
    monkeypatch.setattr(load("degree.tables"), "SAMPLES", 100)
    report = script.main(["ranks", "--output-dir", str(tmp_path), "--max-size", "256"])
    assert [row["rank"] for row in report["fully_connected"]] == [65, 82, 65, 73, 37, 13, 9, 25, 81, 30, 210, 81]
    assert all(row["rank"] == row["formula"] for row in report["fully_connected"])
    assert [report["attention"][0][f"degree_{d}"] for d in (2, 3, 4)] == [64, 41, 64]
    line = next(line for line in capsys.readouterr().out.splitlines() if "2, 2, 2, 2, 2, 2" in line)
    assert [cell.strip() for cell in line.split("|")[-3:-1]] == ["65", "65"]
    written = read_results(tmp_path / "ranks.jsonl")
    assert [r.value for r in written if r.metric == "whole" and r.setting["overhead"] == 1] == [4]
    assert {r.value for r in written if r.metric == "rank" and r.model == "2, 2, 2, 2, 2, 2"} == {65}


@pytest.mark.usefixtures("pictures")
def test_log_ranks(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], load: Any, monkeypatch: Any
) -> None:
    small = {"NETS": (("fully-connected", 1, 4), ("attention", 2, 1)), "TERMS": (2,), "MONOMIAL_DEGREES": (2, 4)}
    for name, value in (small | {"INPUTS": (4,)}).items():
        monkeypatch.setattr(load("degree.log_ranks"), name, value)
    command = ["log-ranks", "--output-dir", str(tmp_path), "--max-size", "64", "--draws", "20"]
    report = script.main(command)
    ranks = {(row["form"], row["projections"], row["degree"]): row["rank"] for row in report["nets"]}
    assert len(ranks) == 9
    assert ranks["fully-connected", "linear", 2] == {1: 4, 2: 9, 3: 25}
    assert ranks["attention", "linear", 3] == {1: 2, 2: 5, 3: 14, 4: 41}
    assert ranks["attention", "affine, residual", 3] == {1: 2, 2: 6, 3: 25}
    # Far above the threshold a layer of degree 2 adds h = width / 2 to log2 of the rank; before, far less.
    added = {row["width"]: row for row in report["steps"] if "added" in row["quantity"]}
    factors = {row["width"]: row for row in report["steps"] if "added" not in row["quantity"]}
    assert added[16]["+4"] == pytest.approx(1, abs=0.03)
    assert added[256]["-4"] < 0.25
    assert factors[16]["+4"] < 1.2 < 1.5 < factors[256]["-4"] < 2
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if "affine, residual" in line and "|      3 |" in line)
    assert [cell.strip() for cell in line.split("|")[-5:-1]] == ["6 (10)", "25 (28)", "-", "-"]
    assert (tmp_path / "log-ranks.md").read_text(encoding="utf-8") == printed
    assert (tmp_path / "log-ranks.png").stat().st_size > 10_000
    written = read_results(tmp_path / "log-ranks.jsonl")
    found = [r.value for r in written if r.metric == "rank" and r.setting["degree"] == 3 and r.setting["depth"] == 2]
    assert found == [30, 5, 6]
    assert {r.value for r in written if r.metric == "exact"} == {row["exact"] for row in report["monomials"]}
    with pytest.raises(SystemExit, match="max_size 9"):
        script.main(["log-ranks", "--max-size", "9"])
    with pytest.raises(SystemExit, match="--draws is 0"):
        script.main(["log-ranks", "--draws", "0"])


@pytest.mark.usefixtures("pictures")
def test_effective_ranks(script: ModuleType, tmp_path: Path, load: Any, monkeypatch: Any) -> None:
    effective = load("degree.effective")
    for name, value in {"SAMPLED_WIDTHS": (4,), "SAMPLES": 40}.items():
        monkeypatch.setattr(effective, name, value)
    # Shallow nets have their exact rank well above rounding, deep ones do not.
    for degree, depth, rank in ((2, 1, 3), (3, 1, 4), (2, 2, 5)):
        for measure in effective.MEASURES:
            values = effective.net_spectrum(degree, depth, 2, measure, seed=0).singular_values
            assert (values > 1e-9 * values[0]).sum() == rank
    rows = script.main(["effective-ranks", "--output-dir", str(tmp_path), "--draws", "3"])["rows"]
    assert [(row["width"], row["degree"]) for row in rows] == [(w, d) for w in (2, 4) for _ in "un" for d in (2, 3, 4)]
    assert [row["exact_rank"] for row in rows[:3]] == [65, 82, 65]
    assert max(rank for row in rows[:6] for rank in row["effective_rank"][0.01].values()) < 20
    assert max(max(row["beyond_least"].values()) for row in rows[:6]) < 1e-8
    assert all("beyond_least" not in row for row in rows[6:])
    written = read_results(tmp_path / "effective-ranks.jsonl")
    first = {"width": 2, "measure": "uniform", "degree": 2, "depth": 6, "eps": 0.01}
    found = {r.seed: r.value for r in written if r.metric == "effective_rank" and r.setting == first}
    assert found == rows[0]["effective_rank"][0.01]
    assert (tmp_path / "effective-ranks.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="--draws is 0"):
        script.main(["effective-ranks", "--draws", "0"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--report-only"], "has no runs with these arguments"),
        (["--budget", "10"], "budget is 10 matrices"),
        (["--steps", "0"], "--steps is 0"),
        (["--seeds", "1", "1"], "--seeds names 1 twice: 1 1"),
        (["--seeds", "1", "2", "--sweep-seeds", "2"], "--sweep-seeds and --seeds share 2"),
        (["--learning-rates", "-1"], "rates must be positive"),
        (["--num-tokens", "3"], "num_tokens is 3"),
        (["--norm-type", "batch"], "--norm-type batch and --activation identity are for --form fully-connected"),
        (["--activation", "tanh"], "--norm-type static and --activation tanh are for --form fully-connected"),
        (["--num-heads", "7"], "--num-heads 7 must divide --width"),
    ],
)
def test_wrong_arguments(script: ModuleType, tmp_path: Path, more: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        script.main(arguments(tmp_path, "sequence", *more))


@pytest.mark.parametrize("task", ["legendre_products_0", "legendre_products_101", "legendre_products_", "pairs"])
def test_other_tasks_are_refused(
    script: ModuleType, tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main(arguments(tmp_path, "fully-connected", "--tasks", task))
    assert f"{task!r} is no task; give paired_product, " in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--tasks names legendre_products_9 twice"):
        script.main(arguments(tmp_path, "fully-connected", "--tasks", "legendre_products_9", "legendre_products_9"))


@pytest.mark.parametrize("command", ["ranks", "log-ranks", "effective-ranks"])
def test_a_folder_that_cannot_be_is_refused_before_anything_is_computed(
    script: ModuleType, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("write_rank_tables", "write_log_rank_tables", "write_effective_rank_tables"):
        monkeypatch.setattr(script, name, None)
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"degree_experiment\.py: .*file"):
        script.main([command, "--output-dir", str(tmp_path / "file")])
