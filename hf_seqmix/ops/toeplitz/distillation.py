"""A causal kernel as exact first taps and a tail of few decaying modes: k[t] ~ Re sum_s w_s p_s^(t - L) for t >= L.

Source: Massaroli et al. 2023 (arXiv 2310.18780, "Laughing Hyena Distillery"), who fit modes by gradients. Departures:
all channels of a layer share their poles, since one small network makes all their kernels; and poles come from the
Hankel matrix of the tails, by balanced truncation (Kung 1978).

Channels are divided by their l1 norms. H[i, (c, j)] = k_c[L + i + j] with zeros behind the last tap is the whole
Hankel operator of a system with a finite response; sigma_s are its singular values, U its left singular vectors. With
S the shift (S u)[i] = u[i + 1] and U_S the first vectors, the matrix A = U_S^T S U_S of balanced truncation has the
poles. |p| < 1 always: with |p| = 1 an eigenvector would be one of S, whose powers vanish.

For a fit of order S (poles, of two conjugate ones both) and its errors e_c[t], relative to the l1 norms of kernels:

* No fit of that order is better than (sum_c |e_c|_1^2)^(1/2) >= sigma_(S+1): H of an error has a norm of at most its
  l1 norm, and a matrix of rank S is at least sigma_(S+1) away.
* (sum_c |e_c|_2^2)^(1/2) <= 2 sum_(s>S) sigma_s, the bound of balanced truncation for the response at all frequencies
  (Al-Saggaf & Franklin 1987). Weights are the least squares for these poles over all lags to infinity, so no worse.
  The bound therefore holds for every single tap, too.
* |e_c|_1 says by how much outputs change: |y - y'| <= |e_c|_1 |k_c|_1 max |x|. The tolerance is for this norm, which
  is summed over the taps fitted and as many again, with a bound on the rest.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.fft import circular_product, fast_length, spectrum

__all__ = ["MOST_MODES", "ModalFit", "fit_modes", "modal_taps", "mode_powers"]

MOST_MODES = 64
"""Highest order that is tried. A fit that needs more saves little."""

_SPARE, _ITERATIONS = 16, 3  # vectors and steps of the subspace iteration, which the last singular values need
_NOTHING = 1e-12  # of the l1 norm of a kernel; such tails are rounding errors
_INDEPENDENT = 1e-10  # of the largest singular value of the eigenvectors; larger weights would be rounding errors


@dataclass(frozen=True)
class ModalFit:
    """A tail of decaying modes, in float64.

    Attributes:
        poles: (modes,) complex, |p| < 1, shared by all channels; one of two conjugate poles.
        weights: (channels, modes) complex, of lag `first` for a sum whose real part is taken.
        first: L, the first lag that the modes give.
        order: number of poles, conjugate ones counted twice.
        singular_values: sigma, those that were computed, largest first.
        bound: 2 sum_(s > order) sigma_s, with a bound on those that were not computed, and with what eigenvectors that
            are not independent leave of a fit.
        errors: (channels,), |k - k'|_1 / |k|_1, all lags to infinity.
        tap_error: largest |k[t] - k'[t]| / |k|_1 of all channels and lags.
    """

    poles: Tensor
    weights: Tensor
    first: int
    order: int
    singular_values: Tensor
    bound: float
    errors: Tensor
    tap_error: float

    @property
    def error(self) -> float:
        """Largest of `errors`."""
        return float(self.errors.max())


def fit_modes(
    taps: Tensor,
    first: int,
    order: int | None = None,
    tolerance: float = 1e-3,
    beyond: Tensor | float = 0.0,
) -> ModalFit:
    """Fit the taps from lag `first` on by decaying modes with the same poles in all channels.

    The cost grows as n log n with the taps and with the rank of the channels: seconds for 768 channels.

    Args:
        taps: (channels, n), lags from 0, best in float64, in which all is computed. The kernel is zero beyond.
        first: L, number of taps that stay as they are.
        order: number of poles; None for the smallest that meets the tolerance.
        tolerance: on the relative l1 error of every channel; not used with `order`.
        beyond: bound on sum |k[t]| over the lags that `taps` lacks, a number or (channels,); an error as any other.

    Raises:
        ValueError: for a tolerance that no order up to `MOST_MODES` meets, and for arguments out of range.
    """
    if taps.ndim != 2 or taps.shape[1] < 1:
        raise ValueError(f"taps have shape {tuple(taps.shape)}: give (channels, taps), one tap or more.")
    if first < 1 or not 0 < tolerance < 1 or (order is not None and not 1 <= order <= MOST_MODES):
        raise ValueError(
            f"first is {first}, order {order}, tolerance {tolerance}: give 1 exact tap or more, 1 to {MOST_MODES} "
            "modes, and a tolerance between 0 and 1."
        )
    exact = taps.detach().double()
    sizes = exact.abs().sum(dim=1).clamp(min=torch.finfo(torch.float64).tiny).unsqueeze(1)
    tails = exact[:, first:] / sizes
    missing = torch.as_tensor(beyond, dtype=torch.float64, device=taps.device).expand(len(taps)) / sizes[:, 0]
    parts = _principal(tails)
    if not len(parts):
        none = torch.zeros(1, dtype=torch.complex128, device=taps.device)
        errors = tails.abs().sum(dim=1) + missing
        worst = float(tails.abs().max()) if tails.numel() else 0.0
        weights = none.expand(len(taps), 1).clone()
        fit = ModalFit(none, weights, first, 1, none[:0].real, float(tails.norm()), errors, worst)
        if order is None and fit.error > tolerance:
            raise _too_far(fit, 0, tolerance)
        return fit
    values, vectors = _hankel_svd(parts, min(parts.shape[1], MOST_MODES + _SPARE))
    most = min(len(values), MOST_MODES)
    if order is None:
        # From the first order that the lower bound does not exclude.
        start = 1 + int((values[1:most] > tolerance * len(taps) ** 0.5).sum())
        tried = range(start, most + 1)
    else:
        tried = range(min(order, most), min(order, most) + 1)
    for count in tried:
        fit = _fit(tails, missing, values, vectors[:, :count], parts, first)
        if order is not None or fit.error <= tolerance:
            return ModalFit(**{**vars(fit), "weights": fit.weights * sizes})
    raise _too_far(fit, most, tolerance)


def _too_far(fit: ModalFit, modes: int, tolerance: float) -> ValueError:
    return ValueError(
        f"{modes} modes leave an error of {fit.error:.2g} of the kernel beyond lag {fit.first - 1}, and the tolerance "
        f"is {tolerance:.2g}: keep more exact taps, allow a larger tolerance, or give an order to take the error."
    )


def modal_taps(poles: Tensor, weights: Tensor, length: int) -> Tensor:
    """Return the taps of modes, Re sum_s w[c, s] p[s]^t, (channels, length), t from 0, in float64."""
    powers = mode_powers(poles, length)  # (length, modes)
    return weights.real @ powers.real.t() - weights.imag @ powers.imag.t()


def mode_powers(poles: Tensor, length: int) -> Tensor:
    """Return the powers 0 to length - 1 of poles, (length, modes)."""
    # By angles: a power of a rounded pole is further off.
    lags = torch.arange(length, dtype=torch.float64, device=poles.device).unsqueeze(1)
    return torch.polar(poles.abs() ** lags, poles.angle() * lags)


def _principal(tails: Tensor) -> Tensor:
    """Return as few sequences as matter, (parts, lags), whose H H^T is that of the tails."""
    if not tails.shape[1]:
        return tails[:0]
    _, sizes, directions = torch.linalg.svd(tails, full_matrices=False)
    kept = sizes > _NOTHING
    return sizes[kept].unsqueeze(1) * directions[kept]


def _hankel_svd(parts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the first singular values and left singular vectors of H, (count,) and (lags, count).

    By subspace iteration, with products by FFT: H is never formed.
    """
    lags = parts.shape[1]
    size = fast_length(2 * lags)
    spectra = spectrum(parts, size, torch.float64, scaled=True).unsqueeze(1)  # (parts, 1, frequencies)

    def multiply(part: Tensor, vectors: Tensor) -> Tensor:
        # y[i] = sum_j h[i + j] v[j] is a convolution with v reversed, from the last lag on. H is symmetric.
        reversed_vectors = spectrum(vectors.t().flip(1), size, torch.float64)
        return circular_product(reversed_vectors, part, size)[:, lags - 1 : 2 * lags - 1].t()

    seed = torch.Generator().manual_seed(0)
    start = torch.randn(lags, count, dtype=torch.float64, generator=seed, device="cpu").to(parts.device)
    vectors = torch.linalg.qr(start)[0]
    for _ in range(_ITERATIONS):
        image = torch.zeros_like(vectors)
        for part in spectra:
            image += multiply(part, multiply(part, vectors))
        vectors = torch.linalg.qr(image)[0]
    triangle = vectors.new_zeros(0, count)
    for part in spectra:  # H^T U, whose columns are orthogonal for singular vectors
        triangle = torch.linalg.qr(torch.cat([triangle, multiply(part, vectors)]), mode="r")[1]
    _, values, turn = torch.linalg.svd(triangle)
    return values, vectors @ turn.t()


