"""Families of functions whose separation rank is known: regression tasks that need the rank, and controls."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from .separation import Half, SeparationTask, flat_spectrum, require_positive

__all__ = [
    "controlled_spectrum",
    "determinant",
    "equality",
    "gaussian_coupling",
    "inner_product_parity",
    "inner_product_power",
    "legendre_products",
    "nearest_neighbor",
    "paired_product",
]


def controlled_spectrum(rank: int = 4, decay: float = 1.0) -> SeparationTask:
    """Make sum_{r <= R} r^-decay phi_r(a) phi_r(b), a and b uniform on [0, 1].

    phi_r(x) = sqrt(2) sin(2 pi r x). sep = R, and the singular values are r^-decay.
    """
    require_positive(rank=rank)
    sigma = np.arange(1, rank + 1) ** -float(decay)

    def evaluate(a: Half, b: Half) -> np.ndarray:
        orders = 2 * np.pi * np.arange(1, rank + 1)
        return 2 * (sigma * np.sin(orders * a[..., 0, :]) * np.sin(orders * b[..., 0, :])).sum(axis=-1)

    squares = sigma**2 / np.sum(sigma**2)
    return _task(
        "controlled_spectrum",
        {"rank": rank, "decay": decay},
        (2, 1),
        evaluate,
        lambda rows, rng: rng.uniform(size=(rows, 2, 1)),
        rank,
        tuple(np.sort(squares)[::-1]),
        "squares of r^-decay",
    )


def inner_product_power(width: int = 3, power: int = 2, signs: bool = False) -> SeparationTask:
    """Make <a, b>^k, a and b in R^m, normal, or in {-1, 1}^m with `signs`.

    sep = C(m + k - 1, k), the number of monomials of degree k. On signs, where x_i^2 = 1, sep is the sum of C(m, j)
    over all j <= k with the parity of k.
    """
    require_positive(width=width, power=power)

    def evaluate(a: Half, b: Half) -> np.ndarray:
        return (a[..., 0, :] * b[..., 0, :]).sum(axis=-1) ** power

    if not signs:
        rank = math.comb(width + power - 1, power)
        return _task(
            "inner_product_power",
            {"width": width, "power": power, "signs": 0},
            (2, width),
            evaluate,
            lambda rows, rng: rng.standard_normal((rows, 2, width)),
            rank,
            None,
            "decays; E f^2 = (2 k - 1)!! prod_{i < k} (m + 2 i)",
        )
    # A function of the number of agreements; its coefficient on a product of j signs is a Krawtchouk coefficient.
    flat_spectrum(sum(math.comb(width, order) for order in range(power % 2, min(power, width) + 1, 2)))
    counts = np.arange(width + 1)
    values = (width - 2.0 * counts) ** power
    probability = np.array([math.comb(width, k) for k in counts]) / 2.0**width
    squares: list[float] = []
    for order in range(power % 2, min(power, width) + 1, 2):
        krawtchouk = [
            sum((-1) ** i * math.comb(k, i) * math.comb(width - k, order - i) for i in range(order + 1))
            for k in counts
        ]
        coefficient = float(np.sum(probability * values * krawtchouk)) / math.comb(width, order)
        squares += [coefficient**2] * math.comb(width, order)
    total = float(np.sum(probability * values**2))
    return _task(
        "inner_product_power",
        {"width": width, "power": power, "signs": 1},
        (2, width),
        evaluate,
        lambda rows, rng: rng.choice([-1.0, 1.0], size=(rows, 2, width)),
        len(squares),
        tuple(sorted((square / total for square in squares), reverse=True)),
        "C(m, j) equal values for each j <= k of k's parity",
    )


def paired_product(num_tokens: int = 4, width: int = 2, control: bool = False) -> SeparationTask:
    """Make prod_{i <= N/2} <x_i, x_{i + N/2}>, tokens uniform on the sphere of radius D^(1/4), so that E f^2 = 1.

    sep = D^(N/2), with a flat spectrum: a sum of R products leaves a relative square error of 1 - R / D^(N/2).
    `control` pairs neighbors, prod <x_{2i - 1}, x_{2i}>: the same polynomial of the same inputs but for their order.
    With an even number of pairs no pair has a token in each half, and sep = 1. With an odd number a single pair does,
    and sep = D.
    """
    require_positive(width=width)
    if num_tokens < 2 or num_tokens % 2:
        raise ValueError(f"num_tokens is {num_tokens}; pairs need an even number of at least 2.")
    half = num_tokens // 2

    def evaluate(a: Half, b: Half) -> np.ndarray:
        if not control:
            return (a * b).sum(axis=-1).prod(axis=-1)
        tokens = [part[..., i, :] for part in (a, b) for i in range(half)]
        factors = [(first * second).sum(axis=-1) for first, second in zip(tokens[::2], tokens[1::2], strict=True)]
        return functools.reduce(np.multiply, factors)

    def draw(rows: int, rng: np.random.Generator) -> np.ndarray:
        x = rng.standard_normal((rows, num_tokens, width))
        return x * (width**0.25 / np.linalg.norm(x, axis=-1, keepdims=True))

    rank = (width if half % 2 else 1) if control else width**half
    return _task(
        "paired_product_control" if control else "paired_product",
        {"num_tokens": num_tokens, "width": width},
        (num_tokens, width),
        evaluate,
        draw,
        rank,
        flat_spectrum(rank),
        "flat: all singular values are equal",
    )


def legendre_products(degree: int = 9) -> SeparationTask:
    """Make (n + 1)^(-1/2) sum_{k <= n} p_k(a) p_{n - k}(b), a and b uniform on [-1, 1], n the degree.

    p_k is the Legendre polynomial of degree k, scaled to E p_k^2 = 1. sep = n + 1, with a flat spectrum: the largest
    rank that a polynomial of degree n in two numbers can have. f is orthogonal to all polynomials of lower degree, so
    models that are such polynomials leave all of it. Up to signs of the terms no other polynomial of degree n has
    rank n + 1 and a flat spectrum: an orthogonal matrix of coefficients that is zero below its antidiagonal is zero
    above it, too.
    """
    require_positive(degree=degree)
    scales = np.sqrt(2 * np.arange(degree + 1) + 1)

    def evaluate(a: Half, b: Half) -> np.ndarray:
        first, second = (legendre.legvander(part[..., 0, 0], degree) * scales for part in (a, b))
        return (first * second[..., ::-1]).sum(axis=-1) / math.sqrt(degree + 1)

    task = _task(
        "legendre_products",
        {"degree": degree},
        (2, 1),
        evaluate,
        lambda rows, rng: rng.uniform(-1, 1, size=(rows, 2, 1)),
        degree + 1,
        flat_spectrum(degree + 1),
        "flat: all singular values are equal",
    )
    return replace(task, least_degree=degree)


def inner_product_parity(bits: int = 4, trap: bool = False) -> SeparationTask:
    """Make (-1)^<a, b> of m bits, sep = 2^m, with a flat spectrum (Hadamard's matrix).

    `trap` makes the parity of all bits, (-1)^(sum a + sum b), which is hard to learn but has sep = 1.
    """
    require_positive(bits=bits)

    def evaluate(a: Half, b: Half) -> np.ndarray:
        count = (a + b if trap else a * b)[..., 0, :].sum(axis=-1)
        return 1.0 - 2.0 * (count % 2)

    rank = 1 if trap else 2**bits
    return _task(
        "parity" if trap else "inner_product_parity",
        {"bits": bits},
        (2, bits),
        evaluate,
        lambda rows, rng: rng.integers(2, size=(rows, 2, bits)).astype(float),
        rank,
        flat_spectrum(rank),
        "flat: all singular values are equal",
    )


def determinant(size: int = 4) -> SeparationTask:
    """Make det [A; B] of an n x n matrix split by rows, entries normal.

    sep = C(n, n/2), by Laplace's expansion, with a flat spectrum.
    """
    if size < 2 or size % 2 or size > 8:
        raise ValueError(f"size is {size}; give an even number from 2 to 8.")
    signed = [(order, _sign(order)) for order in itertools.permutations(range(size))]

    def evaluate(a: Half, b: Half) -> np.ndarray:
        rows = [part[..., i, :] for part in (a, b) for i in range(size // 2)]
        total: np.ndarray = np.zeros((), dtype=a.dtype)[()]
        for order, sign in signed:
            term: Any = sign
            for row, column in zip(rows, order, strict=True):
                term = term * row[..., column]
            total = total + term
        return total

    rank = math.comb(size, size // 2)
    return _task(
        "determinant",
        {"size": size},
        (size, size),
        evaluate,
        lambda rows, rng: rng.standard_normal((rows, size, size)),
        rank,
        flat_spectrum(rank),
        "flat: minors of different columns are uncorrelated",
    )


def equality(bits: int = 4) -> SeparationTask:
    """Make 1 if a = b, else 0, of m bits: the identity matrix, sep = 2^m.

    The spectrum is flat in L2, but a tiny rank suffices for an error of eps at every entry.
    """
    require_positive(bits=bits)

    def evaluate(a: Half, b: Half) -> np.ndarray:
        return (a[..., 0, :] == b[..., 0, :]).all(axis=-1).astype(float)

    return _task(
        "equality",
        {"bits": bits},
        (2, bits),
        evaluate,
        lambda rows, rng: rng.integers(2, size=(rows, 2, bits)).astype(float),
        2**bits,
        flat_spectrum(2**bits),
        "flat in L2; in L-infinity far smaller",
    )


def gaussian_coupling(width: int = 1, bandwidth: float = 1.0) -> SeparationTask:
    """Make exp(-|a - b|^2 / (2 h^2)), a and b normal in R^m: infinite rank, geometric decay.

    In one dimension Mehler's formula gives sigma_k^2 / |f|^2 = (1 - q^2) q^(2k), k >= 0, where q = 1 / (s + sqrt(s^2 -
    1)) and s = 1 + h^2 / 2. In m dimensions the values are products of m such values.
    """
    require_positive(width=width)
    if bandwidth <= 0:
        raise ValueError(f"bandwidth is {bandwidth}; it must be positive.")

    def evaluate(a: Half, b: Half) -> np.ndarray:
        return np.exp(-0.5 * np.square((a - b)[..., 0, :]).sum(axis=-1) / bandwidth**2)

    s = 1 + bandwidth**2 / 2
    q = 1 / (s + math.sqrt(s * s - 1))
    terms = max(1, math.ceil(math.log(1e-14) / (2 * math.log(q))))
    spectrum = None
    if math.comb(terms + width, width) <= 10**5:
        # q^(2 j) has the multiplicity of the monomials of degree j in as many variables as coordinates.
        spectrum = tuple(
            (1 - q * q) ** width * q ** (2 * j)
            for j in range(terms)
            for _ in range(math.comb(j + width - 1, width - 1))
        )
    return _task(
        "gaussian_coupling",
        {"width": width, "bandwidth": bandwidth},
        (2, width),
        evaluate,
        lambda rows, rng: rng.standard_normal((rows, 2, width)),
        None,
        spectrum,
        "geometric, cut where less than 1e-14 of a coordinate's square is left",
    )


def nearest_neighbor(num_points: int = 6, width: int = 2) -> SeparationTask:
    """Make argmin_j |u - v_j|, 0 to M - 1: which of the points v_1 ... v_M is nearest to u; the rank is not known.

    All points are normal. The first token of half A is the query u; the other M - 1 tokens of half A are zero. Half B
    holds the M points. Source: Jiang and Li 2024 (arXiv 2305.18475), appendix B. Low-rank attention needs many heads
    for this task (Amsel et al. 2024, arXiv 2407.16153).
    """
    require_positive(num_points=num_points, width=width)

    def evaluate(a: Half, b: Half) -> np.ndarray:
        return np.square(a[..., :1, :] - b).sum(axis=-1).argmin(axis=-1).astype(float)

    def draw(rows: int, rng: np.random.Generator) -> np.ndarray:
        x = rng.standard_normal((rows, 2 * num_points, width))
        x[:, 1:num_points] = 0
        return x

    return _task(
        "nearest_neighbor",
        {"num_points": num_points, "width": width},
        (2 * num_points, width),
        evaluate,
        draw,
        None,
        None,
        "not known",
    )


def _task(
    name: str,
    sizes: Mapping[str, float],
    shape: tuple[int, int],
    evaluate: Callable[[Half, Half], np.ndarray],
    draw: Callable[[int, np.random.Generator], np.ndarray],
    rank: int | None,
    spectrum: tuple[float, ...] | None,
    note: str,
) -> SeparationTask:
    return SeparationTask(name, dict(sizes), *shape, evaluate, draw, rank, spectrum, note)


def _sign(order: tuple[int, ...]) -> int:
    inversions = sum(order[i] > order[j] for i in range(len(order)) for j in range(i + 1, len(order)))
    return -1 if inversions % 2 else 1
