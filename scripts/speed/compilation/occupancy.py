"""What compiled kernels occupy: registers, shared memory, bytes spilled."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

__all__ = ["occupancy"]

TENSOR_CORES = ("wgmma", "mma.sync", "tcgen05", "v_mfma")


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
