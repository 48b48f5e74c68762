"""`run_benchmarks.py lra` trains, goes on, reports, and tells its data apart from the benchmark's."""

import argparse
import importlib
import io
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image

from hf_seqmix.data import build_tokenizer

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
FAMILIES = ("tnn", "ski_tnn", "fd_tnn", "ipa", "poly2", "poly3", "attention")


@pytest.fixture(scope="module")
def scripts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        names = (
            "run_benchmarks",
            "benchmarks.benchmark_lra",
            "benchmarks.benchmark_training",
            "benchmarks.lra_data",
            "finetuning.models",
            "finetuning.arguments",
        )
        yield argparse.Namespace(**{name.split(".")[-1]: importlib.import_module(name) for name in names})


def results(accuracy: float, **more: Any) -> dict[str, Any]:
    """What finetune.py writes, as far as it is read."""
    scores = {"accuracy": accuracy, "examples": 100, "baselines": {"majority class": {"accuracy": 0.2}}}
    return {
        "test": scores,
        "validation": {**scores, "accuracy": accuracy + 0.01},
        "train": {"seconds": 3.0, "steps_per_second": 2.0, "peak_memory_bytes": 2**21, "memory_of": "process"},
        "train_loss_curve": [[1, 2.0]],
        "validation_curve": [{"step": 6, "accuracy": 0.3, "loss": 2.0}],
        "num_parameters": 7,
        "num_updates": 12,
        **more,
    }


