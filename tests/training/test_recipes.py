"""Recipes become command lines, and what they cannot say is refused with what they can."""

from pathlib import Path

import pytest

from hf_seqmix.training import (
    config_from_overrides,
    merge_recipes,
    parse_overrides,
    read_recipe,
    recipe_arguments,
    run_from_recipe,
    without_replaced,
)

ALLOWED = {
    "model": ["model_type", "config_overrides"],
    "training": ["learning_rate", "max_steps", "bf16", "optim_args"],
}


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_is_a_command_line(tmp_path: Path) -> None:
    text = """
    model:
      model_type: tnn
      config_overrides: {hidden_size: 64, norm_eps: 1e-6, is_causal: false, mixer_types: [tnn, attention]}
    training:
      learning_rate: 5e-4
      max_steps: -1
      bf16: true
      optim_args:
    """
    arguments = recipe_arguments(read_recipe(write(tmp_path, text), ALLOWED))
    assert arguments == [
        "--model_type=tnn",
        "--config_overrides",
        "hidden_size=64",
        'norm_eps="1e-6"',
        "is_causal=false",
        'mixer_types=["tnn", "attention"]',
        "--learning_rate=5e-4",
        "--max_steps=-1",
        "--bf16=True",
    ]
    assert parse_overrides(arguments[2:6]) == {
        "hidden_size": 64,
        "norm_eps": 1e-6,
        "is_causal": False,
        "mixer_types": ["tnn", "attention"],
    }


def test_lists_and_mappings(tmp_path: Path) -> None:
    recipe = {"data": {"train_file": ["a.txt", "b.txt"], "lr_scheduler_kwargs": {"timescale": 10}}}
    assert recipe_arguments(recipe) == ["--train_file", "a.txt", "b.txt", '--lr_scheduler_kwargs={"timescale": 10}']


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {hidden_size: 3}", r"'hidden_size'; allowed are config_overrides, model_type"),
        ("optimizer: {lr: 3}", r"section 'optimizer'; allowed are model, training"),
        ("model_type: tnn", "must map each of the sections model, training"),
        ("- model", "must map each of the sections"),
        ("model: {model_typ: tnn}", r"unknown key 'model_typ'; did you mean model_type\?"),
        ("trainning: {}", r"section 'trainning'; did you mean training\?"),
        (
            "model: {config_overrides: [hidden_size, 3]}",
            r"must map fields to values, such as .*given \['hidden_size', 3\]",
        ),
        ("model: {a: [}", "is not YAML: [^\n]*$"),
        ("", "must map each of the sections"),
        ("families: [tnn]", "must map names of families"),
        ("families: {a: 3}", "must map each of the sections"),
        ("families: {a: {model: {hidden_size: 3}}}", r"unknown key 'hidden_size'"),
        ("training: {max_steps: 2}\nmodel: {}\ntraining: {bf16: true}", "'training' stands twice, in lines 1 and 3"),
        ("model: {model_type: tnn, model_type: fd_tnn}", "'model_type' stands twice, in lines 1 and 1. Give each key"),
        ("families: [{a: 1, a: 1}]", "'a' stands twice"),
        (
            "model: {config_overrides: {hidden_size: [2024-01-01]}}",
            r"hidden_size of config_overrides in the section 'model' .* is \[datetime\.date\(2024, 1, 1\)\]; allowed",
        ),
        ("model: {model_type: 2024-13-01}", "recipe.yaml could not be read: month must be"),
        ("families: {a: {model: {}}, b: {model: {}}}", "for several families: choose one of a, b"),
    ],
)
def test_wrong_recipes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_recipe(write(tmp_path, text), ALLOWED)


