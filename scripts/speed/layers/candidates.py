"""The registry of timed layers: which pairs there are, and how each layer is built and checked.

Rivals from elsewhere are "original", "original_fd" (original_tnn.py) and those of rivals.py.
"""

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from timing.parameters import count
from timing.protocol import Call, Candidate, Oracle, values
from torch import Tensor, nn
from transformers import AutoConfig

from hf_seqmix import SeqMixHybridConfig
from hf_seqmix.models.block import SeqMixBlock

from .original_tnn import OriginalFDTNNLayer, OriginalTNNLayer
from .rivals import HEAD_WIDTH, RIVALS, build_rival

__all__ = [
    "Layer",
    "Pair",
    "Trial",
    "build",
    "candidates_of",
    "copy_weights",
    "layer_pairs",
    "other_pairs",
    "paper_pairs",
    "transformer_pairs",
]


ORIGINALS: Mapping[str, Callable[..., nn.Module]] = {"original": OriginalTNNLayer, "original_fd": OriginalFDTNNLayer}
"""Families of layers computed as the published code does."""


class Layer(NamedTuple):
    """A layer: its family (one of `ORIGINALS`, a rival, or a model type), direction, and the sizes of its kernel."""

    family: str
    causal: bool
    mlp_width: int = 0
    mlp_depth: int = 0
    points: int = 0
    taps: int = 0
    degree: int = 0

    @property
    def name(self) -> str:
        """What tables call it; they say the direction elsewhere."""
        details = {"K": self.mlp_depth, "r": self.points, "m": self.taps, "degree": self.degree}
        return " ".join([self.family, *(f"{name}={value}" for name, value in details.items() if value)])

    @property
    def direction(self) -> str:
        """Which tokens a token sees."""
        return "causal" if self.causal else "bidirectional"


class Pair(NamedTuple):
    """A layer, what it is measured against, and the ratios that were published for it, by length (None: for any)."""

    layer: Layer
    rival: Layer
    published_faster: Mapping[int | None, float] = {}
    """Speed over the rival's, less one."""
    published_memory: Mapping[int | None, float] = {}
    """Memory saved, as a part of the rival's."""
    longest: int | None = None
    """Greatest length at which the rival is tried."""


def usual(family: str, causal: bool) -> Layer:
    """Return a layer of the package at the sizes of the tables that are not the paper's."""
    if family == "ski_tnn":
        return Layer(family, causal, points=64, taps=33)
    if family in ("tnn", "fd_tnn", "original"):
        return Layer(family, causal, 32, 1)
    return Layer(family, causal)


def layer_pairs() -> list[Pair]:
    """Return the pairs of the table `layers`."""
    ski = usual("ski_tnn", False)
    return [
        *(Pair(usual(family, True), usual("original", True)) for family in ("tnn", "fd_tnn")),
        Pair(ski, usual("original", True)),
        *(Pair(usual(family, False), usual("original", False)) for family in ("tnn", "fd_tnn")),
        Pair(ski, usual("original", False)),
        Pair(usual("fd_tnn", False), usual("tnn", False)),
        Pair(ski, usual("tnn", False)),
    ]


def paper_pairs() -> list[Pair]:
    """Return the pairs of the table `paper`, with what section 5 and appendix F of the paper report."""

    def of(family: str, causal: bool, depth: int = 0) -> Layer:
        return Layer(family, causal, points=32, taps=17) if family == "ski_tnn" else Layer(family, causal, 64, depth)

    faster: dict[tuple[str, bool, int, int], Mapping[int | None, float]] = {
        # family, causal, its depth, the rival's depth
        ("fd_tnn", True, 6, 6): {512: 0.15},
        ("fd_tnn", True, 3, 3): {512: 0.10},
        ("fd_tnn", False, 6, 6): {None: 0.80},
        ("ski_tnn", False, 0, 6): {512: 0.25, 2048: 0.30},
    }
    memory: Mapping[int | None, float] = {512: 0.17, 2048: 0.42}
    pairs = []
    for rival_family in ("original", "tnn"):
        for causal in (True, False):
            layers = [of("fd_tnn", causal, 3), of("fd_tnn", causal, 6)]
            layers += [] if causal else [of("ski_tnn", causal)]
            if rival_family == "original":
                layers = [of("tnn", causal, 6), *layers]
            for layer in layers:
                known = faster.get((layer.family, causal, layer.mlp_depth, 6), {})
                saved = memory if layer.family == "ski_tnn" else {}
                pairs.append(Pair(layer, of(rival_family, causal, 6), known, saved))
        both_shallow = faster["fd_tnn", True, 3, 3]
        pairs.append(Pair(of("fd_tnn", True, 3), of(rival_family, True, 3), both_shallow))
    # What the paper timed: the original's FD-TNN against the original's TNN.
    for (family, causal, depth, rival_depth), known in faster.items():
        if family == "fd_tnn":
            pairs.append(Pair(of("original_fd", causal, depth), of("original", causal, rival_depth), known))
    return pairs


def transformer_pairs() -> list[Pair]:
    """Return the pairs of the table `transformers`: every family against a Llama layer, SKI in both directions."""
    llama = Layer("llama", True)
    polynomials = [Layer("poly_transformer", True, degree=degree) for degree in (3, 4)]
    causal = [usual("tnn", True), usual("fd_tnn", True), usual("ski_tnn", False), usual("ipa", True), *polynomials]
    both = [Pair(layer, llama) for layer in (*causal, usual("attention", True))]
    return both + [Pair(usual(family, False), Layer("llama", False)) for family in ("tnn", "fd_tnn", "ski_tnn")]


