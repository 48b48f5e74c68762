"""Evaluations read every row, in the order of the data; trainings by length have an order that a seed decides."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.training.every_row import EveryRowTrainer

ROWS = [{"input_ids": torch.arange(row, row + 8) % 20, "labels": torch.arange(row, row + 8) % 20} for row in range(12)]


def trainer(folder: Path, **options: Any) -> EveryRowTrainer:
    model = TNNForCausalLM(TNNConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, rpe_hidden_size=8))
    fixed = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
    arguments = TrainingArguments(output_dir=str(folder), **fixed, **options)
    return EveryRowTrainer(model=model, args=arguments, train_dataset=ROWS, eval_dataset=ROWS)


@torch.no_grad()
def test_losses_are_means_over_labels(tmp_path: Path) -> None:
    """Not over batches of unequal numbers of labels, of which one has none."""
    few = [
        {**row, "labels": row["labels"].masked_fill(torch.arange(8) < place, -100)}
        for place, row in zip((0, 7, 3, 1, 8, 8, 5, 6, 2), ROWS, strict=False)
    ]
    run = trainer(tmp_path, per_device_eval_batch_size=2)
    every = {name: torch.stack([row[name] for row in few]) for name in few[0]}
    expected = run.model.eval()(**every).loss.item()
    assert run.evaluate(few)["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert run.predict(few, metric_key_prefix="own").metrics["own_loss"] == pytest.approx(expected, rel=1e-6)
    assert run.args.average_tokens_across_devices


def test_evaluations_keep_the_order_of_the_data(tmp_path: Path) -> None:
    run = trainer(tmp_path, train_sampling_strategy="group_by_length", per_device_eval_batch_size=2)
    read = torch.cat([batch["input_ids"][:, 0] for batch in run.get_eval_dataloader()])
    assert read.tolist() == list(range(12))
    labels = run.predict(ROWS).label_ids
    assert labels[:, 0].tolist() == list(range(12))


def test_groups_of_one_length_have_an_order_of_their_own(tmp_path: Path) -> None:
    run = trainer(tmp_path, train_sampling_strategy="group_by_length", per_device_train_batch_size=2, seed=3)
    groups = run.get_train_dataloader().batch_sampler.sampler
    orders = []
    for epoch in (0, 1, 0):
        torch.rand(5)  # as dropout draws
        groups.set_epoch(epoch)
        orders.append(list(groups))
    assert orders[0] == orders[2] != orders[1] and sorted(orders[1]) == list(range(12))
    for seeds, same in (({"seed": 3, "data_seed": 4}, False), ({"seed": 5, "data_seed": 3}, True)):
        other = trainer(tmp_path, train_sampling_strategy="group_by_length", per_device_train_batch_size=2, **seeds)
        assert (list(other.get_train_dataloader().batch_sampler.sampler) == orders[0]) is same


def test_evaluations_have_every_row(tmp_path: Path) -> None:
    run = trainer(tmp_path, dataloader_drop_last=True, per_device_eval_batch_size=5, per_device_train_batch_size=5)
    assert run.predict(ROWS).predictions.shape[0] == len(ROWS) == 12
    assert sum(len(batch["labels"]) for batch in run.get_eval_dataloader()) == 12
    assert len(run.get_train_dataloader()) == 2
