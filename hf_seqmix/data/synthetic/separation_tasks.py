"""Functions of two halves of an input whose separation rank is known: regression tasks that ask for it, and controls."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

__all__ = ["SEPARATION_TASKS", "SeparationTask", "separation_dataset", "separation_task"]

Half = np.ndarray


_MOST_VALUES = 2**20


@dataclass(frozen=True)
class SeparationTask:
    """A function f(A, B) of two halves drawn independently, with what is proven of its separation rank.

    sep(f) = min{R: f(a, b) = sum_{r <= R} g_r(a) h_r(b)}; its eps-separation rank asks for f within a root mean square error
    of eps times that of f (metric L2 of the two halves' distributions).

    Attributes:
        name: of the family.
        sizes: what it was made with.
        num_tokens, width: an input is (rows, num_tokens, width); half A is the first half of the tokens, B the rest.
        evaluate: (halves of shape (..., num_tokens / 2, width), broadcast against each other) -> (...).
        draw: (rows, generator) -> inputs (rows, num_tokens, width).
        rank: sep(f); None if it is infinite or not known.
        spectrum: the singular values in L2, relative to |f|, squared and descending, up to `rank`; None if not known.
        metric_note: what the spectrum is of, in words.
    """

    name: str
    sizes: Mapping[str, float]
    num_tokens: int
    width: int
    evaluate: Callable[[Half, Half], np.ndarray]
    draw: Callable[[int, np.random.Generator], np.ndarray]
    rank: int | None
    spectrum: tuple[float, ...] | None
    metric_note: str

    def values(self, inputs: np.ndarray) -> np.ndarray:
        """Targets (rows,) of inputs (rows, num_tokens, width)."""
        half = self.num_tokens // 2
        return self.evaluate(inputs[:, :half], inputs[:, half:])

    def eps_rank(self, eps: float) -> int | None:
        """The eps-separation rank that the spectrum gives, or None where there is none.

        Raises:
            ValueError: `eps` lies outside [0, 1].
        """
        if not 0 <= eps <= 1:
            raise ValueError(f"eps is {eps}; give a relative error between 0 and 1.")
        if self.spectrum is None:
            return None
        tails = np.cumsum(self.spectrum[::-1])[::-1]
        return int(np.sum(tails > eps**2 + 1e-12))

    def mse_bound(self, rank: int) -> float:
        """Least mean square error over |f|^2 of any model of that separation rank; 0 where nothing is known.

        Raises:
            ValueError: `rank` is negative.
        """
        if rank < 0:
            raise ValueError(f"rank is {rank}; it must be at least 0.")
        return float(sum(self.spectrum[rank:])) if self.spectrum is not None else 0.0


def _controlled_spectrum(rank: int = 4, decay: float = 1.0) -> SeparationTask:
    """S1: sum_{r <= R} r^-decay phi_r(a) phi_r(b), phi_r(x) = sqrt(2) sin(2 pi r x), a and b uniform on [0, 1]."""
    _positive(rank=rank)
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


def _inner_product_power(width: int = 3, power: int = 2, signs: bool = False) -> SeparationTask:
    """S2: <a, b>^k, a and b in R^m, normal, or in {-1, 1}^m with `signs`.

    sep is C(m + k - 1, k), the monomials of degree k; on signs, where x_i^2 = 1, sum of C(m, j) over j <= k of k's parity.
    """
    _positive(width=width, power=power)

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
    # A function of the number of agreements; its coefficient on a product of j signs is the j-th Krawtchouk coefficient.
    _flat(sum(math.comb(width, order) for order in range(power % 2, min(power, width) + 1, 2)))
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


def _paired_product(num_tokens: int = 4, width: int = 2, control: bool = False) -> SeparationTask:
    """S3: prod_{i <= N/2} <x_i, x_{i + N/2}>, tokens uniform on the sphere of radius D^(1/4), so that E f^2 = 1.

    sep = D^(N/2), with a flat spectrum: a sum of R products leaves 1 - R / D^(N/2). `control` pairs neighbours,
    prod <x_{2i - 1}, x_{2i}>: the same polynomial of the same inputs but for their order. With an even number of pairs no
    pair has a token in each half, and sep = 1; with an odd one a single pair does, and sep = D.
    """
    _positive(width=width)
    if num_tokens < 2 or num_tokens % 2:
        raise ValueError(f"num_tokens is {num_tokens}; pairs need an even number of at least 2.")
    half = num_tokens // 2

    def evaluate(a: Half, b: Half) -> np.ndarray:
        if not control:
            return (a * b).sum(axis=-1).prod(axis=-1)
        tokens = [half_[..., i, :] for half_ in (a, b) for i in range(half)]
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
        _flat(rank),
        "flat: all singular values are equal",
    )


def _inner_product_parity(bits: int = 4, trap: bool = False) -> SeparationTask:
    """S4: (-1)^<a, b> of bits, sep = 2^m, flat (Hadamard). `trap`: the parity of all bits, (-1)^(sum a + sum b), sep = 1."""
    _positive(bits=bits)

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
        _flat(rank),
        "flat: all singular values are equal",
    )


def _determinant(size: int = 4) -> SeparationTask:
    """S5: det [A; B] of an n x n matrix split by rows, entries normal: sep = C(n, n/2), by Laplace's expansion; flat."""
    if size < 2 or size % 2 or size > 8:
        raise ValueError(f"size is {size}; give an even number from 2 to 8.")
    signed = [(order, _sign(order)) for order in itertools.permutations(range(size))]

    def evaluate(a: Half, b: Half) -> np.ndarray:
        rows = [half_[..., i, :] for half_ in (a, b) for i in range(size // 2)]
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
        _flat(rank),
        "flat: minors of different columns are uncorrelated",
    )


def _equality(bits: int = 4) -> SeparationTask:
    """S6: 1 if a = b, bits: the identity matrix, sep = 2^m, flat in L2, but of tiny rank within eps at every entry."""
    _positive(bits=bits)

    def evaluate(a: Half, b: Half) -> np.ndarray:
        return (a[..., 0, :] == b[..., 0, :]).all(axis=-1).astype(float)

    return _task(
        "equality",
        {"bits": bits},
        (2, bits),
        evaluate,
        lambda rows, rng: rng.integers(2, size=(rows, 2, bits)).astype(float),
        2**bits,
        _flat(2**bits),
        "flat in L2; in L-infinity far smaller",
    )


def _gaussian_coupling(width: int = 1, bandwidth: float = 1.0) -> SeparationTask:
    """S7: exp(-|a - b|^2 / (2 h^2)), a and b normal in R^m: infinite rank, geometric decay.

    In one dimension Mehler's formula gives sigma_k^2 / |f|^2 = (1 - q^2) q^(2k), k >= 0, where q = 1 / (s + sqrt(s^2 - 1)) and
    s = 1 + h^2 / 2; products of that for each coordinate.
    """
    _positive(width=width)
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


def _nearest_neighbor(num_points: int = 6, width: int = 2) -> SeparationTask:
    """S8: which of the points v_1 ... v_M is nearest to u: argmin_j |u - v_j|, 0 to M - 1, normal points; rank not known.

    The first token is half A's query u in a row of M tokens (the others are zero), half B the M points. After Jiang and Li 2024
    (arXiv 2305.18475), appendix B; low-rank attention needs many heads for it (Amsel et al. 2024, arXiv 2407.16153).
    """
    _positive(num_points=num_points, width=width)

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


SEPARATION_TASKS: Mapping[str, Callable[..., SeparationTask]] = {
    "controlled_spectrum": _controlled_spectrum,
    "inner_product_power": _inner_product_power,
    "paired_product": _paired_product,
    "paired_product_control": lambda **sizes: _paired_product(**sizes, control=True),
    "inner_product_parity": _inner_product_parity,
    "parity": lambda **sizes: _inner_product_parity(**sizes, trap=True),
    "determinant": _determinant,
    "equality": _equality,
    "gaussian_coupling": _gaussian_coupling,
    "nearest_neighbor": _nearest_neighbor,
}
"""Name -> what makes the task; its arguments are the sizes."""


def separation_task(name: str, **sizes: Any) -> SeparationTask:
    r"""A function of two halves whose separation rank is known, by the name of its family.

    | name | f(A, B) | separation rank |
    | --- | --- | --- |
    | `controlled_spectrum` (rank, decay) | $\sum_r r^{-\alpha} \phi_r(a) \phi_r(b)$ | rank |
    | `inner_product_power` (width m, power k, signs) | $\langle a, b \rangle^k$ | $\binom{m + k - 1}{k}$ |
    | `paired_product` (num_tokens N, width D) | $\prod_i \langle x_i, x_{i + N/2} \rangle$ | $D^{N/2}$ |
    | `paired_product_control` | the same, neighbours paired | 1 (an even number of pairs), else D |
    | `inner_product_parity` (bits m) | $(-1)^{\langle a, b \rangle}$ | $2^m$ |
    | `parity` (bits) | $(-1)^{\sum a + \sum b}$: hard to learn, but separable | 1 |
    | `determinant` (size n) | $\det [A; B]$ | $\binom{n}{n/2}$ |
    | `equality` (bits m) | $1[a = b]$ | $2^m$ |
    | `gaussian_coupling` (width, bandwidth) | $e^{-|a - b|^2 / 2 h^2}$ | infinite, geometric spectrum |
    | `nearest_neighbor` (num_points, width) | $\arg\min_j |u - v_j|$ | not known |

    Raises:
        ValueError: there is no such family, or a size is out of range.
    """
    if name not in SEPARATION_TASKS:
        raise ValueError(f"There is no task {name!r}; there are {', '.join(SEPARATION_TASKS)}.")
    try:
        return SEPARATION_TASKS[name](**sizes)
    except TypeError as error:
        raise ValueError(f"The task {name!r} does not take these sizes, {sizes}: {error}.") from error


def separation_dataset(task: SeparationTask, num_rows: Mapping[str, int], *, seed: int = 0) -> datasets.DatasetDict:
    """Rows of a task: `inputs` (num_tokens, width) and `target`, float32; the rank is in the description of each split.

    Args:
        task: of `separation_task`.
        num_rows: split -> number of its rows; rows of different splits are drawn independently.
        seed: of all splits together.

    Returns:
        Splits whose `info.description` says the task, its sizes, its separation rank and its spectrum.

    Raises:
        ValueError: there is no split, or one without rows.
    """
    if not num_rows or min(num_rows.values()) < 1:
        raise ValueError(f"num_rows is {dict(num_rows)}; name at least one split, with at least one row.")
    rng = np.random.default_rng(seed)
    known = "infinite or not known" if task.rank is None else str(task.rank)
    info = datasets.DatasetInfo(
        description=f"{task.name} {dict(task.sizes)}: separation rank {known}; singular values: {task.metric_note}.",
        features=datasets.Features(
            {
                "inputs": datasets.Array2D((task.num_tokens, task.width), "float32"),
                "target": datasets.Value("float32"),
            }
        ),
    )
    splits = {}
    for split, rows in num_rows.items():
        inputs = task.draw(rows, rng)
        columns = {"inputs": inputs.astype(np.float32), "target": task.values(inputs).astype(np.float32)}
        splits[split] = datasets.Dataset.from_dict(columns, features=info.features, info=info)
    return datasets.DatasetDict(splits)


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


def _flat(rank: int) -> tuple[float, ...]:
    """The spectrum of a task whose `rank` singular values are equal, squares over their sum."""
    if rank > _MOST_VALUES:
        raise ValueError(
            f"the separation rank of this task is {rank:,}; make it smaller, so that there are at most {_MOST_VALUES:,} "
            "singular values to list."
        )
    return (1 / rank,) * rank


def _positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1.")
