"""Spectra of couplings rho(u, v), and how they decay.

The coupling of a softmax layer is what stands before the softmax, softmax_s[rho(x(t), x(s))]. Its singular values
decide how many dimensions the queries and keys of a head need: Jiang and Li, "Approximation Rate of the Transformer
Architecture for Sequence Modeling", arXiv 2305.18475.
"""

from .decay import DecayFit, PowerLawFit, fit_decay, fit_power_law
from .ranks import entropy_rank, eps_rank, stable_rank, tail_squares
from .spectrum import SpectrumReport, center, cross_spectrum, spectrum

__all__ = [
    "DecayFit",
    "PowerLawFit",
    "SpectrumReport",
    "center",
    "cross_spectrum",
    "entropy_rank",
    "eps_rank",
    "fit_decay",
    "fit_power_law",
    "spectrum",
    "stable_rank",
    "tail_squares",
]
