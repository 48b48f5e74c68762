"""Modes of modules before and after an evaluation."""

import pytest
from torch import nn

from hf_seqmix.modules.evaluation import in_evaluation


def test_each_module_is_left_in_its_mode() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).train()
    model[1].eval()
    with pytest.raises(RuntimeError, match="stop"), in_evaluation(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError("stop")
    assert [module.training for module in model.modules()] == [True, True, False]
