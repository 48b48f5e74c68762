"""The recipes of language models, as pretrain.py reads them."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoConfig

from hf_seqmix.training import parse_overrides
from tests.scripts.pretraining.inputs import QUIET, SCRIPTS, SHORT, command

RECIPES = [*(SCRIPTS / "recipes").glob("*.yaml"), *(SCRIPTS / "recipes" / "python-2m").glob("*.yaml")]


@pytest.mark.parametrize("recipe", sorted(RECIPES), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_is_read_and_its_model_built(pretrain: ModuleType, recipe: Path, tmp_path: Path) -> None:
    text = [] if "dataset:" in recipe.read_text(encoding="utf-8") else ["--train-file", "a.txt"]
    arguments = pretrain.parse_arguments(["--recipe", str(recipe), "--output-dir", str(tmp_path), *text, *QUIET])
    pretrain.set_length(arguments)

    class Tokenizer:
        pad_token_id = bos_token_id = eos_token_id = 0
        cls_token_id = sep_token_id = None

        def __len__(self) -> int:
            return 4096

    config = pretrain.build_config(arguments, Tokenizer())
    with torch.device("meta"):
        model = pretrain.build_model(arguments, config)
    published = {
        "tnn-wikitext103": 48_666_624,
        "tnn-wikitext103-masked": 126_372_441,
        "fd-tnn-wikitext103": 48_579_264,
        "fd-tnn-wikitext103-masked": 128_019_801,
        "ski-tnn-wikitext103-masked": 126_513_753,
    }
    if recipe.stem in published:
        assert sum(parameter.numel() for parameter in model.parameters()) == published[recipe.stem]
        assert pretrain.tokens_per_update(arguments) in (128 * 512, 512 * 512)
        assert config.linear_init == ("normal" if "masked" in recipe.stem else "uniform")


def test_the_published_optimizer(pretrain: ModuleType, tmp_path: Path) -> None:
    recipe = SCRIPTS / "recipes" / "tnn-wikitext103.yaml"
    training = pretrain.parse_arguments(["--recipe", str(recipe), "--output-dir", str(tmp_path), *QUIET]).training
    training.eval_strategy = "no"
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    trainer = pretrain.ResumableTrainer(model=torch.nn.Linear(1, 1), args=training, optimizers=(optimizer, None))
    schedule = trainer.create_scheduler(training.max_steps, optimizer)
    rate = schedule.lr_lambdas[0]
    assert [rate(step) for step in (0, 2000, 4000, 16_000)] == pytest.approx([0, 0.5, 1, 0.5])
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-8)
    assert (training.learning_rate, training.weight_decay, training.max_grad_norm) == (5e-4, 0.2, 1.0)


def test_the_command_line_overrides_the_recipe(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    recipe = SCRIPTS / "recipes" / "tnn-stdlib-small.yaml"
    overrides = ["--train-file", str(text), "--max-steps", "7", "--config-overrides", "hidden_size=32"]
    arguments = pretrain.parse_arguments(
        ["--recipe", str(recipe), "--output-dir", str(tmp_path), *overrides, "--learning-rate", "1"]
    )
    assert (arguments.data.dataset, arguments.data.train_file) == (None, [str(text)])
    assert (arguments.run.max_tokens, arguments.training.max_steps) == (None, 7)
    assert arguments.training.learning_rate == 1
    overrides = parse_overrides(arguments.model.config_overrides)
    assert (overrides["hidden_size"], overrides["num_hidden_layers"]) == (32, 4)


@pytest.mark.parametrize("option", ["--dataset", "--train-file"])
def test_data_of_the_command_line_takes_the_place_of_all_of_a_recipe(
    pretrain: ModuleType, text: Path, tmp_path: Path, option: str
) -> None:
    """Or a model would be scored on other data than it is trained on; a file that is given itself stays."""
    recipe = tmp_path / "recipe.yaml"
    lines = "model: {model_type: tnn}\ndata: {train_file: [a.txt], validation_file: [b.txt]}\n"
    recipe.write_text(lines, encoding="utf-8")
    words = ["--recipe", str(recipe), "--output-dir", str(tmp_path / "run"), *QUIET]
    assert pretrain.parse_arguments(words).data.validation_file == ["b.txt"]
    words += [option, str(text)]
    assert pretrain.parse_arguments(words).data.validation_file == []
    assert pretrain.parse_arguments([*words, "--validation-file", "c.txt"]).data.validation_file == ["c.txt"]


def test_a_config_file_is_a_start(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    pretrain.main(command(text, tmp_path / "first", "--max-steps", "1"))
    second = [*SHORT, *QUIET, "--train-file", str(text), "--max-steps", "1", "--config-overrides", "decay=0.5"]
    second += ["--config-file", str(tmp_path / "first" / "config.json"), "--output-dir", str(tmp_path / "second")]
    pretrain.main(second)
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("first", "second"))
    assert {key for key in first if first[key] != second.get(key)} == {"decay"}


def test_old_names_of_a_config_file_are_read_and_wrong_ones_refused(
    pretrain: ModuleType, text: Path, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    file.write_text(json.dumps({"model_type": "llama", "rope_theta": 5e5, **sizes}), encoding="utf-8")
    options = [*SHORT, *QUIET, "--train-file", str(text), "--max-steps", "1", "--config-file", str(file)]
    pretrain.main([*options, "--output-dir", str(tmp_path / "llama")])
    assert AutoConfig.from_pretrained(tmp_path / "llama").rope_parameters["rope_theta"] == 5e5
    file.write_text(json.dumps({"model_type": "tnn", "hiden_size": 3}), encoding="utf-8")
    with pytest.raises(SystemExit, match="no field 'hiden_size'; did you mean hidden_size"):
        pretrain.main([*options, "--output-dir", str(tmp_path / "tnn")])
