"""`lra --self-pretrain`: two stages in the seconds of one, of one architecture, on the texts that the model reads."""

import argparse
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from hf_seqmix import TNNConfig
from hf_seqmix.data import build_tokenizer, listops_values
from hf_seqmix.data.labeled import TokenClassification

SCRIPTS = Path(__file__).resolve().parents[4] / "scripts"
NAMES = ("lra.benchmark", "jobs", "training", "lra.data", "lra.pretraining")


@pytest.fixture(scope="module")
def scripts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        found = {name.replace(".", "_"): importlib.import_module(f"benchmarks.{name}") for name in NAMES}
        found["run_benchmarks"] = importlib.import_module("run_benchmarks")
        found["pretrain"] = importlib.import_module("pretrain")
        found["arguments"] = importlib.import_module("finetuning.arguments")
        found["models"] = importlib.import_module("finetuning.models")
        yield argparse.Namespace(**found)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    for split in ("train", "test"):
        rows = [f'"{"good" if i % 2 else "bad"} {split} {i} {"x" * 400}",{i % 2}' for i in range(12)]
        (folder / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return folder


def job_of(scripts: Any, folder: Path, family: str, output: Path, *more: str, pretrain: bool = True) -> Any:
    typed = ["lra", "--task", "text", "--fast", "--max-seconds", "60", "--self-pretrain", "--output-dir", str(output)]
    arguments = scripts.run_benchmarks.build_parser().parse_args([*typed, *more])
    data = scripts.lra_data.prepare_task("text", folder, output, {})
    return scripts.lra_benchmark.make_job(arguments, "text", family, 3, data, pretrain)


def parsed(parse: Any, run: Any, folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(run.to_json()))
    return parse(["--recipe", str(folder / "run.json"), "--output-dir", str(folder), "--use-cpu"])


@pytest.mark.parametrize("family", ["tnn", "ski_tnn", "fd_tnn", "ipa", "poly2", "attention"])
def test_both_stages_have_one_architecture(scripts: Any, reviews: Path, tmp_path: Path, family: str) -> None:
    job = job_of(scripts, reviews, family, tmp_path, "--pretrain-share", "0.25")
    first = parsed(scripts.pretrain.parse_arguments, job.before.run, tmp_path / "first")
    second = parsed(scripts.arguments.parse_arguments, job.run, tmp_path / "second")
    assert (first.run.max_seconds, second.run.max_seconds) == (15, 45)
    assert first.training.seed == second.training.seed == 3
    assert first.training.learning_rate == second.training.learning_rate
    assert first.run.weight_decay_on_all_parameters and first.training.eval_strategy == "no"
    packed = first.data.block_size // second.data.max_length
    batches = [each.training.per_device_train_batch_size for each in (first, second)]
    assert packed >= 1 and batches[0] * packed == batches[1]
    config = scripts.pretrain.build_config(first, build_tokenizer("byte", mask_token=True)).to_dict()
    with torch.device("meta"):
        classifier = scripts.models.load_model(second, {"num_labels": 2}, build_tokenizer("byte")).config.to_dict()
    differ = {name for name in config if config[name] != classifier.get(name)}
    # The second stage takes the factor on the embedding, as all else, from the folder of the first.
    assert differ <= {"vocab_size", "architectures", "problem_type", "dtype", "embedding_scale"}, differ
    assert config["vocab_size"] == classifier["vocab_size"] + 1  # the mask


@pytest.mark.parametrize("family", ["tnn", "hybrid"])
def test_causal_pretraining_is_of_a_causal_classifier(
    scripts: Any, reviews: Path, tmp_path: Path, family: str
) -> None:
    job = job_of(scripts, reviews, family, tmp_path, "--pretrain-objective", "causal")
    first = parsed(scripts.pretrain.parse_arguments, job.before.run, tmp_path / "first")
    second = parsed(scripts.arguments.parse_arguments, job.run, tmp_path / "second")
    config = scripts.pretrain.build_config(first, build_tokenizer("byte"))
    with torch.device("meta"):
        classifier = scripts.models.load_model(second, {"num_labels": 2}, build_tokenizer("byte")).config
    assert (first.model.objective, config.is_causal, classifier.is_causal) == ("causal", True, True)
    assert job.labels["model"] == f"{family}, causal, pretrained on the task"
    plain = job_of(scripts, reviews, family, tmp_path, "--pretrain-objective", "causal", pretrain=False)
    assert plain.run.model["config_overrides"]["is_causal"] is False


@pytest.mark.parametrize("more", [["--task", "listops"], ["--task", "text", "--families", "tnn", "ski_tnn"]])
def test_what_has_no_causal_form_is_refused(scripts: Any, tmp_path: Path, more: list[str]) -> None:
    typed = ["lra", *more, "--self-pretrain", "--pretrain-objective", "causal", "--max-seconds", "60"]
    with pytest.raises(SystemExit, match="causal form: leave out"):
        scripts.run_benchmarks.main([*typed, "--output-dir", str(tmp_path / "out")])


def test_the_trade_off_measures_the_model_that_was_pretrained(scripts: Any, reviews: Path, tmp_path: Path) -> None:
    job = job_of(scripts, reviews, "tnn", tmp_path, "--config-overrides", "hidden_size=36")
    build = importlib.import_module("benchmarks.tradeoff.models").build_model
    for run, vocabulary, scale in ((job.run, 384, 1), (job.portable(tmp_path), 385, 6)):
        config = build(run, 64).config
        assert (config.vocab_size, config.embedding_scale, config.max_position_embeddings) == (vocabulary, scale, 64)


@pytest.mark.parametrize("family", ["tnn", "poly3"])
def test_the_first_logits_of_masked_models_are_of_size_one(
    scripts: Any, reviews: Path, tmp_path: Path, family: str
) -> None:
    """Whatever the width: the head shares an embedding whose output has unit variance."""
    job = job_of(scripts, reviews, family, tmp_path, "--config-overrides", "hidden_size=256")
    first = parsed(scripts.pretrain.parse_arguments, job.before.run, tmp_path / "first")
    torch.manual_seed(0)
    config = scripts.pretrain.build_config(first, build_tokenizer("byte", mask_token=True))
    model = AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        logits = model(torch.randint(3, 259, (2, 32))).logits
        embedded = model.get_input_embeddings().weight * config.embedding_scale
    assert logits.std().item() < 1.5 and embedded.std().item() == pytest.approx(1, abs=0.05)
    given = job_of(scripts, reviews, family, tmp_path, "--config-overrides", "hidden_size=256", "embedding_scale=2.0")
    assert given.before.run.model["config_overrides"]["embedding_scale"] == 2


def test_the_texts_are_those_of_the_training_data_as_read(scripts: Any, reviews: Path, tmp_path: Path) -> None:
    job = job_of(scripts, reviews, "tnn", tmp_path)
    [path] = job.before.run.data["train_file"]
    texts = list(datasets.Dataset.from_parquet(path, cache_dir=str(tmp_path / "cache"))["text"])
    assert len(texts) == 12 and all("train" in text for text in texts)
    assert {len(text.encode()) for text in texts} == {255}  # 256 tokens, of which one ends the text
    written = Path(path).stat().st_mtime_ns
    again = job_of(scripts, reviews, "ski_tnn", tmp_path)
    assert again.before.run.data == job.before.run.data and Path(path).stat().st_mtime_ns == written


def test_the_values_of_all_lists_come_before_those_of_expressions(scripts: Any, tmp_path: Path) -> None:
    """Words and values of the training expressions, and one architecture in both stages."""
    typed = [
        "lra",
        "--task",
        "listops",
        "--fast",
        "--max-seconds",
        "60",
        "--self-pretrain",
    ]
    arguments = scripts.run_benchmarks.build_parser().parse_args([*typed, "--output-dir", str(tmp_path)])
    size = {"rows": {"train": 30, "validation": 5, "test": 5}, "min_length": 16, "max_length": 65}
    data = scripts.lra_data.prepare_task("listops", None, tmp_path, size)
    job = scripts.lra_benchmark.make_job(arguments, "listops", "tnn", 3, data, True)
    assert job.before.script == "finetune.py"
    first = parsed(scripts.arguments.parse_arguments, job.before.run, tmp_path / "first")
    second = parsed(scripts.arguments.parse_arguments, job.run, tmp_path / "second")
    assert (first.run.max_seconds, second.run.max_seconds) == (60, None)
    assert first.data.task == "token-classification" and first.data.max_length == second.data.max_length
    assert first.model == second.model and first.training.eval_strategy == "no"
    # The labels are among what the first stage has learned.
    assert second.training.num_train_epochs == 0 and second.training.max_steps == -1
    cache = str(tmp_path / "cache")
    rows = datasets.Dataset.from_parquet(first.data.train_file, cache_dir=cache)
    sources = datasets.Dataset.from_parquet(second.data.train_file, cache_dir=cache)["Source"]
    assert len(rows) == 30
    for words, values, source in zip(rows["words"], rows["values"], sources, strict=True):
        assert words == [*source.replace("(", " ").replace(")", " ").split(), "<eos>"]
        assert [value == "-" for value in values] == [word.startswith("[") for word in words]
        assert values[-1] == values[-2] == str(listops_values(source)[-1][1])
    # Both stages read the same ids, and the value of an expression is learned where the classifier reads its answer.
    tokenizer = build_tokenizer("listops")
    task = TokenClassification.from_data(rows, "words", "values")
    encoded = task.encode(rows, tokenizer, first.data.max_length, "training")
    assert encoded["input_ids"] == [tokenizer(source)["input_ids"] for source in sources]
    assert [task.label_names[row[-1]] for row in encoded["labels"]] == [values[-1] for values in rows["values"]]


def test_the_classifier_is_what_knows_the_values(scripts: Any, tmp_path: Path) -> None:
    labels = ["-", *"0123456789"]
    shuffled = [*labels[3:], *labels[:3]]
    config = TNNConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        is_causal=False,
        classifier_pooling="last",
        id2label=dict(enumerate(shuffled)),
        label2id={label: index for index, label in enumerate(shuffled)},
    )
    values = AutoModelForTokenClassification.from_config(config).eval()
    with torch.no_grad():
        for parameter in values.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    values.save_pretrained(tmp_path)
    build_tokenizer("byte").save_pretrained(tmp_path)
    folder = scripts.lra_pretraining.classifier_of_values(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert [classifier.config.id2label[index] for index in range(10)] == labels[1:]
    ids = torch.randint(20, (3, 7))
    of_digits = [config.label2id[label] for label in labels[1:]]
    torch.testing.assert_close(classifier(ids).logits, values(ids).logits[:, -1, of_digits])
    assert AutoTokenizer.from_pretrained(folder).vocab_size == AutoTokenizer.from_pretrained(tmp_path).vocab_size


def test_expressions_that_are_cut_have_no_values(scripts: Any, tmp_path: Path) -> None:
    texts = tmp_path / "train.parquet"
    datasets.Dataset.from_dict({"text": ["[MAX 2 9 ]", "[MAX 2 [MIN 4"]}).to_parquet(str(texts))
    with pytest.raises(
        ValueError, match=r"longer than this size reads.* lacks a closing bracket\. Give shorter expressions"
    ):
        scripts.lra_pretraining.training_values(texts, "<eos>")
    assert [path.name for path in tmp_path.iterdir()] == ["train.parquet"]


def test_runs_are_told_apart_by_their_first_stage(scripts: Any, reviews: Path, tmp_path: Path) -> None:
    options = [[], ["--pretrain-share", "0.2"], ["--mlm-probability", "0.3"]]
    jobs = [job_of(scripts, reviews, "tnn", tmp_path, *more) for more in options]
    jobs.append(job_of(scripts, reviews, "tnn", tmp_path, pretrain=False))
    assert len({job.folder(tmp_path) for job in jobs}) == 4
    assert len({json.dumps(job.key("lra", tmp_path), sort_keys=True) for job in jobs}) == 4
    kept = jobs[0].portable(tmp_path)
    assert kept.training["pretraining"]["script"] == "pretrain.py" and str(tmp_path) not in json.dumps(kept.to_json())
    assert jobs[3].run.training["max_seconds"] == 60 and jobs[3].before is None


def test_the_second_stage_starts_where_the_first_ended(
    scripts: Any, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def run(command: list[str], **_: Any) -> Any:
        recipe, folder = Path(command[3]), Path(command[5])
        calls.append((Path(command[1]).name, json.loads(recipe.read_text())["model"]))
        (folder / "results.json").write_text(json.dumps({"by": calls[-1][0]}))
        return SimpleNamespace(returncode=int("fails" in command[5]))

    monkeypatch.setattr(scripts.jobs.subprocess, "run", run)
    job, folder = job_of(scripts, reviews, "tnn", tmp_path), tmp_path / "run"
    found = scripts.jobs.train(job, folder)
    assert found == {"by": "finetune.py", "pretraining": {"by": "pretrain.py"}}
    assert [script for script, _ in calls] == ["pretrain.py", "finetune.py"]
    assert calls[0][1]["objective"] == "masked" and calls[1][1] == {"model": str(folder / "pretraining")}
    scripts.jobs.train(job, folder)
    assert len(calls) == 3  # a first stage that has ended is not repeated
    assert "pretrain.py ended with status 1" in scripts.jobs.train(job, tmp_path / "fails")


def test_both_rows_stand_beside_each_other(
    scripts: Any, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(job: Any, folder: Path) -> dict[str, Any]:
        scores = {"accuracy": 0.6 if job.before else 0.5, "examples": 9, "baselines": {}}
        stage = {"num_updates": 30, "seconds_per_update": 0.5, "evaluation": {"token_loss": 1.5}}
        speed = {"seconds": 9.0, "steps_per_second": 4.0, "seconds_per_update": 0.25, "peak_memory_bytes": None}
        curves: dict[str, Any] = {"train_loss_curve": [], "validation_curve": []}
        found = {"test": scores, "validation": scores, "train": {**speed, "memory_of": "process"}, **curves}
        found |= {"num_parameters": 7, "num_updates": 60 if job.before else 120}
        return found | ({"pretraining": stage} if job.before else {})

    monkeypatch.setattr(scripts.training, "train", train)
    typed = ["lra", "--task", "text", "--fast", "--families", "tnn", "--max-seconds", "30", "--self-pretrain"]
    report = scripts.run_benchmarks.main([*typed, "--data", f"text={reviews}", "--output-dir", str(tmp_path)])
    values = {(r.model, r.metric): r.value for r in report.results if r.kind == "measured"}
    other = "tnn, pretrained on the task"
    assert (values["tnn", "accuracy"], values[other, "accuracy"]) == (0.5, 0.6)
    assert values["tnn", "update_seconds"] == values[other, "update_seconds"] == 30
    assert (values[other, "pretrain_updates"], values[other, "pretrain_loss"]) == (30, 1.5)
    assert "| tnn, pretrained on the task |" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        ("image", ["--max-seconds", "9"], "is for tasks of texts .* no objective for the pixels of image"),
        ("text", ["--fast"], "shares out the seconds of a run: give --max-seconds"),
        ("text", ["--max-seconds", "9", "--pretrain-share", "1"], "--pretrain-share must lie between 0 and 1"),
        ("listops", ["--max-steps", "100"], "shares out seconds: give --max-seconds instead of --max-steps"),
        ("text", ["--max-seconds", "0"], "--max-seconds must be positive"),
        ("text", ["--max-seconds", "9", "--mlm-probability", "0"], "--mlm-probability must lie between 0 and 1"),
        ("text", ["--training", "max_steps=7"], "shares out seconds, but --training says max_steps: give --max-sec"),
        ("listops", ["--mlm-probability", "0.4"], r"--mlm-probability 0\.4 has no effect on listops"),
        ("listops", ["--pretrain-share", "0.9"], r"--pretrain-share 0\.9 has no effect on listops"),
        (
            "text",
            ["--mlm-probability", "0.4", "--pretrain-objective", "causal"],
            r"--mlm-probability 0\.4 has no effect with --pretrain-objective causal",
        ),
    ],
)
def test_what_cannot_be_is_refused(scripts: Any, tmp_path: Path, task: str, more: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        scripts.run_benchmarks.main(["lra", "--task", task, "--self-pretrain", *more, "--output-dir", str(tmp_path)])


def test_runs_without_pretraining_can_be_left_out(
    scripts: Any, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Any] = []

    def train_all(_: Any, jobs: list[Any], __: Any) -> Any:
        trained.extend(jobs)
        raise ValueError("enough")

    monkeypatch.setattr(scripts.lra_benchmark, "train_all", train_all)
    typed = ["lra", "--task", "text", "--fast", "--families", "tnn", "--max-seconds", "30", "--no-plain"]
    more = ["--data", f"text={reviews}", "--output-dir", str(tmp_path)]
    with pytest.raises(SystemExit, match="enough"):
        scripts.run_benchmarks.main([*typed, "--self-pretrain", *more])
    assert [bool(job.before) for job in trained] == [True]
    with pytest.raises(SystemExit, match="--no-plain leaves nothing to train without --self-pretrain"):
        scripts.run_benchmarks.main([*typed, *more])


@pytest.mark.slow
def test_trains_both_ways_for_real(scripts: Any, tmp_path: Path) -> None:
    typed = ["lra", "--task", "listops", "--fast", "--families", "fd_tnn", "--max-seconds", "2", "--self-pretrain"]
    report = scripts.run_benchmarks.main([*typed, "--training", "use_cpu=true", "--output-dir", str(tmp_path)])
    values = {(r.model, r.metric): r.value for r in report.results if r.kind == "measured"}
    other = "fd_tnn, pretrained on the task"
    assert values[other, "num_parameters"] == values["fd_tnn", "num_parameters"]
    assert values[other, "pretrain_updates"] > 0 and values[other, "updates"] < values["fd_tnn", "updates"]