def other_pairs(device: str, slow_limit: int) -> list[Pair]:
    """Return the pairs of the table `others`: against Mamba up to a length, and against fla's layer."""
    layers = [usual("tnn", True), usual("ski_tnn", False), Layer("poly_transformer", True, degree=3)]
    pairs = [Pair(layer, Layer("mamba", True), longest=slow_limit) for layer in layers]
    if torch.device(device).type != "cpu" and importlib.util.find_spec("fla") is not None:
        pairs += [Pair(layer, Layer("gla", True)) for layer in layers]
    return pairs


def build(layer: Layer, length: int, hidden_size: int, parameters: int | None = None) -> nn.Module:
    """Build a layer with random weights, those of seed 0.

    Args:
        layer: which.
        length: tokens that it will see.
        hidden_size: channels in and out.
        parameters: how many parameters a rival from elsewhere should have.

    Raises:
        RuntimeError: if that is missed by more than 2 %.
    """
    torch.manual_seed(0)
    if (original := ORIGINALS.get(layer.family)) is not None:
        return original(hidden_size, 3 * hidden_size, layer.mlp_width, layer.mlp_depth, causal=layer.causal)
    if layer.family in RIVALS:
        assert parameters is not None
        return build_rival(layer.family, layer.causal, length, hidden_size, parameters)
    fields = _fields(layer, length)
    common: dict[str, Any] = {
        "hidden_size": hidden_size,
        "num_hidden_layers": 1,
        "max_position_embeddings": length,
        "is_causal": layer.causal,
        "hidden_dropout": 0.0,
    }
    if layer.family == "attention":
        heads = max(1, hidden_size // HEAD_WIDTH)
        config: Any = SeqMixHybridConfig(mixer_configs={"attention": {"num_heads": heads}}, **common)
    else:
        config = AutoConfig.for_model(layer.family, **common, **fields)
    return SeqMixBlock(config, 0)


class Trial:
    """A pair of layers with an input at one length, ready to be checked and timed.

    Args:
        pair: the two layers.
        length, batch: of the input (batch, length, hidden_size).
        hidden_size: channels in and out.
        dtype: of autocast.
        device: where.
    """

    def __init__(self, pair: Pair, length: int, batch: int, hidden_size: int, dtype: str, device: str) -> None:
        self.pair = pair
        self.dtype = getattr(torch, dtype)
        ours = build(pair.layer, length, hidden_size)
        rival = build(pair.rival, length, hidden_size, count(ours))
        self.layers = {"layer": ours.to(device), "rival": rival.to(device)}
        generator = torch.Generator().manual_seed(0)
        self.x, self.upstream = (
            torch.randn(batch, length, hidden_size, generator=generator).to(device) for _ in range(2)
        )
        self.x.requires_grad_()

    def step(self, module: nn.Module, x: Tensor) -> Tensor:
        """Call a layer under autocast, if its dtype is a half."""
        with torch.autocast(x.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            return module(x)

    def oracles(self) -> list[Oracle]:
        """Return what the layer is compared with: itself in float64, and a TNN with the original of the same weights.

        Bounds are of rounding in float32 and under autocast; the norms of TNN and the original differ by their
        epsilon.
        """
        ours, rival = self.layers["layer"], self.layers["rival"]

        def single(module: nn.Module) -> tuple[Tensor, ...]:
            return values(module, [self.x], self.upstream)

        def double() -> tuple[Tensor, ...]:
            exact = values(ours.double(), [self.x.detach().double().requires_grad_()], self.upstream)
            ours.float()
            return exact

        found = [Oracle("itself in float64", lambda: single(ours), double, 1e-3)]
        if self.dtype != torch.float32:
            under = partial(values, partial(self.step, ours), [self.x], self.upstream)
            found.append(Oracle("itself in float64, under autocast,", under, double, 5e-2))
        if self.pair.layer.family == "tnn" and self.pair.rival == self.pair.layer._replace(family="original"):

            def copied() -> tuple[Tensor, ...]:
                copy_weights(rival, ours)
                return single(ours)

            found.append(Oracle("the original", copied, lambda: single(rival), 1e-3))
        return found


def candidates_of(trial: Trial) -> dict[str, Candidate]:
    """Return "layer", which is checked, and "rival", which is taken as it is."""

    def call(module: nn.Module) -> Call:
        return Call(partial(trial.step, module), [trial.x], trial.upstream, list(module.parameters()))

    ours = f"{trial.pair.layer.direction} {trial.pair.layer.name}"
    layer, rival = trial.layers["layer"], trial.layers["rival"]
    return {
        "layer": Candidate(ours, lambda: call(layer), trial.oracles),
        "rival": Candidate(trial.pair.rival.name, lambda: call(rival), list),
    }


def _fields(layer: Layer, length: int) -> dict[str, Any]:
    if layer.family == "ski_tnn":
        return {"num_inducing_points": min(layer.points, length), "conv_kernel_size": layer.taps}
    if layer.family in ("tnn", "fd_tnn"):
        decay = {"decay": 0.99} if layer.family == "tnn" else {}
        return {"rpe_hidden_size": layer.mlp_width, "rpe_num_layers": layer.mlp_depth, **decay}
    return {"degree": layer.degree} if layer.degree else {}


def copy_weights(original: nn.Module, block: nn.Module) -> None:
    """Give a TNN block of the package the weights of the original's layer."""
    places = {"u_proj": "mixer.", "v_proj": "mixer.", "o_proj": "mixer.", "product": "mixer.operator."}
    state = {}
    for name, weight in original.state_dict().items():
        name = name.replace("product.encoder", "product.kernel.encoder")
        first = name.partition(".")[0]
        state[places.get(first, "mlp.") + name.removeprefix("product.")] = weight
    block.load_state_dict(state)
