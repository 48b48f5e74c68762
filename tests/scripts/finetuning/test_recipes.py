"""The recipes of Long Range Arena and of sentence pairs, as finetune.py reads them."""

import importlib

import pytest
import torch

from hf_seqmix.data import build_tokenizer
from hf_seqmix.training import parse_overrides
from tests.scripts.finetuning.inputs import FAMILIES, RECIPES

# Backbones of the published TNNs, in millions: projections, encoders, gated linear units and batch norms.
PUBLISHED = {
    "image": 3.093,
    "text": 0.622,
    "listops": 0.424,
    "pathfinder": 0.459,
    "path-x": 0.459,
    "retrieval": 0.066,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_lra_recipe_is_read_and_its_model_built(script, recipe, family, tmp_path):
    data = [] if "dataset:" in recipe.read_text(encoding="utf-8") else ["--train-file", "a.tsv"]
    arguments = script.parse_arguments(
        ["--recipe", str(recipe), "--family", family, *data, "--output-dir", str(tmp_path), "--use-cpu"]
    )
    training, run = arguments.training, arguments.run
    assert (training.seed, run.schedule_steps, training.lr_scheduler_type) == (2222, 50_000, "cosine")
    tokenizer = None if arguments.reads_images else build_tokenizer(arguments.model.tokenizer)
    with torch.device("meta"):
        model = importlib.import_module("finetuning.models").load_model(arguments, {"num_labels": 10}, tokenizer)
    config = model.config
    assert (config.model_type, config.is_causal, config.norm_type) == (family, False, "batch")
    assert config.max_position_embeddings == (arguments.data.max_length or config.image_size**2)
    assert (config.embedding_scale, model.num_labels) == (1.0, 10)
    if family == "tnn":
        parameters = model.model.named_parameters()
        backbone = sum(weight.numel() for name, weight in parameters if not name.startswith("embed_"))
        assert round(backbone / 1e6, 3) == PUBLISHED[recipe.stem]
        assert (config.kernel_max_lag is None) == arguments.reads_images
    else:
        assert training.max_steps == 50_000 and not hasattr(
            config, "rpe_norm_type" if family == "ski_tnn" else "decay"
        )


def test_the_recipe_of_sentence_pairs_is_read(script, tmp_path):
    recipe = RECIPES.parent / "finetuning" / "sentence-pairs.yaml"
    arguments = script.parse_arguments(
        ["--recipe", str(recipe), "--model", "m", "--train-file", "a.parquet", "--output-dir", str(tmp_path)]
    )
    assert arguments.data.text_columns == ["sentence1", "sentence2"] and arguments.data.label_column == ["score"]
    assert arguments.run.max_seconds == 600 and arguments.training.learning_rate == 1e-3


def test_families_of_lra_differ_in_their_mixers_and_batches_alone(script, tmp_path):
    def settings(family):
        recipe = ["--recipe", str(RECIPES / "text.yaml"), "--family", family, "--output-dir", str(tmp_path)]
        arguments = script.parse_arguments(recipe)
        training = {f"training.{name}": value for name, value in arguments.training.to_dict().items()}
        return {
            **parse_overrides(arguments.model.config_overrides),
            **training,
            **vars(arguments.run),
            **vars(arguments.data),
        }

    tnn, ski, fd = (settings(family) for family in FAMILIES)
    shared = tnn.keys() & ski.keys() & fd.keys()
    differing = {name for name in shared if not tnn[name] == ski[name] == fd[name]}
    assert differing == {
        f"training.{name}" for name in ("per_device_train_batch_size", "max_steps", "num_train_epochs")
    }
    assert all(ski[name] == fd[name] for name in shared)
    assert (tnn["training.per_device_train_batch_size"], tnn["training.num_train_epochs"]) == (32, 32)
    assert {"hidden_size", "norm_type", "max_length", "schedule_steps"} <= shared


def test_a_shorter_run_has_a_schedule_of_its_own(script, tmp_path):
    recipe = ["--recipe", str(RECIPES / "image.yaml"), "--output-dir", str(tmp_path), "--train-file", "a.parquet"]
    for family in FAMILIES:
        arguments = script.parse_arguments([*recipe, "--family", family, "--max-steps", "7"])
        training = arguments.training
        assert (training.max_steps, arguments.run.schedule_steps, training.get_warmup_steps(100)) == (7, None, 10)
        assert arguments.data.dataset is None


def test_another_metric_of_the_best_checkpoint_brings_its_own_direction(script, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("training: {metric_for_best_model: loss, greater_is_better: false}\n", encoding="utf-8")
    command = ["--recipe", str(recipe), "--model", "m", "--output-dir", str(tmp_path / "run"), "--train-file", "a.csv"]
    assert script.parse_arguments(command).training.greater_is_better is False
    changed = script.parse_arguments([*command, "--metric-for-best-model", "accuracy"]).training
    assert changed.greater_is_better is not False


def test_files_of_the_command_line_take_the_place_of_those_of_a_recipe(script, tmp_path):
    """Or a model would be scored on other data than it is trained on; a file that is given itself stays."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {train_file: a.csv, validation_file: b.csv, test_file: c.csv}\n", encoding="utf-8")

    def files(*options):
        command = ["--recipe", str(recipe), "--model", "m", "--output-dir", str(tmp_path / "run"), *options]
        data = script.parse_arguments(command).data
        return [data.train_file, data.validation_file, data.test_file]

    assert files() == ["a.csv", "b.csv", "c.csv"]
    assert files("--validation-file", "e.csv") == ["a.csv", "e.csv", "c.csv"]
    assert files("--train-file", "d.csv") == ["d.csv", None, None]
    assert files("--train-file=d.csv", "--test-file", "f.csv") == ["d.csv", None, "f.csv"]
    assert files("--dataset", "d") == [None, None, None]


def test_a_model_of_the_command_line_brings_its_tokenizer_along(script, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {model_type: tnn, tokenizer: byte}\ndata: {train_file: a.csv}\n", encoding="utf-8")
    command = ["--recipe", str(recipe), "--output-dir", str(tmp_path / "run")]
    assert script.parse_arguments(command).model.tokenizer == "byte"
    model = script.parse_arguments([*command, "--model", "m"]).model
    assert (model.model, model.model_type, model.tokenizer) == ("m", None, None)
    assert script.parse_arguments([*command, "--model", "m", "--tokenizer", "t"]).model.tokenizer == "t"
