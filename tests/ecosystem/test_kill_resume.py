"""Runs killed with signal 9 in the middle of a step or of a write go on as if nothing had happened, bit for bit.

On a CPU the same operations on the same numbers give the same bits, with one process and with two, so losses,
evaluations and weights are compared for equality.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ecosystem

DRIVER = Path(__file__).with_name("kill_driver.py")
KILLED = -9

QUIET = ["--disable-tqdm", "true", "--use-cpu", "true"]
SIZES = ["--config-overrides", "hidden_size=16", "num_hidden_layers=1", "rpe_hidden_size=8", "hidden_dropout=0.2"]
# 21 batches an epoch, so that the last update of an epoch has one batch and the others two; logs and checkpoints meet
# at step 12 only.
PRETRAIN = [
    *(
        "--model-type",
        "tnn",
        *SIZES,
        "--tokenizer",
        "byte",
        "--block-size",
        "64",
        "--per-device-train-batch-size",
        "2",
    ),
    *("--gradient-accumulation-steps", "2", "--learning-rate", "1e-2", "--lr-scheduler-type", "cosine"),
    *(
        "--warmup-steps",
        "2",
        "--max-steps",
        "14",
        "--save-steps",
        "3",
        "--save-total-limit",
        "2",
        "--logging-steps",
        "4",
    ),
]
FINETUNE = [
    *("--model-type", "tnn", *SIZES, "--tokenizer", "byte", "--per-device-train-batch-size", "4"),
    *("--learning-rate", "1e-2", "--num-train-epochs", "4"),
]
VARIANTS = {
    "causal": ("pretrain", PRETRAIN),
    "masked": ("pretrain", [*PRETRAIN, "--objective", "masked"]),
    "muon": ("pretrain", [*PRETRAIN, "--optim", "muon"]),
    # The last of four checkpoints lies between streams, the others within.
    "states": ("pretrain", [*PRETRAIN, "--state-segments", "4"]),
    "documents": ("pretrain", [*PRETRAIN, "--respect-documents", "--dataloader-num-workers", "1"]),
    "classifier": (
        "finetune",
        [
            *(*FINETUNE, "--gradient-accumulation-steps", "2", "--logging-steps", "4", "--save-total-limit", "2"),
            *("--save-strategy", "steps", "--save-steps", "3", "--eval-strategy", "steps", "--eval-steps", "3"),
        ],
    ),
    "epochs": (
        "finetune",
        [
            *(*FINETUNE, "--save-strategy", "steps", "--save-steps", "3", "--gradient-accumulation-steps", "2"),
            *("--save-total-limit", "2", "--logging-steps", "2", "--learning-rate", "1e-3"),
        ],
    ),
    # Averages of batch norms are made anew before evaluations and checkpoints.
    "batch-norm": (
        "finetune",
        [
            *(*FINETUNE, "--config-overrides", "norm_type=batch", "is_causal=false", "--save-strategy", "steps"),
            *("--save-steps", "3", "--eval-strategy", "steps", "--eval-steps", "2", "--logging-steps", "2"),
            *("--batch-norm-batches", "2", "--save-total-limit", "2"),
        ],
    ),
    # The best of its epochs is not the last, and the run ends before its length.
    "early-stopping": ("finetune", [*FINETUNE, "--num-train-epochs", "9", "--early-stopping-patience", "2"]),
}


@dataclass
class Outcome:
    """Everything that a run reports, compared as a whole."""

    losses: list[list[float]]
    evaluation: dict[str, Any]
    weights: bytes


@dataclass
class Runs:
    """The driver, and the data it runs on."""

    process: subprocess.Popen[str]
    folder: Path
    whole: dict[tuple[str, int], tuple[Outcome, list[list[str]]]]

    def request(self, variant: str, run: Path, *more: str, ranks: int = 1, **kill: Any) -> list[int | None]:
        """Exit codes of a run; its messages and batches are appended to files beside its folder."""
        script, arguments = VARIANTS[variant]
        data = self.folder / ("text.jsonl" if script == "pretrain" else "labels.json")
        argv = [*arguments, *QUIET, "--train-file", str(data), "--output-dir", str(run), *more]
        if script == "finetune":
            argv += ["--validation-file", str(data), "--cache-dir", str(self.folder / "cache")]
        request = {"script": script, "argv": argv, "log": f"{run}.log", "seen": f"{run}.seen", "ranks": ranks, **kill}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["status"]

    def uninterrupted(self, variant: str, ranks: int = 1) -> tuple[Outcome, list[list[str]]]:
        """The outcome of a run that nobody kills, and the batches of each rank."""
        if (variant, ranks) not in self.whole:
            run = self.folder / f"whole-{variant}-{ranks}"
            assert self.request(variant, run, ranks=ranks) == [0] * ranks, log(run)
            self.whole[variant, ranks] = outcome(run), [batches(run, rank) for rank in range(ranks)]
        return self.whole[variant, ranks]


def log(run: Path, rank: int = 0) -> str:
    return Path(f"{run}.log.{rank}").read_text(encoding="utf-8")


def batches(run: Path, rank: int = 0) -> list[str]:
    path = Path(f"{run}.seen.{rank}")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def outcome(run: Path) -> Outcome:
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    evaluation = results.get("evaluation") or results["validation"]
    timing = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}
    evaluation = {key: value for key, value in evaluation.items() if key not in timing}
    evaluation["mean train loss"] = results.get("train", {}).get("loss")
    return Outcome(results["train_loss_curve"], evaluation, (run / "model.safetensors").read_bytes())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("kill")
    rng = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "caf\u00e9", "\u20ac"]
    texts = [{"text": " ".join(rng.choices(words, k=60))} for _ in range(10)]
    (folder / "text.jsonl").write_text("\n".join(map(json.dumps, texts)), encoding="utf-8")
    labels = [{"text": " ".join(rng.choices(words, k=6)), "label": rng.randrange(2)} for _ in range(23)]
    (folder / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(DRIVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        yield Runs(process, folder, {})
        assert process.stdin is not None
        process.stdin.close()


def continues(interrupted: list[str], resumed: list[str], whole: list[str]) -> bool:
    """Return whether a resumed run trained on the batches after its checkpoint; a line has an update and a digest."""
    first = int(resumed[0].split()[0]) if resumed else None
    kept = [line for line in interrupted if first is None or int(line.split()[0]) < first]
    return kept + resumed == whole


def check(runs: Runs, run: Path, variant: str, said: str, *more: str, ranks: int = 1, **kill: Any) -> None:
    """Kill a run, resume it, and compare it with an uninterrupted run; `said` is in the log of the resumed run."""
    whole, seen = runs.uninterrupted(variant, ranks)
    killed = kill.setdefault("killed", [0])
    status = runs.request(variant, run, *more, ranks=ranks, **kill)
    # A rank whose neighbor is gone ends by itself, with an error.
    assert status == [KILLED if rank in killed else 1 for rank in range(ranks)], log(run)
    assert not (run / "results.json").exists()
    before = [batches(run, rank) for rank in range(ranks)]
    for rank in range(ranks):
        for kind in ("log", "seen"):
            Path(f"{run}.{kind}.{rank}").write_text("", encoding="utf-8")
    assert runs.request(variant, run, *more, "--resume", ranks=ranks) == [0] * ranks, log(run)
    assert said in log(run)
    assert log(run).count("Continuing from") + log(run).count("starting anew") == 1
    assert outcome(run) == whole
    for rank in range(ranks):
        assert continues(before[rank], batches(run, rank), seen[rank])
    shutil.rmtree(run)


def test_killed_and_resumed(runs: Runs, tmp_path: Path) -> None:
    """In the middle of a step and of a checkpoint's file; the thorough run is below."""
    check(runs, tmp_path / "a", "states", "from %s" % (tmp_path / "a" / "checkpoint-6"), kill={"step": 15})
    cut = {"write": "checkpoint-6/states_0.pt", "share": 0.5}
    check(runs, tmp_path / "b", "states", "checkpoint-3; passed over checkpoint-6: its writing was interrup", kill=cut)


