"""How a training script has the C library hold freed memory, so that the next update need not take new pages."""

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# Parameters of mallopt(3), from malloc.h of the GNU C library.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3

# Releases before 2.36 or so refuse a threshold of more than 32 MiB.
_LARGEST_BLOCKS = (2**30, 2**25)
_MOST_KEPT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the GNU C library keep up to 2 GiB of freed memory, for blocks of up to 1 GiB each (older releases: 32 MiB).

    By default the library gives large blocks back to the system. Each update then takes new pages for tensors such as
    the logits, and the system clears these pages one by one. Results are the same. The process holds on to what it
    once needed, on the host also where it trains on an accelerator, and so its peak memory may be higher.

    Returns:
        Whether the library took both settings; False, with nothing changed, where it refuses blocks of such sizes and
        on systems with another C library.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # A threshold of trimming alone would fix that of blocks at its small default, for the worse.
    if not any(mallopt(_MMAP_THRESHOLD, largest) for largest in _LARGEST_BLOCKS):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _MOST_KEPT))