def test_keys_beside_merged_ones_replace_them(tmp_path: Path) -> None:
    """Also where what is merged was merged itself; in JSON a key stands once, too."""
    text = """
    model: {config_overrides: &a {x: 1, y: 1}}
    training: {optim_args: &b {<<: *a, y: 2}, learning_rate: {<<: *b, y: 3}}
    """
    training = read_recipe(write(tmp_path, text), ALLOWED)["training"]
    assert training == {"optim_args": {"x": 1, "y": 2}, "learning_rate": {"x": 1, "y": 3}}
    twice = tmp_path / "recipe.json"
    twice.write_text('{"model": {}, "training": {"max_steps": 1, "max_steps": 2}}', encoding="utf-8")
    with pytest.raises(ValueError, match="'max_steps' stands twice"):
        read_recipe(twice)


def test_a_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no recipe .*none"):
        read_recipe(tmp_path / "none.yaml", ALLOWED)


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("3", 3),
        ("1e-8", 1e-8),
        ("0.5", 0.5),
        ("true", True),
        ("True", True),
        ("null", None),
        ("relu", "relu"),
        ("[tnn, attention]", ["tnn", "attention"]),
        ('{"decay": 0.9}', {"decay": 0.9}),
        ("a=b", "a=b"),
    ],
)
def test_values_of_overrides(value: str, meaning: object) -> None:
    (parsed,) = parse_overrides([f"key={value}"]).values()
    assert parsed == meaning
    assert type(parsed) is type(meaning)


def test_later_overrides_win_and_others_are_refused() -> None:
    assert parse_overrides(["a=1", "b=2", "a=3"]) == {"a": 3, "b": 2}
    for pair in ("a", "=1"):
        with pytest.raises(ValueError, match="write key=value"):
            parse_overrides([pair])
    with pytest.raises(ValueError, match=r"'decay=\[1,' is neither JSON nor YAML; is a bracket"):
        parse_overrides(["decay=[1,"])


FAMILIES = """
model:
  config_overrides: {hidden_size: 64, decay: 0.5}
training: {learning_rate: 1e-3, max_steps: 5}
families:
  a:
    model: {model_type: tnn, config_overrides: {decay: null, is_causal: false}}
    training: {max_steps: , bf16: true}
  b:
    model: {model_type: fd_tnn}
"""


def test_a_family_adds_to_what_all_share(tmp_path: Path) -> None:
    path = write(tmp_path, FAMILIES)
    assert recipe_arguments(read_recipe(path, ALLOWED, "a")) == [
        "--config_overrides",
        "hidden_size=64",
        "decay=null",
        "is_causal=false",
        "--model_type=tnn",
        "--learning_rate=1e-3",
        "--bf16=True",
    ]
    other = read_recipe(path, ALLOWED, "b")
    assert other["model"] == {"config_overrides": {"hidden_size": 64, "decay": 0.5}, "model_type": "fd_tnn"}
    assert other["training"] == {"learning_rate": "1e-3", "max_steps": 5}
    with pytest.raises(ValueError, match="no family 'c'; it has a, b"):
        read_recipe(path, ALLOWED, "c")
    with pytest.raises(ValueError, match="no family 'a'; it has none"):
        read_recipe(write(tmp_path, "model: {model_type: tnn}"), ALLOWED, "a")


def test_recipes_merge_field_by_field_and_an_empty_mapping_changes_nothing() -> None:
    shared = {"model": {"config_overrides": {"hidden_size": 8, "decay": 0.5}}, "training": {"max_steps": 3}}
    own = {"model": {"config_overrides": {"decay": None}}, "data": {"max_length": 66}}
    merged = merge_recipes(shared, {"model": {"config_overrides": {}}}, own)
    assert merged["model"] == {"config_overrides": {"hidden_size": 8, "decay": None}}
    assert merged["data"] == {"max_length": 66} and shared["model"]["config_overrides"]["decay"] == 0.5
    assert recipe_arguments({"model": {"config_overrides": {}}, "data": {"metrics": []}}) == []


