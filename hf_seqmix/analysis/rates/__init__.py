"""What sequence models approximate, how well they can, and what it costs: after Jiang, Li 2023 (arXiv 2305.18475).

Targets with known structure, alterations of their temporal order, floors of the error, the models of the theory, their
complexities, and sweeps of trained errors over budgets.
"""

from .alterations import AlteredTarget, exchange_ends, mix, permute
from .selections import NearestPoint, SegmentMean, SelectAverage
from .targets import CouplingTarget, LinearTarget, Target

__all__ = [
    "AlteredTarget",
    "CouplingTarget",
    "LinearTarget",
    "NearestPoint",
    "SegmentMean",
    "SelectAverage",
    "Target",
    "exchange_ends",
    "mix",
    "permute",
]
