"""Metrics as `evaluate` modules: one folder each, loadable without a network by name here or by path there."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import evaluate


_FOLDER = Path(__file__).resolve().parent

__all__ = ["list_metrics", "load_metric"]


def list_metrics() -> list[str]:
    """Return the names that `load_metric` accepts, sorted."""
    return sorted(script.stem for script in _FOLDER.glob("*/*.py") if script.stem == script.parent.name)


def load_metric(name: str, config_name: str | None = None, **kwargs: Any) -> "evaluate.EvaluationModule":
    """Return `evaluate.load` of a metric that ships with the package; no network is reached.

    Values are kept in memory rather than in `evaluate`'s cache folder, so that processes that compute the same metric
    at the same time do not wait for each other's lock; pass `keep_in_memory=False` for predictions too many for that.

    Args:
        name: one of `list_metrics()`, or the path of a metric script or its folder.
        config_name: variant of the metric ("multilabel" for `accuracy` and `f1`).
        **kwargs: passed on to `evaluate.load`.

    Raises:
        ValueError: the package has no metric of that name, and no path of that name exists.
        ImportError: `evaluate`, or a library the metric stands on, is not installed.
    """
    folder = _FOLDER / name
    if not (folder / f"{folder.name}.py").is_file():
        folder = Path(name)
        if not folder.exists():
            raise ValueError(
                f"there is no metric {name!r}; give one of {', '.join(list_metrics())}, or the path of a script."
            )
    try:
        import evaluate
    except ImportError as error:
        raise ImportError("metrics need the library `evaluate`: pip install 'hf-seqmix[eval]'.") from error

    kwargs.setdefault("keep_in_memory", kwargs.get("num_process", 1) == 1)
    try:
        return evaluate.load(str(folder), config_name, **kwargs)
    except ImportError as error:
        if folder.parent != _FOLDER:
            raise
        raise ImportError(f"{name} needs a library that is not installed: pip install 'hf-seqmix[eval]'.") from error
