"""How a training script runs: what it gives, and how it ends where a user can mend something."""

from pathlib import Path

import pytest

from hf_seqmix.training.script import run_script
from tests.training.sample_arguments import parse


def test_a_script_ends_with_one_line_where_a_user_can_mend_something(tmp_path: Path, caplog) -> None:
    arguments = parse("--output-dir", str(tmp_path))

    class Trainer:
        def find_checkpoint(self, wish):
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
    with pytest.raises(SystemExit, match=r"train\.py: a file could not be written"):
        run(finish=fail(OSError(28, "No space left on device")))
    with pytest.raises(SystemExit) as stopped:
        run(finish=fail(KeyboardInterrupt()))
    assert stopped.value.code == 130 and "--resume continues" in caplog.messages[-1]
    with pytest.raises(RuntimeError, match="a defect"):
        run(finish=fail(RuntimeError("a defect")))
