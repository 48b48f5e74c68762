"""Tasks of selection, by loops over tokens; and what a coupling of low rank makes of them."""

import pytest
import torch

from hf_seqmix.analysis.rates import NearestPoint, SegmentMean, SelectAverage

DOUBLE = torch.float64


def draw(target, rows=3):
    x, y = target.draw(rows, torch.Generator().manual_seed(0), DOUBLE)
    assert x.shape == (rows, target.length, target.width)
    assert y.shape == (
        (rows, target.length) if target.num_outputs is None else (rows, target.length, target.num_outputs)
    )
    return x, y


@pytest.mark.parametrize("target", [NearestPoint(), NearestPoint(1, 1), NearestPoint(5, 3)])
def test_nearest_point(target):
    x, y = draw(target)
    n = target.num_points
    for b in range(len(x)):
        for t in range(2 * n):
            others = x[b, n:, :-1] if t < n else x[b, :n, :-1]
            nearest = min(others, key=lambda point: (point - x[b, t, :-1]).norm())
            assert torch.equal(y[b, t], nearest)
    # Up to what a softmax ignores, -beta |u - v|^2 is 2 beta <u, v> - beta |v|^2: rank k + 1.
    logits = 2e9 * (x[..., :-1] @ x[..., :-1].transpose(1, 2)) - 1e9 * x[:, None, :, :-1].square().sum(-1)
    weights = logits.masked_fill(x[:, :, None, -1] == x[:, None, :, -1], -torch.inf).softmax(-1)
    torch.testing.assert_close(weights @ x[..., :-1], y)


@pytest.mark.parametrize("target", [SegmentMean(), SegmentMean(3, 1), SegmentMean(4, 7)])
def test_segment_mean(target):
    x, y = draw(target, 40)
    n, k = target.segment_length, target.num_segments
    assert target.length == n * k + 1
    means = x[:, :-1, 0].unflatten(1, (k, n)).mean(dim=2)
    torch.testing.assert_close(y[:, :-1], means.repeat_interleave(n, dim=1))
    asked = x[:, -1, 1:-1].argmax(dim=-1)
    torch.testing.assert_close(y[:, -1], means[torch.arange(40), asked])
    assert len(asked.unique()) == k and (x[:, -1, 0] == 0).all()
    assert torch.equal(x[..., -1], torch.eye(target.length, dtype=DOUBLE)[-1].expand(40, -1))


@pytest.mark.parametrize("target", [SelectAverage(), SelectAverage(1, 1, 1), SelectAverage(5, 3, 5)])
def test_select_average(target):
    x, y = draw(target, 50)
    m, q = target.dimension, target.num_selected
    chosen = x[..., m:]
    assert (chosen.sum(-1) == q).all() and chosen.unique().numel() <= 2
    assert (chosen.sum((0, 1)) > 0).all()  # every position is selected by some token
    for b in range(3):
        for t in range(target.length):
            mean = x[b, chosen[b, t].bool(), :m].mean(dim=0)
            torch.testing.assert_close(y[b, t], mean)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NearestPoint(0), "num_points is 0"),
        (lambda: SegmentMean(1), "num_segments is 1; it must be at least 2"),
        (lambda: SelectAverage(length=2), "num_selected is 3 of length 2"),
        (lambda: SelectAverage(num_selected=0), "num_selected is 0"),
    ],
)
def test_wrong_sizes(make, message):
    with pytest.raises(ValueError, match=message):
        make()
