"""The script that says what training a model takes."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from hf_seqmix import TNNConfig, TNNForCausalLM

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "speed" / "training_memory.py"
SIZES = ["hidden_size=16", "num_hidden_layers=4", "vocab_size=300", "rpe_hidden_size=8"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("training_memory", SCRIPT)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_it_counts_numbers_and_bytes(script: ModuleType) -> None:
    figures = script.main(["--model-type", "tnn", "--config-overrides", *SIZES, "--block-size", "32"])
    config = TNNConfig(hidden_size=16, num_hidden_layers=4, vocab_size=300, rpe_hidden_size=8)
    assert figures["parameters"] == TNNForCausalLM(config).num_parameters()
    assert figures["bytes_of_gradients"] == figures["bytes_of_parameters"] == 2 * figures["parameters"]
    assert figures["bytes_of_optimizer"] == 4 * figures["parameters"]
    # At least what three projections of the mixer and two of the feed-forward put out: (3 x 3 + 3) hidden_size.
    assert figures["activation_numbers_a_token_and_layer_over_hidden_size"] > 12
    assert figures["activation_bytes_a_token"] > 4 * 12 * 16 * 2


def test_checkpointing_leaves_the_input_of_each_layer(script: ModuleType) -> None:
    command = ["--model-type", "ipa", "--config-overrides", *SIZES[:3], "--block-size", "32", "--checkpointing"]
    assert script.main(command)["activation_numbers_a_token_and_layer_over_hidden_size"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["tnn", "ipa", "poly_transformer"])
def test_the_table_of_the_readme_is_what_its_command_gives(script: ModuleType, family: str) -> None:
    text = (SCRIPT.parents[1] / "accelerate" / "README.md").read_text(encoding="utf-8")
    [said] = re.findall(rf"^\| `{family}` \| ([0-9.]+) \|$", text, flags=re.MULTILINE)
    figures = script.main(["--model-type", family, "--config-overrides", "hidden_size=256"])
    assert figures["activation_numbers_a_token_and_layer_over_hidden_size"] == pytest.approx(float(said), abs=0.2)


def test_models_of_the_library_are_counted_too(script: ModuleType) -> None:
    sizes = [
        "hidden_size=16",
        "num_hidden_layers=4",
        "num_attention_heads=2",
        "vocab_size=300",
        "intermediate_size=16",
    ]
    figures = script.main(["--model-type", "llama", "--config-overrides", *sizes, "--block-size", "32"])
    assert figures["activation_numbers_a_token_and_layer_over_hidden_size"] > 8


def test_wrong_input_ends_with_a_message(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--model-type", "tnn", "--rows", "0"])
    assert "--rows: '0' given; it must be a whole number of at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"training_memory.py: .*no field 'hidden_sizes'"):
        script.main(["--model-type", "tnn", "--config-overrides", "hidden_sizes=3"])
    with pytest.raises(SystemExit, match=r"mixer_types names tnn, attention: .* give one mixer at a time"):
        script.main(["--model-type", "seqmix_hybrid", "--config-overrides", "mixer_types=[tnn,attention]"])
