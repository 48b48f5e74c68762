"""Gates, powers and denominators of polynomial mixers: formulas, first values, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix import PolynomialMixer, PolyTransformerConfig
from hf_seqmix.models.poly_transformer.forget_gate import ForgetGate, log_gates
from hf_seqmix.models.poly_transformer.gated_group import GatedGroup
from hf_seqmix.ops import power_attention_dense
from tests.models.poly_transformer.test_mixer import heads, make, rms
from tests.tolerances import assert_close


@pytest.mark.parametrize(
    "fields",
    [
        {"forget_gate": True},
        {"kernel_power": 2},
        {"kernel_power": 3, "forget_gate": True},
        {"kernel_power": 2, "forget_gate": True, "denominator": True},
    ],
    ids=str,
)
def test_degree_three_by_its_formula(fields: dict[str, Any]) -> None:
    mixer = make(**fields)
    (group,) = mixer.groups
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    q, k, v = (heads(projection(x)) for projection in group.factors)
    gates = torch.sigmoid(group.gate_proj(x)).log() if fields.get("forget_gate") else None
    power, denominator = fields.get("kernel_power", 1), fields.get("denominator", False)
    y = power_attention_dense(q, k, v, gates, power=power, denominator=denominator)
    assert_close(mixer(x), mixer.o_proj(rms(y)))
    assert mixer.mean_degree.item() == 2 * power + 1


def test_means_fade_too() -> None:
    mixer = make(degree=2, normalization="none", forget_gate=True)
    x = torch.randn(1, 4, 16, dtype=torch.float64)
    first, second = (heads(projection(x)) for projection in mixer.groups[0].factors)
    gates = torch.sigmoid(mixer.groups[0].gate_proj(x)).unsqueeze(-1)
    total, count = torch.zeros_like(first[:, 0]), torch.zeros_like(gates[:, 0])
    for t in range(4):
        total, count = gates[:, t] * total + second[:, t], gates[:, t] * count + 1
    assert_close(mixer(x)[:, 3], mixer.o_proj((first[:, 3] * total / count).flatten(1)))


def test_gates_that_are_open_change_nothing() -> None:
    for fields in ({"degree": 2}, {"degree": 3}, {"degree": 4}, {"head_degrees": [2, 3, 4, 5]}):
        plain, gated = make(**fields), make(**fields, forget_gate=True)
        gated.load_state_dict(plain.state_dict(), strict=False)
        for group in gated.groups:
            assert isinstance(group, GatedGroup) and group.gate_proj is not None
            group.gate_proj.weight.data.zero_()
            group.gate_proj.bias.data.fill_(80.0)
        x = torch.randn(2, 70, 16, dtype=torch.float64)
        assert_close(gated(x), plain(x))


def test_a_mixer_without_the_settings_is_what_it_was() -> None:
    names = {name for name, _ in PolynomialMixer(16, num_heads=4).named_parameters()}
    gated = {name for name, _ in PolynomialMixer(16, num_heads=4, forget_gate=True).named_parameters()}
    assert gated - names == {"groups.0.gate_proj.weight", "groups.0.gate_proj.bias"} and names < gated
    powers = {name for name, _ in PolynomialMixer(16, num_heads=4, kernel_power=2).named_parameters()}
    assert powers == names


def test_where_gates_begin() -> None:
    gate = ForgetGate(256, 5)
    assert gate.bias.tolist() == [4, 4.5, 5, 5.5, 6]
    assert gate.weight.std().item() == pytest.approx(1 / 16, rel=0.1)
    assert ForgetGate(256, 1).bias.tolist() == [5]
    x = torch.randn(2, 3, 256)
    assert_close(log_gates(gate(x)), torch.sigmoid(gate(x)).log())
    assert log_gates(gate.bfloat16()(x.bfloat16())).dtype == torch.float32
    mixer = PolynomialMixer(16, num_heads=4, head_degrees=[2, 3, 2, 3], forget_gate=True)
    assert [group.gate_proj.bias.tolist() for group in mixer.groups] == [[4, 6], [4, 6]]


@pytest.mark.parametrize(
    "fields", [{"forget_gate": True}, {"kernel_power": 3}, {"kernel_power": 2, "denominator": True}]
)
def test_outputs_of_heads_keep_their_size_at_any_length(fields: dict[str, Any]) -> None:
    mixer = make(0.0, **fields)
    mixer.o_proj = torch.nn.Identity()
    y: Tensor = mixer(torch.randn(1, 3000, 16, dtype=torch.float64))
    assert heads(y).square().mean(dim=-1).min() > 0.9


def test_the_state_has_as_many_numbers_as_symmetric_powers() -> None:
    group = make(kernel_power=3).groups[0]
    assert isinstance(group, GatedGroup)
    assert group.sum_width(4) == 4 * (1 + 20 * 4)  # C(4 + 2, 3) = 20
    assert make(kernel_power=2, denominator=True).groups[0].sum_width(4) == 4 * (1 + 10 * 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"forget_gate": True, "is_causal": False}, "forget_gate is True, but is_causal is False: .* set forget_gate"),
        (
            {"forget_gate": True, "mixing": "toeplitz"},
            "forget_gate asks for mixing 'content', but mixing is 'toeplitz'",
        ),
        ({"forget_gate": True, "degree": 4, "degree_form": "soft"}, "forget_gate does not go with degree_form 'soft'"),
        ({"forget_gate": True, "degree": 2.5}, "forget_gate asks for integer degrees, but a degree is 2.5: round it"),
        ({"kernel_power": 0}, "kernel_power is 0; it must be from 1 to 16"),
        ({"kernel_power": 17, "num_heads": 32}, "kernel_power is 17; it must be from 1 to 16"),
        ({"kernel_power": 2, "degree": 4}, "kernel_power 2 asks for degree 3, .* but a degree is 4: set degree to 3"),
        ({"kernel_power": 2, "mixing": "triangular"}, "kernel_power 2 asks for mixing 'content'"),
        ({"denominator": True}, "denominator is True, but kernel_power is 1: .* take kernel_power 2 or 4"),
        ({"denominator": True, "kernel_power": 3}, "denominator is True, but kernel_power is 3"),
        ({"denominator": True, "degree": 2}, "denominator asks for degree 3, .* but a degree is 2"),
        ({"kernel_power": 16}, r"kernel_power is 16 with heads of 8 channels, .* 245,157 x 8 numbers a head"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolynomialMixer(32, **{"num_heads": 4, **fields})
    named = {"num_attention_heads" if name == "num_heads" else name: value for name, value in fields.items()}
    with pytest.raises(ValueError, match=message):
        PolyTransformerConfig(**{"hidden_size": 32, "num_attention_heads": 4, **named})
