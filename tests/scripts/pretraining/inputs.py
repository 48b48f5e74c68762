"""Arguments and paths that the tests of pretrain.py share."""

import os
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
SCRIPT = SCRIPTS / "pretrain.py"
TINY = ["--model-type", "tnn", "--config-overrides", "hidden_size=16", "num_hidden_layers=1", "rpe_hidden_size=8"]
SHORT = ["--tokenizer", "byte", "--block-size", "16", "--per-device-train-batch-size", "2", "--learning-rate", "1e-2"]
QUIET = ["--disable-tqdm", "true", "--logging-steps", "1", "--use-cpu", "true"]


def command(text: Path, folder: Path, *more: str) -> list[str]:
    return [*TINY, *SHORT, *QUIET, "--train-file", str(text), "--output-dir", str(folder), *more]


def losses(results: dict) -> list[float]:
    return [loss for _, loss in results["train_loss_curve"]]


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
