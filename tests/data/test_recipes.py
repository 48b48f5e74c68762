"""Recipes become command lines, and what they cannot say is refused with what they can."""

from pathlib import Path

import pytest

from hf_seqmix.data import parse_overrides, read_recipe, recipe_arguments

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
        ("model: {a: [}", "is not YAML"),
        ("", "must map each of the sections"),
    ],
)
def test_wrong_recipes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_recipe(write(tmp_path, text), ALLOWED)


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
