"""`run_benchmarks.py listops` scores saved classifiers on fresh expressions, beside rules that need no model."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_seqmix import TNNConfig, TNNForSequenceClassification
from hf_seqmix.data import listops
from hf_seqmix.data.lra.listops_tokenizer import listops_tokenizer

SCRIPTS = Path(__file__).resolve().parents[4] / "scripts"


@pytest.fixture(scope="module")
def main() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("run_benchmarks").main


def save(folder: Path, num_labels: int = 10, **config: Any) -> Path:
    tokenizer = listops_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "is_causal": False}
    model = TNNForSequenceClassification(
        TNNConfig(**sizes, pad_token_id=tokenizer.pad_token_id, num_labels=num_labels, **config)
    )
    with torch.no_grad():
        model.classifier.out_proj.weight.zero_()
        model.classifier.out_proj.bias.copy_(torch.arange(num_labels) == 9)  # always says its last label
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.usefixtures("pictures")
def test_accuracy_of_each_range_and_goes_on(main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Labels are what they are called, whatever their order.
    up, down = ({index: str(digit) for index, digit in enumerate(order)} for order in (range(10), range(9, -1, -1)))
    nine, zero = (save(tmp_path / name, id2label=names) for name, names in (("nine", up), ("zero", down)))
    output = tmp_path / "out"
    command = ["listops", "--model", str(nine), "--model", str(zero), "--lengths", "4-8", "9-20", "--rows", "150"]
    report = main([*command, "--output-dir", str(output)])
    found = {(r.model, r.get("lengths")): r.value for r in report.results if r.metric == "accuracy"}
    assert len(found) == 6 + 6  # two models and two rules on two ranges, and on single operators
    for text, low, high in (("4-8", 3, 9), ("9-20", 8, 21)):
        rows = listops({"train": 5000, "test": 150}, min_length=low, max_length=high, seed=1)
        targets = list(rows["test"]["Target"])
        assert found["nine", text] == pytest.approx(targets.count(9) / 150)
        assert found["zero", text] == pytest.approx(targets.count(0) / 150)
        assert found["outermost operator", text] > found["majority class", text]
        operators = {r.get("operator"): r for r in report.results if (r.model, r.get("lengths")) == ("nine", text)}
        for operator in ("MIN", "MAX", "MED", "SM"):
            own = [
                t
                for s, t in zip(rows["test"]["Source"], targets, strict=True)
                if s.lstrip("( ").startswith(f"[{operator}")
            ]
            result = operators[operator]
            assert (result.metric, result.get("examples")) == ("operator_accuracy", len(own))
            assert result.value == pytest.approx(own.count(9) / len(own))
    assert (output / "lengths.png").stat().st_size > 10_000 and "outermost operator" in (
        output / "results.md"
    ).read_text()

    monkeypatch.setattr("benchmarks.listops.benchmark.score", lambda *_: pytest.fail("scored again"))
    assert main([*command, "--output-dir", str(output)]).results == report.results
    runs = [r.run for r in report.results if r.kind == "measured"]
    assert runs and all(run and run.model["name"] and run.data["lengths"] and run.data["rows"] for run in runs)


def test_other_models_and_ranges_are_refused(main: Any, tmp_path: Path) -> None:
    two = save(tmp_path / "two", num_labels=2)
    command = ["listops", "--model", str(two), "--rows", "5", "--output-dir", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="not evaluated completely: two"):
        main([*command, "--lengths", "4-8"])
    for wrong in ("8-4", "0-4", "long"):
        with pytest.raises(SystemExit, match="takes ranges such as 17-64"):
            main([*command, "--lengths", wrong])
    with pytest.raises(SystemExit, match="--rows must be positive"):
        main([*command, "--rows", "0"])
    with pytest.raises(SystemExit, match="--seed 0 draws the expressions that the benchmark lra trains on"):
        main([*command, "--seed", "0"])
