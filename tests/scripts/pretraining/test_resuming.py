"""Runs of pretrain.py that go on: resumed, killed, interrupted, on a full disk, in several processes."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_seqmix.training import explain_write_error, fault_of
from tests.scripts.pretraining.inputs import SCRIPT, TINY, command, environment, losses


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param([], marks=pytest.mark.slow),  # the others have what it has
        ["--objective", "masked"],
        pytest.param(["--streaming", "--shuffle-buffer-size", "50"], marks=pytest.mark.slow),
        ["--respect-documents", "--gradient-accumulation-steps", "2"],
        # A pass is less than three updates.
        pytest.param(
            ["--streaming", "--block-size", "200", "--gradient-accumulation-steps", "2"], marks=pytest.mark.slow
        ),
    ],
    ids=["causal", "masked", "streaming", "documents", "passes"],
)
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    pretrain: ModuleType, text: Path, tmp_path: Path, variant: list[str]
) -> None:
    arguments = ["--max-steps", "6", "--save-steps", "3", *variant]
    if "--streaming" in variant:
        arguments += ["--validation-file", str(text)]
    whole = pretrain.main(command(text, tmp_path / "whole", *arguments))
    # What a kill in the middle of writing the second checkpoint leaves behind.
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "part" / "checkpoint-3")
    shutil.copytree(tmp_path / "whole" / "checkpoint-6", tmp_path / "part" / "checkpoint-6")
    (tmp_path / "part" / "checkpoint-6" / "trainer_state.json").unlink()
    part = pretrain.main(command(text, tmp_path / "part", *arguments, "--resume"))
    assert len(losses(whole)) == 6
    assert losses(part) == pytest.approx(losses(whole), abs=1e-6)
    assert part["evaluation"]["token_loss"] == pytest.approx(whole["evaluation"]["token_loss"], abs=1e-6)


@pytest.mark.parametrize(
    "length",
    [["--max-steps", "2"], pytest.param(["--num-train-epochs", "0.1"], marks=pytest.mark.slow)],
    ids=["updates", "epochs"],
)
def test_resuming_a_finished_run_changes_nothing(
    pretrain: ModuleType, text: Path, tmp_path: Path, length: list[str]
) -> None:
    arguments = command(text, tmp_path, *length)
    first = pretrain.main(arguments)
    for name in ("results.json", "model.safetensors"):  # killed after the last checkpoint
        (tmp_path / name).unlink()
    again = pretrain.main([*arguments, "--resume"])
    assert losses(again) == losses(first)
    assert again["num_updates"] == first["num_updates"] > 1
    assert again["evaluation"]["token_loss"] == first["evaluation"]["token_loss"]
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("length", [["--max-steps", "2"], ["--num-train-epochs", "0.1"]], ids=["updates", "epochs"])
def test_a_finished_run_keeps_its_record(
    pretrain: ModuleType, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, length: list[str]
) -> None:
    first = pretrain.main(command(text, tmp_path, *length))
    record = (tmp_path / "results.json").read_text(encoding="utf-8")
    other = ["--learning-rate", "0.5", "--global-batch-size", "2"]
    again = pretrain.main(command(text, tmp_path, *length, "--resume", *other))
    assert again["train_seconds"] == first["train_seconds"] > 0
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == record
    assert "learning_rate was" in caplog.text and "is 0.5" in caplog.text


def test_a_run_that_goes_on_elsewhere_keeps_its_tokenizer_and_its_arguments(
    pretrain: ModuleType, text: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({"text": f"zebras {n} quack " * 20}) for n in range(10)), encoding="utf-8")
    learned = ["--tokenizer", "bpe:268", "--save-steps", "2"]
    pretrain.main(command(text, tmp_path / "first", "--max-steps", "4", *learned))
    checkpoint = str(tmp_path / "first" / "checkpoint-2")
    pretrain.main(command(other, tmp_path / "second", "--max-steps", "4", *learned, "--resume", checkpoint))
    first, second = ((tmp_path / name / "tokenizer.json").read_text(encoding="utf-8") for name in ("first", "second"))
    assert first == second
    with pytest.raises(SystemExit, match="began with --optim"):
        pretrain.main(command(other, tmp_path / "second", "--max-steps", "6", *learned, "--resume", "--optim", "muon"))


def test_a_folder_whose_run_was_not_replaced_keeps_its_tokenizer(
    pretrain: ModuleType, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain.main(command(text, tmp_path, "--max-steps", "1", "--tokenizer", "bpe:268"))
    inputs = sys.modules["pretraining.inputs"]
    monkeypatch.setattr(inputs, "build_tokenizer", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(SystemExit):
        pretrain.main(command(text, tmp_path, "--max-steps", "1", "--tokenizer", "bpe:300", "--overwrite-output-dir"))
    monkeypatch.undo()
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == 268 and (tmp_path / "results.json").is_file()
    with pytest.raises(SystemExit, match="began with --tokenizer bpe:268 and keeps its tokens"):
        pretrain.main(command(text, tmp_path, "--max-steps", "1", "--tokenizer", "bpe:300", "--resume"))
    pretrain.main(command(text, tmp_path, "--max-steps", "1", "--tokenizer", "bpe:300", "--overwrite-output-dir"))
    assert len(AutoTokenizer.from_pretrained(tmp_path)) > 268


def test_a_model_is_not_trained_further_over_itself(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    begun = command(text, tmp_path / "run", "--max-steps", "2", "--save-steps", "1")
    pretrain.main(begun)
    for model in (tmp_path / "run" / "checkpoint-1", tmp_path / "run"):
        further = [*begun[len(TINY) :], "--model", str(model), "--overwrite-output-dir"]
        with pytest.raises(SystemExit, match="would clear: give another --output-dir"):
            pretrain.main(further)
    assert fault_of(tmp_path / "run" / "checkpoint-1") is None
    assert (tmp_path / "run" / "tokenizer_config.json").is_file()


def test_a_checkpoint_of_another_model_is_refused(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    pretrain.main(command(text, tmp_path, "--max-steps", "2"))
    with pytest.raises(SystemExit, match=r"cannot be continued from: decay is .* there and 0\.5 here"):
        pretrain.main(command(text, tmp_path, "--max-steps", "4", "--resume", "--config-overrides", "decay=0.5"))
    with pytest.raises(SystemExit, match="it is of a tnn model, and a fd_tnn model is to be trained"):
        pretrain.main(command(text, tmp_path, "--max-steps", "4", "--resume", "--model-type", "fd_tnn"))


def test_a_folder_in_use_is_refused_and_nothing_in_it_lost(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(SystemExit, match="is not empty"):
        pretrain.main(command(text, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == b"precious"


def test_a_full_disk_is_said_so_and_the_last_checkpoint_still_loads(
    pretrain: ModuleType, text: Path, tmp_path: Path
) -> None:
    """A limit on the size of files, lowered after the first checkpoint, stands in for a full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    arguments = pretrain.parse_arguments(command(text, tmp_path, "--max-steps", "6", "--save-steps", "3"))

    class FillDisk(pretrain.ResumableTrainer):
        def save_model(self, *args: object, **kwargs: object) -> None:
            if self.state.global_step > 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            super().save_model(*args, **kwargs)

    trainer = pretrain.prepare(arguments)
    trainer.__class__ = FillDisk
    try:
        with pytest.raises(Exception, match=r"too large|inline_container") as error:
            pretrain.train_and_save(arguments, trainer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    message = explain_write_error(error.value, tmp_path)
    assert "disk full" in message
    assert f"{tmp_path / 'checkpoint-3'}; continue from it with --resume" in message
    AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
    results = pretrain.main(command(text, tmp_path, "--max-steps", "6", "--save-steps", "3", "--resume"))
    assert results["num_updates"] == 6


@pytest.mark.slow  # tests/ecosystem/test_kill_resume.py kills at more places, by default
def test_a_killed_process_is_resumed(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    steps = ["--max-steps", "60", "--save-steps", "10"]
    whole = pretrain.main(command(text, tmp_path / "whole", *steps))
    folder = tmp_path / "part"
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *command(text, folder, *steps)],
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (folder / "checkpoint-20").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    part = pretrain.main(command(text, folder, *steps, "--resume"))
    assert losses(part) == pytest.approx(losses(whole), abs=1e-6)


@pytest.mark.slow
def test_two_processes_train_and_evaluate_as_one(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    short = ["--max-steps", "3", "--config-overrides", "hidden_dropout=0"]
    one = pretrain.main(command(text, tmp_path / "one", *short, "--per-device-train-batch-size", "4"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = command(text, tmp_path / "two", *short)
    subprocess.run(
        [*torchrun, str(SCRIPT), *arguments], env=environment(tmp_path), check=True, capture_output=True, timeout=300
    )
    two = json.loads((tmp_path / "two" / "results.json").read_text(encoding="utf-8"))
    assert two["num_processes"] == 2
    assert two["num_train_tokens"] == one["num_train_tokens"]
    assert two["evaluation"]["num_tokens"] == one["evaluation"]["num_tokens"]
    assert two["evaluation"]["bits_per_byte"] == pytest.approx(one["evaluation"]["bits_per_byte"], rel=1e-3)


def test_an_interrupted_run_says_how_it_goes_on(
    pretrain: ModuleType,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "prepare", interrupted)
    with pytest.raises(SystemExit) as error:
        pretrain.main(command(text, tmp_path / "run"))
    assert error.value.code == 130 and "--resume continues" in caplog.messages[-1]
