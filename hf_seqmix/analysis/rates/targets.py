"""Relationships between sequences, to be learned or approximated: couplings of known rank, and convolutions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...ops.toeplitz.product import toeplitz_matrix

__all__ = ["CouplingTarget", "LinearTarget", "Target", "require_at_least", "uniform"]


class Target(ABC):
    """A relationship y = H(x) between sequences, with a distribution of its inputs.

    Attributes:
        length: T, tokens a row.
        width: d, numbers a token.
        num_outputs: outputs a token; None where outputs are (batch, length).
        is_causal: whether y(t) depends on no x(s) with s > t.
    """

    length: int
    width: int
    num_outputs: int | None
    is_causal: bool

    @abstractmethod
    def inputs(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw inputs (rows, length, width)."""

    @abstractmethod
    def _outputs(self, inputs: Tensor) -> Tensor: ...

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return y (rows, length) or (rows, length, num_outputs) of inputs (rows, length, width), in their dtype.

        Raises:
            ValueError: the inputs have another shape.
        """
        if inputs.ndim != 3 or inputs.shape[1:] != (self.length, self.width):
            raise ValueError(
                f"inputs have the shape {tuple(inputs.shape)}; {type(self).__name__} takes (rows, {self.length},"
                f" {self.width})."
            )
        return self._outputs(inputs)

    def draw(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Draw inputs (rows, length, width) and their outputs, see `inputs` and `outputs`.

        Raises:
            ValueError: `rows` is below 1.
        """
        require_at_least(rows=(rows, 1))
        inputs = self.inputs(rows, generator, dtype)
        return inputs, self.outputs(inputs)

    def matrix(self) -> Tensor | None:
        """Return M (length, length) in float64, or None where H is not linear.

        y = M x, and x(t) are then independent and uniform on [0, 1], with d = 1.
        """
        return None

    def _derive(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class CouplingTarget(Target):
    """Average inputs by weights that a coupling of known singular values gives.

    y(t) = sum_s softmax_s[rho(x(t), x(s))] x(s),   rho(u, v) = sum_i sigma_i phi_i(u) phi_i(v),
    phi_i(u) = sqrt(2) sin(2 pi i u), x(t) independent and uniform on [0, 1], d = 1.

    The phi_i are orthonormal in L2[0, 1], so the sigma_i are the singular values of rho. Source: Jiang, Li 2023 (arXiv
    2305.18475), equation 8 with F = f = id, and appendix B.2.

    Args:
        singular_values: sigma_i of i = 1, 2, ...; a rank of infinity is a number of them far above every head size.
        length: T, tokens a row.

    Raises:
        ValueError: there are no singular values, they are negative or not finite, or `length` is below 1.
    """

    singular_values: tuple[float, ...]
    length: int = 16

    def __post_init__(self) -> None:
        require_at_least(length=(self.length, 1))
        values = tuple(float(value) for value in self.singular_values)
        if not values or not all(0 <= value < math.inf for value in values):
            raise ValueError(f"singular_values is {values}; give at least one, each finite and at least 0.")
        self._derive(singular_values=values, width=1, num_outputs=None, is_causal=self.length == 1)

    @classmethod
    def power_law(cls, rank: int = 6, exponent: float = 0.55, length: int = 16) -> "CouplingTarget":
        """Return the target with sigma_i = i^-exponent for i <= rank, and 0 beyond; the paper has 0.55 and 1.

        Raises:
            ValueError: `rank` or `length` is below 1.
        """
        require_at_least(rank=(rank, 1))
        return cls(tuple(order**-exponent for order in range(1, rank + 1)), length)

    def inputs(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw inputs (rows, length, 1)."""
        return uniform((rows, self.length, 1), generator, dtype)

    def coupling(self, inputs: Tensor) -> Tensor:
        """Return rho(x(t), x(s)), (rows, length, length), of inputs (rows, length, 1)."""
        sigma = torch.tensor(self.singular_values, dtype=inputs.dtype, device=inputs.device)
        orders = torch.arange(1, len(sigma) + 1, dtype=inputs.dtype, device=inputs.device)
        phi = math.sqrt(2) * torch.sin(2 * math.pi * inputs * orders)  # (rows, length, orders)
        return phi * sigma @ phi.transpose(1, 2)

    def truncation_error(self, rank: int, rows: int = 4096, power: int = 2, exact_diagonal: bool = False) -> float:
        """Return the mean error of the target with its largest singular values alone, over random rows.

        E |H_t(x) - H^r_t(x)|^p, where rho^r keeps the `rank` largest sigma_i. This is what a head of that size reaches
        in the construction of Theorem 4.2, where dense networks cost nothing. The construction is an upper bound: a
        trained model, whose W_V and F are free, may get below.

        Of sigma_i = i^-a the theorem's proof bounds E (rho - rho^r)^2 at two independent points, which falls as
        r^-(2 a - 1). The weight of a token on itself has rho(u, u) - rho^r(u, u), a set of measure 0 there, which
        falls as r^-(a - 1) alone, and prevails.

        Args:
            rank: of rho^r; with 0, H^r is the mean of the inputs.
            rows: that are drawn, the same in every call.
            power: p; 2 is the mean square.
            exact_diagonal: rho^r(x(t), x(t)) is rho's, as if the proof's bound held there, too.

        Raises:
            ValueError: `rank` is below 0, `rows` or `power` below 1.
        """
        require_at_least(rank=(rank, 0), rows=(rows, 1), power=(power, 1))
        order = sorted(range(len(self.singular_values)), key=lambda i: -self.singular_values[i])
        kept = set(order[:rank])
        values = tuple(value if i in kept else 0.0 for i, value in enumerate(self.singular_values))
        inputs = self.inputs(rows, torch.Generator().manual_seed(0), torch.float64)
        whole, cut = self.coupling(inputs), CouplingTarget(values, self.length).coupling(inputs)
        if exact_diagonal:
            cut.diagonal(dim1=1, dim2=2).copy_(whole.diagonal(dim1=1, dim2=2))
        return (_averages(cut, inputs) - _averages(whole, inputs)).abs().pow(power).mean().item()

    def _outputs(self, inputs: Tensor) -> Tensor:
        return _averages(self.coupling(inputs), inputs)


def _averages(logits: Tensor, inputs: Tensor) -> Tensor:
    return (logits.softmax(dim=-1) @ inputs).squeeze(-1)


@dataclass(frozen=True)
class LinearTarget(Target):
    """Convolve inputs with a kernel: y(t) = sum_{s <= t} rho(s) x(t - s).

    x(t) are independent and uniform on [0, 1], d = 1. Source: Jiang, Li 2023 (arXiv 2305.18475), section 6 and tables
    2 and 3, which have rho(s) = e^-s and rho(s) uniform on [0, 1] at T = 32.

    Args:
        taps: rho(0), ..., rho(T - 1).

    Raises:
        ValueError: there are no taps, or a tap is not finite.
    """

    taps: tuple[float, ...]

    def __post_init__(self) -> None:
        taps = tuple(float(tap) for tap in self.taps)
        if not taps or not all(map(math.isfinite, taps)):
            raise ValueError(f"taps is {taps}; give at least one, each finite.")
        self._derive(taps=taps, length=len(taps), width=1, num_outputs=None, is_causal=True)

    @classmethod
    def from_kernel(
        cls, kernel: str | Callable[[Tensor], Tensor] = "exponential", length: int = 32, **options: float
    ) -> "LinearTarget":
        """Return the target of a kernel at the lags s = 0, ..., length - 1.

        | name | rho(s) | options |
        | --- | --- | --- |
        | exponential | e^(-rate s) | rate = 1 |
        | polynomial | (1 + s)^-exponent | exponent = 1 |
        | impulse | 1[s = delay] | delay = 1 |
        | oscillating | e^(-rate s) cos(frequency s) | rate = 0.1, frequency = 1 |
        | uniform | independent and uniform on [0, 1] | seed = 0 |

        Args:
            kernel: a name, or a function from lags (length,), float64, to taps (length,).
            length: T.
            options: of the named kernel; a function takes none.

        Raises:
            ValueError: no kernel has this name, the kernel does not take an option, or the taps have another shape.
        """
        require_at_least(length=(length, 1))
        lags = torch.arange(length, dtype=torch.float64)
        if isinstance(kernel, str) and kernel not in _KERNELS:
            raise ValueError(f"kernel is {kernel!r}; give one of {', '.join(_KERNELS)}, or a function of lags.")
        make = _KERNELS[kernel] if isinstance(kernel, str) else kernel
        try:
            taps = make(lags, **options)
        except TypeError as error:
            raise ValueError(f"the kernel {kernel!r} does not take the options {options}: {error}.") from error
        if taps.shape != (length,):
            raise ValueError(f"the kernel gave taps of shape {tuple(taps.shape)} for {length} lags; one tap a lag.")
        return cls(tuple(taps.tolist()))

    def inputs(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw inputs (rows, length, 1)."""
        return uniform((rows, self.length, 1), generator, dtype)

    def matrix(self) -> Tensor:
        """Return M (length, length) in float64, M[t, s] = rho(t - s) for s <= t."""
        return toeplitz_matrix(torch.tensor([self.taps], dtype=torch.float64), self.length)[0]

    def _outputs(self, inputs: Tensor) -> Tensor:
        return inputs[..., 0] @ self.matrix().to(inputs).T


def _exponential(lags: Tensor, rate: float = 1.0) -> Tensor:
    return torch.exp(-rate * lags)


def _polynomial(lags: Tensor, exponent: float = 1.0) -> Tensor:
    return (1 + lags) ** -exponent


def _impulse(lags: Tensor, delay: float = 1) -> Tensor:
    return (lags == delay).double()


def _oscillating(lags: Tensor, rate: float = 0.1, frequency: float = 1.0) -> Tensor:
    return torch.exp(-rate * lags) * torch.cos(frequency * lags)


def _random(lags: Tensor, seed: float = 0) -> Tensor:
    return torch.rand(len(lags), generator=torch.Generator().manual_seed(int(seed)), dtype=torch.float64)


_KERNELS: dict[str, Callable[..., Tensor]] = {
    "exponential": _exponential,
    "polynomial": _polynomial,
    "impulse": _impulse,
    "oscillating": _oscillating,
    "uniform": _random,
}
"""Name -> from lags (length,) and options to taps (length,)."""


def uniform(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw numbers of a shape, independent and uniform on [0, 1], on the device of the generator."""
    return torch.rand(shape, generator=generator, dtype=dtype, device=generator.device)


def require_at_least(**numbers: tuple[int, int]) -> None:
    """Raise a `ValueError` that names the first number, given as (value, least), below its least value."""
    for name, (value, low) in numbers.items():
        if value < low:
            raise ValueError(f"{name} is {value}; it must be at least {low}.")
