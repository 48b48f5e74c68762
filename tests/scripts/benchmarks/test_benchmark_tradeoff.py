"""The benchmark `trade-off`: models of finished runs, built from their commands and measured side by side."""

import importlib
import json
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
TINY = "--config-overrides hidden_size=16 intermediate_size=16 num_hidden_layers=1"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("benchmarks.benchmark_tradeoff")


@pytest.fixture(scope="module")
def models(script):
    return importlib.import_module("benchmarks.tradeoff_models")


@pytest.fixture
def run(script, monkeypatch):
    """The command line, measured in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        main = importlib.import_module("run_benchmarks").main
    monkeypatch.setattr(script, "in_fresh_process", lambda function, *arguments: function(*arguments))
    return lambda *words: main(["trade-off", *map(str, words)])


def command(family, seed=0, task="listops", more="--max-length 24", batch=4):
    return (
        f"python scripts/finetune.py --recipe scripts/recipes/lra/{task}.yaml --family {family} "
        f"--train-file OUTPUT/data/{task}-{seed}/train.parquet --seed {seed} {more} {TINY} "
        f"--per-device-train-batch-size {batch} --max-steps 4 --output-dir runs/{task}/{family}/seed-{seed}"
    )


def write_results(path, models, runs):
    """As the benchmark `lra` writes them: (family, seed, accuracy), and a batch size if it is not 4."""
    rows = []
    for family, seed, accuracy, *batch in runs:
        line = command(family, seed, batch=batch[0] if batch else 4)
        count = models.build_model(models.read_command(line), "listops").num_parameters()
        rows.append(
            {"task": "listops", "data": "generated", "size": "fast", "family": family, "seed": seed, "command": line}
            | {"accuracy": accuracy, "baselines": {"majority class": 0.2}, "num_parameters": count}
        )
    report = {"benchmark": "lra", "data": {"listops": {"baselines": {"outermost operator": 0.3}}}, "results": rows}
    path.write_text(json.dumps(report), encoding="utf-8")
    return path


def test_accuracy_speed_and_memory_side_by_side(run, models, tmp_path, capsys, monkeypatch):
    one = write_results(tmp_path / "a.json", models, [("tnn", 0, 0.4), ("tnn", 1, 0.5), ("attention", 0, 0.3, 8)])
    two = write_results(tmp_path / "b.json", models, [("tnn", 2, 0.6)])
    words = ("--results", one, two, "--rounds", 1, "--output-dir", tmp_path / "out", "--lengths", 24, 48)
    report = run(*words)
    rows = {(row["family"], row["length"]): row for row in report["results"]}
    assert list(rows) == [("tnn", 24), ("attention", 24), ("tnn", 48), ("attention", 48)]
    tnn, attention = rows["tnn", 24], rows["attention", 24]
    assert (tnn["accuracy"], tnn["spread"]) == (pytest.approx(0.5), pytest.approx(0.1))
    assert (tnn["seeds"], attention["seeds"], attention["spread"]) == ([0, 1, 2], [0], None)
    assert tnn["ratio"] == 1 and attention["ratio"] == pytest.approx(tnn["ms"] / attention["ms"])
    assert {row["batch_size"] for row in rows.values()} == {4} and {row["run_length"] for row in rows.values()} == {24}
    assert rows["tnn", 48]["peak_mib"] > 1.5 * tnn["peak_mib"] > 0
    levels = {"outermost operator": 0.3, "majority class": 0.2, "chance": 0.1}
    assert report["levels"] == {"listops, fast": levels}
    assert {"listops-fast.png", "listops-fast-lengths.png", "results.md"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }
    assert "(outermost operator)" in capsys.readouterr().out

    # The same command measures nothing again.
    monkeypatch.setattr("benchmark_tradeoff.measure", None)
    assert run(*words)["results"] == report["results"]


@pytest.mark.parametrize(
    ("task", "family", "more", "length", "shape"),
    [
        ("retrieval", "fd_tnn", "--max-length 16", None, (3, 2, 16)),
        ("text", "ski_tnn", "--max-length 96", 128, (3, 128)),
        ("image", "tnn", "", 256, (3, 1, 16, 16)),
    ],
)
def test_inputs_are_those_of_the_task(models, task, family, more, length, shape):
    arguments = models.read_command(command(family, task=task, more=more))
    model = models.build_model(arguments, task, length)
    assert type(model.config).model_type == family and model.config.hidden_size == 16
    batch = models.random_batch(model, task, 3)
    assert batch["pixel_values" if task == "image" else "input_ids"].shape == shape
    assert model(**batch).logits.shape == (3, models.NUM_LABELS[task])


def test_an_update_is_a_whole_one_and_changes_no_weight(models):
    arguments = models.read_command(command("tnn"))
    model = models.build_model(arguments, "listops")
    before = [parameter.clone() for parameter in model.parameters()]
    update = models.Update(model, arguments, models.random_batch(model, "listops", 2), torch.device("cpu"))
    [seconds] = update(models.Clock(torch.device("cpu")))
    assert seconds > 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    weights = sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    averages = update.state_bytes() - buffers - 12 * weights  # weights and AdamW's two averages, four bytes each
    assert 0 <= averages <= 8 * len(before)  # its counts of steps


def test_another_recipe_is_measured_anew(script, models, tmp_path, monkeypatch):
    contest = models.Contest("listops", {"tnn": command("tnn")}, None, 2, "cpu", 1, 1, 1.0)
    monkeypatch.setattr(script, "REPOSITORY", tmp_path)
    recipe = tmp_path / "scripts" / "recipes" / "lra" / "listops.yaml"
    recipe.parent.mkdir(parents=True)
    keys = []
    for content in ("a: 1", "a: 2", "a: 2"):
        recipe.write_text(content)
        keys.append(script.key_of(contest))
    assert keys[0] != keys[1] == keys[2]


def test_what_makes_no_sense_is_refused(script, run, models, tmp_path):
    good = write_results(tmp_path / "a.json", models, [("tnn", 0, 0.4)])
    out = ("--output-dir", tmp_path / "out")
    with pytest.raises(SystemExit, match="repeats a run: listops, tnn, seed 0"):
        run("--results", good, good, *out)
    with pytest.raises(SystemExit, match="--reference ipa has no result for listops; it has tnn"):
        run("--results", good, "--reference", "ipa", *out)
    other = write_results(tmp_path / "b.json", models, [("tnn", 1, 0.4, 8)])
    with pytest.raises(SystemExit, match="differ in more than their seed"):
        run("--results", good, other, *out)
    report = json.loads(good.read_text())
    report["results"][0]["num_parameters"] += 1
    other.write_text(json.dumps(report))
    with pytest.raises(SystemExit, match="train it again with this version"):
        run("--results", other, "--fast", *out)
    other.write_text('{"benchmark": "glue"}')
    with pytest.raises(SystemExit, match="is of the benchmark glue"):
        run("--results", other, *out)
    other.write_text("[]")
    with pytest.raises(SystemExit, match=r"b\.json cannot be read as results\.json of the benchmark lra"):
        run("--results", other, *out)
    arguments = models.read_command(command("tnn", task="image", more=""))
    with pytest.raises(ValueError, match="square number of pixels; given 200"):
        models.build_model(arguments, "image", 200)
    with pytest.raises(ValueError, match=r"must begin with python scripts/finetune\.py"):
        models.read_command("python scripts/pretrain.py")
