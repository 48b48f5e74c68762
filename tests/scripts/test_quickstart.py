"""The quickstart's own arguments; the tour itself is run by `scripts/quickstart.sh`."""

from pathlib import Path

import pytest
import quickstart
import torch

from hf_seqmix.training import read_recipe

RECIPES = Path(quickstart.__file__).parent / "recipes"


def test_a_recipe_that_is_none_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list.yaml").write_text("[1, 2]")
    with pytest.raises(SystemExit):
        quickstart.parse_arguments(["--recipe", str(tmp_path / "list.yaml")])
    assert "list.yaml" in capsys.readouterr().err


def test_a_recipe_without_a_sample_is_refused_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    masked = RECIPES / "python-2m" / "ski-tnn.yaml"
    with pytest.raises(SystemExit):
        quickstart.parse_arguments(["--recipe", str(masked)])
    assert f"the model of {masked} is masked, and a sample needs a causal one" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        quickstart.parse_arguments(["--objective", "masked"])
    assert "--objective is masked, and a sample needs a causal model" in capsys.readouterr().err
    arguments, rest = quickstart.parse_arguments(["--recipe", str(RECIPES / "python-2m" / "ipa.yaml"), "--use-cpu"])
    assert arguments.context_lengths == [256, 1024] and rest == ["--use-cpu"]


@pytest.mark.parametrize("length", ["0", "-1", "many"])
def test_a_length_that_makes_no_sense_is_refused_before_training(
    length: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        quickstart.parse_arguments(["--context-lengths", length])
    assert "it must be a whole number of at least 1" in capsys.readouterr().err


def test_other_text_than_what_is_scored_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "novels.yaml").write_text("model: {model_type: tnn}\ndata: {dataset: novels.txt}\n")
    (tmp_path / "files.yaml").write_text("data: {train_file: [a.txt]}\n")
    for given, said in (
        (["--dataset", "novels.txt"], "--dataset novels.txt is given: "),
        (["--train-file=a.txt"], "--train-file a.txt is given: "),
        (["--train_file", "a.txt", "b.txt"], "--train-file a.txt b.txt is given: "),
        (["--recipe", str(tmp_path / "novels.yaml")], f"the data of {tmp_path / 'novels.yaml'} is novels.txt: "),
        (["--recipe", str(tmp_path / "files.yaml")], f"the data of {tmp_path / 'files.yaml'} is ['a.txt']: "),
    ):
        with pytest.raises(SystemExit):
            quickstart.parse_arguments(given)
        wanted = (
            f"{said}the quickstart trains and scores the sources of Python alone; pretrain.py trains on other text."
        )
        assert wanted in capsys.readouterr().err
    python = ["--dataset", "embedded:python-stdlib"]
    assert quickstart.parse_arguments(["--recipe", str(tmp_path / "files.yaml"), *python])[1] == python


def test_options_of_the_training_script_are_named_and_reach_it_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert quickstart.parse_arguments(["--context", "8"])[1] == ["--context", "8"]  # which pretrain.py refuses
    with pytest.raises(SystemExit):
        quickstart.parse_arguments(["--help"])
    assert "Other options are those of pretrain.py" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_machine_chooses_the_recipe(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def choice(device: torch.device, width: int, rows: int) -> dict[str, object]:
        return {"dtype": dtype, "speedup": None, "reason": "measured"}

    monkeypatch.setattr(quickstart, "choose_precision", choice)
    given: list[list[str]] = []

    def pretrain(arguments: list[str]) -> None:
        given.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(quickstart, "pretrain", pretrain)
    for own in ([], ["--recipe", "mine.yaml"], ["--bf16", "auto"]):
        with pytest.raises(SystemExit):
            quickstart.main(own)
    recipe = RECIPES / "quickstart" / f"{dtype}.yaml"
    assert read_recipe(recipe)["model"]["objective"] == "causal"
    chosen = ["--recipe", str(recipe), "--bf16", "true" if dtype == "bfloat16" else "false"]
    assert given[0][:4] == chosen and given[1][:2] == ["--recipe", "mine.yaml"] and "--bf16" not in given[1]
    assert given[2][:4] == chosen and given[2][-2:] == ["--bf16", "auto"]  # what is said last holds


def test_the_recipe_without_bfloat16_differs_in_width_batch_and_seconds_alone() -> None:
    wide, narrow = (read_recipe(RECIPES / "quickstart" / f"{name}.yaml") for name in ("bfloat16", "float32"))
    assert narrow["model"]["config_overrides"].pop("hidden_size") < wide["model"]["config_overrides"].pop(
        "hidden_size"
    )
    batch = "per_device_train_batch_size"
    assert narrow["training"].pop(batch) < wide["training"].pop(batch)
    seconds = [recipe["training"].pop("max_seconds") for recipe in (wide, narrow)]
    assert seconds[0] < seconds[1] < 300  # the smaller model is scored sooner; all of it takes six minutes
    assert narrow == wide
