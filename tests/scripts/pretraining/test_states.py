"""pretrain.py on streams, whose segments hand on the state."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoModelForCausalLM

from tests.scripts.pretraining.inputs import SCRIPT, command, environment, losses

STREAMS = ["--state-segments", "4", "--max-steps", "10"]


def test_states_change_the_losses(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """The model takes as many positions as a stream has tokens; tests of killed runs resume them."""
    learned = ["--config-overrides", "position_embedding_type=learned", "hidden_dropout=0.2"]
    whole = pretrain.main(command(text, tmp_path / "run", *learned, *STREAMS))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run").config.max_position_embeddings == 4 * 16
    alone = pretrain.main(command(text, tmp_path / "alone", *learned, "--max-steps", "10"))
    assert losses(whole) != losses(alone) and losses(whole)[-1] < losses(whole)[0]


@pytest.mark.slow
def test_states_that_segments_hand_on(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """A run in streams, resumed within a stream; the model takes as many positions as a stream has tokens."""
    folder = tmp_path / "run"
    learned = ["--config-overrides", "position_embedding_type=learned", "hidden_dropout=0.2"]
    arguments = command(text, folder, *learned, *STREAMS, "--save-steps", "3")
    whole = pretrain.main(arguments)
    assert AutoModelForCausalLM.from_pretrained(folder).config.max_position_embeddings == 4 * 16
    alone = pretrain.main(command(text, tmp_path / "alone", *learned, "--max-steps", "10"))
    assert losses(whole) != losses(alone) and losses(whole)[-1] < losses(whole)[0]
    later = pretrain.main(command(text, tmp_path / "later", *learned, *STREAMS, "--states-from", "0.7"))
    assert losses(later)[:8] != losses(whole)[:8]
    for step in (9, 10):
        shutil.rmtree(folder / f"checkpoint-{step}")
    weights = (folder / "model.safetensors").read_bytes()
    resumed = pretrain.main([*arguments, "--resume"])
    assert losses(resumed) == losses(whole) and (folder / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--state-segments", "1"], "--state-segments is 1; a stream has at least 2 segments"),
        (["--states-from", "1"], r"--states-from is 1\.0; it is a share of the updates, from 0 to below 1"),
        (["--state-segments", "0", "--states-from", "0.5"], "--states-from is 0.5, but there are no streams"),
        (["--objective", "masked"], "a masked model sees both sides and has no state"),
        (["--streaming"], "which a stream has not: leave out --streaming"),
        (["--respect-documents"], "--respect-documents lets none pass the border of a document"),
        (["--activation-checkpointing"], "--activation-checkpointing computes blocks again"),
        (["--state-segments", "400"], "which are 0 streams of 400 segments, but an update reads 2 rows"),
        (["--model-type", "ski_tnn"], "is_causal"),
        (["--model-type", "mamba"], "MambaForCausalLM (takes no past_key_values|keeps a LinearAttentionLayer)"),
        (
            ["--config-overrides", "position_embedding_type=learned", "max_position_embeddings=32"],
            "a stream has 64 tokens, but TNNForCausalLM has positions for 32",
        ),
    ],
)
def test_streams_that_cannot_be_are_refused(
    pretrain: ModuleType, text: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    arguments = command(text, tmp_path / "run", *STREAMS, *more)
    if "--model-type" in more:  # of which the sizes are others
        arguments = [word for word in arguments if not word.startswith(("rpe_hidden_size", "--config-overrides"))]
        arguments = [word for word in arguments if word not in ("hidden_size=16", "num_hidden_layers=1")]
        sizes = ["hidden_size=16", "num_hidden_layers=1"]
        arguments += ["--config-overrides", *sizes]
    with pytest.raises(SystemExit, match=f"(?s)pretrain.py: .*{message}"):
        pretrain.main(arguments)


@pytest.mark.slow
def test_two_processes_hand_on_the_states_of_one(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """Each process has its own rows, and its own file of states in a checkpoint."""
    fixed = ["--config-overrides", "hidden_dropout=0", *STREAMS, "--save-steps", "6"]
    one = pretrain.main(command(text, tmp_path / "one", *fixed, "--per-device-train-batch-size", "4"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = [*torchrun, str(SCRIPT), *command(text, tmp_path / "two", *fixed)]

    def launch(*more: str) -> dict:
        subprocess.run([*run, *more], env=environment(tmp_path), check=True, capture_output=True, timeout=300)
        return json.loads((tmp_path / "two" / "results.json").read_text(encoding="utf-8"))

    two = launch()
    assert two["num_processes"] == 2 and losses(two) == pytest.approx(losses(one), rel=1e-3)
    checkpoint = tmp_path / "two" / "checkpoint-6"
    assert {path.name for path in checkpoint.glob("states_*.pt")} == {"states_0.pt", "states_1.pt"}
    shutil.rmtree(tmp_path / "two" / "checkpoint-10")
    assert losses(launch("--resume")) == losses(two)
