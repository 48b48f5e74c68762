"""Spectra of couplings: planted values, their bias, centering and softmax, and pooled tokens."""

import math

import pytest
import torch
from torch import Tensor

from hf_seqmix.analysis.spectra import (
    center,
    cross_spectrum,
    eps_rank,
    spectrum,
    tail_squares,
)
from tests.analysis.spectra.planted import planted_coupling, planted_features
from tests.tolerances import assert_close

PLANTED = [1 / k for k in range(1, 7)]


def _tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("length", "samples", "first", "last"),
    [(16, 2000, 1.125, 0.066), (64, 300, 1.028, 0.135), (256, 40, 1.008, 0.158)],
)
def test_planted_values_are_found_with_the_bias_of_the_length(
    length: int, samples: int, first: float, last: float
) -> None:
    tokens = _tokens(samples, length)
    report = spectrum(planted_coupling(tokens, tokens, PLANTED))
    assert report.mean[0].item() == pytest.approx(first, abs=0.015)
    assert report.mean[5].item() == pytest.approx(last, abs=0.004)
    assert report.mean[6:].max() < 1e-12
    assert (report.num_samples, report.num_queries, report.num_keys) == (samples, length, length)


def test_pooled_tokens_have_no_bias_of_the_length() -> None:
    tokens = _tokens(2048, 16)  # inputs of 16 tokens
    report = cross_spectrum(*planted_features(tokens.flatten(), tokens.flatten(), PLANTED))
    assert report.mean.tolist() == pytest.approx(PLANTED, rel=0.02)
    assert (report.num_samples, report.num_queries, report.num_keys) == (1, 2**15, 2**15)


@pytest.mark.parametrize("how", ["none", "row", "double"])
@pytest.mark.parametrize(("count", "others", "width"), [(9, 7, 3), (2, 11, 5), (1, 4, 3), (5, 1, 2), (8, 8, 1)])
def test_pooled_tokens_are_the_dense_matrix(how: str, count: int, others: int, width: int) -> None:
    queries, keys = _normal(2, count, width), _normal(2, others, width, seed=1)
    report = cross_spectrum(queries, keys, center=how)
    dense = torch.linalg.svdvals(center(queries @ keys.mT, how)) / math.sqrt(count * others)
    rank = min(count, others, width)
    assert report.singular_values.shape == (2, rank)
    assert_close(report.singular_values, dense[..., :rank], factor=1 if how == "none" else 10)
    assert dense[..., rank:].numel() == 0 or dense[..., rank:].max() < 1e-12


