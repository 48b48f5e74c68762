"""The arguments that the two training scripts share: a recipe below the command line, and what is refused."""

import json
from pathlib import Path

import pytest

from hf_seqmix.training.run import Run
from tests.training.sample_arguments import parse


def test_the_command_line_overrides_a_run_that_is_a_recipe(tmp_path: Path) -> None:
    model = {"model_type": "tnn", "config_overrides": {"hidden_size": 8, "decay": None}}
    run = Run("any", model, {"dataset": "x"}, {"max_steps": 3, "adam_epsilon": 1e-6}, seed=7)
    recipe = tmp_path / "run.json"
    recipe.write_text(json.dumps(run.to_json()))
    words = ["--recipe", str(recipe), "--output-dir", str(tmp_path), "--config-overrides", "hidden_size=16"]
    arguments = parse(*words, "--max-steps", "4", "--train-file", "t")
    assert arguments.model.config_overrides == ["hidden_size=8", "decay=null", "hidden_size=16"]
    training = arguments.training
    assert (training.max_steps, training.adam_epsilon, training.seed, training.learning_rate) == (4, 1e-6, 7, 0.5)
    assert (arguments.data.dataset, arguments.data.train_file) == (None, "t")
    assert arguments.folder == tmp_path and arguments.resume is None and training.run_name == str(tmp_path)
    assert parse(*words, "--run-name", "mine").training.run_name == "mine"
    saved = json.loads(json.dumps(arguments.to_json()))
    assert saved["model"]["model_type"] == "tnn" and saved["training"]["max_steps"] == 4
    recipe.write_text(json.dumps({**run.to_json(), "model": {"width": 3}}))
    with pytest.raises(ValueError, match="unknown key 'width'; allowed are config_overrides, model_type"):
        parse(*words)


def test_fields_of_a_recipe_that_another_model_type_lacks_are_called_its_own(tmp_path: Path) -> None:
    recipe = tmp_path / "tnn.yaml"
    recipe.write_text("model: {model_type: tnn, config_overrides: {hidden_size: 8, rpe_hidden_size: 4}}")
    words = ["--recipe", str(recipe), "--output-dir", str(tmp_path), "--model-type"]
    message = (
        r"--model-type llama does not go with the recipe .*tnn\.yaml, .* no field 'rpe_hidden_size'; .* a recipe of"
    )
    with pytest.raises(ValueError, match=message):
        parse(*words, "llama")
    with pytest.raises(ValueError, match=r"^there is no model type 'lama'"):
        parse(*words, "lama")
    assert parse(*words, "fd_tnn").model.model_type == "fd_tnn"


def test_a_list_of_a_recipe_for_an_option_of_one_value_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    words = ["--recipe", str(recipe), "--output-dir", str(tmp_path)]
    recipe.write_text("data: {train_file: [a.txt]}\ntraining: {report_to: [none], label_names: [a, b]}")
    assert parse(*words).data.train_file == "a.txt" and parse(*words).training.label_names == ["a", "b"]
    recipe.write_text("training: {learning_rate: [4e-3, 1e-3]}")
    with pytest.raises(
        ValueError, match=r"learning_rate in the section 'training' .* is one value, and no list; given"
    ):
        parse(*words)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model-typ", "tnn"], r"there is no option --model-typ; did you mean --model-type\?"),
        (["--quick", "--max-step=3"], r"there is no option --quick, --max-step; --help lists all there are"),
        (["tnn"], "there is no option tnn"),
        (["--per-device-train-batch-size", "0"], "--per-device-train-batch-size is 0; it must be at least 1"),
        (["--learning-rate", "-1"], r"--learning-rate is -1\.0; it must be at least 0"),
        (["--num-train-epochs", "nan"], "--num-train-epochs is nan"),
        (["--seed", "-1"], "--seed is -1"),
        (["--batch-norm-batches", "-3"], "--batch-norm-batches is -3; it must be at least 0"),
        (["--eval-accumulation-steps", "0"], "--eval-accumulation-steps is 0; it must be at least 1"),
        (["--dataloader-num-workers", "-1"], "--dataloader-num-workers is -1; it must be at least 0"),
        (["--dataloader-num-workers", "1", "--dataloader-prefetch-factor", "0"], "--dataloader-prefetch-factor is 0"),
        (["--warmup-steps", "nan"], "--warmup-steps is nan; it must be at least 0"),
        (["--neftune-noise-alpha", "-1"], r"--neftune-noise-alpha is -1\.0; it must be at least 0"),
        (["--label-smoothing-factor", "-1"], r"--label-smoothing-factor is -1\.0; it must be at least 0 and below 1"),
        (["--label-smoothing-factor", "1"], r"--label-smoothing-factor is 1\.0; it must be at least 0 and below 1"),
        (["--max-steps", "-3"], "--max-steps is -3; give at least 1"),
        (["--back-off-factor", "3"], r"--back-off-factor is 3\.0"),
        (["--do-train", "false"], "--do-train is false, and this script trains: leave it out"),
        (["--fp16"], "--fp16 needs an accelerator, and the run is on the CPU"),
        (["--fsdp"], "--fsdp needs accelerators, and the run is on the CPU, .*: leave it out"),
        (["--fsdp", "full_shard auto_wrap"], "--fsdp needs accelerators"),
        (["--resume", "no-such"], "there is no checkpoint no-such to --resume from"),
    ],
)
def test_wrong_arguments_of_every_run_are_refused(tmp_path: Path, more: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse("--output-dir", str(tmp_path), *more).check()


def test_a_resumed_run_looks_into_its_own_folder_first(tmp_path: Path) -> None:
    own = "--output-dir", str(tmp_path)
    other = tmp_path / "other"
    assert parse(*own).earlier_folders == []
    assert parse(*own, "--resume").earlier_folders == [tmp_path]
    checkpoint = other / "checkpoint-3"
    assert parse(*own, "--resume", str(checkpoint)).earlier_folders == [tmp_path, other, checkpoint]


def test_there_is_no_run_without_a_folder() -> None:
    with pytest.raises(ValueError, match="give --output-dir"):
        parse().check()
