"""Every kernel compiles for GPUs that need not be there, without spilling what the tables count on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_seqmix.training.result_files import read_results

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "speed" / "compile_kernels.py"


def compile_kernels(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | more
    command = [sys.executable, str(SCRIPT), "--output-dir", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800)


@pytest.mark.slow
def test_one_case_of_a_hopper_gpu(tmp_path):
    done = compile_kernels(tmp_path, "--targets", "sm_90", "--dtypes", "bfloat16", "--cases", "width 64")
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path / "compile_kernels.jsonl")
    written = (tmp_path / "compile_kernels.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(results) == sum(len(json.loads(line)["results"]) for line in written)  # none stands for another
    assert {result.model for result in results} >= {"part_sums_kernel", "outputs_kernel"}
    most = {"registers": 255, "spilled_bytes": 0, "shared_bytes": 227 * 1024}
    assert {result.metric for result in results} >= set(most)
    for result in results:
        assert result.metric not in most or result.value <= most[result.metric]
    assert any(result.setting["tensor_cores"] for result in results)


@pytest.mark.slow
def test_what_cannot_be_compiled_is_said(tmp_path):
    done = compile_kernels(tmp_path, "--cases", "fourier")
    assert done.returncode == 2 and "there are: toeplitz causal 512" in done.stderr
    done = compile_kernels(tmp_path, "--targets", "sm_90", TRITON_INTERPRET="1")
    assert done.returncode == 2 and "unset it" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_every_case(tmp_path, target):
    done = compile_kernels(tmp_path, "--targets", target)
    assert done.returncode == 0, done.stderr
