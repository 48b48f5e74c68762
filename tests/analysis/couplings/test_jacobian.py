"""Norms of the blocks of a Jacobian."""

import pytest
import torch

from hf_seqmix.analysis import coupling, jacobian_norms
from hf_seqmix.analysis.couplings.realized import realized_operator
from hf_seqmix.ops import toeplitz_matmul
from hf_seqmix.ops.layout import TokenLayout
from tests.analysis.couplings.test_coupling import LENGTH, ids, make
from tests.tolerances import assert_close


@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_linear_toeplitz_layer_has_its_taps(length):
    taps = torch.randn(1, length, dtype=torch.float64)

    def mix(rows: torch.Tensor) -> torch.Tensor:
        return toeplitz_matmul(rows.transpose(1, 2), taps, True).transpose(1, 2)

    norms = jacobian_norms(mix, torch.randn(2, length, 1, dtype=torch.float64))
    for t in range(length):
        for s in range(length):
            expected = taps[0, t - s].abs() if s <= t else torch.zeros(())
            assert_close(norms[:, t, s], expected.to(taps).expand(2))


def test_blocks_agree_with_autograd():
    weight = torch.randn(5, 3, 4, 2, dtype=torch.float64)  # outputs, channels, inputs, channels

    def f(rows: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ocid,bid->boc", weight, rows.sin() * rows)

    x = torch.randn(1, 4, 2, dtype=torch.float64)
    blocks = torch.autograd.functional.jacobian(f, x)[0, :, :, 0]  # (outputs, channels, inputs, channels)
    assert_close(jacobian_norms(f, x)[0], blocks.square().sum(dim=(1, 3)).sqrt())


@pytest.mark.parametrize("probes", [None, 2])
def test_what_does_not_depend_on_the_input_has_norms_of_zero(probes):
    weight = torch.nn.Parameter(torch.ones(5, 4))
    x = torch.randn(2, 3, 4)
    for f in (lambda x: torch.ones(len(x), 5, 4), lambda x: weight.expand(len(x), 5, 4)):
        assert torch.equal(jacobian_norms(f, x, probes), torch.zeros(2, 5, 3))


def test_probes_estimate_the_norms():
    model, batch = make("tnn"), ids(1)
    exact = coupling(model, batch, source="jacobian")
    estimated = coupling(model, batch, source="jacobian", probes=2000)
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    assert (estimated[0][seen] / exact[0][seen] - 1).abs().max() < 0.15
    again = coupling(model, batch, source="jacobian", probes=2000)
    assert torch.equal(estimated, again)


def test_each_row_has_its_own_positions():
    model, batch = make("attention"), ids()
    places = torch.stack([torch.arange(LENGTH), 3 + 5 * torch.arange(LENGTH)])
    norms = coupling(model, {**batch, "position_ids": places}, source="jacobian")
    for row in range(2):
        alone = {"input_ids": batch["input_ids"][row : row + 1], "position_ids": places[row : row + 1]}
        assert_close(norms[row], coupling(model, alone, source="jacobian")[0])


def test_an_operator_is_known_by_its_unit_vectors():
    operator = make("tnn").layers[0].mixer.operator
    like = torch.empty(LENGTH, 48, dtype=torch.float64)
    matrix = realized_operator(operator, like)
    x = torch.randn(1, *like.shape, dtype=torch.float64)
    assert_close(torch.einsum("cts,bsc->btc", matrix, x), operator(x, TokenLayout(), None))


def test_bad_inputs_are_refused():
    with pytest.raises(ValueError, match=r"inputs have shape \(3, 2\); they must be"):
        jacobian_norms(lambda x: x, torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"inputs have shape \(0, 3, 2\); .* of one row or more"):
        jacobian_norms(lambda x: x, torch.zeros(0, 3, 2))
    with pytest.raises(ValueError, match=r"inputs are torch.int64; they must be real floating-point numbers"):
        jacobian_norms(lambda x: x, torch.zeros(1, 3, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="probes is 0; give at least 1"):
        jacobian_norms(lambda x: x, torch.zeros(1, 3, 2), probes=0)


@pytest.mark.parametrize("name", ["tnn", "attention", "ipa"])
def test_inference_mode_of_the_caller_changes_nothing(name):
    model, batch = make(name), ids()
    expected = coupling(model, batch, source="jacobian")
    with torch.inference_mode():
        assert_close(coupling(model, batch, source="jacobian"), expected)