CHECKPOINT_FILES = [
    "model.safetensors",
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999, 1])
@pytest.mark.parametrize("name", CHECKPOINT_FILES)
@pytest.mark.parametrize("variant", ["causal", "muon", "classifier"])
def test_killed_in_any_file_of_a_checkpoint(runs: Runs, tmp_path: Path, variant: str, name: str, share: float) -> None:
    """`--save-total-limit 2`: the third checkpoint removes the first, but not before the third is whole."""
    kill = {"write": f"checkpoint-9/{name}", "share": share}
    said = "checkpoint-6; passed over checkpoint-9: its writing was interrupted: "
    check(runs, tmp_path / "run", variant, said, kill=kill)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("name", ["loss_since_log.json", "manifest.json"])
def test_killed_just_before_a_rename(runs: Runs, tmp_path: Path, name: str, limit: int) -> None:
    kill = {"replace": f"checkpoint-9/{name}"}
    said = "checkpoint-6; passed over checkpoint-9: its writing was interrupted: "
    check(runs, tmp_path / "run", "causal", said, "--save-total-limit", str(limit), kill=kill)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2])
def test_killed_while_an_old_checkpoint_is_removed(runs: Runs, tmp_path: Path, limit: int) -> None:
    kill = {"remove": "removed-checkpoint-3"}
    said = f"Continuing from {tmp_path / 'run' / f'checkpoint-{3 + 3 * limit}'}"
    check(runs, tmp_path / "run", "causal", said, "--save-total-limit", str(limit), kill=kill)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 3, 7, 14, 21, 22, 27])
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_killed_in_any_step(runs: Runs, tmp_path: Path, variant: str, step: int) -> None:
    """Before the first checkpoint, on both sides of the end of an epoch, in a later epoch."""
    if step > len(runs.uninterrupted(variant)[1][0]):
        pytest.skip("the run is shorter")
    check(runs, tmp_path / "run", variant, "", kill={"step": step})


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        *({"write": "unfinished.*/model.safetensors", "share": share} for share in (0, 0.5, 1)),
        {"replace": "/run/model.safetensors$"},
        {"replace": "/run/config.json$"},
        {"replace": "/run/results.json$"},
        {"replace": "/run/tokenizer_config.json$"},
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_killed_while_the_final_files_are_written(
    runs: Runs, tmp_path: Path, variant: str, kill: dict[str, Any]
) -> None:
    """No model appears before it is whole, and no results.json before the model."""
    check(runs, tmp_path / "run", variant, "", kill=kill)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [[0], [1], [0, 1]], ids=["first", "second", "both"])