def _fit(tails: Tensor, missing: Tensor, values: Tensor, vectors: Tensor, parts: Tensor, first: int) -> ModalFit:
    order, lags = vectors.shape[1], tails.shape[1]
    matrix = vectors[:-1].t() @ vectors[1:]
    # Taps are c A^t b with c = U[0]: W b = sum_t (A^T)^t c^T k[t], W = sum_t (A^T)^t c^T c A^t over all t, is the
    # normal equation of least squares. W is near 1, since the columns of U are orthonormal.
    observed = torch.empty_like(vectors)  # (lags, order), c A^t
    row = vectors[0]
    for lag in range(lags):
        observed[lag] = row
        row = row @ matrix
    gram, power = vectors[0].outer(vectors[0]), matrix
    for _ in range(64):
        gram, power = gram + power.t() @ gram @ power, power @ power
    states = torch.linalg.pinv(gram, hermitian=True) @ observed.t() @ tails.t()  # (order, channels)
    poles, modes = torch.linalg.eig(matrix)
    # A kernel that ends soon has poles near 0 and hardly more than one eigenvector, which does not span the states.
    shares = torch.linalg.pinv(modes, rtol=_INDEPENDENT) @ states.to(modes.dtype)
    unspanned = states - modes @ shares
    unspanned = (unspanned.conj() * (gram.to(modes.dtype) @ unspanned)).sum().real.clamp(min=0).sqrt()
    weights = (vectors[0].to(modes.dtype) @ modes).unsqueeze(1) * shares
    # Of two conjugate poles one stands for both.
    kept = poles.imag >= 0
    weights = weights * (1 + (poles.imag > 0).double()).unsqueeze(1)
    poles, weights = poles[kept], weights[kept].t().contiguous()
    errors = F.pad(tails, (0, lags)) - modal_taps(poles, weights, 2 * lags)
    rest = (weights.abs() * poles.abs() ** (2 * lags) / (1 - poles.abs())).sum(dim=1)
    lost = (parts.square() @ torch.arange(1.0, lags + 1, dtype=torch.float64, device=parts.device)).sum()
    lost = (lost - values.square().sum()).clamp(min=0)  # sum of the squares of the values that were not computed
    bound = 2 * (values[order:].sum() + (lost * (lags - len(values))).sqrt()) + unspanned
    return ModalFit(
        poles,
        weights,
        first,
        order,
        values,
        float(bound),
        errors.abs().sum(dim=1) + rest + missing,
        float(errors.abs().max()),
    )