@pytest.mark.parametrize("how", ["row", "double"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_what_softmax_ignores_changes_nothing(how: str, causal: bool, length: int) -> None:
    mask = torch.ones(length, length, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    coupling = _normal(3, length, length)
    shifted = coupling + 5 * _normal(3, length, 1, seed=1)
    weights = [x.masked_fill(~mask, -math.inf).softmax(dim=-1) for x in (coupling, shifted)]
    assert_close(weights[1], weights[0])
    centered = [center(x, how, mask if causal else None) for x in (coupling, shifted)]
    assert (centered[1] - centered[0]).abs().max() < 1e-12
    seen = "tril" if causal else "full"
    values = [spectrum(x, how, mask=seen).singular_values for x in (coupling, shifted)]
    assert (values[1] - values[0]).abs().max() < 1e-12
    # Double centering drops a term of the keys, too; softmax and row centering do not.
    of_keys = coupling + 5 * _normal(3, 1, length, seed=2)
    unchanged = (center(of_keys, how, mask if causal else None) - centered[0]).abs().max() < 1e-12
    assert unchanged == (how == "double" or length == 1)


def test_no_shift_of_rows_leaves_less_than_their_means() -> None:
    coupling = _normal(8, 5)
    least = tail_squares(torch.linalg.svdvals(center(coupling, "row")))
    for seed in range(20):
        shift = coupling.mean(dim=-1, keepdim=True) + 0.3 * _normal(8, 1, seed=seed)
        assert (tail_squares(torch.linalg.svdvals(coupling - shift)) >= least - 1e-12).all()


@pytest.mark.parametrize("how", ["row", "double"])
def test_a_mask_without_hidden_entries_is_none(how: str) -> None:
    coupling = _normal(2, 6, 5)
    assert_close(center(coupling, how, torch.ones(6, 5, dtype=torch.bool)), center(coupling, how))


def test_masks_count_visible_entries_alone() -> None:
    coupling = torch.tensor([[1.0, 5.0, math.inf], [2.0, 4.0, 9.0], [math.nan, math.nan, math.nan]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.bool)
    expected = torch.tensor([[-2, 2, 0], [-3, -1, 4], [0, 0, 0]], dtype=torch.float64)
    assert_close(center(coupling, "row", mask), expected)
    # [[1, 5], [2, 4]] are left by c + d as +-1/2; the 9 stands alone in its column.
    expected = torch.tensor([[-0.5, 0.5, 0], [0.5, -0.5, 0], [0, 0, 0]], dtype=torch.float64)
    assert_close(center(coupling, "double", mask), expected)
    assert center(coupling, "none", mask)[0].tolist() == [1, 5, 0]


def test_double_centering_leaves_sums_of_zero_under_masks_of_each_sample() -> None:
    coupling, mask = _normal(4, 7, 5), _tokens(4, 7, 5, seed=3) < 0.6
    left = center(coupling, "double", mask)
    assert left.sum(dim=-1).abs().max() < 1e-12
    assert left.sum(dim=-2).abs().max() < 1e-12
    assert (left[~mask] == 0).all()
    one = center(coupling[2], "double", mask[2])
    assert_close(left[2], one)


@pytest.mark.parametrize("length", [1, 2, 33])
def test_the_triangle_of_a_constant(length: int) -> None:
    report = spectrum(torch.ones(length, length), mask="tril")
    # Of the matrix of partial sums: 1 / (2 sin((2 k - 1) pi / (4 T + 2))).
    exact = [1 / (2 * length * math.sin((2 * k - 1) * math.pi / (4 * length + 2))) for k in range(1, length + 1)]
    assert report.mean.tolist() == pytest.approx(exact)
    assert spectrum(torch.ones(length, length), "row", mask="tril").mean.max() < 1e-12


def test_the_future_is_never_read() -> None:
    coupling = _normal(5, 5)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    found = spectrum(coupling.masked_fill(future, -math.inf), mask="tril").mean
    assert_close(found, torch.linalg.svdvals(coupling.tril()) / 5)


def test_reports() -> None:
    values = torch.tensor([[3.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
    report = spectrum(torch.diag_embed(values)[None])
    assert report.singular_values.shape == (1, 3, 2)
    assert report.singular_values.dtype == torch.float64
    assert report.mean.tolist() == pytest.approx([1, 1 / 3])
    assert report.quantiles(0, 0.5, 1).flatten().tolist() == pytest.approx([0.5, 0, 1, 0.5, 1.5, 0.5])
    assert report.eps_rank(0.5).tolist() == [[1, 2, 1]]
    assert report.stable_rank[0].tolist() == pytest.approx([10 / 9, 2, 1])
    assert report.entropy_rank[0, 1:].tolist() == pytest.approx([2, 1])
    relative = spectrum(torch.diag_embed(values), normalize="fro")
    assert relative.singular_values[0].tolist() == pytest.approx([3 / math.sqrt(10), 1 / math.sqrt(10)])
    assert relative.singular_values.square().sum(dim=-1).tolist() == pytest.approx([1, 1, 1])
    with pytest.raises(ValueError, match=r"levels are \(2,\); give at least one number between 0 and 1"):
        report.quantiles(2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rounding_errors_lie_below_the_resolution(dtype: torch.dtype) -> None:
    tokens = _tokens(40)
    report = spectrum(planted_coupling(tokens, tokens, [1.0, 0.5]).to(dtype))
    assert eps_rank(report.mean, report.resolution).item() == 2
    assert (report.mean[2:] < report.resolution * report.mean[0]).all()
    pooled = cross_spectrum(*(part.to(dtype) for part in planted_features(tokens, tokens, [1.0, 0.0])))
    assert pooled.mean[1] <= pooled.resolution * pooled.mean[0]
    eps = torch.finfo(dtype).eps
    for sizes in ((3, 40), (40, 3)):
        assert spectrum(torch.ones(sizes, dtype=dtype)).resolution == 40 * eps
    # Of two dtypes the coarser one rounds.
    mixed = torch.ones(9, 5, dtype=dtype), torch.ones(9, 5, dtype=torch.float64)
    assert cross_spectrum(*mixed).resolution == cross_spectrum(*mixed[::-1]).resolution == 5 * eps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"center": "rows"}, "center is 'rows'; give one of 'none', 'row', 'double'"),
        ({"normalize": "l2"}, "normalize is 'l2'; give one of 'tau', 'fro'"),
        ({"mask": "causal"}, "mask is 'causal'; give one of 'full', 'tril'"),
        ({"coupling": torch.ones(3)}, r"shape \(3,\) and dtype torch.float32; give real numbers of shape"),
        ({"coupling": torch.ones(3), "mask": "tril"}, r"shape \(3,\)"),
        ({"coupling": torch.ones(0, 3)}, r"shape \(0, 3\)"),
        ({"coupling": torch.ones(2, 2) + 1j}, "dtype torch.complex64"),
        ({"coupling": torch.full((2, 2), math.inf)}, "not finite; give a mask"),
        ({"coupling": torch.ones(2, 3), "mask": "tril"}, "2 queries and 3 keys; give as many keys as queries"),
        ({"normalize": "fro", "center": "row"}, "zero after centering; give 'tau'"),
    ],
)
def test_wrong_couplings_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spectrum(**{"coupling": torch.ones(2, 2), **arguments})


@pytest.mark.parametrize("mask", [torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 2)])
def test_wrong_masks_are_refused(mask: Tensor) -> None:
    with pytest.raises(ValueError, match=r"give booleans of shape \(4, 2, 2\) or \(2, 2\)"):
        center(torch.ones(4, 2, 2), "row", mask)


@pytest.mark.parametrize(
    ("queries", "keys", "message"),
    [
        (torch.ones(3, 2), torch.ones(3, 1), r"queries have shape \(3, 2\) and keys \(3, 1\); give"),
        (torch.ones(3), torch.ones(3), r"shape \(3,\)"),
        (torch.ones(2, 3, 2), torch.ones(3, 2), "same leading dimensions"),
        (torch.ones(0, 2), torch.ones(3, 2), "at least one number each"),
        (torch.ones(3, 2), torch.full((3, 2), math.nan), "keys have dtype torch.float32 or numbers that are not"),
        (torch.ones(3, 2) + 1j, torch.ones(3, 2), "queries have dtype torch.complex64"),
    ],
)
def test_wrong_tokens_are_refused(queries: Tensor, keys: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cross_spectrum(queries, keys)
    with pytest.raises(ValueError, match="center is 'mean'"):
        cross_spectrum(torch.ones(1, 1), torch.ones(1, 1), "mean")
