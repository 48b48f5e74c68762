"""Sums of a pointer's scores against the matrix of all scores, and the matrix against a loop."""

import math

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops.common import pointer
from hf_seqmix.ops.common.pointer import pointer_sums, pointer_sums_dense
from tests.tolerances import assert_close


def make(
    batch: int, number: int, places: int, rank: int = 3, dtype: torch.dtype = torch.float64, packed: bool = False
):
    """Return the arguments of a problem with few tokens, so that many are found, and some empty places."""
    queries, keys = torch.randn(batch, number, rank), torch.randn(batch, places, rank)
    ids = torch.where(torch.rand(batch, places) < 0.8, torch.randint(0, 4, (batch, places)), -1)
    ids[:, 0] = -1  # the first query of a row without a past sees nothing
    sequences = None
    at = torch.arange(places - number, places)
    if packed:
        of_places = torch.randint(0, 2, (batch, places)).cumsum(dim=1)
        sequences = of_places[:, places - number :], of_places
    queries, keys = (x.to(dtype).requires_grad_() for x in (queries, keys))
    return queries, keys, ids, torch.randint(0, 4, (batch, number)), at, sequences


def loss(sums: tuple[Tensor, Tensor]) -> Tensor:
    """Return a number that depends on all that is finite."""
    terms = [x.nan_to_num(neginf=0.0).square().sum() for x in sums]
    return terms[0] + 0.3 * terms[1]


def test_the_definition_by_a_loop():
    queries, keys, ids, targets, places, sequences = make(2, 3, 5, packed=True)
    log_all, log_found = pointer_sums_dense(queries, keys, ids, targets, places, sequences)
    for b in range(2):
        for at in range(3):
            terms, found = [], []
            for j in range(at + 3):  # two places come before the first query
                if ids[b, j] >= 0 and sequences[1][b, j] == sequences[0][b, at]:
                    terms.append(math.exp((queries[b, at] @ keys[b, j]).item() / 3**0.5))
                    found += terms[-1:] if ids[b, j] == targets[b, at] else []
            for ours, numbers in ((log_all, terms), (log_found, found)):
                expected = math.log(sum(numbers)) if numbers else float("-inf")
                assert ours[b, at].item() == pytest.approx(expected)


