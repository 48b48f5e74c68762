"""What sequence models approximate, how well they can, and what it costs: after Jiang, Li 2023 (arXiv 2305.18475).

Targets with known structure, alterations of their temporal order, floors of the error, and the models of the theory.
"""

from .alterations import AlteredTarget, exchange_ends, mix, permute
from .floors import PREDICTORS, Floor, error_floors, exact_floors, sampled_floors
from .ordering import OrderingRow, altered_targets, checkpoint_report, ordering_report
from .recurrent import LinearRNN, recurrent_complexity
from .regressors import MixerRegressor, TokenRegressor
from .representation import RankOneRepresentation
from .targets import CouplingTarget, LinearTarget, Target
from .training import TrainedModel, TrainSettings, held_out_error, train_on_target
from .transformer import Coupling, MultiHeadTransformer, SingleHeadTransformer

__all__ = [
    "PREDICTORS",
    "AlteredTarget",
    "Coupling",
    "CouplingTarget",
    "Floor",
    "LinearRNN",
    "LinearTarget",
    "MixerRegressor",
    "MultiHeadTransformer",
    "OrderingRow",
    "RankOneRepresentation",
    "SingleHeadTransformer",
    "Target",
    "TokenRegressor",
    "TrainSettings",
    "TrainedModel",
    "altered_targets",
    "checkpoint_report",
    "error_floors",
    "exact_floors",
    "exchange_ends",
    "held_out_error",
    "mix",
    "ordering_report",
    "permute",
    "recurrent_complexity",
    "sampled_floors",
    "train_on_target",
]
