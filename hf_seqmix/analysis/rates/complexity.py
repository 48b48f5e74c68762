"""Complexities of relationships between sequences, and the error bounds that follow from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .targets import Target, require_at_least

__all__ = [
    "RecurrentComplexity",
    "coupling_complexity",
    "factor_complexity",
    "feed_forward_complexity",
    "recurrent_complexity",
    "transformer_bound",
]


def coupling_complexity(singular_values: Tensor | Sequence[float], exponent: float) -> float:
    """Return C1 = sup_s sigma_s s^a, the least c with sigma_s <= c s^-a for all s >= 1.

    Source: Jiang, Li 2023 (arXiv 2305.18475), equation 10. The infimum over representations of a target is left out:
    the values are those of one coupling.

    Args:
        singular_values: (ranks,) sigma_s, not negative; sorted here, descending.
        exponent: a, above 1/2.

    Raises:
        ValueError: there are no values, a value is negative or not finite, or the exponent is at most 1/2.
    """
    values = torch.as_tensor(singular_values, dtype=torch.float64)
    if values.ndim != 1 or not len(values) or not values.isfinite().all() or values.min() < 0:
        raise ValueError(
            f"singular_values has the shape {tuple(values.shape)}; give a list of finite values that are not negative."
        )
    _require_exponent(exponent)
    ranks = torch.arange(1, len(values) + 1, dtype=torch.float64)
    return (values.sort(descending=True).values * ranks**exponent).max().item()


def feed_forward_complexity(
    outer: float, inner: float, left: Sequence[float], right: Sequence[float], rank: int
) -> float:
    """Return C2 = C_FF(F) + C_FF(f) + sum_{i <= rank} (C_FF(phi_i) + C_FF(psi_i)).

    Source: Jiang, Li 2023 (arXiv 2305.18475), equation 12. C_FF(g) is a constant with |g - g^| <= C_FF(g) / m_FF^b for
    the best network g^ of budget m_FF, such as the Barron norm at b = 1/2; nothing here computes it.

    Args:
        outer: C_FF(F).
        inner: C_FF(f).
        left: C_FF(phi_i), i = 1, 2, ...
        right: C_FF(psi_i).
        rank: number of terms, m_h in the bound.

    Raises:
        ValueError: a complexity is negative, or there are fewer of one side than `rank`.
    """
    require_at_least(rank=(rank, 1))
    if min(len(left), len(right)) < rank:
        raise ValueError(
            f"rank is {rank}, and there are {len(left)} phi_i and {len(right)} psi_i; give one each a term."
        )
    terms = [outer, inner, *left[:rank], *right[:rank]]
    if min(terms) < 0:
        raise ValueError(f"the complexities are {terms}; none may be negative.")
    return math.fsum(terms)


def factor_complexity(
    outer_inputs: Tensor, outer_outputs: Tensor, inner: Tensor, left: Tensor, right: Tensor
) -> float:
    """Estimate C0 = max{Lip(F) |f|_inf (sup_i |phi_i|_inf + sup_i |psi_i|_inf), 1} from samples, from below.

    The estimate is a lower one: Lip(F) is the largest slope between two samples, each norm the largest sampled entry.

    Source: Jiang, Li 2023 (arXiv 2305.18475), equation 13. There an infimum stands before the braces: a factor of an
    upper bound must be the larger of both, so we read a maximum. The infimum over representations is left out.

    Args:
        outer_inputs: (samples, n), where F is sampled; all pairs are compared.
        outer_outputs: (samples,), F there.
        inner: (samples', n), f.
        left: (samples'', ranks), phi_i.
        right: (samples'', ranks), psi_i.

    Raises:
        ValueError: F is not sampled at two different places, or outputs do not belong to the inputs.
    """
    if outer_inputs.ndim != 2 or outer_outputs.shape != outer_inputs.shape[:1]:
        raise ValueError(
            f"F has inputs of shape {tuple(outer_inputs.shape)} and outputs of shape {tuple(outer_outputs.shape)};"
            " give (samples, n) and (samples,)."
        )
    distances = torch.nn.functional.pdist(outer_inputs.double())
    differences = torch.nn.functional.pdist(outer_outputs.double()[:, None])
    apart = distances > 0
    if not apart.any():
        raise ValueError(f"F has {len(outer_inputs)} samples; give two different ones at least.")
    lipschitz = (differences[apart] / distances[apart]).max()
    product = lipschitz * inner.abs().max() * (left.abs().max() + right.abs().max())
    return max(product.item(), 1.0)


def transformer_bound(
    length: int,
    head_size: int,
    ff_width: int,
    *,
    c0: float,
    c1: float,
    c2: float,
    exponent: float,
    ff_exponent: float = 0.5,
) -> tuple[float, float]:
    """Return both terms of the error bound T^2 C0 (C1 / m_h^(2a - 1) + C2 m_h^(b + 1) / m_FF^b).

    Source: Jiang, Li 2023 (arXiv 2305.18475), theorem 4.2, for int sum_t |H_t - H^_t| dx. The first term falls with
    m_h; the second rises, unless m_FF grows faster. The proof bounds a square by sum_{k > m_h} sigma_k^2, which
    supports 2a - 1 for mean square errors and a - 1/2 for their roots, with C1^2 / (2a - 1) in place of C1.

    Args:
        length: T.
        head_size: m_h.
        ff_width: m_FF.
        c0: see `factor_complexity`.
        c1: see `coupling_complexity`.
        c2: see `feed_forward_complexity`, of rank m_h.
        exponent: a, above 1/2.
        ff_exponent: b, 1/2 for Barron functions.

    Returns:
        The term of the coupling and the term of the feed-forward networks; the bound is their sum.

    Raises:
        ValueError: a size is below 1, or an exponent out of range.
    """
    require_at_least(length=(length, 1), head_size=(head_size, 1), ff_width=(ff_width, 1))
    _require_exponent(exponent)
    if ff_exponent <= 0:
        raise ValueError(f"ff_exponent is {ff_exponent}; it must be positive.")
    factor = length**2 * c0
    return (
        factor * c1 / head_size ** (2 * exponent - 1),
        factor * c2 * head_size ** (ff_exponent + 1) / ff_width**ff_exponent,
    )


@dataclass(frozen=True)
class RecurrentComplexity:
    """What a linear recurrent network needs for a kernel, C_RNN = C1 C2.

    Attributes:
        c1: 1 + inf{b: e^(s/b) |rho(s)| -> 0}, the memory in tokens; infinite where no network's memory suffices.
        c2: sup_s e^(s/C1) |rho(s)|, over the taps that there are.
    """

    c1: float
    c2: float

    @property
    def value(self) -> float:
        """C_RNN."""
        return math.inf if math.isinf(self.c1) else self.c1 * self.c2

    def bound(self, hidden_size: int, width: int = 1) -> float:
        """Return d C_RNN / m, the rate of `hidden_size` m at `width` d inputs a token.

        Raises:
            ValueError: a size is below 1.
        """
        require_at_least(hidden_size=(hidden_size, 1), width=(width, 1))
        return width * self.value / hidden_size


def recurrent_complexity(target: Target) -> RecurrentComplexity:
    """Return C_RNN of a linear target; infinite where it is not a causal convolution.

    The decay of a kernel does not follow from finitely many taps: C1 comes from `decay_time` of the target, and the
    target's matrix gives the taps of C2.

    Source: Jiang, Li 2023 (arXiv 2305.18475), section 6. By proposition 6.1, the permuted target leaves the functions
    of finite C_RNN if p(t) > t somewhere: it is no causal convolution any more.

    Raises:
        ValueError: the target is not linear.
    """
    matrix = target.matrix()
    if matrix is None:
        raise ValueError(f"{type(target).__name__} is not linear; C_RNN is defined for linear targets.")
    if matrix.triu(1).any() or not torch.allclose(matrix[1:, 1:], matrix[:-1, :-1], rtol=1e-9, atol=1e-12):
        return RecurrentComplexity(math.inf, math.inf)
    c1 = 1 + target.decay_time
    lags = torch.arange(target.length, dtype=torch.float64)
    return RecurrentComplexity(c1, (torch.exp(lags / c1) * matrix[:, 0].abs()).max().item())


def _require_exponent(exponent: float) -> None:
    if not 0.5 < exponent < math.inf:
        raise ValueError(f"exponent is {exponent}; the rates hold for a above 1/2.")
