"""How a training script runs: what it gives, and how it ends where a user can mend something."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils.versions import require_version

from hf_seqmix.training.folders.resumable import ResumableTrainer
from hf_seqmix.training.optimizers import RoleOptimizers
from hf_seqmix.training.script import run_script
from tests.training.sample_arguments import parse


def test_a_script_ends_with_one_line_where_a_user_can_mend_something(tmp_path: Path, caplog) -> None:
    arguments = parse("--output-dir", str(tmp_path))

    class Trainer:
        def check_optimizer(self):
            pass

        def find_checkpoint(self, resume_from):
            return "checkpoint", "Continuing"

        def is_world_process_zero(self):
            return True

    def run(read=lambda: arguments, prepare=lambda _: ("prepared", Trainer()), finish=lambda *given: {"given": given}):
        return run_script("train.py", read, prepare, finish)

    assert run() == {"given": (arguments, "prepared", "checkpoint")} and caplog.messages == ["Continuing"]

    def fail(error):
        def raising(*_):
            raise error

        return raising

    for where in ("read", "prepare"):
        with pytest.raises(SystemExit, match=r"train\.py: no such model"):
            run(**{where: fail(ValueError("no such model"))})
        with pytest.raises(SystemExit, match=r"train\.py: .*No such file or directory: 'options\.json'"):
            run(**{where: fail(FileNotFoundError(2, "No such file or directory", "options.json"))})
    with pytest.raises(SystemExit, match=r"train\.py: the package deepspeed is needed by these options"):
        run(read=fail(PackageNotFoundError("deepspeed")))
    with pytest.raises(
        SystemExit, match=r"the package no-such>=0\.9 is needed by these options, and is not installed\.$"
    ):
        run(read=lambda: require_version("no-such>=0.9"))
    with pytest.raises(SystemExit, match=r"train\.py needs the package scipy, .*'hf-seqmix\[eval\]'$"):
        run(prepare=fail(ModuleNotFoundError("No module", name="scipy.stats")))
    with pytest.raises(SystemExit, match=r"train\.py: a file could not be written"):
        run(finish=fail(OSError(28, "No space left on device")))
    with pytest.raises(SystemExit) as stopped:
        run(finish=fail(KeyboardInterrupt()))
    assert stopped.value.code == 130 and "--resume continues" in caplog.messages[-1]
    with pytest.raises(RuntimeError, match="a defect"):
        run(finish=fail(RuntimeError("a defect")))


def test_an_optimizer_that_refuses_the_model_leaves_no_folder(tmp_path: Path) -> None:
    """The command is given again without the optimizer, and its folder must be empty then."""
    arguments = parse("--output-dir", str(tmp_path / "out"), "--optim", "muon")
    config = GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1)

    def prepare(_: Any) -> tuple[None, ResumableTrainer]:
        arguments.folder.mkdir()
        (arguments.folder / "tokenizer.json").write_text("{}")
        trainer = ResumableTrainer(model=GPT2LMHeadModel(config), args=arguments.training)
        trainer.optimizer_cls_and_kwargs = (RoleOptimizers, {"decays": lambda _: [], "adamw": {}, "weight_decay": 0.0})
        trainer.optimizer_cls_and_kwargs[1]["muon"] = {}
        return None, trainer

    with pytest.raises(SystemExit, match=r"no hidden matrices.*Take another optimizer"):
        run_script("train.py", lambda: arguments, prepare, lambda *_: {})
    assert not arguments.folder.exists()
