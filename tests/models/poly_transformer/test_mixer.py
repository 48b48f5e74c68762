"""Polynomial mixers as plain modules: their formulas, degrees, sizes and norms."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from hf_seqmix import PolynomialMixer, PolyTransformerConfig, PolyTransformerModel
from hf_seqmix.modules.norms import calibrate_static_norms
from hf_seqmix.ops import polynomial_product
from hf_seqmix.ops.layout import TokenLayout
from hf_seqmix.ops.polynomial.stages import signed_power
from tests.tolerances import assert_close, relative_error

VARIANTS: dict[str, dict[str, Any]] = {
    "2": {"degree": 2},
    "3": {"degree": 3},
    "4": {"degree": 4},
    "4 gate": {"degree": 4, "degree_form": "gate"},
    "5": {"degree": 5},
    "e": {"degree": math.e},
    "3.5": {"degree": 3.5},
    "heads": {"head_degrees": [2, 3, 4, 3]},
    "soft": {"degree": 4, "degree_form": "soft"},
    "toeplitz": {"mixing": "toeplitz"},
    "triangular": {"mixing": "triangular", "head_degrees": [3, 2, 3, 3]},
    "gated": {"forget_gate": True},
    "gated heads": {"head_degrees": [2, 3, 4, 5], "forget_gate": True},
    "gate heads": {"head_degrees": [2, 3, 4, 5], "degree_form": "gate"},
    "gated gate heads": {"head_degrees": [2, 3, 4, 3], "degree_form": "gate", "forget_gate": True},
    "squared": {"kernel_power": 2},
    "cubed": {"kernel_power": 3, "forget_gate": True},
    "divided": {"kernel_power": 2, "forget_gate": True, "denominator": True},
}
CASES = [(n, c) for n, fields in VARIANTS.items() for c in (True, False) if c or not fields.get("forget_gate")]


def make(perturbed: float = 0.2, **kwargs: Any) -> PolynomialMixer:
    mixer = PolynomialMixer(16, **{"num_heads": 4, "max_positions": 12, **kwargs}).double()
    for parameter in mixer.parameters():
        parameter.data.add_(perturbed * torch.randn_like(parameter))
    return mixer.eval()


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, 4))


def rms(y: Tensor) -> Tensor:
    return (y / (y.square().mean(dim=-1, keepdim=True) + 1e-12).sqrt()).flatten(2)


@pytest.mark.parametrize(("name", "is_causal"), CASES)
def test_padding_and_packing_without_a_model(name, is_causal):
    mixer = make(is_causal=is_causal, **VARIANTS[name])
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    for mask in (
        torch.tensor([[0, 0, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1]]),
        torch.tensor([[0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]]),
    ):
        out = mixer(x.masked_fill(~mask.bool().unsqueeze(-1), float("nan")), attention_mask=mask)
        for row in range(2):
            real = mask[row].bool()
            assert_close(out[row][real], mixer(x[row][real][None])[0])
    packed = mixer(x[:1], position_ids=torch.tensor([[0, 1, 0, 1, 2, 3]]))
    assert_close(packed[:, 2:], mixer(x[:1, 2:]))
    assert_close(packed[:, :2], mixer(x[:1, :2]))


@pytest.mark.parametrize("name", ["2", "3", "4", "4 gate", "5", "toeplitz", "squared"])
def test_the_degree_is_exact(name):
    mixer = make(**VARIANTS[name], use_bias=False, normalization="none")
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    degree = round(mixer.mean_degree.item())
    assert degree == (5 if name == "squared" else VARIANTS[name].get("degree", 3))
    if name == "toeplitz":  # a transform rounds
        assert_close(mixer(2 * x), 2**degree * mixer(x))
    else:
        assert torch.equal(mixer(2 * x), 2**degree * mixer(x))


def test_degree_three_by_its_formula():
    mixer = make(degree=3)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    q, k, v = (heads(projection(x)).transpose(1, 2) for projection in mixer.groups[0].factors)
    count = torch.arange(1, 10, dtype=torch.float64).unsqueeze(1)
    y = (torch.tril(q @ k.transpose(-1, -2)) @ v / (2 * count)).transpose(1, 2)
    assert_close(mixer(x), mixer.o_proj(rms(y)))


@pytest.mark.parametrize("degree", [2, 4, 6])
def test_outputs_of_heads_keep_their_size_at_any_length(degree):
    mixer = make(0.0, degree=degree)
    mixer.o_proj = nn.Identity()
    y = mixer(torch.randn(1, 3000, 16, dtype=torch.float64))
    assert heads(y).square().mean(dim=-1).min() > 0.9


def test_means_are_over_real_tokens():
    mixer = make(degree=2, normalization="none")
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    mask = torch.tensor([[0, 1, 0, 1, 1]])
    first, second = (projection(x) for projection in mixer.groups[0].factors)
    mean = second[:, [1, 3, 4]].mean(dim=1)  # of three tokens, not five
    assert_close(mixer(x, attention_mask=mask)[:, 4], mixer.o_proj(first[:, 4] * mean))


@pytest.mark.parametrize(("degree", "power_factor"), [(math.e, 0), (3.5, 3), (4.25, 4)])
def test_fractional_degrees(degree, power_factor):
    mixer = make(degree=degree, normalization="none", use_bias=False)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    factors = [heads(projection(x)) for projection in mixer.groups[0].factors]
    factors[power_factor] = signed_power(factors[power_factor], degree - math.floor(degree))
    assert_close(mixer(x), mixer.o_proj(polynomial_product(factors).y.flatten(2)))
    # Homogeneous of that very degree, but for the epsilon that keeps the slope at zero finite.
    large = 1e4 * x
    assert relative_error(mixer(2 * large), 2**degree * mixer(large)) < 1e-4


def test_heads_of_different_degrees_are_groups_side_by_side():
    mixer = make(head_degrees=[3, 2, 3, 4], normalization="none")
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    parts = []
    for group, (degree, number) in zip(mixer.groups, ((2, 1), (3, 2), (4, 1)), strict=True):
        assert len(group.factors) == degree
        factors = [projection(x).unflatten(-1, (number, 4)) for projection in group.factors]
        parts.append(polynomial_product(factors).y.flatten(2))
    assert_close(mixer(x), mixer.o_proj(torch.cat(parts, dim=-1)))
    assert mixer.mean_degree.item() == 3


def test_a_soft_degree_is_the_weighted_sum_of_three():
    mixer = make(degree=4, degree_form="soft", normalization="none")
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    factors = [heads(projection(x)) for projection in mixer.groups[0].factors]
    weights = mixer.degree_logits.softmax(dim=0)
    y = sum(weight * polynomial_product(factors[:d]).y for d, weight in zip((2, 3, 4), weights, strict=True))
    assert_close(mixer(x), mixer.o_proj(y.flatten(2)))
    mean = weights @ torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(mixer.mean_degree, mean)
    torch.testing.assert_close(mixer.auxiliary_loss(), 0.01 * (mean - math.e) ** 2)
    assert make(degree=3).auxiliary_loss() is None


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("mixing", ["toeplitz", "triangular"])
def test_static_mixing_by_matrices(mixing, is_causal):
    mixer = make(head_degrees=[2, 3, 3, 2], mixing=mixing, is_causal=is_causal)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    if mixing == "toeplitz":
        lags = torch.arange(9).unsqueeze(1) - torch.arange(9)
        taps = mixer.operator.kernel.taps
        matrices = torch.tril(taps[:, lags.clamp(min=0)]) if is_causal else taps[:, lags + 11]
    else:
        matrices = mixer.operator.weight[:, :9, :9]
        matrices = torch.tril(matrices) if is_causal else matrices
    parts, rest = [], list(matrices)
    for group in mixer.groups:
        y = torch.ones(2, 9, 2, 4, dtype=torch.float64)
        for projection in group.factors:
            factor = projection(x).unflatten(-1, (2, 4))
            own, rest = torch.stack(rest[:2]), rest[2:]
            y = y * torch.einsum("hts,bshc->bthc", own, factor)
        parts.append(y)
    assert not rest
    assert_close(mixer(x), mixer.o_proj(rms(torch.cat(parts, dim=2))))


def test_learned_positions_end():
    toeplitz = make(mixing="toeplitz")
    assert toeplitz(torch.randn(1, 40, 16, dtype=torch.float64)).shape == (1, 40, 16)
    kernel = toeplitz.operator.kernel
    assert not kernel(40)[:, 12:].any() and kernel(40)[:, 11].all()
    triangular = make(mixing="triangular")
    x = torch.randn(2, 14, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"14 tokens, .*positions 0 to 11 \(max_position_embeddings\)"):
        triangular(x)
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[:, 3:5] = 0  # twelve tokens are left
    assert_close(triangular(x, attention_mask=mask)[:, 13], triangular(x[:, mask[0].bool()])[:, 11])
    with pytest.raises(ValueError, match="13 tokens"):
        triangular(x, position_ids=torch.tensor([[*range(13), 0]]))
    for mixer in (toeplitz, triangular):
        (module,) = [module for module in mixer.modules() if hasattr(module, "check_context_length")]
        with pytest.raises(ValueError, match="the context length cannot be changed"):
            module.check_context_length(20)


def test_a_triangular_cache_ends_where_the_positions_do():
    mixer = make(mixing="triangular")
    x = torch.randn(1, 13, 16, dtype=torch.float64)
    cache = DynamicCache()
    parts = [mixer(part, past_key_values=cache) for part in (x[:, :4], x[:, 4:5], x[:, 5:12])]
    assert_close(torch.cat(parts, dim=1), mixer(x[:, :12]))
    with pytest.raises(ValueError, match="13 tokens"):
        mixer(x[:, 12:], past_key_values=cache)


@pytest.mark.parametrize("degree", [2, 3, 4, 5, math.e, 3.5])
def test_parameter_counts(degree):
    for use_bias in (True, False):
        with torch.device("meta"):
            mixer = PolynomialMixer(64, degree, num_heads=4, use_bias=use_bias)
        biases = 64 * (math.ceil(degree) + 1) if use_bias else 0
        rank = round((degree - math.floor(degree)) * 32)
        factors = 64 * 64 * math.floor(degree) + 2 * 64 * rank
        assert sum(p.numel() for p in mixer.parameters()) == factors + 64 * 64 + biases
        assert factors == pytest.approx(degree * 64 * 64, rel=0.01)


@pytest.mark.parametrize("normalization", ["static", "batch"])
def test_norms_that_keep_a_polynomial(normalization):
    """Along a line the output is a polynomial of degree 3: its fourth differences vanish."""
    mixer = make(normalization=normalization)
    x, direction = torch.randn(2, 1, 7, 16, dtype=torch.float64)
    if normalization == "batch":
        mixer.train()(torch.randn(4, 7, 16, dtype=torch.float64))
        mixer.eval()
    else:
        calibrate_static_norms(mixer, x)
        assert mixer.norm.weight.std() > 0

    def fourth_difference(mixer: nn.Module) -> float:
        y = torch.stack([mixer(x + 0.5 * t * direction) for t in range(5)])
        for _ in range(4):
            y = y.diff(dim=0)
        return y.abs().max().item()

    assert fourth_difference(mixer) < 1e-10
    assert fourth_difference(make(normalization="rms")) > 1e-3


def test_initial_weights():
    mixer = PolynomialMixer(256, math.e, num_heads=4)
    for module in mixer.modules():
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(module.in_features**-0.5, rel=0.05)
            assert module.bias is None or not module.bias.any()
    y = PolynomialMixer(256, 3, num_heads=4, mixing="triangular")
    x = torch.randn(2, 64, 256)
    mixed = y.operator(torch.cat([projection(x) for projection in y.groups[0].factors], dim=-1), TokenLayout())
    size = mixed.std(dim=(0, 2))[8:]
    assert size.min() > 0.6 and size.max() < 1.4


def test_no_cache_where_there_is_none():
    with pytest.raises(ValueError, match="bidirectional mixer has no cache"):
        make(is_causal=False)(torch.randn(1, 3, 16, dtype=torch.float64), past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="packed sequences cannot fill a cache"):
        make()(
            torch.randn(1, 3, 16, dtype=torch.float64),
            past_key_values=DynamicCache(),
            position_ids=torch.tensor([[0, 0, 1]]),
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_heads": 3}, "num_heads 3 must divide hidden_size 16"),
        ({"degree": 1}, "degree is 1; it must be at least 2"),
        ({"degree": float("nan")}, "degree is nan"),
        ({"head_degrees": [2, 3]}, "head_degrees names 2 heads, but num_heads is 4"),
        ({"degree_form": "hard"}, "degree_form is 'hard'; it must be one of 'cumsum', 'gate', 'soft'"),
        ({"degree_form": "gate"}, "only even degrees from 4 on have, but the degree is 3: leave"),
        ({"degree_form": "soft"}, "the degree is 3: set degree to 4"),
        ({"degree": 4, "degree_form": "gate", "mixing": "toeplitz"}, "mixing 'toeplitz' has one form only"),
        ({"mixing": "learned"}, "mixing is 'learned'; it must be one of 'content', 'toeplitz', 'triangular'"),
        ({"normalization": "layer"}, "normalization is 'layer'; it must be one of 'rms', 'static', 'batch', 'none'"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PolynomialMixer(16, **{"num_heads": 4, **fields})


def test_a_model_draws_the_projections_as_a_mixer_of_its_own_does():
    config = PolyTransformerConfig(vocab_size=8, hidden_size=128, num_hidden_layers=2, degree=2.5, intermediate_size=8)
    mixer = PolyTransformerModel(config).layers[1].mixer
    for name, weight in mixer.named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        else:
            scale = weight.std() * weight.shape[1] ** 0.5
            assert abs(scale - (0.5 if name.startswith("o_proj") else 1)) < 0.05, name
