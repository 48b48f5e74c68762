"""Families of functions whose separation rank is known: regression tasks that need the rank, and controls."""

import functools
import math

import numpy as np
from numpy.polynomial import legendre

from .separation import Half, SeparationTask, flat_spectrum, require_positive

__all__ = [
    "determinant",
    "gaussian_coupling",
    "inner_product_parity",
    "inner_product_power",
    "legendre_products",
    "nearest_neighbor",
    "paired_product",
]


def inner_product_power(width: int = 3, power: int = 2) -> SeparationTask:
    """Make <a, b>^k, a and b in R^m, normal; sep = C(m + k - 1, k), the number of monomials of degree k."""
    require_positive(width=width, power=power)

    def evaluate(a: Half, b: Half) -> np.ndarray:
        return (a[..., 0, :] * b[..., 0, :]).sum(axis=-1) ** power

    def draw(rows: int, rng: np.random.Generator) -> np.ndarray:
        return rng.standard_normal((rows, 2, width))

    return SeparationTask("inner_product_power", 2, width, evaluate, draw, math.comb(width + power - 1, power), None)


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
    name = "paired_product_control" if control else "paired_product"
    return SeparationTask(name, num_tokens, width, evaluate, draw, rank, flat_spectrum(rank))


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

    def draw(rows: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(-1, 1, size=(rows, 2, 1))

    rank = degree + 1
    return SeparationTask("legendre_products", 2, 1, evaluate, draw, rank, flat_spectrum(rank), degree)


def inner_product_parity(bits: int = 4) -> SeparationTask:
    """Make (-1)^<a, b> of m bits, sep = 2^m, with a flat spectrum (Hadamard's matrix)."""
    require_positive(bits=bits)

    def evaluate(a: Half, b: Half) -> np.ndarray:
        return 1.0 - 2.0 * ((a * b)[..., 0, :].sum(axis=-1) % 2)

    def draw(rows: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(2, size=(rows, 2, bits)).astype(float)

    rank = 2**bits
    return SeparationTask("inner_product_parity", 2, bits, evaluate, draw, rank, flat_spectrum(rank))


def determinant(size: int = 4) -> SeparationTask:
    """Make det [A; B] of an n x n matrix split by rows, entries normal.

    sep = C(n, n/2), by Laplace's expansion, with a flat spectrum: minors of different columns are uncorrelated.
    """
    if size < 2 or size % 2:
        raise ValueError(f"size is {size}; give an even number of at least 2.")

    def evaluate(a: Half, b: Half) -> np.ndarray:
        return np.linalg.det(np.concatenate(np.broadcast_arrays(a, b), axis=-2))

    def draw(rows: int, rng: np.random.Generator) -> np.ndarray:
        return rng.standard_normal((rows, size, size))

    rank = math.comb(size, size // 2)
    return SeparationTask("determinant", size, size, evaluate, draw, rank, flat_spectrum(rank))


def gaussian_coupling(width: int = 1, bandwidth: float = 1.0) -> SeparationTask:
    """Make exp(-|a - b|^2 / (2 h^2)), a and b normal in R^m: infinite rank, geometric decay.

    In one dimension Mehler's formula gives sigma_k^2 / |f|^2 = (1 - q^2) q^(2k), k >= 0, where q = 1 / (s + sqrt(s^2 -
    1)) and s = 1 + h^2 / 2. The spectrum ends where less than 1e-14 of a coordinate's square is left. In m
    dimensions the values are products of m such values.
    """
    require_positive(width=width)
    if bandwidth <= 0:
        raise ValueError(f"bandwidth is {bandwidth}; it must be positive.")

    def evaluate(a: Half, b: Half) -> np.ndarray:
        return np.exp(-0.5 * np.square((a - b)[..., 0, :]).sum(axis=-1) / bandwidth**2)

    def draw(rows: int, rng: np.random.Generator) -> np.ndarray:
        return rng.standard_normal((rows, 2, width))

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
    return SeparationTask("gaussian_coupling", 2, width, evaluate, draw, None, spectrum)


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

    return SeparationTask("nearest_neighbor", 2 * num_points, width, evaluate, draw, None, None)
