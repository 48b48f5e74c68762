"""The page of claims: figures are read from results, paired by seed, and few seeds decide nothing."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from hf_seqmix.training.result_files import write_results
from hf_seqmix.training.results import Result

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "publishing" / "claims.py"
MEASURED = ROOT / "scripts" / "measured"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("claims", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


LOSSES = {
    "ours": [1.0, 2.0, 4.0],
    "control": [2.0, 3.0, 5.5],
    "short": [1.0],
    "lost": [1.0, None, 2.0],
    "nothing": [0.0] * 3,
}
OURS = {"file": "results.jsonl", "metric": "loss", "model": "ours", "setting": {"length": 8}, "format": ".2f"}


def write(folder: Path, **claim: Any) -> Path:
    """Write results, and a claim about them; return the file of claims."""
    results = [
        Result(
            "lm",
            model,
            "loss",
            None if value is None else value + (length - 8),
            seed,
            setting={"length": length},
            command="run me",
        )
        for model, values in LOSSES.items()
        for seed, value in enumerate(values)
        for length in (8, 16)
    ]
    write_results(folder / "results.jsonl", [*results, Result("lm", "exact", "loss", 3.0, kind="baseline")])
    whole = {"claim": "Ours is better.", "place": "page 1", "verdict": "reproduced", **claim}
    path = folder / "claims.yaml"
    path.write_text(yaml.safe_dump({"A. Author 2020": [whole]}), encoding="utf-8")
    return path


def page(script: ModuleType, path: Path) -> str:
    return script.render(script.read_claims(path), script.Results(path.parent))


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        ({}, "2.33 ± 1.53"),
        ({"pool": "median"}, "2.00 (1.00 to 4.00)"),
        ({"factor": 100, "format": ".0f"}, "233 ± 153"),
        ({"against": {"model": "control"}, "by": "difference", "format": "+.2f"}, "-1.17 ± 0.29"),
        ({"against": {"model": "control"}}, "0.63 ± 0.12"),
        ({"against": {"model": "control"}, "by": "percent", "pool": "median", "format": ".0f"}, "-33 (-50 to -27)"),
        ({"against": {"setting": {"length": 16}}, "by": "difference"}, "-8.00 ± 0.00"),
    ],
)
def test_figures_are_of_the_results_seed_by_seed(
    script: ModuleType, tmp_path: Path, figure: dict[str, Any], text: str
) -> None:
    path = write(tmp_path, measured="a loss of {a}", figures={"a": {**OURS, **figure}}, why="so it is")
    assert f"| a loss of {text} [1]" in page(script, path)


def test_a_page_has_verdicts_seeds_and_commands(script: ModuleType, tmp_path: Path) -> None:
    path = write(
        tmp_path, measured="{a} and {b}", figures={"a": OURS, "b": {**OURS, "model": "control"}}, why="as ever"
    )
    text = page(script, path)
    (row,) = [line for line in text.splitlines() if "Ours is better" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "Ours is better. (page 1)",
        "-",
        "2.33 ± 1.53 and 3.50 ± 1.80 [1]",
        "-",
        "3",
        "**reproduced**: as ever",
    ]
    assert "- **reproduced** (1): " in text and "- **undecided** (0): " in text and "\n1. `run me`\n" in text


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"figures": {"a": {**OURS, "model": "short"}}}, "is reproduced by 1 seeds; with fewer than 3"),
        ({"figures": {"a": {**OURS, "against": {"model": "short"}}}}, "is reproduced by 1 seeds"),
        ({"verdict": "sound"}, "A. Author 2020, claim 1: verdict 'sound' is none of reproduced, "),
        ({"verdict": "undecided"}, "claim 1 is undecided; say in 'why' what would decide it"),
        ({"figures": {"a": {**OURS, "model": "theirs"}}}, "no results: loss of theirs in results.jsonl"),
        ({"figures": {"a": {**OURS, "setting": {}}}}, "several results of seed 0: loss of ours"),
        ({"figures": {"a": {**OURS, "median": True}}}, "figure 'a' has the unknown field 'median'"),
        ({"figures": {"a": {**OURS, "pool": "medain"}}}, "pool is 'medain'; it must be one of mean, median"),
        ({"figures": {"a": {**OURS, "by": "diff"}}}, "by is 'diff'; it must be one of difference, ratio, percent"),
        ({"figures": {"a": {**OURS, "against": {"modl": "x"}}}}, "'against' has the unknown field 'modl'"),
        ({"measured": "{b}", "figures": {"a": OURS}}, "names the figure 'b', which its figures do not have"),
        ({"measured": "by thought", "command": "think"}, "is reproduced by 0 seeds"),
        (
            {"figures": {"a": {**OURS, "model": "lost"}}},
            "lost in results.jsonl has no value for seeds [1], which diverged",
        ),
        (
            {"figures": {"a": {**OURS, "against": {"model": "nothing"}}}},
            "1.0 has no ratio to 0: compare by difference",
        ),
        ({"measured": "{}", "figures": {"a": OURS}}, "names the figure"),
        ({"measured": "by thought", "trained": False}, "neither it nor its results name a command"),
        ({"figures": {"a": {**OURS, "file": "none.jsonl"}}}, "none.jsonl cannot be read"),
        ({"source": "x"}, "unknown field 'source'"),
    ],
)
def test_what_a_page_must_not_say_is_refused_in_a_line(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], claim: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, **claim)
    assert script.main(["--claims", str(path), "--into", str(tmp_path / "CLAIMS.md")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("claims.py: ") and error.count("\n") == 1
    assert not (tmp_path / "CLAIMS.md").exists()


def test_exact_claims_need_no_seeds_and_undecided_claims_no_command(script: ModuleType, tmp_path: Path) -> None:
    short = {"a": {**OURS, "model": "short"}}
    for claim in (
        {"trained": False, "figures": short},
        {"verdict": "undecided", "why": "more seeds", "figures": short},
    ):
        assert "1.00" in page(script, write(tmp_path, measured="{a}", **claim))
    assert "more seeds" in page(script, write(tmp_path, verdict="undecided", why="more seeds"))
    baseline = {"a": {"file": "results.jsonl", "metric": "loss", "model": "exact", "kind": "baseline"}}
    exact = {"measured": "{a}", "figures": baseline, "command": "think", "trained": False}
    assert "| 3 [1]" in page(script, write(tmp_path, **exact))


def test_a_file_of_something_else_is_refused(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    for text in ("just words", "source: no list", "a: [b", "source: [words]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"claims\.yaml"):
            script.read_claims(path)
    with pytest.raises(ValueError, match="cannot be read as claims"):
        script.read_claims(tmp_path / "none.yaml")


def test_commands_that_differ_in_their_output_folder_are_one(script: ModuleType, tmp_path: Path) -> None:
    lengths = ["python train.py --length 8 --output-dir scripts/measured/quality", "python train.py --length 16"]
    commands = [lengths[0], lengths[0].replace("scripts/measured", "runs"), *lengths]
    results = [Result("lm", f"model{place}", "loss", 1.0, 0, command=each) for place, each in enumerate(commands)]
    (tmp_path / "quality" / "text" / "causal").mkdir(parents=True)
    (tmp_path / "quality" / "README.md").touch()
    (tmp_path / "quality" / "text" / "README.md").touch()
    for folder in ("quality", "quality/text/causal"):
        write_results(tmp_path / folder / "results.jsonl", results)
    figures = {
        name: {"file": "quality/results.jsonl", "metric": "loss", "model": f"model{place}", "format": ".0f"}
        for place, name in enumerate("abcd")
    }
    figures["b"]["file"] = "quality/text/causal/results.jsonl"
    path = write(tmp_path, measured="{a}{b}{c}{d}", figures=figures, verdict="undecided", why="so")
    text = page(script, path)
    assert "| 1111 [1, 2] [quality](quality/README.md) [quality/text](quality/text/README.md) |" in text
    assert text.endswith(
        "\n1. `python train.py --length 8 --output-dir runs/quality`\n2. `python train.py --length 16`\n"
    )


def test_the_other_side_of_a_comparison_has_its_command(script: ModuleType, tmp_path: Path) -> None:
    results = [Result("lm", name, "loss", 2.0, 0, command=f"train {name}") for name in ("ours", "theirs")]
    figure = {"file": "own.jsonl", "metric": "loss", "model": "ours", "against": {"model": "theirs"}, "format": ".0f"}
    path = write(tmp_path, measured="{a} times", figures={"a": figure}, verdict="undecided", why="so")
    write_results(tmp_path / "own.jsonl", results)
    text = page(script, path)
    assert "| 1 times [1, 2]" in text and text.endswith("\n1. `train ours`\n2. `train theirs`\n")


def test_the_pages_of_figures_are_there(script: ModuleType) -> None:
    text = page(script, MEASURED / "claims.yaml")
    pages = set(re.findall(r"\]\(([\w-]+/README\.md)\)", text))
    assert len(pages) > 5
    assert all((MEASURED / each).is_file() for each in pages)


def test_the_committed_page_is_of_the_committed_results(script: ModuleType) -> None:
    committed = (MEASURED / "CLAIMS.md").read_text(encoding="utf-8")
    assert page(script, MEASURED / "claims.yaml") == committed, "write scripts/measured/CLAIMS.md anew"
