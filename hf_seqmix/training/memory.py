"""How a training script has the C library hold freed memory, so that the next update need not take new pages."""

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# Parameters of mallopt(3), from malloc.h of the GNU C library.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3

_LARGEST_BLOCK = 2**30
_MOST_KEPT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the GNU C library keep up to 2 GiB of freed memory, for blocks of up to 1 GiB each.

    By default the library gives large blocks back to the system. Each update then takes new pages for tensors such as
    the logits, and the system clears these pages one by one. Results are the same; the process holds on to what it
    once needed. A process on an accelerator gains nothing and loses nothing.

    Returns:
        Whether the library took both settings; False on systems with another C library.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Both are set in any case: the one is worth little without the other.
    taken = [mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK), mallopt(_TRIM_THRESHOLD, _MOST_KEPT)]
    return all(taken)
