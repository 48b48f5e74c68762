"""A run of the training script that trackio records, on this machine alone."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ecosystem("trackio", "accelerate", "datasets")

ROOT = Path(__file__).resolve().parents[2]


def test_training_and_the_last_evaluation_are_one_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"the cat sat on mat {n} " * 6}) + "\n" for n in range(6)))
    run = tmp_path / "run"
    command = [sys.executable, "scripts/pretrain.py", "--model-type", "tnn", "--tokenizer", "byte", "--use-cpu"]
    command += ["--config-overrides", "hidden_size=8", "num_hidden_layers=1", "rpe_hidden_size=8"]
    command += ["--block-size", "16", "--max-steps", "3", "--logging-steps", "1", "--report-to", "trackio"]
    command += ["--train-file", str(text), "--validation-file", str(text), "--output-dir", str(run)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (database,) = (tmp_path / "trackio").glob("*.db")
    connection = sqlite3.connect(database)
    rows = connection.execute("select run_name, metrics from metrics order by id").fetchall()
    connection.close()
    assert {name for name, _ in rows} == {str(run)}
    logged = [json.loads(metrics) for _, metrics in rows]
    results = json.loads((run / "results.json").read_text())
    losses = [[entry["train/global_step"], entry["train/loss"]] for entry in logged if "train/loss" in entry]
    assert len(losses) == 3 and losses == results["train_loss_curve"]
    (scored,) = [entry for entry in logged if "eval/bits_per_byte" in entry]
    assert scored["eval/bits_per_byte"] == pytest.approx(results["evaluation"]["bits_per_byte"])
