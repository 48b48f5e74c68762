"""Polynomial networks evaluated with integer weights modulo a prime: the same functions as the torch modules."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .modular_rank import PRIME
from .separation_rank import ExactRank, exact_separation_rank

__all__ = [
    "AttentionLayer",
    "attention_net",
    "attention_separation_rank",
    "mlp_separation_rank",
    "polynomial_mlp",
    "random_attention_layers",
    "random_mlp_layers",
]


def polynomial_mlp(
    x: np.ndarray,
    layers: Sequence[np.ndarray],
    biases: Sequence[np.ndarray] | None = None,
    *,
    residual: bool = False,
    prime: int | None = PRIME,
) -> np.ndarray:
    """Apply layers x -> prod_k (W_k x + b_k), element by element, of [`PolynomialMLP`] without activation and norm.

    Args:
        x: (..., width), integers in [0, prime), or real numbers.
        layers: weights of each layer, (degree, width, width), W_k[output, input].
        biases: b_k of each layer, (degree, width); None for none.
        residual: add each layer's input to its output.
        prime: the modulus; None computes in the dtype of `x`.

    Returns:
        (..., width).
    """
    for number, weights in enumerate(layers):
        offsets = [None] * len(weights) if biases is None else biases[number]
        product = _affine(x, weights[0], offsets[0], prime)
        for weight, offset in zip(weights[1:], offsets[1:], strict=True):
            product = _mod(product * _affine(x, weight, offset, prime), prime)
        x = _mod(x + product, prime) if residual else product
    return x


@dataclass(frozen=True)
class AttentionLayer:
    """Weights of one layer in attention form.

    Attributes:
        weights: (degree, width, width), the projections P1, P2, ...; W[output, input].
        biases: (degree, width), or None.
        out_weight: (width, width), or None for none at all.
        out_bias: (width,), or None.
    """

    weights: np.ndarray
    biases: np.ndarray | None
    out_weight: np.ndarray | None
    out_bias: np.ndarray | None


def attention_net(
    tokens: Sequence[np.ndarray],
    layers: Sequence[AttentionLayer],
    *,
    num_heads: int = 1,
    residual: bool = False,
    mean: bool = True,
    scale: float | int = 1,
    prime: int | None = PRIME,
) -> list[np.ndarray]:
    """Apply causal layers of degree 2, 3 or 4 over tokens and output projections: the polynomial mixer, no norms.

    With projections P_i of the tokens, split into heads, and the causal mean C(z)_t = 1/t sum_{s <= t} z_s:

        degree 2: y_t = P1_t . C(P2)_t
        degree 3: y_t = C_s(<P1_t, P2_s> P3_s)
        degree 4: as degree 3 with P1_t . C(P4)_t in place of P1_t

    Args:
        tokens: one array (..., width) each; leading dimensions are broadcast as tokens are mixed, so that those of one
            half of the tokens may be (rows, 1, width) and of the other (1, columns, width).
        layers: of the net.
        num_heads: divides the width.
        residual: add each layer's input to its output.
        mean: divide sums by the number of tokens; without, C is the causal sum.
        scale: multiplies <P1, P2>.
        prime: the modulus; None computes in the dtype of the tokens.

    Returns:
        One array (..., width) for each token.

    Raises:
        ValueError: a layer is not of degree 2, 3 or 4.
    """
    tokens = list(tokens)
    for layer in layers:
        degree = len(layer.weights)
        if degree not in (2, 3, 4):
            raise ValueError(f"a layer has {degree} projections; layers of degree 2, 3 and 4 can be evaluated.")
        parts = [
            [
                _affine(token, layer.weights[i], None if layer.biases is None else layer.biases[i], prime)
                for i in range(degree)
            ]
            for token in tokens
        ]  # [token][projection]
        outputs = []
        for t in range(len(tokens)):
            weight = (1 / (t + 1) if prime is None else pow(t + 1, -1, prime)) if mean else 1
            query = parts[t][0]
            if degree != 3:
                gate = _causal_sum([part[1 if degree == 2 else 3] for part in parts[: t + 1]], prime)
                query = _mod(_mod(gate * weight, prime) * query, prime)
            if degree > 2:
                terms = []
                for part in parts[: t + 1]:
                    score = _head_sums(_mod(query * part[1], prime), num_heads, prime)
                    terms.append(_mod(_mod(score * scale, prime) * part[2], prime))
                query = _mod(_causal_sum(terms, prime) * weight, prime)
            if layer.out_weight is not None:
                query = _affine(query, layer.out_weight, layer.out_bias, prime)
            outputs.append(_mod(tokens[t] + query, prime) if residual else query)
        tokens = outputs
    return tokens


def random_mlp_layers(degrees: Sequence[int], width: int, *, seed: int = 0, prime: int = PRIME) -> list[np.ndarray]:
    """Return weights of [`polynomial_mlp`], uniform in [0, prime), one entry a layer."""
    rng = np.random.default_rng(seed)
    return [rng.integers(prime, size=(degree, width, width)) for degree in degrees]


def random_attention_layers(
    degrees: Sequence[int],
    width: int,
    *,
    projection_bias: bool = False,
    output_bias: bool = False,
    seed: int = 0,
    prime: int = PRIME,
) -> list[AttentionLayer]:
    """Return weights of [`attention_net`], uniform in [0, prime), one entry a layer."""
    rng = np.random.default_rng(seed)
    return [
        AttentionLayer(
            rng.integers(prime, size=(degree, width, width)),
            rng.integers(prime, size=(degree, width)) if projection_bias else None,
            rng.integers(prime, size=(width, width)),
            rng.integers(prime, size=width) if output_bias else None,
        )
        for degree in degrees
    ]


def mlp_separation_rank(
    degrees: Sequence[int],
    width: int,
    *,
    inputs: int | None = None,
    residual: bool = False,
    bias: bool = False,
    linear_readout: bool = False,
    seed: int = 0,
    max_size: int = 4096,
) -> ExactRank:
    """Return the separation rank of a fully connected net with random weights, first half of the inputs | second half.

    Args:
        degrees: of the layers.
        width: of the layers.
        inputs: numbers that a random affine map takes to `width`; None for no such map, and `width` inputs.
        residual: as in [`polynomial_mlp`].
        bias: as in [`polynomial_mlp`]; biases are random.
        linear_readout: of a random linear combination of the outputs; else of their coordinate 0.
        seed: of weights and assignments.
        max_size: of the sampled matrix.
    """
    layers = random_mlp_layers(degrees, width, seed=seed)
    count = width if inputs is None else inputs
    if count < 2:
        raise ValueError(f"there are {count} inputs; two halves need at least 2.")
    rng = np.random.default_rng([seed, 1])
    embedding = rng.integers(PRIME, size=(width, count)) if inputs is not None else np.eye(width, dtype=np.int64)
    shift = rng.integers(PRIME, size=width) if inputs is not None else np.zeros(width, dtype=np.int64)
    readout = rng.integers(PRIME, size=(1, width)) if linear_readout else np.eye(1, width, dtype=np.int64)
    biases = [rng.integers(PRIME, size=(degree, width)) for degree in degrees] if bias else None
    left = count // 2

    def pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x = _linear(a, embedding[:, :left], PRIME) + _linear(b, embedding[:, left:], PRIME) + shift
        return _linear(polynomial_mlp(x % PRIME, layers, biases, residual=residual), readout, PRIME)[..., 0]

    return exact_separation_rank(pairs, left, count - left, start=min(64, max_size), max_size=max_size, seed=seed)


def attention_separation_rank(
    degrees: Sequence[int],
    width: int,
    num_tokens: int = 2,
    *,
    num_heads: int = 1,
    residual: bool = False,
    mean: bool = True,
    projection_bias: bool = False,
    output_bias: bool = False,
    seed: int = 0,
    max_size: int = 4096,
) -> ExactRank:
    """Return the separation rank of coordinate 0 of the last token, first half of the tokens | second half.

    Args:
        degrees: of the layers.
        width: of a token.
        num_tokens: an even number.
        num_heads: as in [`attention_net`].
        residual: as in [`attention_net`].
        mean: as in [`attention_net`].
        projection_bias: the projections are affine.
        output_bias: the output's projection is affine.
        seed: of weights and assignments.
        max_size: of the sampled matrix.

    Raises:
        ValueError: the number of tokens is odd, or heads do not divide the width.
    """
    if num_tokens < 2 or num_tokens % 2:
        raise ValueError(f"num_tokens is {num_tokens}; two equal halves need an even number of at least 2.")
    if width % num_heads:
        raise ValueError(f"num_heads {num_heads} does not divide the width {width}.")
    layers = random_attention_layers(
        degrees, width, projection_bias=projection_bias, output_bias=output_bias, seed=seed
    )
    half = num_tokens // 2

    def pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        tokens = [half_[..., i * width : (i + 1) * width] for half_ in (a, b) for i in range(half)]
        return attention_net(tokens, layers, num_heads=num_heads, residual=residual, mean=mean)[-1][..., 0]

    return exact_separation_rank(pairs, half * width, half * width, seed=seed, max_size=max_size)


def _mod(x: np.ndarray, prime: int | None) -> np.ndarray:
    return x if prime is None else x % prime


def _linear(x: np.ndarray, weight: np.ndarray, prime: int | None) -> np.ndarray:
    """Map (..., inputs) with (outputs, inputs) to (..., outputs); each product is reduced before the sum."""
    total = _mod(x[..., :1] * weight[:, 0], prime)
    for i in range(1, weight.shape[1]):
        total = total + _mod(x[..., i : i + 1] * weight[:, i], prime)
    return _mod(total, prime)


def _affine(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, prime: int | None) -> np.ndarray:
    y = _linear(x, weight, prime)
    return y if bias is None else _mod(y + bias, prime)


def _causal_sum(terms: Sequence[np.ndarray], prime: int | None) -> np.ndarray:
    return _mod(sum(terms[1:], terms[0]), prime)


def _head_sums(x: np.ndarray, num_heads: int, prime: int | None) -> np.ndarray:
    """Map (..., width) to sums over each head's channels, repeated to (..., width)."""
    heads = x.reshape(*x.shape[:-1], num_heads, -1)
    return np.repeat(_mod(heads.sum(axis=-1), prime), heads.shape[-1], axis=-1)
