"""The parts of a session: commands with their arguments, on a GPU and at toy sizes."""

import shlex
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["DEFAULT", "GRACE", "PARTS", "SCRIPTS", "Part", "command_of"]

SCRIPTS = Path(__file__).resolve().parents[2]


class Part(NamedTuple):
    """A command of the session."""

    script: str
    """Below `scripts`, or arguments of Python."""
    arguments: str
    """On a GPU."""
    toy: str
    """Arguments at toy sizes, on a CPU."""
    minutes: float
    """That the command may measure for."""
    limited: bool = True
    """Whether the command takes --minutes and ends by itself, within `GRACE`; others are stopped."""


_SIZES = "--dtype bfloat16 --elements 33554432 --channels 1024"
_TOY_SIZES = "--fast --lengths 33 64"
_RECIPE = str(SCRIPTS / "recipes" / "python-2m" / "tnn.yaml")
PARTS = {
    "kernels": Part(
        "speed/check_kernels.py", "", "--lengths 1 33 --dtypes float32 --channels 16 --head-width 8", minutes=4
    ),
    "products": Part(
        "speed/benchmark_ops.py",
        f"{_SIZES} --lengths 512 1024 2048 4096 8192 16384 --rounds 15 --seconds 1",
        _TOY_SIZES,
        minutes=4,
    ),
    "layers": Part(
        "speed/benchmark_models.py",
        "--tables transformers layers --dtype bfloat16 --hidden-size 1024 --tokens 16384 "
        "--lengths 512 2048 8192 --seconds 0.5",
        "--tables layers --fast",
        minutes=2.5,
    ),
    "crossovers": Part(
        "speed/tune.py", "--elements 33554432 --channels 1024 --seconds 0.5 --rounds 9", _TOY_SIZES, minutes=4
    ),
    "decoding": Part(
        "speed/decoding.py",
        "--dtype bfloat16 --hidden-size 1024 --parts windows costs --batch 64 8 1 --marks 8192 2048 512 --window 64 "
        "--counted 16 --models tnn tnn:static tnn:plain fd_tnn poly3 attention llama llama:static",
        "--tokens 128 --turn 64 --marks 64 128 256 --window 16 --counted 4 --checked 4 --check-at 64 --batch 1 "
        "--models tnn tnn:recompute llama",
        minutes=6,
    ),
    "training": Part(
        "pretrain.py",
        "--bf16 true --per-device-train-batch-size 64 --max-tokens 10_000_000 --warmup-steps 50 --save-strategy no",
        "--use-cpu true --per-device-train-batch-size 4 --max-tokens 4096 --config-overrides hidden_size=32",
        minutes=5,
        limited=False,
    ),
    "tests": Part(
        "-m pytest -q -p no:cacheprovider -p no:benchmark",
        "-n 8 tests/ops",
        "tests/ops/common/test_layout.py",
        5,
        False,
    ),
}
"""Name -> part, the most valuable first."""
DEFAULT = ["kernels", "products", "layers", "crossovers", "decoding", "training"]
"""The tests say again, in more minutes, what `kernels` says; they are run by name."""
GRACE = 60.0


def command_of(name: str, device: str, work: Path, minutes: float) -> list[str]:
    """Return the command line of a part."""
    part = PARTS[name]
    arguments = shlex.split(part.toy if device == "cpu" else part.arguments)
    if name == "tests":
        return [sys.executable, *shlex.split(part.script), *arguments]
    command = [sys.executable, str(SCRIPTS / part.script), *arguments, "--output-dir", str(work)]
    if name == "training":
        return [*command, "--recipe", _RECIPE, "--overwrite-output-dir", "true"]
    return [*command, "--device", device, "--minutes", f"{minutes:.2f}"]
