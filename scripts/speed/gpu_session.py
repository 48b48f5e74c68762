"""What a machine with a GPU says of the package, in parts that end by themselves, the most valuable first.

    python scripts/speed/gpu_session.py runs/gpu                         # everything: about 25 minutes
    python scripts/speed/gpu_session.py runs/gpu kernels products --minutes 9
    python scripts/speed/gpu_session.py runs/toy --device cpu            # the same parts at toy sizes, without a GPU

A part that fails, or is stopped at its limit, keeps no other part from running. Every part measures as much as its
minutes allow; what a part has measured is in the folder as soon as the part has ended, and a part that is given again
goes on where it stopped. The folder gets at most eight files:

  session.md       one page: what holds, what fails, which goals are met, which crossovers to commit
  session.log      what the parts printed
  crossovers.json  for `hf_seqmix.ops.common.crossovers.use_crossovers`
  results.jsonl    every figure (see `hf_seqmix.training.result_files`)
  PART.png         plots

Neither datasets nor evaluate is needed; without them the part "training" fails, and the page says so.
"""

import argparse
import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gpu.page import page, said
from gpu.parts import DEFAULT, GRACE, PARTS, SCRIPTS, command_of

from hf_seqmix.training.command import CommandParser


def run_part(name: str, device: str, work: Path, log: Path, minutes: float) -> dict[str, Any]:
    """Run a part to its end or its limit, and return what became of the part."""
    part = PARTS[name]
    minutes = min(minutes, part.minutes)
    limit = 60 * minutes + (GRACE if part.limited else 0.0)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SCRIPTS.parent), os.environ.get("PYTHONPATH")]))
    if device == "cpu" and name == "kernels":
        environment["TRITON_INTERPRET"] = "1"
    start = time.monotonic()
    work.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\n===== {name} =====\n")
        file.flush()
        command = command_of(name, device, work, minutes)
        process = subprocess.Popen(
            command, cwd=SCRIPTS.parent, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the processes of its own
            process.wait()
    return {"part": name, "status": status, "seconds": time.monotonic() - start}


def collect(folder: Path, work: Path) -> None:
    """Put what the parts have written so far into the folder, at most eight files."""
    lines = [path.read_text(encoding="utf-8") for path in sorted(work.glob("*/*.jsonl"))]
    (folder / "results.jsonl").write_text("".join(lines), encoding="utf-8")
    table = work / "crossovers" / "tune.json"
    if table.exists():
        shutil.copyfile(table, folder / "crossovers.json")
    plots = {
        "products": "benchmark_ops_toeplitz.png",
        "layers": "benchmark_models_transformers.png",
        "decoding": "decoding.png",
        "training": "loss.png",
    }
    for name, plot in plots.items():
        if (work / name / plot).exists():
            shutil.copyfile(work / name / plot, folder / f"{name}.png")


def software(device: str) -> str:
    """Return the GPU and the versions that the session runs on."""
    found = [f"torch {torch.__version__}", f"Python {platform.python_version()}"]
    for package in ("triton", "transformers", "datasets", "evaluate"):
        with contextlib.suppress(ImportError):
            found.append(f"{package} {__import__(package).__version__}")
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        found.insert(0, f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    return ", ".join(found)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", help="folder that gets the page and the results")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"parts to run, of {', '.join(PARTS)}; all but tests by default"
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for toy sizes")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes for all parts together")
    parser.add_argument("--work-dir", help="where parts write; FOLDER-parts by default")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.parts if name not in PARTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such part; the parts are {', '.join(PARTS)}.")
    if arguments.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {arguments.device}, but torch {torch.__version__} sees no GPU; give --device cpu.")
    return arguments


def _write_page(arguments: argparse.Namespace, outcomes: Sequence[dict[str, Any]], work: Path) -> str:
    """Write the page of what has become of the parts so far, and return the page."""
    text = page(software(arguments.device), outcomes, work)
    (Path(arguments.folder) / "session.md").write_text(text, encoding="utf-8")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts and return 1 if one failed."""
    arguments = parse_arguments(argv)
    folder = Path(arguments.folder)
    work = Path(arguments.work_dir or f"{folder}-parts")
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * arguments.minutes
    outcomes: list[dict[str, Any]] = []
    for name in arguments.parts or DEFAULT:
        left = (end - time.monotonic() - 30) / 60  # half a minute for the page
        if left < 0.5:
            outcomes.append({"part": name, "status": "not begun", "seconds": 0.0})
            continue
        print(f"{name}: at most {min(left, PARTS[name].minutes):.1f} minutes", flush=True)
        # A part that ends by itself needs a part of its time for that.
        given = max(0.5, left - GRACE / 60) if PARTS[name].limited and left < PARTS[name].minutes + 1 else left
        outcomes.append(run_part(name, arguments.device, work / name, folder / "session.log", given))
        print(f"{name}: {said(outcomes[-1])}", flush=True)
        collect(folder, work)
        _write_page(arguments, outcomes, work)
    print(f"\n{_write_page(arguments, outcomes, work)}")
    return int(any(outcome["status"] != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
