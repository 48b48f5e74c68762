"""A small run of a language model, for tests of what its folder holds."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.training.folders.resumable import ResumableTrainer

ROWS = [{"input_ids": torch.arange(row, row + 8) % 20, "labels": torch.arange(row, row + 8) % 20} for row in range(12)]


def trainer(
    folder: Path,
    trainer_class: type = ResumableTrainer,
    callbacks: Any = None,
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    torch.manual_seed(0)
    model = TNNForCausalLM(
        TNNConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, rpe_hidden_size=8, hidden_dropout=0.2, **(fields or {})
        )
    )
    steps = {"max_steps": 6, "save_steps": 2, "logging_steps": 3, "per_device_train_batch_size": 2}
    fixed = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
    arguments = TrainingArguments(output_dir=str(folder), **{**steps, **fixed, **options})
    return trainer_class(model=model, args=arguments, train_dataset=ROWS, eval_dataset=ROWS, callbacks=callbacks)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
