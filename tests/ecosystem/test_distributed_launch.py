"""The files for `accelerate launch`: accelerate reads them, means what they say, and starts the script with them.

Without a GPU, two processes are run on the CPU, for which accelerate falls back to data parallelism.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

from hf_seqmix.models.block import SeqMixBlock
from tests.ecosystem.tiny import EVERY, tiny_model

pytestmark = [pytest.mark.ecosystem("accelerate")]

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
FILES = sorted((SCRIPTS / "accelerate").glob("*.yaml"))
PROCESSES = {
    "deepspeed_zero2": 8,
    "deepspeed_zero3": 8,
    "eight_gpus": 8,
    "eight_gpus_fsdp": 8,
    "one_gpu": 1,
    "several_nodes": 32,
}


def arguments(path: Path, *more: str) -> Any:
    """Return the settings that accelerate reads from a file."""
    parsed = launch_command_parser().parse_args(["--config_file", str(path), *more, "script.py"])
    return _validate_launch_command(parsed)[0]


def test_every_file_is_tested() -> None:
    assert [path.stem for path in FILES] == list(PROCESSES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_it(path: Path) -> None:
    read = arguments(path)
    assert read.num_processes == PROCESSES[path.stem]
    assert read.mixed_precision == "bf16"
    assert read.use_fsdp == (path.stem == "eight_gpus_fsdp")
    assert read.use_deepspeed == path.stem.startswith("deepspeed")
    assert read.multi_gpu == (path.stem in ("eight_gpus", "several_nodes"))
    # accelerate refuses unknown names at the top and takes any below.
    known = vars(launch_command_parser().parse_args(["script.py"]))
    written = yaml.safe_load(path.read_text())
    nested = [name for section in written.values() if isinstance(section, dict) for name in section]
    assert nested == [name for name in nested if name in known]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_command_is_above_it(path: Path) -> None:
    head = path.read_text().split("compute_environment")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert f"accelerate launch --config_file scripts/accelerate/{path.name}" in head
    assert "scripts/pretrain.py --recipe" in head


@pytest.mark.parametrize("path", [path for path in FILES if "deepspeed" in path.stem], ids=lambda path: path.stem)
def test_deepspeed_is_told_a_stage(path: Path) -> None:
    read = arguments(path)
    assert str(read.zero_stage) == path.stem[-1]
    assert read.gradient_accumulation_steps == read.gradient_clipping == "auto"


@pytest.mark.parametrize("model_type", EVERY)
def test_fsdp_wraps_the_blocks_of_every_family(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = prepare_multi_gpu_env(arguments(SCRIPTS / "accelerate" / "eight_gpus_fsdp.yaml"))
    for name, value in environment.items():
        if name.startswith("FSDP"):
            monkeypatch.setenv(name, value)
    plugin: Any = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    model = tiny_model(model_type, "ForMaskedLM" if model_type == "ski_tnn" else "ForCausalLM")
    plugin.set_auto_wrap_policy(model)
    assert plugin.auto_wrap_policy.keywords["transformer_layer_cls"] == {SeqMixBlock}
    assert model._no_split_modules == {"SeqMixBlock"} or list(model._no_split_modules) == ["SeqMixBlock"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more", "processes"),
    [
        ("one_gpu", ["--cpu"], 1),
        ("eight_gpus", ["--num_processes", "2"], 2),
        ("eight_gpus_fsdp", ["--num_processes", "2"], 2),
        ("several_nodes", ["--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"], 2),
    ],
)
def test_the_script_starts_with_it(tmp_path: Path, name: str, more: list[str], processes: int) -> None:
    (tmp_path / "text.txt").write_text("".join(f"line {i} of a text\n" for i in range(200)))
    script = (
        "--model-type tnn --config-overrides hidden_size=16 num_hidden_layers=1 --tokenizer byte --block-size 32 "
        f"--use-cpu --train-file {tmp_path}/text.txt --max-steps 2 --output-dir {tmp_path}/run --disable-tqdm true"
    )
    launch = [sys.executable, "-m", "accelerate.commands.launch"]
    launch += ["--config_file", str(SCRIPTS / "accelerate" / f"{name}.yaml"), *more, str(SCRIPTS / "pretrain.py")]
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [*launch, *script.split()], env=os.environ | settings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["num_processes"] == processes
    assert results["num_updates"] == 2
