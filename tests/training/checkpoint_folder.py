"""A checkpoint as the Trainer writes it, without a Trainer."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_checkpoint(folder: Path, step: int, **state: object) -> Path:
    """A whole `checkpoint-STEP` without a manifest."""
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    save_file({"weight": torch.arange(1000.0)}, checkpoint / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"state": torch.arange(1000.0)}, checkpoint / name)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step, **state}))
    return checkpoint