@pytest.fixture
def trained(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The runs that were asked for, none of which is trained: each seed has an accuracy of its own."""
    calls: list[tuple[str, list[str]]] = []

    def train(run: Any, folder: Path, more: Any = ()) -> dict[str, Any] | str:
        calls.append((run.name, [*run.arguments, *more]))
        return results(0.5 + run.labels["seed"] / 10) if run.labels["family"] != "ipa" else "no memory"

    monkeypatch.setattr(scripts.benchmark_training, "train", train)
    return calls


def test_trains_for_real_and_goes_on(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["lra", "--task", "listops", "--fast", "--families", "fd_tnn", "--max-steps", "2"]
    command += ["--training-arguments=--use-cpu", "--output-dir", str(tmp_path)]
    report = scripts.run_benchmarks.main(command)
    [row] = report["results"]
    assert row["updates"] == 2 and row["steps_per_second"] > 0 and row["peak_memory_mib"] > 100
    assert 0 <= row["accuracy"] <= 1 and row["test_examples"] == 100
    assert row["data"].startswith("generated") and row["size"] == "fast"
    assert set(report["data"]["listops"]["baselines"]) == {"outermost operator"}
    table = capsys.readouterr().out
    assert "0.5521" in table and "not its figures" in table and (tmp_path / "results.md").read_text() in table + "\n"
    assert (tmp_path / "listops.png").stat().st_size > 10_000
    # nothing that is kept names a folder of this machine
    for name in ("results.jsonl", "results.json", "results.md"):
        text = (tmp_path / name).read_text()
        assert str(tmp_path) not in text.replace(json.dumps(report["environment"]["command"]), "")
    assert "scripts/recipes/lra/listops.yaml" in row["command"] and "OUTPUT/data/listops" in row["command"]

    monkeypatch.setattr(scripts.benchmark_training, "train", lambda *_: pytest.fail("trained again"))
    again = scripts.run_benchmarks.main(command)
    assert again["results"] == report["results"]


def test_a_row_a_family_over_its_seeds_and_faults_are_named(
    scripts: Any, trained: list[tuple[str, list[str]]], tmp_path: Path
) -> None:
    command = ["lra", "--task", "listops", "--fast", "--families", "tnn", "ipa", "--seeds", "0", "2"]
    with pytest.raises(SystemExit, match=r"listops/ipa/seed-0, listops/ipa/seed-2"):
        scripts.run_benchmarks.main([*command, "--output-dir", str(tmp_path)])
    assert [name for name, _ in trained] == [f"listops/{f}/seed-{s}" for f in ("tnn", "ipa") for s in (0, 2)]
    report = json.loads((tmp_path / "results.json").read_text())
    [row] = report["summary"]
    assert (row["family"], row["num_seeds"]) == ("tnn", 2)
    assert row["accuracy"] == pytest.approx(0.6) and row["spread"] == pytest.approx(0.2 / 2**0.5)
    assert row["published"] == pytest.approx(0.4733)


def test_costs_are_said_before_a_full_run_and_alone(
    scripts: Any, trained: list[tuple[str, list[str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts.benchmark_lra, "prepare_task", lambda *_: scripts.lra_data.TaskData(("--x",), "none"))
        command = ["lra", "--task", "text", "--full", "--families", "tnn", "--seeds", "0", "1"]
        scripts.run_benchmarks.main([*command, "--costs", "--output-dir", str(tmp_path)])
        assert [name for name, _ in trained] == ["text/tnn/seed-0"]  # seeds cost the same
        assert trained[0][1][-4:] == ["--max-train-samples", "1000", "--max-eval-samples", "2"]
        output = capsys.readouterr().out
        assert "22,500" in output and "6.2 hours in all" in output  # 2 x 22,500 updates at 2 a second
        trained.clear()
        scripts.run_benchmarks.main([*command, "--output-dir", str(tmp_path)])
        assert len(trained) == 3


def test_a_failure_and_costs_leave_no_wrong_results(
    scripts: Any, trained: list[tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["lra", "--task", "listops", "--fast", "--families", "tnn", "--output-dir", str(tmp_path)]
    assert len(scripts.run_benchmarks.main(command)["results"]) == 1
    before = (tmp_path / "results.json").read_text()
    scripts.run_benchmarks.main([*command, "--max-steps", "3", "--costs"])
    assert (tmp_path / "results.json").read_text() == before
    monkeypatch.setattr(scripts.benchmark_training, "train", lambda *_: "no memory")
    with pytest.raises(SystemExit, match="listops/tnn/seed-0"):
        scripts.run_benchmarks.main([*command, "--overwrite"])
    assert json.loads((tmp_path / "results.json").read_text())["results"] == []  # not the former one


def test_other_contents_of_files_and_recipes_are_other_runs(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recipes = tmp_path / "text", tmp_path / "recipes"
    folder.mkdir()
    recipes.mkdir()
    monkeypatch.setattr(scripts.benchmark_lra, "RECIPES", recipes)
    typed = ["lra", "--task", "text", "--fast", "--output-dir", str(tmp_path)]
    arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
    keys, folders = [], set()
    for recipe, review in (("a: 1", "good"), ("a: 1", "fine"), ("a: 2", "fine"), ("a: 2", "fine")):
        (recipes / "text.yaml").write_text(recipe)
        for split in ("train", "test"):
            (folder / f"{split}.csv").write_text(f"text,label\n{review},1\n")
        data = scripts.lra_data.prepare_task("text", folder, tmp_path, {})
        run = scripts.benchmark_lra.make_run(arguments, "text", "tnn", 0, data)
        keys.append(run.key("lra", tmp_path))
        folders.add(run.folder(tmp_path))
    assert keys[0] != keys[1] != keys[2] == keys[3] and len(folders) == 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["listops", "text", "retrieval", "image", "pathfinder", "path-x"])
@pytest.mark.parametrize("size", ["fast", "reduced", "full"])
def test_every_run_is_a_valid_command(scripts: Any, task: str, family: str, size: str, tmp_path: Path) -> None:
    needs_file = task not in ("text", "image")
    data = scripts.lra_data.TaskData(("--train-file", "a.parquet") if needs_file else (), "somewhere")
    typed = ["lra", "--task", task, "--output-dir", str(tmp_path), "--seeds", "5", "--training-arguments=--use-cpu"]
    if size != "reduced":
        typed.append(f"--{size}")
    arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
    run = scripts.benchmark_lra.make_run(arguments, task, family, 5, data)
    parsed = scripts.finetune_arguments.parse_arguments([*run.arguments, "--output-dir", str(tmp_path)])
    assert parsed.training.seed == 5
    model_type = {"poly2": "poly_transformer", "poly3": "poly_transformer", "attention": "seqmix_hybrid"}
    assert parsed.model.model_type == model_type.get(family, family)
    assert parsed.training.load_best_model_at_end and parsed.training.metric_for_best_model == "accuracy"
    steps = parsed.training.max_steps
    assert (run.updates == steps) or (size == "full" and steps == -1)
    assert size != "full" or run.updates <= 50_000
    tokenizer = None if parsed.reads_images else build_tokenizer(parsed.model.tokenizer)
    with torch.device("meta"):
        model = scripts.finetune_models.load_model(parsed, {"num_labels": 10}, tokenizer)
    assert (model.config.num_hidden_layers == 2) == (size == "fast" or task == "retrieval")
    assert not model.config.is_causal and model.config.classifier_pooling in ("mean", "last")


def picture(format: str) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (32, 32)).save(data, format=format)
    return data.getvalue()


@pytest.mark.parametrize(("format", "source"), [("JPEG", "CIFAR-10 (JPEG)"), ("PNG", "CIFAR-10, from files")])
def test_lossy_pictures_are_called_so(scripts: Any, tmp_path: Path, format: str, source: str) -> None:
    for split in ("train", "test"):
        rows = {"image": [{"bytes": picture(format), "path": None}] * 2, "label": [0, 1]}
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / f"{split}.parquet")
    data = scripts.lra_data.prepare_task("image", tmp_path, tmp_path / "out", {})
    assert data.source == source and "--validation-file" not in data.arguments


def test_the_benchmarks_own_listops_files_are_read(scripts: Any, tmp_path: Path) -> None:
    for name in ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"):
        (tmp_path / name).write_text("Source\tTarget\n( ( ( [MIN 4 ) 2 ) ] )\t2\n( ( ( [MAX 4 ) 2 ) ] )\t4\n")
    data = scripts.lra_data.prepare_task("listops", tmp_path, tmp_path / "out", {})
    assert data.source == "the benchmark's files" and dict(data.baselines) == {"outermost operator": 1.0}
    assert data.arguments[2:4] == ("--validation-file", str(tmp_path / "basic_val.tsv"))


def test_a_substitute_is_called_so_and_made_once(scripts: Any, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for index in range(4):
        (texts / f"{index}.txt").write_text(" ".join(f"w{index}-{word}" for word in range(400)))
    settings = {"rows": {"train": 8, "validation": 4, "test": 4}, "length": 60}
    data = scripts.lra_data.prepare_task("retrieval", texts, tmp_path / "out", settings)
    assert "not AAN" in data.source and data.source.endswith("each document in all splits")  # too few for others
    assert data.arguments[-5:-2] == ("--text-columns", "text1", "text2")
    test_file = Path(data.arguments[5])
    written = test_file.stat().st_mtime_ns
    again = scripts.lra_data.prepare_task("retrieval", texts, tmp_path / "out", settings)
    assert again == data and test_file.stat().st_mtime_ns == written
    assert len(datasets.Dataset.from_parquet(str(test_file), cache_dir=str(tmp_path / "cache"))) == 4
    (texts / "0.txt").write_text((texts / "0.txt").read_text().replace("w0-", "v0-"))  # of the same size
    assert scripts.lra_data.prepare_task("retrieval", texts, tmp_path / "out", settings) != data


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--data", "text=/nowhere"], "for a task that is run"),
        (["--data", "listops=nowhere"], "does not exist"),
        (["--data", "listops={folder}"], "lacks basic_train.tsv"),
        (["--max-steps", "0"], "must be positive"),
    ],
)
def test_wrong_arguments_are_refused(scripts: Any, tmp_path: Path, more: list[str], message: str) -> None:
    more = [word.format(folder=tmp_path) for word in more]
    with pytest.raises(SystemExit, match=message):
        scripts.run_benchmarks.main(["lra", "--task", "listops", *more, "--output-dir", str(tmp_path / "out")])


def test_pictures_of_pathfinder_are_made_once(scripts: Any, tmp_path: Path) -> None:
    settings = {"rows": {"train": 6, "validation": 2, "test": 2}}
    data = scripts.lra_data.prepare_task("pathfinder", None, tmp_path, settings)
    assert data.source == "generated, seed 0, 6 pictures to train on"
    rows = datasets.Dataset.from_parquet(data.arguments[1], cache_dir=str(tmp_path / "cache"))
    assert len(rows) == 6 and rows[0]["image"].size == (32, 32)
    assert Path(data.arguments[5]).with_name("examples.png").stat().st_size > 5000


def test_without_a_network_the_folder_is_asked_for(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: Any) -> None:
        raise ValueError("The data set could not be loaded: offline.")

    monkeypatch.setattr(scripts.lra_data, "load_labelled", offline)
    with pytest.raises(SystemExit, match=r"could not be loaded: offline\. .* give --data text=FOLDER"):
        scripts.run_benchmarks.main(["lra", "--task", "text", "--output-dir", str(tmp_path)])
