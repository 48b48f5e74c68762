"""The networks of degree_experiment.py: fully connected and sequence form, their sizes, and their separation ranks."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hf_seqmix import PolynomialMLP
from hf_seqmix.analysis.degree.modular_nets import attention_net, mlp_separation_rank, random_attention_layers
from hf_seqmix.analysis.degree.modular_rank import PRIME, modular_matmul
from hf_seqmix.analysis.degree.separation_rank import exact_separation_rank
from hf_seqmix.data import SeparationTask
from hf_seqmix.models.poly_transformer.mixer import PolynomialMixer
from hf_seqmix.modules import calibrate_static_norms

__all__ = ["FORMS", "NORMS", "WHOLE", "Architecture", "Layers", "architectures", "build_net", "draw_rows", "rank_of"]

FORMS = ("fully-connected", "sequence")
NORMS = ("static", "batch")
WHOLE = ("2", "3", "4", "4, 2")
"""Kinds of nets whose layers have whole degrees."""


@dataclass(frozen=True)
class Layers:
    """What all layers of a net have alike; the defaults are polynomials.

    Attributes:
        norm_type: "static", a constant, or "batch", batch normalization as in the notes (fully connected nets only).
        activation: "identity" or "tanh", after the norm (fully connected nets only).
        num_heads: blocks of each projection.
    """

    norm_type: str = "static"
    activation: str = "identity"
    num_heads: int = 1

    @property
    def is_dense_polynomial(self) -> bool:
        """Whether the formula for separation ranks is that of these layers."""
        return self.activation == "identity" and self.num_heads == 1


@dataclass(frozen=True)
class Architecture:
    """A net of the comparison.

    Attributes:
        form: "fully-connected" or "sequence".
        kind: what it is compared as: one of `WHOLE`, or a fractional degree and how it is made.
        degrees: of the layers.
        width: of the layers; N = width^2.
        affine: projections have biases.
        overhead: layers have an output map besides their projections (always in sequence form).
    """

    form: str
    kind: str
    degrees: tuple[float, ...]
    width: int
    affine: bool
    overhead: bool

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.degrees)

    @property
    def projections(self) -> int:
        """Weights of the projections: the budget without overhead."""
        matrices = 0
        for degree in self.degrees:
            rank = round((degree - math.floor(degree)) * self.width / 2)
            matrices += math.floor(degree) * self.width**2 + 2 * rank * self.width
        return matrices

    @property
    def with_overhead(self) -> int:
        """Weights with the output map of each layer."""
        return self.projections + (self.depth * self.width**2 if self.overhead else 0)


def architectures(form: str, width: int, budget: int, affine: bool, fractional: bool = True) -> list[Architecture]:
    """Return pure degrees at every depth up to the budget, fractional degrees at it, and nets equal with overhead.

    With overhead, whole depths of 2, 3 and 4 are equal two by two: at 12 matrices (2, 3), 15 (2, 4) and 20 (3, 4).
    These are left out at odd multiples of 6, as are mixed layers of degree 2.4. There no depth of degree 4 meets the
    budget, and the last of its layers has degree 2.

    Args:
        form: one of `FORMS`.
        width: of the layers; even multiples of 5 make degree 2.4 exact.
        budget: matrices without overhead, a multiple of 6.
        affine: projections with biases.
        fractional: degree 2.4 (mixed layers, and signed power) and e (signed power) as well.

    Raises:
        ValueError: the budget is no multiple of 6, or the form is unknown.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; it must be one of {', '.join(FORMS)}.")
    if budget < 6 or budget % 6:
        raise ValueError(
            f"budget is {budget} matrices; depths of degrees 2 and 3 are equal at multiples of 6 only, those of 4, "
            "too, at multiples of 12."
        )
    sequence, all_equal = form == "sequence", budget % 12 == 0

    def pure(degree: int, depth: int, overhead: bool) -> Architecture:
        return Architecture(form, str(degree), (degree,) * depth, width, affine, overhead)

    nets = [pure(degree, depth, sequence) for degree in (2, 3, 4) for depth in range(1, budget // degree + 1)]
    if all_equal:
        equal = ((2, 4), (2, 5), (3, 3), (3, 4), (3, 5), (4, 3), (4, 4))
        nets += [pure(degree, depth, True) for degree, depth in equal]
    else:
        mixed = (4,) * (budget // 4) + (2,)
        nets.append(Architecture(form, "4, 2", mixed, width, affine, sequence))
    if fractional and all_equal:
        times = budget // 12
        nets += [
            Architecture(form, "2.4 mixed layers", (2, 2, 2, 3, 3) * times, width, affine, sequence),
            Architecture(form, "2.4 signed power", (2.4,) * 5 * times, width, affine, sequence),
        ]
    if fractional:
        depth = round(budget / math.e)
        # The width at which that many layers of degree e come nearest to the budget.
        candidates = [
            Architecture(form, "e signed power", (math.e,) * depth, wide, affine, sequence)
            for wide in range(max(1, width - 2), width + 4)
        ]
        nets.append(min(candidates, key=lambda net: abs(net.projections - budget * width**2)))
    return list(dict.fromkeys(nets))


class SequenceNet(nn.Module):
    """Residual polynomial mixers over tokens, read at the last token: x + mixer(x), static norms, no feed-forward."""

    def __init__(self, architecture: Architecture, num_tokens: int, in_features: int, num_heads: int = 1) -> None:
        super().__init__()
        width = architecture.width
        self.in_proj = nn.Linear(in_features, width)
        self.positions = nn.Parameter(torch.randn(num_tokens, width) * 0.5)
        self.mixers = nn.ModuleList(
            PolynomialMixer(width, degree, num_heads, use_bias=architecture.affine, normalization="static")
            for degree in architecture.degrees
        )
        self.out_proj = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, num_tokens, in_features) to (rows, 1)."""
        x = self.in_proj(x) + self.positions
        for mixer in self.mixers:
            x = x + mixer(x)
        return self.out_proj(x[:, -1])


class FlatNet(nn.Module):
    """A `PolynomialMLP` of all tokens at once."""

    def __init__(self, architecture: Architecture, num_inputs: int, layers: Layers) -> None:
        super().__init__()
        self.net = PolynomialMLP(
            architecture.width,
            architecture.degrees,
            in_features=num_inputs,
            out_features=1,
            bias=architecture.affine,
            out_projection=architecture.overhead,
            norm_type=layers.norm_type,
            activation=layers.activation,
            num_heads=layers.num_heads,
            residual=True,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, num_tokens, in_features) to (rows, 1)."""
        return self.net(x.flatten(1))


def build_net(architecture: Architecture, task: SeparationTask, seed: int, layers: Layers | None = None) -> nn.Module:
    """Return a net with random weights, its static norms set from 1024 rows of the task."""
    layers = layers or Layers()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if architecture.form == "sequence":
            net: nn.Module = SequenceNet(architecture, task.num_tokens, task.width, layers.num_heads)
        else:
            net = FlatNet(architecture, task.num_tokens * task.width, layers)
    if layers.norm_type == "static":
        inputs, _ = draw_rows(task)(1024, torch.Generator().manual_seed(10_000 + seed))
        calibrate_static_norms(net, inputs)
    return net


def draw_rows(task: SeparationTask) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor]]:
    """Return fresh rows of a task in float32: inputs (rows, num_tokens, width) and targets (rows,)."""

    def draw(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        seed = int(torch.randint(2**62, (), generator=generator))
        inputs = task.draw(rows, np.random.default_rng(seed))
        return torch.tensor(inputs, dtype=torch.float32), torch.tensor(task.values(inputs), dtype=torch.float32)

    return draw


def rank_of(architecture: Architecture, task: SeparationTask, max_size: int) -> int | None:
    """Return the separation rank of a net with generic weights, at most `max_size`; None for a signed power."""
    if any(degree != int(degree) for degree in architecture.degrees):
        return None
    degrees = [int(degree) for degree in architecture.degrees]
    inputs, width, tokens = task.num_tokens * task.width, architecture.width, task.num_tokens
    if architecture.form == "fully-connected":
        # Without output maps, which only nets have whose rank is beyond the task's already: with them it is no
        # smaller, as generic ones do no worse than the identity.
        settings = {"inputs": inputs, "residual": True, "bias": architecture.affine, "linear_readout": True}
        return mlp_separation_rank(degrees, width, max_size=max_size, **settings).rank  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    layers = random_attention_layers(
        degrees, width, projection_bias=architecture.affine, output_bias=architecture.affine
    )
    embedding, positions = rng.integers(PRIME, size=(width, task.width)), rng.integers(PRIME, size=(tokens, width))
    readout = rng.integers(PRIME, size=(width, 1))

    def pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        parts = [x[..., i * task.width : (i + 1) * task.width] for x in (a, b) for i in range(tokens // 2)]
        embedded = [
            _project(part, embedding.T, PRIME) + position for part, position in zip(parts, positions, strict=True)
        ]
        last = attention_net([x % PRIME for x in embedded], layers, residual=True)[-1]
        return _project(last, readout, PRIME)[..., 0]

    return exact_separation_rank(pairs, inputs // 2, inputs // 2, start=min(32, max_size), max_size=max_size).rank


def _project(x: np.ndarray, weight: np.ndarray, prime: int) -> np.ndarray:
    return modular_matmul(x.reshape(-1, x.shape[-1]), weight, prime).reshape(*x.shape[:-1], -1)
