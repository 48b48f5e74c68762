"""What to tell a user who wrote a name that there is not."""

import difflib
from collections.abc import Collection, Iterable

__all__ = ["allowed_names"]


def allowed_names(unknown: Iterable[str], allowed: Collection[str], otherwise: str | None = None) -> str:
    """Return "did you mean ...?" where every unknown name is like an allowed one, else what is allowed.

    Args:
        unknown: names that are not among those allowed.
        allowed: names there are, in the order in which they are listed.
        otherwise: what is said in place of the list of all.
    """
    closest = [difflib.get_close_matches(name, allowed, n=1, cutoff=0.7) for name in unknown]
    if closest and all(closest):
        return f"did you mean {', '.join(dict.fromkeys(name for names in closest for name in names))}?"
    return otherwise or f"allowed are {', '.join(allowed)}."
