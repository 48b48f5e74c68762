"""Final models appear whole; weights are found under the names that files give them."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification

from hf_seqmix import TNNForCausalLM
from hf_seqmix.training.folders.resumable import ResumableTrainer
from tests.training.folders.small_run import names, trainer


def test_tied_weights_are_not_missed_and_others_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer(tmp_path, max_steps=2).train()
    again = trainer(tmp_path, max_steps=3)
    again.train(resume_from_checkpoint=tmp_path / "checkpoint-2")
    assert "missing keys" not in caplog.text
    weights = tmp_path / "checkpoint-2" / "model.safetensors"
    kept = load_file(weights)
    assert kept.pop("model.embed_tokens.weight").shape == (20, 8)
    save_file(kept, weights, metadata={"format": "pt"})
    again._load_from_checkpoint(str(tmp_path / "checkpoint-2"))
    assert "missing keys in the checkpoint model loaded: ['model.embed_tokens.weight']" in caplog.text


@pytest.mark.parametrize("kind", ["StateDictType.SHARDED_STATE_DICT", "StateDictType.FULL_STATE_DICT"])
def test_a_run_whose_checkpoints_are_in_pieces_ends_with_a_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """FSDP stood in for: what is asked of the accelerator is the state of the whole model."""
    run = trainer(tmp_path)
    gathered = []

    def gather(model: Any) -> dict[str, torch.Tensor]:
        gathered.append(model)
        return model.state_dict()

    monkeypatch.setattr(run, "is_fsdp_enabled", True)
    monkeypatch.setattr(run.accelerator.state, "fsdp_plugin", SimpleNamespace(state_dict_type=kind), raising=False)
    monkeypatch.setattr(run.accelerator, "get_state_dict", gather)
    run.save_model(str(tmp_path / "whole"))
    kept = TNNForCausalLM.from_pretrained(tmp_path / "whole").state_dict()
    assert all(torch.equal(values, kept[name]) for name, values in run.model.state_dict().items())
    assert len(gathered) == 1


def test_weights_that_have_other_names_in_files_are_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def images_trainer(folder: Path) -> Any:
        torch.manual_seed(0)
        sizes = {"image_size": 4, "patch_size": 2, "num_channels": 1, "num_labels": 2}
        few = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        model = ViTForImageClassification(ViTConfig(**sizes, **few))
        rows = [{"pixel_values": torch.randn(1, 4, 4), "labels": row % 2} for row in range(8)]
        often = {"eval_strategy": "steps", "save_strategy": "steps", "save_steps": 2, "eval_steps": 2, "max_steps": 4}
        # The loss falls, so that the earlier checkpoint is the best.
        best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
        fixed = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
        arguments = TrainingArguments(output_dir=str(folder), learning_rate=1e-2, **often, **best, **fixed)
        return ResumableTrainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)

    run = images_trainer(tmp_path)
    run.train()
    assert Path(run.state.best_model_checkpoint).name == "checkpoint-2"
    saved = {step: ViTForImageClassification.from_pretrained(tmp_path / f"checkpoint-{step}") for step in (2, 4)}
    for name, values in run.model.state_dict().items():
        torch.testing.assert_close(values, saved[2].state_dict()[name], rtol=0, atol=0)
    shutil.rmtree(tmp_path / "checkpoint-4")
    resumed = images_trainer(tmp_path)
    resumed.train(resume_from_checkpoint=True)
    again = ViTForImageClassification.from_pretrained(tmp_path / "checkpoint-4").state_dict()
    for name, values in saved[4].state_dict().items():
        torch.testing.assert_close(again[name], values, rtol=0, atol=0)
    assert "missing keys" not in caplog.text


def test_the_final_model_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tmp_path / "run")
    (tmp_path / "run" / "model-00001-of-00002.safetensors").write_text("of an earlier run")
    (tmp_path / "run" / "config.json").write_text("of an earlier run")
    save = torch.save

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run.save_model()
    assert names(tmp_path / "run") == {"model-00001-of-00002.safetensors", "config.json"}
    assert (tmp_path / "run" / "config.json").read_text() == "of an earlier run"
    monkeypatch.setattr(torch, "save", save)
    run.save_model()
    assert {"model.safetensors", "config.json"} <= names(tmp_path / "run")
    assert not any(name.startswith(("model-", ".")) for name in names(tmp_path / "run"))
    TNNForCausalLM.from_pretrained(tmp_path / "run")


@pytest.mark.parametrize("use_cache", [True, False])
def test_saved_models_use_their_cache_as_they_did_before_training(tmp_path: Path, use_cache: bool) -> None:
    """The library turns caches off for training, and would save that."""
    run = trainer(tmp_path, fields={"use_cache": use_cache})
    assert run.model.config.use_cache is False
    run.train()
    run.save_model()
    assert run.model.config.use_cache is False
    for folder in (tmp_path, tmp_path / "checkpoint-6"):
        assert TNNForCausalLM.from_pretrained(folder).config.use_cache is use_cache
