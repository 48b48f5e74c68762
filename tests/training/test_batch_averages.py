"""Averages of batch norms: equal to those of all batches, made before evaluations and saves, felt nowhere else."""

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import IterableDataset
from transformers import TrainingArguments

from hf_seqmix import TNNConfig, TNNForMaskedLM
from hf_seqmix.modules import MaskedBatchNorm
from hf_seqmix.training import batch_averages
from hf_seqmix.training.batch_averages import average_batch_norms, batch_norms
from hf_seqmix.training.folders.resumable import LAST, ResumableTrainer

VOCABULARY = 20


def rows(number: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCABULARY, (number, 9), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def trainer(folder: Path, dataset: Any = None, fields: dict[str, Any] | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "rpe_hidden_size": 8, "norm_type": "batch", "is_causal": False}
    model = TNNForMaskedLM(TNNConfig(vocab_size=VOCABULARY, **sizes, **(fields or {})))
    fixed = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
    steps: dict[str, Any] = {
        "max_steps": 6,
        "save_strategy": "no",
        "per_device_train_batch_size": 4,
        "learning_rate": 0.1,
    }
    own = {name: options.pop(name) for name in ("batch_norm_batches",) if name in options}
    steps["lr_scheduler_type"] = "constant"
    arguments = TrainingArguments(output_dir=str(folder), **{**steps, **fixed, **options})
    dataset = rows(16) if dataset is None else dataset
    return ResumableTrainer(model=model, args=arguments, train_dataset=dataset, eval_dataset=rows(16), **own)


class Net(nn.Module):
    """A masked batch norm that is applied twice, one of torch, and dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.norm = MaskedBatchNorm(3)
        self.drop = nn.Dropout(0.5)
        self.last = nn.BatchNorm1d(3)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.inner(self.norm(x)))
        return self.last(self.drop(x).transpose(1, 2))


def test_averages_are_the_moments_of_all_batches() -> None:
    """Law of total variance, whatever averages were there before; modes, momenta and counters stay."""
    torch.manual_seed(0)
    net = Net()
    net.drop.eval()
    net.norm.running_var.fill_(float("inf"))
    net.last.running_mean.fill_(float("nan"))
    batches = [torch.randn(5, 7, 3, dtype=torch.float64) * scale + scale for scale in (1.0, 2.0, 5.0)]
    average_batch_norms(net, [{"x": batch} for batch in batches])
    calls, outputs = [], []
    for x in batches:
        inner = net.inner(normalized(x))
        calls += [x, inner]
        outputs.append(normalized(inner))
    for norm, parts in ((net.norm, calls), (net.last, outputs)):
        means = torch.stack([part.flatten(0, 1).mean(dim=0) for part in parts])
        variances = torch.stack([part.flatten(0, 1).var(dim=0) for part in parts])
        expected = variances.mean(dim=0) + means.var(dim=0, correction=0)
        torch.testing.assert_close(norm.running_mean, means.mean(dim=0).detach())
        torch.testing.assert_close(norm.running_var, expected.detach())
    assert (net.norm.momentum, net.last.momentum, int(net.last.num_batches_tracked)) == (0.1, 0.1, 0)
    assert net.training and net.norm.training and not net.drop.training


def normalized(x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten(0, 1)
    return (x - flat.mean(dim=0)) * torch.rsqrt(flat.var(dim=0, correction=0) + 1e-5)


def test_without_batches_or_after_an_error_averages_stay() -> None:
    net = Net().eval()
    net.norm.running_mean.fill_(3.0)
    average_batch_norms(net, [])
    with pytest.raises(TypeError):
        average_batch_norms(net, [{"x": torch.ones(2, 2, 3).double()}, {"y": 1}])
    assert net.norm.running_mean.tolist() == [3.0] * 3 and net.norm.momentum == 0.1 and not net.norm.training
    assert batch_norms(nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.Linear(2, 2))) == []


@torch.no_grad()
def loss_in_training_mode(run: Any) -> float:
    """Of the whole data as one batch, by statistics of that batch; there is no dropout."""
    data = {name: torch.stack([row[name] for row in run.train_dataset]) for name in ("input_ids", "labels")}
    averages = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in batch_norms(run.model)]
    loss = run.model.train()(**data).loss.item()
    for norm, (mean, var) in zip(batch_norms(run.model), averages, strict=True):
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(var)
    return loss


def test_evaluation_after_fast_updates_is_that_of_training(tmp_path: Path) -> None:
    """With running averages the loss is larger by a third or more; with averages made anew it is the same.

    All rows are one batch: statistics of smaller ones, through the layers, are others than those of all rows.
    """
    fields = {"hidden_dropout": 0.0}
    steps = {"learning_rate": 0.3, "max_steps": 4, "per_device_train_batch_size": 16}
    gaps = {}
    for number in (0, 16):
        run = trainer(tmp_path, fields=fields, batch_norm_batches=number, **steps)
        run.train()
        gaps[number] = run.evaluate()["eval_loss"] / loss_in_training_mode(run) - 1
    assert abs(gaps[16]) < 1e-3  # running variances are unbiased, those of a batch are not
    assert gaps[0] > 1 / 3


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    """Dropout, order of data and masks are drawn as before, though evaluations and saves lie between the updates."""
    weights, states = [], []
    for number in (0, 3):
        options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
        fields = {"hidden_dropout": 0.3}
        run = trainer(tmp_path / str(number), fields=fields, batch_norm_batches=number, **options)
        random.seed(0)
        np.random.seed(0)
        run.train()
        weights.append(dict(run.model.named_parameters()))
        states.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert states[0] == states[1]
    for name, parameter in weights[0].items():
        assert torch.equal(parameter, weights[1][name])


@pytest.mark.parametrize(
    "stream", [pytest.param(False, marks=pytest.mark.slow, id="rows"), pytest.param(True, id="stream")]
)
def test_a_resumed_run_has_the_same_averages(tmp_path: Path, stream: bool) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    dataset = Stream() if stream else None
    fields = {"hidden_dropout": 0.3}
    whole = trainer(tmp_path, dataset, fields, **options)
    whole.train()
    whole.save_model()
    saved = [load_file(folder / "model.safetensors") for folder in (tmp_path, tmp_path / "checkpoint-6")]
    resumed = trainer(tmp_path, dataset, fields, **options)
    resumed.train(resume_from_checkpoint=resumed.find_checkpoint(str(tmp_path / "checkpoint-2"))[0])
    again = trainer(tmp_path, dataset, fields, **options)
    assert again.restore_finished(again.find_checkpoint(LAST)[0])
    again.save_model()
    saved.append(load_file(tmp_path / "model.safetensors"))
    for other in (*saved[1:], resumed.model.state_dict(), again.model.state_dict()):
        for name, tensor in saved[0].items():
            assert torch.equal(tensor, other[name]), name


class Stream(IterableDataset):
    """Rows without a length."""

    def __iter__(self) -> Any:
        while True:
            yield from rows(40)


def test_a_model_that_was_not_trained_keeps_its_averages(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    for norm in batch_norms(run.model):
        norm.running_mean.fill_(0.5)
    run.evaluate()
    run.save_model()
    assert all((norm.running_mean == 0.5).all() for norm in batch_norms(run.model))
    with pytest.raises(ValueError, match="--batch-norm-batches is -1; give 0"):
        trainer(tmp_path, batch_norm_batches=-1)
    few = trainer(tmp_path, rows(3), max_steps=1)
    few.train()
    before = [norm.running_mean.clone() for norm in batch_norms(few.model)]
    assert math.isfinite(few.evaluate()["eval_loss"])  # one batch of three rows
    for norm, mean in zip(batch_norms(few.model), before, strict=True):
        assert not torch.equal(norm.running_mean, mean)


def test_rows_that_fill_no_batch_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All batches weigh the same, so they are of one size."""
    sizes: list[int] = []
    monkeypatch.setattr(
        batch_averages,
        "average_batch_norms",
        lambda model, batches: sizes.extend(len(batch["input_ids"]) for batch in batches),
    )
    run = trainer(tmp_path, rows(19), max_steps=1)
    run.train()
    run.evaluate()
    assert sizes == [4] * 4


def test_running_averages_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without averages that are made anew, too, further processes evaluate with what the first one has."""
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(batch_averages, "broadcast", sent.extend)
    net = nn.Sequential(MaskedBatchNorm(4))
    for processes, tensors in ((1, 0), (2, 2)):
        state, arguments = SimpleNamespace(global_step=3), SimpleNamespace(world_size=processes)
        run: Any = SimpleNamespace(state=state, args=arguments, model=net, train_dataset=rows(2))
        batch_averages.BatchAverages(run, 0).refresh()
        assert len(sent) == tensors
    assert sent[0] is net[0].running_mean and sent[1] is net[0].running_var
