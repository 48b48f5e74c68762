"""Sums of losses in a checkpoint, for as many processes and for another number of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_seqmix.training.segments.carried_losses import CarriedLosses


def trainer(index: int = 0, world_size: int = 2, resumed_from: Path | None = None) -> Any:
    return SimpleNamespace(
        args=SimpleNamespace(world_size=world_size, process_index=index),
        state=SimpleNamespace(global_step=5, log_history=[]),
        resumed_from=resumed_from,
        _tr_loss=torch.zeros(()),
        _total_loss_scalar=0.0,
        _globalstep_last_logged=0,
    )


@pytest.mark.parametrize(("index", "world_size", "own"), [(0, 2, 1.5), (1, 2, 2.5), (0, 1, 2.0), (2, 4, 2.0)])
def test_sums_go_on_where_the_checkpoint_left_them(tmp_path: Path, index: int, world_size: int, own: float) -> None:
    before = trainer()
    before._total_loss_scalar, before._globalstep_last_logged = 12.0, 3
    CarriedLosses(before).save(tmp_path, [1.5, 2.5])

    resumed = trainer(index, world_size, tmp_path)
    losses = CarriedLosses(resumed)
    losses.on_train_begin()
    assert resumed._tr_loss.item() == own
    assert (resumed._globalstep_last_logged, resumed.first_step) == (3, 5)
    assert losses.total == 12.0  # what is not logged yet is counted when it is
    losses.take_total(tmp_path)
    assert losses.total == 14.0


def test_a_checkpoint_of_the_library_has_no_sums(tmp_path: Path) -> None:
    resumed = trainer(resumed_from=tmp_path)
    losses = CarriedLosses(resumed)
    losses.on_train_begin()
    assert losses.total == 0.0 and resumed._tr_loss.item() == 0.0
    # What its log tells: 3 and 1, means over two updates each, and nothing of the fifth update.
    resumed.state.log_history = [{"step": 2, "loss": 3.0}, {"step": 3, "eval_loss": 9.0}, {"step": 4, "loss": 1.0}]
    losses.on_train_begin()
    assert losses.total == 10.0
    losses.take_total(tmp_path)
    assert losses.total == 10.0
