"""Compiles every Triton kernel of the package for GPUs that need not be there, and lists what each would occupy.

    python scripts/speed/compile_kernels.py --targets sm_80 sm_90 sm_100 --output-dir runs/compile-kernels

The Python code in front of the kernels runs as it would, with each launch caught: what it would launch is compiled to
machine code instead, so that tile sizes, numbers of warps and argument types are the real ones. Each row is a kernel,
a case and a target: registers of a thread, bytes spilled to memory, shared memory of a block, whether the code uses
tensor cores, and the CPU seconds of the compiler, which a first call waits for; 0 where an earlier case of the run or
Triton's cache has the code (give an empty TRITON_CACHE_DIR). Ends with 1 if a kernel does not compile, or spills with
--no-spills. Writes compile_kernels.jsonl and a table.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import triton
from compilation.cases import CASES
from compilation.launches import TARGETS, launches_caught
from compilation.occupancy import occupancy

from hf_seqmix.training.command import CommandParser
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


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
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--targets",
        nargs="+",
        choices=list(TARGETS),
        default=["sm_80", "sm_90", "sm_100"],
        help="GPUs to compile for, such as sm_90 for an H100, gfx942 for an MI300",
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES), help="data types of the inputs"
    )
    parser.add_argument(
        "--cases", nargs="+", default=[""], help="only cases whose name has one of these parts; all by default"
    )
    parser.add_argument("--no-spills", action="store_true", help="end with 1 if a kernel spills registers")
    parser.add_argument("--output-dir", default="runs/compile-kernels", help="where results and table go")
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
