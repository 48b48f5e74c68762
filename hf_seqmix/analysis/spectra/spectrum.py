"""Singular values of couplings: of each input by itself, and of the tokens of many inputs at once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .ranks import entropy_rank, eps_rank, stable_rank

__all__ = ["SpectrumReport", "center", "cross_spectrum", "spectrum"]

CENTERS = ("none", "row", "double")
NORMALIZATIONS = ("tau", "fro")
MASKS = ("full", "tril")


@dataclass(frozen=True)
class SpectrumReport:
    """Singular values of couplings, of each sample.

    Attributes:
        singular_values: (..., count), descending, float64; leading dimensions are samples.
        num_queries: T, or the queries of all inputs.
        num_keys: S, or the keys of all inputs.
        center: what was subtracted: "none", "row" or "double".
        normalize: what the values were divided by: "tau" or "fro".
        mask: which entries were seen: "full" or "tril".
        resolution: relative size below which values are rounding errors of the coupling; a floor for `fit_decay`.
    """

    singular_values: Tensor
    num_queries: int
    num_keys: int
    center: str
    normalize: str
    mask: str
    resolution: float

    @property
    def num_samples(self) -> int:
        """Number of couplings."""
        return math.prod(self.singular_values.shape[:-1])

    @property
    def samples(self) -> Tensor:
        """(num_samples, count): the values with one dimension of samples."""
        return self.singular_values.reshape(self.num_samples, -1)

    @property
    def mean(self) -> Tensor:
        """(count,): mean of sigma_k over the samples, as in Section 5.1 of the paper."""
        return self.samples.mean(dim=0)

    def quantiles(self, *levels: float) -> Tensor:
        """Return quantiles of sigma_k over the samples, (levels, count).

        Raises:
            ValueError: there is no level, or a level lies outside [0, 1].
        """
        if not levels or not all(0 <= level <= 1 for level in levels):
            raise ValueError(f"levels are {levels}; give at least one number between 0 and 1.")
        at = torch.tensor(levels, dtype=torch.float64, device=self.singular_values.device)
        return self.samples.quantile(at, dim=0)

    def eps_rank(self, eps: float) -> Tensor:
        """Return `eps_rank` of each sample, (...)."""
        return eps_rank(self.singular_values, eps)

    @property
    def stable_rank(self) -> Tensor:
        """`stable_rank` of each sample, (...)."""
        return stable_rank(self.singular_values)

    @property
    def entropy_rank(self) -> Tensor:
        """`entropy_rank` of each sample, (...)."""
        return entropy_rank(self.singular_values)


def center(coupling: Tensor, how: str, mask: Tensor | None = None) -> Tensor:
    """Subtract from a coupling the part c(u), or c(u) + d(v), that is nearest in least squares.

    Softmax over keys is the same for rho(u, v) and rho(u, v) + c(u), so only rho minus its row means is identified:

        row:    rho[t, s] - mean_s rho[t, s]
        double: rho[t, s] - mean_s rho[t, s] - mean_t rho[t, s] + mean_ts rho[t, s]

    Without a mask, no c(u) leaves a smaller sum_{k > R} sigma_k^2 than the row means, for any R, and no c(u) + d(v) a
    smaller one than the double centering. "double" also drops d(v), which softmax does depend on. With a mask, c and d
    are fitted to the visible entries alone.

    Args:
        coupling: (..., T, S), real.
        how: "none", "row" or "double".
        mask: (..., T, S) or (T, S), True where an entry is visible; None if all entries are.

    Returns:
        (..., T, S) in float64; entries that are not visible are 0.

    Raises:
        ValueError: the coupling is not a batch of real matrices with finite visible entries, `how` is unknown, or the
            mask has another dtype or shape.
    """
    if coupling.ndim < 2 or not coupling.numel() or coupling.is_complex():
        raise ValueError(
            f"coupling has shape {tuple(coupling.shape)} and dtype {coupling.dtype}; give real numbers of shape"
            " (..., queries, keys), at least one each."
        )
    _require("how", how, CENTERS)
    if mask is not None:
        if mask.dtype != torch.bool or mask.shape not in (coupling.shape, coupling.shape[-2:]):
            raise ValueError(
                f"mask has shape {tuple(mask.shape)} and dtype {mask.dtype}; give booleans of shape"
                f" {tuple(coupling.shape)} or {tuple(coupling.shape[-2:])}."
            )
        coupling = torch.where(mask, coupling, 0)  # before any product: hidden logits may be infinite
    x = coupling.double()
    if not x.isfinite().all():
        raise ValueError("coupling has visible entries that are not finite; give a mask that hides such entries.")
    if how == "none":
        return x
    if mask is None:
        x = x - x.mean(dim=-1, keepdim=True)
        return x if how == "row" else x - x.mean(dim=-2, keepdim=True)
    seen = mask.double()
    if how == "row":
        return (x - x.sum(dim=-1, keepdim=True) / seen.sum(dim=-1, keepdim=True).clamp(min=1)) * seen
    return (x - _additive_fit(x, seen)) * seen


_center = center  # arguments below have that name


def spectrum(coupling: Tensor, center: str = "none", normalize: str = "tau", mask: str = "full") -> SpectrumReport:
    """Return the singular values of couplings, each input by itself.

    For tokens drawn independently, the singular values of [rho(x(t), x(s))] / sqrt(T S) estimate the sigma_k of

        rho(u, v) = sum_k sigma_k phi_k(u) psi_k(v)

    with phi_k and psi_k orthonormal in L2 of the distribution of the tokens (Braun 2005; Section 5.1 of Jiang and Li,
    arXiv 2305.18475). The paper does not state its normalization; division by tau = sqrt(T S) is ours. Few tokens bias
    the estimate: large values come out too large and small ones too small. `cross_spectrum` has no such bias.

    Args:
        coupling: (..., T, S), real: pre-softmax logits of a head, without a mask. Leading dimensions are samples.
        center: "none", "row" or "double", as in [`center`].
        normalize: "tau" divides by sqrt(T S), "fro" by the Frobenius norm of each sample.
        mask: "full", or "tril": entries with s > t count as hidden, and are 0 in the matrix. A zeroed triangle adds
            singular values of its own: those of a constant coupling decay as 1 / k.

    Raises:
        ValueError: an argument is unknown, the coupling is wrong as in [`center`], "tril" is asked for with T != S, or
            "fro" for a sample that is zero.
    """
    _require("center", center, CENTERS)
    _require("normalize", normalize, NORMALIZATIONS)
    _require("mask", mask, MASKS)
    visible = None
    if mask == "tril" and coupling.ndim > 1:
        rows, columns = coupling.shape[-2:]
        if rows != columns:
            raise ValueError(
                f"mask is 'tril' and the coupling has {rows} queries and {columns} keys; give as many keys as queries,"
                " or mask 'full'."
            )
        visible = torch.ones(rows, columns, dtype=torch.bool, device=coupling.device).tril()
    matrices = _center(coupling, center, visible)
    queries, keys = matrices.shape[-2:]
    values = torch.linalg.svdvals(matrices)
    if normalize == "fro":
        norms = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
        if not (norms > 0).all():
            raise ValueError("normalize is 'fro' and a sample is zero after centering; give 'tau', or other samples.")
        values = values / norms
    else:
        values = values / math.sqrt(queries * keys)
    resolution = _resolution(coupling.dtype, max(queries, keys))
    return SpectrumReport(values, queries, keys, center, normalize, mask, resolution)


def cross_spectrum(queries: Tensor, keys: Tensor, center: str = "none") -> SpectrumReport:
    """Return the singular values of Q K^T / sqrt(N M) for the tokens of many inputs at once, in O((N + M) r^2).

    A coupling is a function of two tokens, so queries and keys of different inputs may be paired. Their number is then
    not bound to the length of an input, and neither is the bias that [`spectrum`] has: it vanishes as N and M grow.
    The N x M matrix is not formed: with Q = U A and K = V B (QR), its singular values are those of A B^T.

    Args:
        queries: (..., N, r), real, scaled so that queries @ keys^T are the logits. Leading dimensions are samples,
            such as heads. Terms of the logits that are no such product, such as biases by lag, cannot be included.
        keys: (..., M, r), of the same leading dimensions.
        center: "none", "row" (subtract the mean key) or "double" (the mean query, too), as in [`center`].

    Returns:
        A report with min(N, M, r) values a sample, normalized by "tau"; all further values are 0.

    Raises:
        ValueError: `center` is unknown, a shape does not fit, or numbers are not real and finite.
    """
    _require("center", center, CENTERS)
    fits = (
        queries.ndim == keys.ndim > 1 and queries.shape[:-2] == keys.shape[:-2] and queries.shape[-1] == keys.shape[-1]
    )
    if not fits or not queries.numel() or not keys.numel():
        raise ValueError(
            f"queries have shape {tuple(queries.shape)} and keys {tuple(keys.shape)}; give (..., N, r) and"
            " (..., M, r) with the same leading dimensions, at least one number each."
        )
    parts = []
    for name, part, centered in (("queries", queries, center == "double"), ("keys", keys, center != "none")):
        if part.is_complex() or not part.isfinite().all():
            raise ValueError(
                f"{name} have dtype {part.dtype} or numbers that are not finite; give finite real numbers."
            )
        part = part.double()
        part = part - part.mean(dim=-2, keepdim=True) if centered else part
        parts.append(torch.linalg.qr(part, mode="r").R)  # (..., min(tokens, r), r)
    count, other, width = queries.shape[-2], keys.shape[-2], keys.shape[-1]
    values = torch.linalg.svdvals(parts[0] @ parts[1].mT) / math.sqrt(count * other)
    resolution = max(_resolution(part.dtype, width) for part in (queries, keys))
    return SpectrumReport(values, count, other, center, "tau", "full", resolution)


def _additive_fit(x: Tensor, seen: Tensor) -> Tensor:
    """Return c[t] + d[s] with the least sum over visible entries of (x[t, s] - c[t] - d[s])^2; x is 0 elsewhere."""
    rows = x.shape[-2]
    normal = torch.cat(
        [
            torch.cat([torch.diag_embed(seen.sum(dim=-1)), seen], dim=-1),
            torch.cat([seen.mT, torch.diag_embed(seen.sum(dim=-2))], dim=-1),
        ],
        dim=-2,
    )  # (..., T + S, T + S); singular, as c + 1 and d - 1 are the same fit
    sums = torch.cat([x.sum(dim=-1), x.sum(dim=-2)], dim=-1)
    fit = (torch.linalg.pinv(normal, hermitian=True) @ sums[..., None])[..., 0]
    return fit[..., :rows, None] + fit[..., None, rows:]


def _resolution(dtype: torch.dtype, size: int) -> float:
    """Return the relative size of rounding errors: those of the numbers given, and of the decomposition in float64."""
    given = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    return size * max(given, torch.finfo(torch.float64).eps)


def _require(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; give one of {', '.join(map(repr, allowed))}.")
