"""Spectra of couplings rho(u, v), how they decay, and couplings whose spectrum is known.

The coupling of a softmax layer is what stands before the softmax, softmax_s[rho(x(t), x(s))]. Its singular values
decide how many dimensions the queries and keys of a head need: Jiang and Li, "Approximation Rate of the Transformer
Architecture for Sequence Modeling", arXiv 2305.18475.
"""

from .decay import DecayFit, PowerLawFit, fit_decay, fit_power_law
from .planted import SHEARED_SINGULAR_VALUES, planted_coupling, planted_features, sheared_coupling
from .ranks import entropy_rank, eps_rank, stable_rank, tail_squares
from .spectrum import SpectrumReport, center, cross_spectrum, spectrum

__all__ = [
    "SHEARED_SINGULAR_VALUES",
    "DecayFit",
    "PowerLawFit",
    "SpectrumReport",
    "center",
    "cross_spectrum",
    "entropy_rank",
    "eps_rank",
    "fit_decay",
    "fit_power_law",
    "planted_coupling",
    "planted_features",
    "sheared_coupling",
    "spectrum",
    "stable_rank",
    "tail_squares",
]
