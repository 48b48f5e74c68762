"""Nets side by side are nets alone: outputs, Adam's updates, and what cannot be stacked."""

import pytest
import torch
from torch import nn

from hf_seqmix.analysis.stacked_nets import StackedNets
from hf_seqmix.modules.norms import MaskedBatchNorm

RATES = torch.tensor([1e-2, 3e-3, 0.0])


def build(width=5):
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_updates_are_those_of_adam_alone(clip):
    rtol = 1e-12 if clip is None else 1e-5  # torch's clipping adds 1e-6 to the norm
    nets = [build().double() for _ in range(3)]
    before = [[value.clone() for value in net.parameters()] for net in nets]
    stacked = StackedNets(nets, betas=(0.9, 0.99), clip=clip)
    steps = [(torch.randn(3, 7, 3, dtype=torch.float64), torch.randn(3, 7, 2, dtype=torch.float64)) for _ in range(4)]
    losses = torch.stack([stacked.update(inputs, targets, RATES.double()) for inputs, targets in steps])
    for i, net in enumerate(nets):
        assert all(map(torch.equal, before[i], net.parameters()))  # untouched
        optimizer = torch.optim.Adam(net.parameters(), lr=RATES[i].item(), betas=(0.9, 0.99))
        for step, (inputs, targets) in enumerate(steps):
            optimizer.zero_grad()
            loss = (net(inputs[i]) - targets[i]).square().mean()
            loss.backward()
            torch.testing.assert_close(losses[step, i], loss.detach(), rtol=rtol, atol=0)
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
        for mine, value in zip(stacked.unstacked()[i].parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(mine, value, rtol=rtol, atol=rtol)


def test_batch_norms_train_on_batches_and_compute_outputs_by_their_averages():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm, self.outer = nn.Linear(3, 4), MaskedBatchNorm(4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(self.norm(self.inner(x)[None])[0])

    nets = [Net().double() for _ in range(2)]
    stacked = StackedNets(nets)
    steps = [(torch.randn(2, 7, 3, dtype=torch.float64), torch.randn(2, 7, 2, dtype=torch.float64)) for _ in range(3)]
    for inputs, targets in steps:
        stacked.update(inputs, targets, RATES[:2].double())
    rows = torch.randn(5, 3, dtype=torch.float64)
    outputs = stacked.outputs(rows)
    for i, net in enumerate(nets):
        optimizer = torch.optim.Adam(net.parameters(), lr=RATES[i].item())
        for inputs, targets in steps:
            optimizer.zero_grad()
            (net(inputs[i]) - targets[i]).square().mean().backward()
            optimizer.step()
        torch.testing.assert_close(outputs[i], net.eval()(rows), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(stacked.unstacked()[i].eval()(rows), net(rows), rtol=1e-9, atol=1e-9)
        assert not torch.allclose(net(rows), net.train()(rows))  # so that the modes differ
        assert stacked.unstacked()[i].training


def test_outputs_of_all_nets_on_the_same_rows():
    nets = [build() for _ in range(3)]
    stacked = StackedNets(nets)
    inputs = torch.randn(6, 3)
    assert len(stacked) == 3
    for output, net in zip(stacked.outputs(inputs), nets, strict=True):
        torch.testing.assert_close(output, net(inputs))
    torch.testing.assert_close(stacked.outputs(inputs.expand(3, 6, 3), shared=False), stacked.outputs(inputs))


def test_outputs_leave_every_module_in_its_mode():
    net = build()
    net[0].eval()  # as of frozen layers
    stacked = StackedNets([net, build()])
    stacked.outputs(torch.randn(6, 3))
    first, second = stacked.unstacked()
    assert [module.training for module in first] == [False, True, True] and first.training
    assert all(module.training for module in second.modules())


def test_what_cannot_be_stacked():
    with pytest.raises(ValueError, match="there are 0 nets"):
        StackedNets([])
    with pytest.raises(ValueError, match="of 2 kinds"):
        StackedNets([build(), build(6)])
    with pytest.raises(ValueError, match=r"outputs have the shape \(1, 7, 2\) and targets \(1, 7\)"):
        StackedNets([build()]).update(torch.randn(1, 7, 3), torch.randn(1, 7), RATES[:1])
