"""The quickstart's own arguments; the tour itself is run by `scripts/quickstart.sh`."""

from pathlib import Path

import pytest
import quickstart

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
