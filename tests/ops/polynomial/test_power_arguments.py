"""Arguments of power attention, its definition and its sums that do not fit one another."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from hf_seqmix.ops import power_attention, power_attention_dense
from hf_seqmix.ops.polynomial.power_attention import PowerSums, power_sums
from tests.ops.polynomial.test_power_attention import make


def test_what_does_not_fit_is_refused():
    q, k, v, gates = make(5)
    assert gates is not None
    for arguments, fields, message in (
        ((q, k, v), {"form": "fast"}, "form is 'fast'; it must be one of 'chunked', 'parallel', 'recurrent'"),
        ((q, k[:, 1:], v), {}, "q and k must be"),
        ((q, k, v, gates[:, 1:]), {}, r"log_gates \(batch, length, heads\) of the keys"),
        ((q, k[:, 1:], v[:, 1:]), {}, "there are 5 queries but 4 keys"),
        ((q, k, v), {"power": 0}, "power is 0; it must be an integer from 1 to 16"),
        ((q, k, v), {"power": 1.5}, "power is 1.5; it must be an integer from 1 to 16"),
        ((q, k, v), {"power": 3, "denominator": True}, "denominator is True, but power is 3"),
        ((q, k, v, gates), {"causal": False}, "log_gates are given, but causal is False"),
        ((q, k, v, gates.exp()), {}, r"log_gates are up to .*; they are logarithms .* at most 0: take gate.log\(\)"),
        ((q, k, v), {"chunk": 0}, "chunk is 0; it must be at least 1"),
        ((q[..., :0], k[..., :0], v), {}, r"q and k have the width 0, \(2, 5, .*, 0\)"),
    ):
        for function in (power_attention, power_attention_dense):
            if function is power_attention or not {"form", "chunk"} & set(fields):
                with pytest.raises(ValueError, match=message):
                    function(*arguments, **fields)


@pytest.mark.parametrize("change", ["batch", "heads", "features", "values", "tokens", "denominator"])
def test_sums_that_do_not_fit_are_refused(change):
    """Each of these shapes would be broadcast, or is of other settings."""
    q, k, v, gates = make(5)
    fields = {"power": 2, "denominator": change == "denominator"}
    products, tokens = power_sums(k, v, gates, power=2)
    if change == "tokens":
        tokens = tokens[:, :1]
    elif change != "denominator":
        products = products.narrow(["batch", "heads", "features", "values"].index(change), 0, 1)
    sums = PowerSums(products, tokens)
    for call in (
        lambda: power_attention(q, k, v, gates, **fields, sums=sums),
        lambda: power_sums(k, v, gates, **fields, sums=sums),
    ):
        with pytest.raises(
            ValueError, match=r"sums have the shapes .*; they must be .*, as `power_sums` returns them"
        ):
            call()


def test_sums_refuse_what_power_attention_refuses():
    _, k, v, gates = make(5)
    assert gates is not None
    for wrong in ((k[:1], v), (k[:, :1], v), (k[:, :, :1], v), (k, v, gates[:1]), (k, v, gates[:, :, :1])):
        with pytest.raises(ValueError, match=r"q and k must be"):
            power_sums(*wrong)
    with pytest.raises(ValueError, match="they are logarithms of gates"):
        power_sums(k, v, -gates)


def test_gates_are_not_looked_at_where_they_are_fake():
    with FakeTensorMode():
        q, k, v = (torch.randn(1, 6, 2, 3) for _ in range(3))
        assert power_attention(q, k, v, power=2, log_gates=torch.zeros(1, 6, 2)).shape == (1, 6, 2, 3)
    q, k, v = (torch.randn(1, 6, 2, 3) for _ in range(3))
    power_attention(q, k, v, power=2, log_gates=torch.full((1, 6, 2), 1e-8))  # a gate of 1, rounded
