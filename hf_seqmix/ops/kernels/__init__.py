"""Names of version 0.1 for the modules of kernels, which repositories exported by it look for."""

import importlib
import sys

_MOVED = {
    "causal_sum": "polynomial.kernels.linear_attention",
    "monarch": "toeplitz.kernels.monarch",
    "native": "ski.native",
    "running_sums": "polynomial.kernels.running_mean",
    "ski": "ski.kernels.operator",
    "toeplitz_tiles": "toeplitz.kernels.tiles",
    "trials": "trials",
}

for _old, _new in _MOVED.items():
    try:
        sys.modules[f"{__name__}.{_old}"] = importlib.import_module(f"hf_seqmix.ops.{_new}")
    except ImportError:  # Triton is not installed: an import by the old name raises an ImportError, too
        continue
