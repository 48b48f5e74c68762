"""`run_benchmarks.py lra` trains, goes on, reports, and tells its data apart from the benchmark's."""

import argparse
import contextlib
import importlib
import io
import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image
from transformers import AutoConfig

from hf_seqmix.data import build_tokenizer
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.results import summarize

SCRIPTS = Path(__file__).resolve().parents[4] / "scripts"
FAMILIES = ("tnn", "ski_tnn", "fd_tnn", "ipa", "poly2", "poly3", "hybrid", "attention", "library", "short_conv")


@pytest.fixture(scope="module")
def scripts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        names = (
            "run_benchmarks",
            "benchmarks.lra.benchmark",
            "benchmarks.training",
            "benchmarks.run_costs",
            "benchmarks.jobs",
            "benchmarks.lra.data",
            "finetuning.models",
            "finetuning.arguments",
        )
        found = {name.removeprefix("benchmarks.").replace(".", "_"): importlib.import_module(name) for name in names}
        yield argparse.Namespace(**found)


def results(accuracy: float, **more: Any) -> dict[str, Any]:
    """What finetune.py writes, as far as it is read."""
    scores = {
        "accuracy": accuracy,
        "examples": 100,
        "baselines": {"majority class": {"accuracy": accuracy / 10 + 0.15}},
    }
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
def trained(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs that were asked for, none of which is trained: each seed has an accuracy of its own."""
    calls: list[Any] = []

    def train(job: Any, folder: Path) -> dict[str, Any] | str:
        calls.append(job)
        return results(0.5 + job.run.seed / 10) if job.run.model["model_type"] != "ipa" else "no memory"

    for module in (scripts.training, scripts.run_costs):
        monkeypatch.setattr(module, "train", train)
    return calls


def values(report: Any, metric: str, **wanted: Any) -> list[float | None]:
    """Values of a metric that do not belong to a curve."""
    found = [r for r in report.results if r.metric == metric and r.get("step") is None]
    return [r.value for r in found if all(r.get(name) == value for name, value in wanted.items())]


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["here", "apart"])
@pytest.mark.usefixtures("pictures")
def test_trains_for_real_and_goes_on(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], apart: bool
) -> None:
    """By default in this process: half of the time is what another one imports."""
    finetune = importlib.import_module("finetune")

    def here(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        with contextlib.redirect_stdout(io.StringIO()):
            finetune.main(words[2:])
        return subprocess.CompletedProcess(words, 0)

    if not apart:
        monkeypatch.setattr(scripts.jobs.subprocess, "run", here)
    command = ["lra", "--task", "listops", "--fast", "--families", "fd_tnn", "--max-steps", "2"]
    command += ["--training", "use_cpu=true", "--output-dir", str(tmp_path)]
    report = scripts.run_benchmarks.main(command)
    assert values(report, "updates") == [2]
    assert values(report, "steps_per_second")[0] > 0 and values(report, "peak_memory_mib")[0] > 100
    [accuracy] = [r for r in report.results if (r.metric, r.kind) == ("accuracy", "measured")]
    assert 0 <= accuracy.value <= 1
    assert accuracy.setting["data"].startswith("generated") and accuracy.setting["data"].endswith(
        "; 100 test examples"
    )
    assert (accuracy.task, accuracy.model, accuracy.size, accuracy.seed) == ("listops", "fd_tnn", "fast", 0)
    assert {r.model for r in report.results if r.kind == "baseline"} == {"majority class", "outermost operator"}
    operators = [r for r in report.results if r.metric == "operator_accuracy"]
    assert len(operators) == 2 * 2 * 4  # model and rule, the outermost operator and the only one, four operators
    for model in ("fd_tnn", "outermost operator"):
        of_test = [r for r in operators if (r.model, r.get("place")) == (model, "outermost")]
        assert [r.get("operator") for r in of_test] == ["MIN", "MAX", "MED", "SM"]
        # The parts make up the whole: the same model is scored on the same test data.
        whole = next(
            r.value
            for r in report.results
            if (r.model, r.metric) == (model, "accuracy") and r.get("step") is None and r.kind != "published"
        )
        assert sum(r.value * r.get("examples") for r in of_test) / 100 == pytest.approx(whole)
    table = capsys.readouterr().out
    assert (
        "Accuracy by operator" in table
        and "0.5521" in table
        and "not its figures" in table
        and (tmp_path / "results.md").read_text() in table + "\n"
    )
    assert (tmp_path / "listops.png").stat().st_size > 10_000
    # Nothing that is kept names a folder of this machine.
    for name in ("runs.jsonl", "results.jsonl", "results.md"):
        assert str(tmp_path) not in (tmp_path / name).read_text()
    assert accuracy.run.training["max_steps"] == 2 and accuracy.run.training["use_cpu"] is True
    assert accuracy.run.data["train_file"].startswith("OUTPUT/data/listops")
    assert read_results(tmp_path / "results.jsonl") == report.results

    # The run stands beside its results, and is a recipe that repeats the run.
    [folder] = (tmp_path / "runs" / "listops" / "fd_tnn").iterdir()
    repeated = tmp_path / "repeated"
    finetune.main(["--recipe", str(folder / "run.json"), "--output-dir", str(repeated)])
    first, second = (json.loads((path / "results.json").read_text()) for path in (folder, repeated))
    assert first["test"]["accuracy"] == second["test"]["accuracy"]
    assert first["train_loss_curve"] == second["train_loss_curve"]

    monkeypatch.setattr(scripts.training, "train", lambda *_: pytest.fail("trained again"))
    assert scripts.run_benchmarks.main(command).results == report.results


def test_figures_are_over_seeds_and_faults_are_named(scripts: Any, trained: list[Any], tmp_path: Path) -> None:
    command = ["lra", "--task", "listops", "--fast", "--families", "tnn", "ipa", "--seeds", "0", "2"]
    with pytest.raises(SystemExit, match=r"listops/ipa/seed-0, listops/ipa/seed-2"):
        scripts.run_benchmarks.main([*command, "--output-dir", str(tmp_path)])
    assert [job.name for job in trained] == [f"listops/{f}/seed-{s}" for f in ("tnn", "ipa") for s in (0, 2)]
    found = [r for r in read_results(tmp_path / "results.jsonl") if r.metric == "accuracy"]
    by_kind = {(s.result.model, s.result.kind): s for s in summarize(found)}
    assert set(by_kind) == {
        *(
            ("tnn", "measured"),
            ("majority class", "baseline"),
            ("outermost operator", "baseline"),
            ("tnn", "published"),
        )
    }
    tnn = by_kind["tnn", "measured"]
    assert tnn.mean == pytest.approx(0.6) and tnn.spread == pytest.approx(0.2 / 2**0.5) and tnn.seeds == (0, 2)
    # A baseline is over the seeds of all runs, not that of the first run.
    assert by_kind["majority class", "baseline"].mean == pytest.approx((0.20 + 0.22) / 2)
    assert by_kind["tnn", "published"].mean == pytest.approx(0.4733)
    assert "Not evaluated: listops/ipa/seed-0: no memory" in (tmp_path / "results.md").read_text()


def test_costs_are_said_before_a_full_run_and_alone(
    scripts: Any, trained: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts.lra_benchmark, "prepare_task", lambda *_: scripts.lra_data.TaskData({}, "none"))
        command = ["lra", "--task", "text", "--full", "--families", "tnn", "--seeds", "0", "1"]
        scripts.run_benchmarks.main([*command, "--costs", "--output-dir", str(tmp_path)])
        assert [job.name for job in trained] == ["text/tnn/seed-0"]  # seeds cost the same
        run = trained[0].run
        assert (run.training["max_steps"], run.data["max_train_samples"], run.data["max_eval_samples"]) == (5, 1000, 2)
        assert not {"num_train_epochs", "schedule_steps", "warmup_steps"} & run.training.keys()
        output = capsys.readouterr().out
        assert "22,500" in output and "6.2 hours in all" in output  # 2 x 22,500 updates at 2 a second
        trained.clear()
        scripts.run_benchmarks.main([*command, "--output-dir", str(tmp_path)])
        assert len(trained) == 3


def test_a_failure_and_costs_leave_no_wrong_results(
    scripts: Any, trained: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["lra", "--task", "listops", "--fast", "--families", "tnn", "--output-dir", str(tmp_path)]
    assert values(scripts.run_benchmarks.main(command), "accuracy", kind="measured") == [0.5]
    before = (tmp_path / "results.jsonl").read_text()
    scripts.run_benchmarks.main([*command, "--max-steps", "3", "--costs"])
    assert (tmp_path / "results.jsonl").read_text() == before
    monkeypatch.setattr(scripts.training, "train", lambda *_: "no memory")
    with pytest.raises(SystemExit, match="listops/tnn/seed-0"):
        scripts.run_benchmarks.main([*command, "--overwrite"])
    assert read_results(tmp_path / "results.jsonl") == []  # not the former result


def test_other_contents_of_files_and_recipes_are_other_runs(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recipes = tmp_path / "text", tmp_path / "recipes"
    folder.mkdir()
    recipes.mkdir()
    monkeypatch.setattr(scripts.lra_benchmark, "RECIPES", recipes)
    typed = ["lra", "--task", "text", "--fast", "--output-dir", str(tmp_path)]
    arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
    keys, folders = [], set()
    for recipe, review in (("a: 1", "good"), ("a: 1", "fine"), ("a: 2", "fine"), ("a: 2", "fine")):
        (recipes / "text.yaml").write_text(
            f"training: {{{recipe}}}\nfamilies: {{tnn: {{model: {{model_type: tnn}}}}}}"
        )
        for split in ("train", "test"):
            (folder / f"{split}.csv").write_text(f"text,label\n{review},1\n")
        data = scripts.lra_data.prepare_task("text", folder, tmp_path, {})
        job = scripts.lra_benchmark.make_job(arguments, "text", "tnn", 0, data)
        keys.append(job.key("lra", tmp_path))
        folders.add(job.folder(tmp_path))
    assert keys[0] != keys[1] != keys[2] == keys[3] and len(folders) == 3


def test_a_longer_cut_is_of_the_model_its_pretraining_and_the_bag_of_words(scripts: Any, tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("text,label\ngood,1\nbad,0\n")
    data = scripts.lra_data.prepare_task("text", tmp_path, tmp_path, {})
    typed = ["lra", "--task", "text", "--max-length", "1024", "--max-seconds", "9", "--output-dir", str(tmp_path)]
    arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
    job = scripts.lra_benchmark.make_job(arguments, "text", "tnn", 0, data, pretrain=True)
    assert job.run.data["max_length"] == 1024 and job.run.data["baseline"] == "bag-of-words"
    assert job.before.run.data["block_size"] == job.before.run.model["config_overrides"]["max_position_embeddings"]
    assert job.before.run.data["block_size"] == 1024
    assert job.labels["setting"]["data"].endswith(", the first 1024 bytes of a text")


RELEASED = {
    "listops": ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"),
    "retrieval": ("new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv", "new_aan_pairs.test.tsv"),
}

TASKS = ["listops", "text", "retrieval", "image", "pathfinder", "path-x"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("size", ["fast", "reduced", "full"])
@pytest.mark.one_in(6)
def test_every_run_is_a_valid_recipe(scripts: Any, task: str, family: str, size: str, tmp_path: Path) -> None:
    needs_file = task not in ("text", "image")
    data = scripts.lra_data.TaskData({"train_file": "a.parquet"} if needs_file else {}, "somewhere")
    typed = ["lra", "--task", task, "--output-dir", str(tmp_path), "--seeds", "5", "--training", "use_cpu=true"]
    if size != "reduced":
        typed.append(f"--{size}")
    arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
    job = scripts.lra_benchmark.make_job(arguments, task, family, 5, data)
    (tmp_path / "run.json").write_text(json.dumps(job.run.to_json()))
    words = ["--recipe", str(tmp_path / "run.json"), "--output-dir", str(tmp_path)]
    parsed = scripts.finetuning_arguments.parse_arguments(words)
    assert parsed.training.seed == 5
    model_type = {"poly2": "poly_transformer", "poly3": "poly_transformer", "attention": "seqmix_hybrid"}
    model_type |= dict.fromkeys(["hybrid", "short_conv"], "seqmix_hybrid")
    model_type["library"] = "vit" if parsed.reads_images else "modernbert"
    assert job.labels["model"] == (model_type["library"] if family == "library" else family)
    assert parsed.model.model_type == model_type.get(family, family)
    assert parsed.training.load_best_model_at_end and parsed.training.metric_for_best_model == "accuracy"
    steps, seconds = parsed.training.max_steps, parsed.run.max_seconds
    assert (
        (job.updates is None and steps == -1) if seconds else (job.updates == steps or (size, steps) == ("full", -1))
    )
    assert size != "full" or job.updates <= 50_000
    assert ("patches of 2" in job.labels["setting"]["data"]) == (size == "reduced" and task == "image")
    assert (parsed.training.optim == "muon") == (seconds is not None) == (size == "reduced" and task != "path-x")
    tokenizer = None if parsed.reads_images else build_tokenizer(parsed.model.tokenizer)
    with torch.device("meta"):
        model = scripts.finetuning_models.load_model(parsed, {"num_labels": 10}, tokenizer)
    few = size == "fast" or task == "retrieval"
    assert (model.config.num_hidden_layers == 2) == few
    assert family == "library" or (not model.config.is_causal and model.config.classifier_pooling in ("mean", "last"))


@pytest.mark.parametrize("size", ["fast", "reduced", "full"])
@pytest.mark.parametrize("task", TASKS)
def test_the_librarys_transformer_is_as_large_as_ours(scripts: Any, tmp_path: Path, task: str, size: str) -> None:
    typed = ["lra", "--task", task, "--output-dir", str(tmp_path)] + [f"--{size}"] * (size != "reduced")
    arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
    data = scripts.lra_data.TaskData({"train_file": "a.parquet"}, "somewhere")
    weights = []
    for family in ("attention", "library"):
        run = scripts.lra_benchmark.make_job(arguments, task, family, 0, data).run
        (tmp_path / "run.json").write_text(json.dumps(run.to_json()))
        words = ["--recipe", str(tmp_path / "run.json"), "--output-dir", str(tmp_path)]
        parsed = scripts.finetuning_arguments.parse_arguments(words)
        tokenizer = None if parsed.reads_images else build_tokenizer(parsed.model.tokenizer)
        with torch.device("meta"):
            model = scripts.finetuning_models.load_model(parsed, {"num_labels": 10}, tokenizer)
        shapes = {name: values.numel() for name, values in model.named_parameters() if values.dim() > 1}
        # Embeddings of positions and heads aside: ViT learns positions, and the heads differ.
        weights.append(sum(number for name, number in shapes.items() if "layers." in name))
        config = model.config
    assert weights[1] == pytest.approx(weights[0], rel=0.02)
    assert config.hidden_size == run.model["config_overrides"]["hidden_size"]
    if config.model_type == "modernbert":
        assert set(config.layer_types) == {"full_attention"} and config.vocab_size == len(tokenizer)
    else:
        patch = 2 if (task, size) == ("image", "reduced") else 1
        assert (config.patch_size, config.num_channels) == (patch, 1)


def test_fields_that_the_librarys_transformer_has_not_are_named(
    scripts: Any, trained: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = ["lra", "--task", "listops", "--fast", "--output-dir", str(tmp_path), "--families", "attention"]
    command += ["library", "--config-overrides", "hidden_dropout=0.1", "classifier_pooling=mean", "hidden_size=16"]
    scripts.run_benchmarks.main([*command, "short_conv_taps=0", "zero_init_outputs=false"])
    [named] = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert "--config-overrides short_conv_taps, zero_init_outputs without effect on modernbert" in named
    assert len(trained) == 2


def test_the_librarys_transformer_has_no_first_stage(scripts: Any, tmp_path: Path) -> None:
    command = ["lra", "--task", "listops", "--self-pretrain", "--max-seconds", "9", "--output-dir", str(tmp_path)]
    with pytest.raises(SystemExit, match="leave library out of --families"):
        scripts.run_benchmarks.main([*command, "--families", "tnn", "library"])


@pytest.mark.parametrize("size", ["fast", "reduced", "full"])
def test_every_model_has_a_valid_configuration(scripts: Any, size: str, tmp_path: Path) -> None:
    typed = ["lra", "--task", *TASKS, "--output-dir", str(tmp_path)] + [f"--{size}"] * (size != "reduced")
    arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
    data = scripts.lra_data.TaskData({"train_file": "a.parquet"}, "somewhere")
    for task, family in itertools.product(TASKS, FAMILIES):
        model = scripts.lra_benchmark.make_job(arguments, task, family, 0, data).run.model
        config = AutoConfig.for_model(model["model_type"], **model["config_overrides"])
        assert config.model_type == model["model_type"]


def test_overrides_of_every_run_are_in_its_record(scripts: Any, tmp_path: Path) -> None:
    typed = [
        "lra",
        "--task",
        "listops",
        "--output-dir",
        str(tmp_path),
        "--training",
        "use_cpu=true",
        "adam_beta2=0.98",
    ]
    typed += ["--config-overrides", "decay=null", "channel_decays=[0.9,0.999]", "num_hidden_layers=3"]
    arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
    data = scripts.lra_data.TaskData({"train_file": "a.parquet"}, "somewhere")
    run = scripts.lra_benchmark.make_job(arguments, "listops", "tnn", 0, data).run
    (tmp_path / "run.json").write_text(json.dumps(run.to_json()))
    words = ["--recipe", str(tmp_path / "run.json"), "--output-dir", str(tmp_path)]
    parsed = scripts.finetuning_arguments.parse_arguments(words)
    with torch.device("meta"):
        model = scripts.finetuning_models.load_model(parsed, {"num_labels": 10}, build_tokenizer("listops"))
    assert model.model.layers[2].mixer.operator.kernel.decay == (0.9, 0.999)
    assert parsed.training.adam_beta2 == 0.98 and parsed.training.learning_rate == 2e-3


def test_epochs_take_the_place_of_the_sizes_length(scripts: Any, tmp_path: Path) -> None:
    data = scripts.lra_data.TaskData({"train_file": "a.parquet"}, "somewhere")
    for size in (["--fast"], [], ["--full"]):
        typed = ["lra", "--task", "listops", *size, "--output-dir", str(tmp_path), "--training", "num_train_epochs=3"]
        arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
        job = scripts.lra_benchmark.make_job(arguments, "listops", "fd_tnn", 0, data)
        assert job.run.training["num_train_epochs"] == 3 and job.updates is None
        assert not {"max_steps", "max_seconds", "schedule_steps", "warmup_steps"} & job.run.training.keys()


@pytest.mark.parametrize(("field", "option"), [("seed=7", "--seeds"), ("output_dir=runs", "--output-dir")])
def test_what_has_an_option_of_its_own_is_no_training_argument(
    scripts: Any, tmp_path: Path, field: str, option: str
) -> None:
    typed = ["lra", "--task", "listops", "--output-dir", str(tmp_path), "--training", field]
    arguments = scripts.run_benchmarks.build_parser().parse_args(typed)
    data = scripts.lra_data.TaskData({"train_file": "a.parquet"}, "somewhere")
    with pytest.raises(ValueError, match=f"which would have no effect: give {option}"):
        scripts.lra_benchmark.make_job(arguments, "listops", "tnn", 0, data)


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
    assert data.source == source and "validation_file" not in data.fields


def test_the_benchmarks_own_listops_files_are_read(scripts: Any, tmp_path: Path) -> None:
    for name in RELEASED["listops"]:
        (tmp_path / name).write_text("Source\tTarget\n( ( ( [MIN 4 ) 2 ) ] )\t2\n( ( ( [MAX 4 ) 2 ) ] )\t4\n")
    data = scripts.lra_data.prepare_task("listops", tmp_path, tmp_path / "out", {})
    assert data.source == "the benchmark's files" and dict(data.baselines) == {"outermost operator": 1.0}
    assert data.fields["validation_file"] == str(tmp_path / "basic_val.tsv")


def test_a_substitute_is_called_so_and_made_once(scripts: Any, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for index in range(4):
        (texts / f"{index}.txt").write_text(" ".join(f"w{index}-{word}" for word in range(400)))
    settings = {"rows": {"train": 8, "validation": 4, "test": 4}, "length": 60}
    data = scripts.lra_data.prepare_task("retrieval", texts, tmp_path / "out", settings)
    assert "not AAN" in data.source and data.source.endswith("each document in all splits")  # too few for others
    assert data.fields["text_columns"] == ["text1", "text2"]
    test_file = Path(data.fields["test_file"])
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
        (["--learning-rate", "0"], r"--learning-rate must be positive; given 0\.0"),
        (["--max-length", "64"], "cuts the texts of text and retrieval; listops cannot be told from a part"),
        (["--max-length", "0"], "at least 1 byte; given 0"),
        (["--pretrain-objective", "causal"], "no effect without --self-pretrain: give both"),
        (["--pretrain-share", "0.9"], r"--pretrain-share 0\.9 has no effect without --self-pretrain: give both"),
        (["--mlm-probability", "0.4"], r"--mlm-probability 0\.4 has no effect without --self-pretrain: give both"),
        (
            ["--max-seconds", "20", "--training", "max_seconds=10"],
            "--training max_seconds and --max-seconds each say .* give one",
        ),
        (
            ["--training", "max_steps=5", "num_train_epochs=2"],
            "--training max_steps and --training num_train_epochs each say",
        ),
        (["--families", "library", "--config-overrides", "nonsense=3"], "of modernbert .* no field 'nonsense'"),
    ],
)
def test_wrong_arguments_are_refused(scripts: Any, tmp_path: Path, more: list[str], message: str) -> None:
    more = [word.format(folder=tmp_path) for word in more]
    with pytest.raises(SystemExit, match=message):
        scripts.run_benchmarks.main(["lra", "--task", "listops", *more, "--output-dir", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--training", "max_stps=1"], "listops/tnn/seed-0: .*max_stps.*max_steps"),
        (["--seeds", "0", "0"], "--seeds names 0 twice: 0 0"),
        (["--families", "tnn", "tnn"], "--families names tnn twice"),
        (["--config-overrides", "hiden_size=8"], "listops/tnn/seed-0: .*hiden_size.*hidden_size"),
    ],
)
def test_what_no_run_takes_is_refused_before_data_is_made(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], message: str
) -> None:
    monkeypatch.setattr(scripts.lra_benchmark, "prepare_task", None)
    with pytest.raises(SystemExit, match=message):
        scripts.run_benchmarks.main(["lra", "--task", "listops", "--output-dir", str(tmp_path / "out"), *more])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("task", "names", "text", "message"),
    [
        ("listops", RELEASED["listops"], "Text\tTarget\n[MIN 4 2 ]\t2\n", "columns Text, Target; .* Source, Target:"),
        ("retrieval", RELEASED["retrieval"], "1.0\ta\tb\n", r"columns 0, 1, 2; .* 0, 3, 4, which are counted from 0"),
        (
            "text",
            ("train.csv", "test.csv"),
            "review,label\ngood,1\n",
            "columns review, label; .* text or sentence, label",
        ),
        ("text", ("train.csv", "test.csv"), "text,class\ngood,1\n", "columns text, class; "),
        (
            "pathfinder",
            ("train.csv", "test.csv"),
            "picture,label\n?,1\n",
            "columns picture, label; .* image or img, label",
        ),
    ],
)
def test_columns_are_looked_at_before_anything_trains(
    scripts: Any, tmp_path: Path, task: str, names: tuple[str, ...], text: str, message: str
) -> None:
    for name in names:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{names[0]} has the {message}"):
        scripts.lra_data.prepare_task(task, tmp_path, tmp_path / "out", {})


@pytest.mark.parametrize(
    ("task", "names", "line", "labels"),
    [
        ("retrieval", RELEASED["retrieval"], "{}\ta\tb\tone text\tanother\n", ["1.0", "0.0", "-1.0"]),
        ("listops", RELEASED["listops"], "( [MIN 4 ) 2 ) ] )\t{}\n", [*map(str, range(10)), "12"]),
        ("pathfinder", ("train.csv", "test.csv"), "0.png,{}\n", ["good", "bad", "ugly"]),
    ],
)
def test_more_classes_than_a_tasks_are_refused(
    scripts: Any, tmp_path: Path, task: str, names: tuple[str, ...], line: str, labels: list[str]
) -> None:
    header = {"listops": "Source\tTarget\n", "pathfinder": "image,label\n"}.get(task, "")
    for name in names:
        (tmp_path / name).write_text(header + "".join(map(line.format, labels)))
    with pytest.raises(ValueError, match=rf"the labels .*; the task {task} has {len(labels) - 1} classes: leave out"):
        scripts.lra_data.prepare_task(task, tmp_path, tmp_path / "out", {})
    for name in names:
        (tmp_path / name).write_text(header + "".join(map(line.format, labels[:-1])))
    assert scripts.lra_data.prepare_task(task, tmp_path, tmp_path / "out", {}).contents


@pytest.mark.parametrize("columns", [{"picture": ["?"], "label": [0]}, {"image": [], "label": []}])
def test_pictures_of_a_folder_are_looked_at(scripts: Any, tmp_path: Path, columns: dict[str, list[Any]]) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("image,label\n")
    with pytest.raises(ValueError, match=r"must hold train and test, .* as \.parquet; it has test\.csv, train\.csv"):
        scripts.lra_data.prepare_task("image", tmp_path, tmp_path / "out", {})
    for split in ("train", "test"):
        datasets.Dataset.from_dict(columns).to_parquet(str(tmp_path / f"{split}.parquet"))
    found = f"has {len(columns['label'])} rows and the columns {', '.join(columns)}; it must have pictures"
    with pytest.raises(ValueError, match=found):
        scripts.lra_data.prepare_task("image", tmp_path, tmp_path / "out", {})


@pytest.mark.usefixtures("pictures")
def test_pictures_of_pathfinder_are_made_once(scripts: Any, tmp_path: Path) -> None:
    settings = {"rows": {"train": 6, "validation": 2, "test": 2}}
    data = scripts.lra_data.prepare_task("pathfinder", None, tmp_path, settings)
    assert data.source == "generated, seed 0, 6 pictures to train on"
    rows = datasets.Dataset.from_parquet(data.fields["train_file"], cache_dir=str(tmp_path / "cache"))
    assert len(rows) == 6 and rows[0]["image"].size == (32, 32)
    assert Path(data.fields["test_file"]).with_name("examples.png").stat().st_size > 5000


def test_without_a_network_the_folder_is_asked_for(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: Any) -> None:
        raise ValueError("the data set could not be loaded: offline.")

    monkeypatch.setattr(scripts.lra_data, "load_labeled", offline)
    with pytest.raises(SystemExit, match=r"could not be loaded: offline\. .* give --data text=FOLDER"):
        scripts.run_benchmarks.main(["lra", "--task", "text", "--output-dir", str(tmp_path)])
