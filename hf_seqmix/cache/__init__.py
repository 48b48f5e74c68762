"""Cache layers on the base classes of transformers ("the library"), and what mixers do with the layers."""

from .convolution import CONVOLUTION, ConvolutionLayer, ConvolutionStaticLayer, convolve_steps
from .copy_keys import CopyKeys, StaticCopyKeys, check_all_read, copy_keys_of
from .detaching import can_detach, detach_cache
from .dtypes import check_dtype
from .history import HISTORY, HistoryLayer, HistoryStaticLayer, append_history, cached_taps, check_room, past_length
from .inputs import INPUTS, InputsLayer, InputsStaticLayer, count_steps
from .key_inputs import KEY_INPUTS, KeyInputsLayer, KeyInputsStaticLayer, append_keys, previous_inputs
from .modes import MODES, ModesLayer, ModesStaticLayer
from .recent_inputs import check_rows
from .rows import join_rows, keep_rows
from .sums import SUMS, SumsLayer, SumsStaticLayer, append_sums, read_sums

__all__ = [
    "CONVOLUTION",
    "HISTORY",
    "INPUTS",
    "KEY_INPUTS",
    "MODES",
    "SUMS",
    "ConvolutionLayer",
    "ConvolutionStaticLayer",
    "CopyKeys",
    "HistoryLayer",
    "HistoryStaticLayer",
    "InputsLayer",
    "InputsStaticLayer",
    "KeyInputsLayer",
    "KeyInputsStaticLayer",
    "ModesLayer",
    "ModesStaticLayer",
    "StaticCopyKeys",
    "SumsLayer",
    "SumsStaticLayer",
    "append_history",
    "append_keys",
    "append_sums",
    "cached_taps",
    "can_detach",
    "check_all_read",
    "check_dtype",
    "check_room",
    "check_rows",
    "convolve_steps",
    "copy_keys_of",
    "count_steps",
    "detach_cache",
    "join_rows",
    "keep_rows",
    "past_length",
    "previous_inputs",
    "read_sums",
]
