import json
from pathlib import Path

from hf_seqmix.training.environment import portable_command, run_environment

ROOT = Path(__file__).resolve().parents[2]


def test_environment_is_json():
    environment = json.loads(json.dumps(run_environment()))
    assert environment["versions"]["torch"]
    assert environment["command"].startswith("python ")


def test_commands_name_files_of_the_repository_from_there(monkeypatch):
    monkeypatch.delenv("HF_SEQMIX_NATIVE", raising=False)
    words = ["glue", "--model", f"{ROOT}/model_cards/a", "--data-dir", "/x/glue", "--x=/y/1", "--output-dir", "/x"]
    monkeypatch.setattr("sys.argv", [f"{ROOT}/scripts/run_benchmarks.py", *words])
    command = "python scripts/run_benchmarks.py glue --model model_cards/a --data-dir DATA/glue --x=DATA/1"
    command += " --output-dir runs/g"
    assert portable_command("g") == command
    monkeypatch.setenv("HF_SEQMIX_NATIVE", "1")
    assert portable_command("g") == f"HF_SEQMIX_NATIVE=1 {command}"
