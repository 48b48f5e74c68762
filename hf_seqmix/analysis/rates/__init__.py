"""What sequence models approximate, how well they can, and what it costs: after Jiang, Li 2023 (arXiv 2305.18475).

Targets with known structure, alterations of their temporal order, floors of the error, the models of the theory, their
complexities, and sweeps of trained errors over budgets.
"""

from .alterations import AlteredTarget, exchange_ends, mix, permute
from .complexity import (
    RecurrentComplexity,
    coupling_complexity,
    factor_complexity,
    feed_forward_complexity,
    recurrent_complexity,
    transformer_bound,
)
from .floors import FLOOR_COLUMNS, PREDICTORS, Floor, error_floors, exact_floors, sampled_floors
from .ordering import OrderingRow, altered_targets, checkpoint_report, ordering_columns, ordering_report
from .recurrent import LinearRNN
from .regressors import MixerRegressor, TokenRegressor
from .selections import NearestPoint, SegmentMean, SelectAverage
from .sweep import SWEEP_COLUMNS, SweepRow, rate_sweep
from .targets import CouplingTarget, LinearTarget, Target
from .training import TrainedModel, TrainSettings, held_out_error, train_on_target
from .transformer import Coupling, MultiHeadTransformer, SingleHeadTransformer

__all__ = [
    "FLOOR_COLUMNS",
    "PREDICTORS",
    "SWEEP_COLUMNS",
    "AlteredTarget",
    "Coupling",
    "CouplingTarget",
    "Floor",
    "LinearRNN",
    "LinearTarget",
    "MixerRegressor",
    "MultiHeadTransformer",
    "NearestPoint",
    "OrderingRow",
    "RecurrentComplexity",
    "SegmentMean",
    "SelectAverage",
    "SingleHeadTransformer",
    "SweepRow",
    "Target",
    "TokenRegressor",
    "TrainSettings",
    "TrainedModel",
    "altered_targets",
    "checkpoint_report",
    "coupling_complexity",
    "error_floors",
    "exact_floors",
    "exchange_ends",
    "factor_complexity",
    "feed_forward_complexity",
    "held_out_error",
    "mix",
    "ordering_columns",
    "ordering_report",
    "permute",
    "rate_sweep",
    "recurrent_complexity",
    "sampled_floors",
    "train_on_target",
    "transformer_bound",
]
