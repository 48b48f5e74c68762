"""The fields that all families share, the checks of fields, and what a configuration says of code and devices."""

from .base import MIXER_CONFIGS, SeqMixConfig
from .checks import check_activation, check_choice, check_integer, check_per_axis, check_range
from .code_references import refuse_own_classes
from .common_fields import TAPS_INITS
from .tensor_parallel import GLU_PLAN, gathered_plan

__all__ = [
    "GLU_PLAN",
    "MIXER_CONFIGS",
    "TAPS_INITS",
    "SeqMixConfig",
    "check_activation",
    "check_choice",
    "check_integer",
    "check_per_axis",
    "check_range",
    "gathered_plan",
    "refuse_own_classes",
]