@pytest.mark.parametrize(
    "variant", ["causal", "muon", "masked", "states", "classifier", "batch-norm", "early-stopping"]
)
def test_two_processes_killed_in_a_step(runs: Runs, tmp_path: Path, variant: str, killed: list[int]) -> None:
    """The remaining process meets a closed connection in the next exchange of gradients, and ends."""
    check(runs, tmp_path / "run", variant, "", ranks=2, killed=killed, kill={"step": 8})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "name"),
    [
        ([0], "model.safetensors"),
        ([0], "optimizer.pt"),
        ([0], "trainer_state.json"),
        ([0], "rng_state_0.pth"),
        ([1], "rng_state_1.pth"),
    ],
)
@pytest.mark.parametrize("variant", ["causal", "muon", "classifier"])
def test_two_processes_killed_in_a_checkpoint(
    runs: Runs, tmp_path: Path, variant: str, killed: list[int], name: str
) -> None:
    """The seal waits for the files of every process, and so does the removal of older checkpoints."""
    said = "checkpoint-3; passed over checkpoint-6: its writing was interrupted: "
    kill = {"write": f"checkpoint-6/{name}", "share": 0.5}
    check(runs, tmp_path / "run", variant, said, "--save-total-limit", "1", ranks=2, killed=killed, kill=kill)


@pytest.mark.slow
def test_two_processes_are_refused_together(runs: Runs, tmp_path: Path) -> None:
    """All processes hear what the first finds out; no process waits for one that has given up."""
    run = tmp_path / "run"
    kill = {"write": "checkpoint-3/optimizer.pt", "share": 0.5}
    assert runs.request("causal", run, ranks=2, kill=kill, killed=[0]) == [KILLED, 1]
    assert runs.request("causal", run, "--resume", ranks=2) == [1, 1]
    for rank in (0, 1):
        assert "checkpoint-3: its writing was interrupted: optimizer.pt is cut short" in log(run, rank)
        assert "Start anew with --overwrite-output-dir" in log(run, rank)
    assert runs.request("causal", run, ranks=2) == [1, 1]
    assert "is not empty. Continue its run with --resume" in log(run)
    assert runs.request("causal", run, "--overwrite-output-dir", ranks=2) == [0, 0], log(run)
    assert outcome(run) == runs.uninterrupted("causal", 2)[0]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [[0], [1], [0, 1]], ids=["first", "second", "both"])
@pytest.mark.parametrize(
    "kill", [{"step": 8}, {"write": "checkpoint-6/rng_state_", "share": 0.5}], ids=["step", "write"]
)
def test_under_torchrun(runs: Runs, tmp_path: Path, kill: dict[str, Any], killed: list[int]) -> None:
    """`torchrun` stops the other process and ends with an error; the same command with --resume goes on."""
    whole, _ = runs.uninterrupted("causal", 2)
    run = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(DRIVER)]
    argv = [*PRETRAIN, *QUIET, "--train-file", str(runs.folder / "text.jsonl"), "--output-dir", str(run)]
    environment = {**os.environ, "HF_HOME": str(runs.folder / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def launch(*more: str, **request: Any) -> int:
        request = {"script": "pretrain", "argv": [*argv, *more], "log": f"{run}.log", **request}
        command = [*torchrun, json.dumps(request)]
        return subprocess.run(command, env=environment, capture_output=True, timeout=240, check=False).returncode

    assert launch(kill=kill, killed=killed) == 1
    assert not (run / "results.json").exists()
    assert launch("--resume") == 0, log(run)
    assert f"Continuing from {run / 'checkpoint-3'}" in log(run)
    assert outcome(run) == whole