def test_numbers_without_a_point_are_numbers_within_lists_and_mappings(tmp_path: Path) -> None:
    text = """
    model:
      config_overrides:
        channel_decays: [9e-1, 0.999]
        mixer_configs: {tnn: {decay: 9e-1}}
    data:
      text_columns: ["0", "1"]
    """
    recipe = read_recipe(write(tmp_path, text), {**ALLOWED, "data": ["text_columns"]})
    expected = {"channel_decays": [0.9, 0.999], "mixer_configs": {"tnn": {"decay": 0.9}}}
    overrides = recipe_arguments(recipe)[1:3]
    assert parse_overrides(overrides) == expected
    run = run_from_recipe("any", recipe, seed=1)
    assert run.model["config_overrides"] == expected
    assert run.data == {"text_columns": ["0", "1"]}  # in quotes: names


def test_a_recipe_becomes_a_run_of_plain_values() -> None:
    recipe = {
        "model": {"model_type": "tnn", "config_overrides": {"norm_eps": "1e-6", "decay": None}},
        "data": {"dataset": "nan", "text_column": "Infinity"},
        "training": {"learning_rate": "5e-4", "max_steps": None, "optim": "adamw_torch", "seed": 3},
    }
    run = run_from_recipe("any", recipe, seed=1)
    assert run.data == recipe["data"]  # names, whatever a number may look like
    assert run.model["config_overrides"] == {"norm_eps": 1e-6, "decay": None}
    assert run.training == {"learning_rate": 5e-4, "optim": "adamw_torch"} and run.seed == 1
    assert run_from_recipe("any", {}, seed=1).data == {}


def test_the_command_line_takes_the_place_of_keys_that_say_the_same() -> None:
    recipe = {"training": {"max_steps": 5, "num_train_epochs": 2, "seed": 1}, "model": {"model_type": "tnn"}}
    replaces = {"max_steps": {"num_train_epochs"}, "model": {"model_type"}}
    assert without_replaced(recipe, ["--max-steps=3", "seed"], replaces) == {
        "training": {"max_steps": 5, "seed": 1},
        "model": {"model_type": "tnn"},
    }
    assert without_replaced(recipe, ["--model", "a"], replaces)["model"] == {}
    assert without_replaced(recipe, ["model", "max_steps"], replaces) == recipe


def test_a_configuration_of_overrides_and_what_else_is_known() -> None:
    derived = {"vocab_size": 9, "num_labels": 3, "problem_type": None, "max_position_embeddings": 16}
    config = config_from_overrides("tnn", {"hidden_size": 8, "max_position_embeddings": 7}, derived)
    assert (config.vocab_size, config.num_labels, config.max_position_embeddings) == (9, 3, 7)
    # What a file says counts where nothing else does.
    kept = {"vocab_size": 5, "max_position_embeddings": 5, "expand_ratio": 2.0, "hidden_size": 6}
    config = config_from_overrides("tnn", {"hidden_size": 8}, derived, kept)
    assert (config.vocab_size, config.max_position_embeddings) == (9, 16)
    assert (config.hidden_size, config.expand_ratio) == (8, 2.0)
    vit = config_from_overrides("vit", {"hidden_size": 8}, derived)
    assert vit.num_labels == 3 and not hasattr(vit, "vocab_size")
    for model_type, overrides, message in (
        ("nothing", {}, "no model type 'nothing'"),
        ("tnnn", {}, r"no model type 'tnnn'; did you mean tnn\?"),
        ("tnn", {"width": 3, "wdith": 4}, "no field 'wdith', 'width'; allowed are .*hidden_size"),
        ("tnn", {"hiden_size": 3}, r"no field 'hiden_size'; did you mean hidden_size\?"),
        ("tnn", {"hidden_size": 0}, "hidden_size is 0"),
        ("tnn", {"hidden_size": "wide"}, "tnn configuration is refused"),
    ):
        with pytest.raises(ValueError, match=message):
            config_from_overrides(model_type, overrides, derived)
