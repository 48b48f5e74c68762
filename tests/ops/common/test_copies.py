"""Copies added to the probabilities of a vocabulary."""

import torch
from torch import nn

from hf_seqmix.ops.common.copies import add_copies
from tests.tolerances import assert_close

VOCAB = 7


def test_tokens_that_repeat_by_their_formula_and_gradients():
    log_model = torch.randn(2, 3, VOCAB, dtype=torch.float64).log_softmax(-1).requires_grad_()
    shares = torch.rand(2, 3, 5, dtype=torch.float64).requires_grad_()
    for ids in (torch.tensor([[4, 1, 4, 4, 0], [2, 3, 1, 0, 5]]), torch.full((2, 5), 6)):
        expected = (log_model.exp() + shares @ nn.functional.one_hot(ids, VOCAB).double()).log()
        assert_close(add_copies(log_model, shares, ids), expected)
        assert torch.autograd.gradcheck(add_copies, (log_model, shares, ids))
    one = add_copies(log_model[:, :1], shares[:, :1, :1], ids[:, :1])
    assert one.shape == (2, 1, VOCAB)


def test_compiled_graphs_compute_the_same():
    torch._dynamo.reset()
    log_model = torch.randn(2, 3, VOCAB, dtype=torch.float64).log_softmax(-1).requires_grad_()
    shares = torch.rand(2, 3, 5, dtype=torch.float64).requires_grad_()
    ids = torch.tensor([[4, 1, 4, 4, 0], [2, 3, 1, 0, 5]])
    weights = torch.randn(2, 3, VOCAB, dtype=torch.float64)
    found = []
    for function in (add_copies, torch.compile(add_copies, backend="aot_eager", fullgraph=True)):
        out = function(log_model, shares, ids)
        found.append((out, *torch.autograd.grad((out * weights).sum(), (log_model, shares))))
    for eager, compiled in zip(*found, strict=True):
        assert_close(compiled, eager)


def test_probabilities_too_small_for_a_number():
    log_model = torch.full((1, 1, VOCAB), -200.0, requires_grad=True)
    shares = torch.tensor([[[0.0, 0.25]]], requires_grad=True)
    out = add_copies(log_model, shares, torch.tensor([[3, 5]]))
    out.sum().backward()
    expected = torch.tensor([-200.0] * VOCAB)
    expected[5] = torch.tensor(0.25).log()
    assert_close(out[0, 0], expected)
    assert_close(log_model.grad[0, 0], (torch.arange(VOCAB) != 5).float())
    assert_close(shares.grad[0, 0], torch.tensor([0.0, 4.0]))


def test_a_token_that_is_impossible_and_not_copied_has_a_gradient():
    log_model = torch.tensor([[[0.5, 0.5, 0.0]]], dtype=torch.float64).log().requires_grad_()
    shares = torch.tensor([[[0.0, 0.3]]], dtype=torch.float64, requires_grad=True)
    log_p = add_copies(log_model, shares, torch.tensor([[2, 0]]))
    of_model, of_shares = torch.autograd.grad(log_p[..., 0].sum(), (log_model, shares))
    assert_close(of_model[0, 0], torch.tensor([0.5 / 0.8, 0, 0], dtype=torch.float64))
    assert_close(of_shares[0, 0], torch.tensor([0, 1 / 0.8], dtype=torch.float64))
