"""Compiles every Triton kernel of the package for GPUs that need not be there, and lists what each would occupy.

    python scripts/speed/compile_kernels.py --targets sm_80 sm_90 sm_100 --output-dir runs/compile-kernels

The Python code in front of the kernels runs as it would, with each launch caught: what it would launch is compiled to
machine code instead, so that tile sizes, numbers of warps and argument types are the real ones. Each row is a kernel,
a case and a target: registers of a thread, bytes spilled to memory, shared memory of a block, whether the code uses
tensor cores, and the CPU seconds of the compiler, which a first call waits for; 0 where an earlier case of the run or
Triton's cache has the code (give an empty TRITON_CACHE_DIR). Ends with 1 if a kernel does not compile, or spills with
--no-spills. Writes compile_kernels.jsonl and a table.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from compilation.cases import CASES
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
TENSOR_CORES = ("wgmma", "mma.sync", "tcgen05", "v_mfma")


class OfflineDriver:
    """Stands for a device that is not there: Triton asks it for nothing but the target when it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        """Return the target to compile for."""
        return self.target

    def get_current_device(self) -> int:
        """Return one device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return one stream."""
        return 0


@contextmanager
def launches_caught(target: GPUTarget) -> Iterator[list[Any]]:
    """Compile for `target` instead of launching, and collect (name, compiled kernel, CPU seconds)."""
    found: list[Any] = []
    run = JITFunction.run
    compiled_before: set[int] = set()

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if id(self) not in compiled_before:
            # What it keeps for a device, the target among it, may be of an earlier target.
            self.device_caches.clear()
            compiled_before.add(id(self))
        begin = cpu_seconds()
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        found.append((self.fn.__name__, kernel, cpu_seconds() - begin))
        return kernel

    JITFunction.run = compiled
    triton.runtime.driver.set_active(OfflineDriver(target))
    try:
        yield found
    finally:
        JITFunction.run = run


def cpu_seconds() -> float:
    """Return those of this process and of the assemblers that it called."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def occupancy(kernel: Any, target: GPUTarget) -> dict[str, Any]:
    """Return registers, spilled bytes and the like, from the compiler's own report where there is one."""
    text = kernel.asm.get("ptx") or kernel.asm.get("amdgcn") or ""
    row = {
        "shared_bytes": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "tensor_cores": any(name in text for name in TENSOR_CORES),
        "registers": None,
        "spilled_bytes": None,
    }
    if target.backend == "cuda":
        report = assemble(text)
        row["registers"] = int(re.findall(r"Used (\d+) registers", report)[-1])
        row["spilled_bytes"] = sum(map(int, re.findall(r"(\d+) bytes spill stores", report)))
    else:
        row["registers"] = max(map(int, re.findall(r"\.vgpr_count:\s+(\d+)", text)), default=None)
        row["spilled_bytes"] = 4 * sum(map(int, re.findall(r"\.vgpr_spill_count:\s+(\d+)", text)))
    return row


def assemble(ptx: str) -> str:
    """Return what ptxas reports of a kernel."""
    named = re.search(r"\.target (\w+)", ptx)
    assert named is not None
    # Triton carries two assemblers, of which the second knows newer devices and versions of the language.
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    complaint = ""
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        for ptxas in (folder / "ptxas", folder / "ptxas-blackwell"):
            command = [
                str(ptxas),
                "-v",
                f"--gpu-name={named[1]}",
                str(source),
                "-o",
                str(Path(temporary) / "kernel.cubin"),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stderr
            complaint = done.stderr
    raise RuntimeError(f"the assembler fails: {complaint[:500]}")


def compile_all(targets: Sequence[str], dtypes: Sequence[str], cases: Sequence[str]) -> list[dict[str, Any]]:
    """Compile the cases and return a row for each kernel launched; a row whose compilation fails has an "error"."""
    rows = []
    for target in targets:
        for case in cases:
            for dtype in dtypes:
                key = {"target": target, "case": case, "dtype": dtype}
                with launches_caught(TARGETS[target]) as found:
                    try:
                        CASES[case](DTYPES[dtype])
                    except Exception as error:
                        rows.append(key | {"kernel": "-", "error": f"{type(error).__name__}: {error}"[:500]})
                seen = set()
                for name, kernel, seconds in found:
                    if kernel.hash not in seen:
                        seen.add(kernel.hash)
                        try:
                            rows.append(
                                key | {"kernel": name, "compile_seconds": seconds} | occupancy(kernel, TARGETS[target])
                            )
                        except RuntimeError as error:
                            rows.append(key | {"kernel": name, "error": str(error)})
                print(f"{target}, {case}, {dtype}: {len(seen)} kernels", file=sys.stderr)
    return rows


COLUMNS = {
    "target": "target",
    "case": "case",
    "dtype": "dtype",
    "kernel": "kernel",
    "warps": "warps",
    "registers": "registers",
    "spilled_bytes": "spilled bytes",
    "shared_bytes": "shared bytes",
    "tensor_cores": "tensor cores",
    "compile_seconds": "compiler, s:.1f",
}


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Compile, report, and return the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=["sm_80", "sm_90", "sm_100"])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--cases", nargs="+", default=[""], help="parts of the names of cases; all by default")
    parser.add_argument("--no-spills", action="store_true", help="end with 1 if a kernel spills registers")
    parser.add_argument("--output-dir", default="runs/compile-kernels")
    arguments = parser.parse_args(argv)
    cases = [name for name in CASES if any(part in name for part in arguments.cases)]
    if not cases:
        parser.error(f"no case is named like {arguments.cases}; there are: {', '.join(CASES)}.")
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: kernels would be interpreted; unset it.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of Triton 3.9, on a default that will change
        rows = compile_all(arguments.targets, arguments.dtypes, cases)
    title = f"Kernels, compiled by Triton {triton.__version__}"
    seen: Counter[Any] = Counter()
    for row in rows:  # a case may have several of one name, with other constants
        place = tuple(row[name] for name in ("target", "case", "dtype", "kernel"))
        row["variant"] = str(seen[place])
        seen[place] += 1
    write_report(
        arguments, "compile_kernels", [(title, rows, COLUMNS)], row_results(rows, "compile_kernels", "kernel")
    )
    failed = [row for row in rows if "error" in row]
    for row in failed:
        print(f"{row['target']}, {row['case']}, {row['dtype']}: {row['error']}", file=sys.stderr)
    if failed or (arguments.no_spills and any(row["spilled_bytes"] for row in rows)):
        raise SystemExit(1)
    return rows


if __name__ == "__main__":
    main()
