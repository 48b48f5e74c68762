"""What came of a run: a `Result` is one figure, with the run that gave the figure; a `Summary` is one over its seeds.

Every benchmark and study writes results as JSON lines, reads them with `read_results` and shows them with
`results_table`; `hf_seqmix.analysis.plots.results` draws them.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, get_args

from .json_fields import canonical, checked, plain
from .run import Run

__all__ = ["KINDS", "Kind", "Result", "Summary", "group_results", "summarize", "with_run"]

Kind = Literal["measured", "baseline", "published"]
Scalar = str | int | float | bool | None

KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Result:
    """One figure of one model.

    Attributes:
        task: what was measured, such as "listops".
        model: name of the model, of the baseline, or of the published model.
        metric: name of the figure, such as "accuracy".
        value: None for what could not be measured; NaN and infinity become None.
        seed: of the run; None where nothing is drawn.
        size: of the benchmark: "fast", "reduced", "full", or empty.
        kind: measured here, a baseline on the same data, or a figure that a paper gives.
        setting: what else tells figures apart: length, batch, dtype, context, split, data, step.
        unit: of the value, such as "ms"; empty for a bare number.
        run: what ran, if a run gave the figure.
        source: of a published figure.
        command: that gave the figure.
        environment: what `run_environment` returns.
    """

    task: str
    model: str
    metric: str
    value: float | None
    seed: int | None = None
    size: str = ""
    kind: Kind = "measured"
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    unit: str = ""
    run: Run | None = None
    source: str = ""
    command: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind of a result is {self.kind!r}; it must be one of {', '.join(KINDS)}.")
        for name, value in self.setting.items():
            if not isinstance(value, (str, int, float, bool, type(None))):
                raise ValueError(f"setting {name!r} of a result is {value!r}; it must be a string or a number.")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"setting {name!r} of a result is {value}; it must be a finite number.")
        if isinstance(self.value, bool):
            raise ValueError(f"value of a result is {self.value}; give a number, such as 1.0 for True.")
        object.__setattr__(self, "setting", dict(self.setting))
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)
        object.__setattr__(self, "environment", plain(self.environment, "environment of a result"))

    @property
    def figure(self) -> tuple[Any, ...]:
        """What tells the figure from others, its seeds together."""
        setting = tuple(sorted(self.setting.items()))
        return (self.task, self.model, self.metric, self.size, self.kind, self.source, setting)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells the result from others: the figure and the seed."""
        return (*self.figure, self.seed)

    def get(self, name: str) -> Any:
        """Return a field, or else an entry of `setting`; None if there is neither."""
        if name in _RESULT_KINDS:
            return getattr(self, name)
        return self.setting.get(name)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not empty, ready for `json.dumps`; the run without the seed of the result."""
        values: dict[str, Any] = {"task": self.task, "model": self.model, "metric": self.metric, "value": self.value}
        for entry in dataclasses.fields(self)[4:]:
            value = getattr(self, entry.name)
            if value is not None and value != "" and value != {} and (entry.name, value) != ("kind", "measured"):
                values[entry.name] = value.to_json() if isinstance(value, Run) else value
        if self.run is not None and self.run.seed == (self.seed or 0):
            del values["run"]["seed"]
        return values

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], where: str = "a result", runs: dict[str, Run] | None = None
    ) -> "Result":
        """Return the result that `to_json` wrote.

        Args:
            values: what `json.loads` gave.
            where: file and line, for the message of an error.
            runs: of results that were read before, by their JSON texts; equal runs are one object.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        fields = checked(values, _RESULT_KINDS, {"task", "model", "metric", "value"}, where)
        if "run" in fields:
            run = {"seed": fields.get("seed") or 0, **fields["run"]}
            known, text = {} if runs is None else runs, canonical(run)
            if text not in known:
                known[text] = Run.from_json(run, f"{where}, field 'run'")
            fields["run"] = known[text]
        try:
            return cls(**fields)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


_RESULT_KINDS: dict[str, Any] = {
    "task": str,
    "model": str,
    "metric": str,
    "value": (int, float, type(None)),
    "seed": (int, type(None)),
    "size": str,
    "kind": str,
    "setting": Mapping,
    "unit": str,
    "run": Mapping,
    "source": str,
    "command": str,
    "environment": Mapping,
}


def group_results(values: Mapping[str, Any], over: str = "step", **shared: Any) -> list[Result]:
    """Return the results of one run.

    Args:
        values: metric -> value, or a curve: pairs (place, value) or a mapping.
        over: the setting whose values are the places of a curve.
        **shared: fields of all results; `setting` is added to that of a curve.

    Returns:
        A result a value, in order; the last of a curve's values wins where a place is there twice.
    """
    setting = dict(shared.pop("setting", {}))
    found = []
    for metric, value in values.items():
        if value is None or isinstance(value, (int, float)):
            found.append(Result(metric=metric, value=value, setting=setting, **shared))
            continue
        points: dict[Any, Any] = dict(value)
        found += [
            Result(metric=metric, value=of, setting={**setting, over: place}, **shared) for place, of in points.items()
        ]
    return found


def with_run(
    results: Iterable[Result], run: Run, models: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Result]:
    """Return results with the run that gave them: of their own seed and their own model.

    Args:
        results: one that has a run keeps that run.
        run: what the results have in common.
        models: name of a model -> further fields of the model, such as the configuration.
    """
    found = []
    for result in results:
        if result.run is None:
            model = {"name": result.model, **run.model, **(models or {}).get(result.model, {})}
            seed = run.seed if result.seed is None else result.seed
            result = dataclasses.replace(result, run=dataclasses.replace(run, model=model, seed=seed))
        found.append(result)
    return found


@dataclass(frozen=True)
class Summary:
    """A figure over its seeds.

    Attributes:
        result: the first result of the figure.
        mean: over seeds; None if no seed has a value.
        spread: standard deviation over seeds, of a sample; None for fewer than two seeds.
        seeds: that have a value.
        results: all results of the figure.
    """

    result: Result
    mean: float | None
    spread: float | None
    seeds: tuple[int | None, ...]
    results: tuple[Result, ...]

    @property
    def differing(self) -> dict[str, list[Any]]:
        """What the runs of the seeds have not in common, such as `max_steps`, with the values in their order."""
        known = [result.run for result in self.results if result.run is not None]
        runs = [dict(chain(*map(_leaves, (run.model, run.data, run.training)))) for run in known]
        values = {name: list(dict.fromkeys(run.get(name) for run in runs)) for name in dict.fromkeys(chain(*runs))}
        return {name: found for name, found in values.items() if len(found) > 1}


def _leaves(fields: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Scalar]]:
    """Yield names, such as "pretraining.max_steps", and values of a run but for its seeds; lists as JSON."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{within}{name}.")
        elif name not in ("seed", "seeds"):
            yield f"{within}{name}", json.dumps(value) if isinstance(value, list) else value


def summarize(results: Iterable[Result]) -> list[Summary]:
    """Return every figure with its mean and standard deviation over seeds, in order of first appearance.

    Of results with one key, such as a baseline that several runs found, the last counts.
    """
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in {result.key: result for result in results}.values():
        groups.setdefault(result.figure, []).append(result)
    found = []
    for group in groups.values():
        known = [result for result in group if result.value is not None]
        values = [result.value for result in known if result.value is not None]
        mean = statistics.mean(values) if values else None
        spread = statistics.stdev(values) if len(values) > 1 else None
        found.append(Summary(group[0], mean, spread, tuple(result.seed for result in known), tuple(group)))
    return found
