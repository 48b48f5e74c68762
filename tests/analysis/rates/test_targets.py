"""Targets: each formula by loops, the spectrum of couplings, kernels by name, and bad sizes."""

import math

import pytest
import torch

from hf_seqmix.analysis.rates import CouplingTarget, LinearTarget

DOUBLE = torch.float64


@pytest.mark.parametrize("length", [1, 5])
def test_coupling_target_by_loops(length):
    target = CouplingTarget((1.0, 0.0, 0.3), length)
    x, y = target.draw(2, torch.Generator().manual_seed(0), DOUBLE)
    assert x.shape == (2, length, 1) and y.shape == (2, length) and target.num_outputs is None
    assert target.is_causal == (length == 1)
    for b in range(2):
        for t in range(length):
            weights = []
            for s in range(length):
                u, v = x[b, t, 0].item(), x[b, s, 0].item()
                rho = sum(
                    sigma * 2 * math.sin(2 * math.pi * i * u) * math.sin(2 * math.pi * i * v)
                    for i, sigma in [(1, 1.0), (3, 0.3)]
                )
                weights.append(math.exp(rho))
            wanted = sum(w * x[b, s, 0].item() for s, w in enumerate(weights)) / sum(weights)
            assert y[b, t].item() == pytest.approx(wanted, rel=1e-12)


def test_error_of_a_truncated_coupling():
    target = CouplingTarget((0.2, 1.0, 0.0, 0.5), 6)
    x, y = target.draw(4096, torch.Generator().manual_seed(0), DOUBLE)
    rank_2 = CouplingTarget((0.0, 1.0, 0.0, 0.5), 6).outputs(x)
    assert target.truncation_error(2) == pytest.approx((rank_2 - y).square().mean().item(), rel=1e-12)
    assert target.truncation_error(0) == pytest.approx((x.mean(1) - y).square().mean().item(), rel=1e-12)
    errors = [target.truncation_error(rank) for rank in range(5)]
    assert errors[0] > errors[1] > errors[2] > errors[3] == errors[4] == 0
    assert target.truncation_error(2, power=1) == pytest.approx((rank_2 - y).abs().mean().item(), rel=1e-12)
    # With its diagonal exact a token weighs itself as in the target.
    logits = CouplingTarget((0.0, 1.0, 0.0, 0.5), 6).coupling(x)
    itself = torch.eye(6, dtype=torch.bool)
    logits[:, itself] = target.coupling(x)[:, itself]
    wanted = ((logits.softmax(-1) @ x)[..., 0] - y).square().mean().item()
    assert target.truncation_error(2, exact_diagonal=True) == pytest.approx(wanted, rel=1e-12)
    with pytest.raises(ValueError, match="rank is -1"):
        target.truncation_error(-1)
    with pytest.raises(ValueError, match="power is 0"):
        target.truncation_error(1, power=0)
    with pytest.raises(ValueError, match="rows is 0"):
        target.truncation_error(1, rows=0)


def test_singular_values_of_the_coupling():
    target = CouplingTarget.power_law(rank=5, exponent=0.55, length=64)
    grid = (torch.arange(64, dtype=DOUBLE) + 0.5) / 64  # the midpoint rule is exact for these sines
    found = torch.linalg.svdvals(target.coupling(grid[None, :, None])[0]) / 64
    wanted = torch.arange(1, 6, dtype=DOUBLE) ** -0.55
    torch.testing.assert_close(found[:5], wanted, rtol=1e-12, atol=0)
    assert found[5:].max() < 1e-14


@pytest.mark.parametrize("length", [1, 2, 7])
def test_linear_target_by_loops(length):
    target = LinearTarget(tuple(torch.randn(length, dtype=DOUBLE).tolist()))
    x, y = target.draw(3, torch.Generator().manual_seed(1), DOUBLE)
    assert target.length == length and target.is_causal and ((x >= 0) & (x < 1)).all()
    for t in range(length):
        wanted = sum(target.taps[s] * x[:, t - s, 0] for s in range(t + 1))
        torch.testing.assert_close(y[:, t], wanted, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(y, x[..., 0] @ target.matrix().T, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("kernel", "options", "formula"),
    [
        ("exponential", {"rate": 0.5}, lambda s: math.exp(-0.5 * s)),
        ("polynomial", {"exponent": 1.5}, lambda s: (1 + s) ** -1.5),
        ("impulse", {"delay": 3}, lambda s: float(s == 3)),
        ("oscillating", {}, lambda s: math.exp(-0.1 * s) * math.cos(s)),
        (lambda s: s.square(), {}, lambda s: float(s**2)),
    ],
)
def test_kernels(kernel, options, formula):
    target = LinearTarget.from_kernel(kernel, 11, **options)
    assert target.taps == pytest.approx([formula(s) for s in range(11)])


def test_the_random_kernel_of_table_3():
    targets = [LinearTarget.from_kernel("uniform", seed=seed) for seed in range(200)]
    assert targets[0] == LinearTarget.from_kernel("uniform") != targets[1]
    taps = torch.tensor([target.taps for target in targets])
    assert taps.min() >= 0 and taps.max() < 1 and taps.mean().item() == pytest.approx(0.5, abs=0.02)


def test_rows_depend_on_the_generator_alone():
    target = CouplingTarget.power_law()
    first, second = (target.draw(4, torch.Generator().manual_seed(3)) for _ in range(2))
    assert first[0].dtype == torch.float32
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CouplingTarget(()), "singular_values is .*at least one"),
        (lambda: CouplingTarget((1.0, -1.0)), "at least 0"),
        (lambda: CouplingTarget((1.0,), 0), "length is 0; it must be at least 1"),
        (lambda: CouplingTarget.power_law(rank=0), "rank is 0"),
        (lambda: LinearTarget(()), "at least one, each finite"),
        (lambda: LinearTarget((math.nan,)), "each finite"),
        (lambda: LinearTarget.from_kernel("gaussian"), "kernel is 'gaussian'; give one of exponential"),
        (lambda: LinearTarget.from_kernel("impulse", rate=2), "does not take the options"),
        (lambda: LinearTarget.from_kernel(lambda s: s[:2]), r"shape \(2,\) for 32 lags"),
        (lambda: LinearTarget.from_kernel(length=0), "length is 0"),
        (lambda: LinearTarget((1.0,)).outputs(torch.zeros(2, 3, 1)), r"LinearTarget takes \(rows, 1, 1\)"),
        (lambda: LinearTarget((1.0,)).draw(0, torch.Generator()), "rows is 0"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