@pytest.mark.parametrize("scores", [1, 2**18], ids=["blocks", "whole"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("batch", "number", "places"), [(1, 1, 1), (2, 1, 7), (3, 37, 37), (2, 40, 53)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equals_the_definition(monkeypatch, batch, number, places, packed, scores, dtype):
    monkeypatch.setattr(pointer, "_CPU_SCORES", scores)
    arguments = make(batch, number, places, dtype=dtype, packed=packed)
    exact = [x.detach().double().requires_grad_() for x in arguments[:2]]
    ours, expected = pointer_sums(*arguments), pointer_sums_dense(*exact, *arguments[2:])
    for found, right in zip(ours, expected, strict=True):
        assert found.dtype == torch.promote_types(dtype, torch.float32)
        assert torch.equal(found.isinf(), right.isinf())
        assert_close(found.nan_to_num(neginf=0.0), right.nan_to_num(neginf=0.0))
    gradients = torch.autograd.grad(loss(ours), arguments[:2])
    for found, right in zip(gradients, torch.autograd.grad(loss(expected), exact), strict=True):
        assert found.dtype == dtype
        assert_close(found, right, dtype)


def test_gradcheck(monkeypatch):
    monkeypatch.setattr(pointer, "_CPU_SCORES", 1)
    queries, keys, *others = make(2, 19, 21)
    assert torch.autograd.gradcheck(lambda q, k: loss(pointer_sums(q, k, *others)), (queries, keys))


def test_scores_beyond_the_exponents_of_a_float():
    keys = torch.tensor([[[300.0], [300.0], [-300.0]]], requires_grad=True)
    queries = torch.ones(1, 1, 1, requires_grad=True)
    ids = torch.tensor([[0, 1, 1]])
    log_all, log_found = pointer_sums(queries, keys, ids, torch.tensor([[0]]), torch.tensor([2]))
    assert log_all.item() == pytest.approx(300 + math.log(2)) and log_found.item() == pytest.approx(300)
    (gradient,) = torch.autograd.grad(log_found - log_all, keys)
    assert_close(gradient.flatten(), torch.tensor([0.5, -0.5, 0.0]))


def test_a_token_whose_part_is_no_number_has_no_gradient():
    keys = torch.tensor([[[400.0], [150.0]]], requires_grad=True)
    queries = torch.ones(1, 1, 1, requires_grad=True)
    log_all, log_found = pointer_sums(queries, keys, torch.tensor([[0, 1]]), torch.tensor([[1]]), torch.tensor([1]))
    assert log_all.item() == 400 and log_found.item() == float("-inf")
    gradients = torch.autograd.grad(log_all.sum() + log_found.nan_to_num(neginf=0.0).sum(), (queries, keys))
    assert_close(gradients[0].flatten(), torch.tensor([400.0]))
    assert_close(gradients[1].flatten(), torch.tensor([1.0, 0.0]))


def test_places_after_the_last_query_are_not_read():
    queries, keys, ids, targets, _, _ = make(2, 3, 9)
    at = torch.arange(2, 5)
    ids[:, 5:] = targets[:, :1]
    for function in (pointer_sums, pointer_sums_dense):
        for long, short in zip(
            function(queries, keys, ids, targets, at),
            function(queries, keys[:, :5], ids[:, :5], targets, at),
            strict=True,
        ):
            assert torch.equal(long, short)


@pytest.mark.parametrize("function", [pointer_sums, pointer_sums_dense])
def test_autocast_does_not_reach_scores(function):
    queries, keys, *others = make(2, 6, 9, dtype=torch.float32)
    expected = function(queries, keys, *others)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for ours, exact in zip(function(queries, keys, *others), expected, strict=True):
            assert ours.dtype == torch.float32 and torch.equal(ours, exact)


def test_graphs_and_transforms_take_the_definition():
    torch._dynamo.reset()
    arguments = make(2, 6, 9, packed=True)
    compiled = torch.compile(pointer_sums, backend="aot_eager", fullgraph=True)
    ours = torch.autograd.grad(loss(compiled(*arguments)), arguments[:2])
    for found, right in zip(ours, torch.autograd.grad(loss(pointer_sums(*arguments)), arguments[:2]), strict=True):
        assert_close(found, right)
    queries, keys, ids, targets, at, _ = make(2, 6, 9)
    each = torch.func.vmap(lambda q, k: loss(pointer_sums(q[None], k[None], ids[:1], targets[:1], at)))(queries, keys)
    alone = [loss(pointer_sums(queries[b : b + 1], keys[b : b + 1], ids[:1], targets[:1], at)) for b in range(2)]
    assert_close(each, torch.stack(alone))


def test_second_derivatives_are_refused():
    queries, keys, *others = make(1, 4, 4)
    (gradient,) = torch.autograd.grad(loss(pointer_sums(queries, keys, *others)), keys, create_graph=True)
    with pytest.raises(RuntimeError, match=r"twice|second"):
        torch.autograd.grad(gradient.sum(), queries)


def test_no_matrix_of_scores_is_kept():
    """Kept for the backward pass are tensors of the size of the arguments."""
    queries, keys, *others = make(2, 300, 300, dtype=torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        loss(pointer_sums(queries, keys, *others))
    assert max(kept) <= queries.numel()


@pytest.mark.parametrize("shape", [(0, 5, 5), (2, 0, 5)])
def test_no_queries(shape):
    queries, keys, *others = make(*shape)
    log_all, log_found = pointer_sums(queries, keys, *others)
    assert log_all.shape == log_found.shape == shape[:2]
    assert not torch.autograd.grad(log_all.sum() + log_found.sum(), keys)[0].any()
