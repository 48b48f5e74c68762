"""Tables, pictures and the page of `run_benchmarks.py leaderboard`."""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.inside.page import Section, write_page
from hf_seqmix.training.results import Result, summarize
from hf_seqmix.training.tables import results_table

from ..results import select
from .plots import Point, kind_of, plot_against, plot_heat, plot_ranking
from .runs import CHOSEN_BY, LANGUAGE
from .tasks import TASKS

BUDGETS = {"seconds": "equal seconds", "tokens": "equal tokens"}

QUALITY = {
    "num_parameters": "parameters:,.0f",
    "updates": "updates:,.0f",
    "train_seconds": "seconds:,.0f",
    "bits_per_byte": "validation:.3f",
    "token_loss": "validation, nats a masked token:.3f",
}

COSTS = {
    "tokens_per_second": ("Training, tokens a second", ",.0f"),
    "peak_memory_mib": ("Training, peak memory of an update in MiB", ",.0f"),
    "prompt_ms": ("Reading a prompt, ms", ",.0f"),
    "token_ms": ("A generated token after the prompt, ms", ".2f"),
    "cache_mib": ("Cache after these tokens, MiB", ".2f"),
}

RECALL = {"recall": "8 pairs", "changing": "3 rounds", "needle": "4 pairs, 32 tokens"}
"""Task -> the case that counts in the picture of recall against the size of the state."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the report: a heading, what to know, a table in Markdown, a picture."""

    title: str
    text: str = ""
    table: str = ""
    picture: Path | None = None

    def markdown(self) -> str:
        """Return the part without its picture."""
        return "\n\n".join(filter(None, [f"## {self.title}", self.text, self.table]))

    def section(self) -> Section:
        """Return the part for the page."""
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in self.table.splitlines()]
        header, body = lines[0] if lines else [], lines[2:]
        keys = [str(place) for place in range(len(header))]
        rows = [dict(zip(keys, row, strict=True)) for row in body]
        return Section(self.title, self.text, self.picture, rows, dict(zip(keys, header, strict=True)))


def best_factors(results: Iterable[Result], metric: str) -> dict[str, float]:
    """Return model -> the factor of the rates of least loss, on the seed of the model that comes first in the results.

    With that seed the rates are swept, in equal seconds. A model that has equal tokens alone is judged by these.
    """
    losses: dict[str, dict[str, dict[float, float]]] = {}
    own = [r for r in results if r.metric == metric and r.value is not None and r.get("seconds") is None]
    first: dict[str, int | None] = {}
    for result in own:
        swept = result.seed == first.setdefault(result.model, result.seed)
        if swept and result.value is not None:
            budget = "tokens" if result.get("budget") == "tokens" else "other"
            of_budget = losses.setdefault(result.model, {}).setdefault(budget, {})
            of_budget[float(result.setting["rate_factor"] or 0)] = result.value
    judged = {model: of.get("other") or of["tokens"] for model, of in losses.items()}
    return {model: min(of, key=of.__getitem__) for model, of in judged.items()}


def at_best(results: Sequence[Result], metric: str) -> list[Result]:
    """Return the results of each model at the best of its rates."""
    best = best_factors(results, metric)
    return [result for result in results if result.get("rate_factor") == best.get(result.model)]


def describe(folder: Path, results: Sequence[Result]) -> list[str]:
    """Return the tables, and write the pictures and leaderboard.html, which has all of them."""
    parts = [*_language(folder, results), *_tasks(folder, results), *_costs(results), *_trade_offs(folder, results)]
    if parts:
        # Pictures first: many readers look at nothing else.
        sections = [part.section() for part in sorted(parts, key=lambda part: part.picture is None)]
        write_page(folder / "leaderboard.html", "Leaderboard of sequence mixers", _introduction(results), sections)
    return [part.markdown() for part in parts if part.table]


def _introduction(results: Sequence[Result]) -> str:
    models = dict.fromkeys(result.model for result in results)
    kinds = {kind: sum(kind_of(model) == kind for model in models) for kind in ("mixer", "hybrid", "control")}
    seeds = len({result.seed for result in results} - {None})
    return (
        f"{len(models)} models of equal parameters within 1 %, the same block, data, optimizer and sweep of rates: "
        f"{kinds['mixer']} mixers, {kinds['hybrid']} hybrids, {kinds['control']} controls. Up to {seeds} seeds; bars "
        "are standard deviations. The colors of names say mixer, hybrid or control."
    )


def _language(folder: Path, results: Sequence[Result]) -> list[Part]:
    parts = []
    for objective, task in LANGUAGE.items():
        own = select(results, task=task)
        if not own:
            continue
        metric = CHOSEN_BY[objective]
        own = at_best(own, metric)
        ranking: dict[str, dict[str, Point]] = {}
        for budget, title in BUDGETS.items():
            of_budget = [_placed(result) for result in select(own, budget=budget, seconds=None)]
            if not of_budget:
                continue
            quality = next((m for m in ("test x 1", metric) if select(of_budget, metric=m)), metric)
            points = _points(select(of_budget, metric=quality))
            for model, point in points.items():
                ranking.setdefault(model, {})[title] = point
            order = {model: place for place, model in enumerate(sorted(points, key=lambda m: points[m].mean))}
            of_budget.sort(key=lambda result: order.get(result.model, len(order)))
            columns = {name: header for name, header in QUALITY.items() if select(of_budget, metric=name)}
            tests = dict.fromkeys(result.metric for result in of_budget if result.metric.startswith("test x "))
            columns |= {name: f"{name.replace('test x', 'test, context x')}:.3f" for name in tests}
            table = results_table(of_budget, {"model": "model", "rate_factor": "rates x"}, columns)
            text = (
                f"The test text is read with so many times the context of training. {task.capitalize()}, best first."
            )
            parts.append(Part(f"{task.capitalize()}: {title}", text, table))
        picture = folder / f"{objective}-quality.png"
        unit = "bits per byte of held-out text" if objective == "causal" else "nats a masked token"
        plot_ranking(ranking, picture, unit)
        parts.append(Part(f"{task.capitalize()}: how good", "", "", picture))
        longer = _longer(select(own, budget="seconds"))
        if longer:
            picture = folder / f"{objective}-lengths.png"
            plot_ranking(longer, picture, "bits per byte of held-out text, equal seconds")
            parts.append(Part("Longer texts than in training", "", "", picture))
    return parts


def _longer(results: Sequence[Result]) -> dict[str, dict[str, Point]]:
    found: dict[str, dict[str, Point]] = {}
    for context in sorted({result.get("context") for result in results} - {None}):
        for model, point in _points(select(results, metric="test_bits_per_byte", context=context)).items():
            found.setdefault(model, {})[f"{context} tokens"] = point
    return found


def _placed(result: Result) -> Result:
    """Return the score of a test text as a metric of its own: by how much longer the context is."""
    if result.metric != "test_bits_per_byte" or result.run is None:
        return result
    setting = {name: value for name, value in result.setting.items() if name != "context"}
    times = int(result.setting["context"] or 0) // int(result.run.data["block_size"])
    return dataclasses.replace(result, metric=f"test x {times}", setting=setting)


def _tasks(folder: Path, results: Sequence[Result]) -> list[Part]:
    heat: dict[str, dict[str, float]] = {}
    parts = []
    for task, of in TASKS.items():
        own = at_best(select(results, task=task), "token_loss")
        scores = select(own, metric="accuracy")
        if not scores:
            continue
        for case in of.cases:
            for model, point in _points(select(scores, case=case)).items():
                heat.setdefault(model, {})[f"{task}: {case}"] = point.mean
        columns = {case: f"{case}:.3f" for case in of.cases}
        named = [f"{task}: {case}" for case in of.cases]
        found = {
            result.model: [heat[result.model][name] for name in named if name in heat.get(result.model, {})]
            for result in scores
        }
        # A model that cannot read the long rows stands after those that can: what it has are the easy cases.
        scores.sort(key=lambda result: (-len(found[result.model]), -statistics.fmean(found[result.model] or [0.0])))
        table = results_table(scores, {"model": "model", "rate_factor": "rates x"}, columns, over="case")
        parts.append(Part(f"{task.capitalize()}: {of.title}", "Share of right answers.", table))
    if heat:
        picture = folder / "tasks.png"
        plot_heat(heat, picture, "share of right answers")
        parts.insert(0, Part("Synthetic tasks", "Small models, trained on short rows.", "", picture))
    return parts


def _costs(results: Sequence[Result]) -> list[Part]:
    parts = []
    for metric, (title, form) in COSTS.items():
        own = select(results, metric=metric)
        if own:
            lengths = sorted({int(result.setting["length"] or 0) for result in own})
            columns = {length: f"{length:,} tokens".replace(":", "") + f":{form}" for length in lengths}
            parts.append(Part(title, "", results_table(own, ("model",), columns, over="length")))
    return parts


def _trade_offs(folder: Path, results: Sequence[Result]) -> list[Part]:
    text = at_best(select(results, task=LANGUAGE["causal"]), CHOSEN_BY["causal"])
    text = select(text, budget="seconds", seconds=None)
    scored = [result for result in text if result.metric == "test_bits_per_byte"]
    shortest = min((int(result.setting["context"] or 0) for result in scored), default=0)
    quality = _points(select(scored, context=shortest))
    recall = _recall(results)
    parts = []
    for name, metric, label, values, what in (
        ("quality-speed", "tokens_per_second", "training, tokens a second", quality, "bits per byte, equal seconds"),
        ("quality-memory", "peak_memory_mib", "training, peak MiB", quality, "bits per byte, equal seconds"),
        ("quality-cache", "cache_mib", "cache, MiB", quality, "bits per byte, equal seconds"),
        ("recall-cache", "cache_mib", "cache, MiB", recall, "recall: share of right answers"),
    ):
        own = select(results, metric=metric)
        lengths = sorted({int(result.setting["length"] or 0) for result in own})
        if not own or not values:
            continue
        middle = lengths[len(lengths) // 2] if metric != "cache_mib" else lengths[0]
        places = {model: point.mean for model, point in _points(select(own, length=middle)).items()}
        if not set(places) & set(values):
            continue
        picture = folder / f"{name}.png"
        plot_against(places, values, picture, f"{label} at {middle:,} tokens", what)
        parts.append(Part(f"{what.split(':')[0].split(',')[0].capitalize()} against {label}", "", "", picture))
    return parts


def _recall(results: Sequence[Result]) -> dict[str, Point]:
    """Return model -> its mean share of right answers in the cases of `RECALL`, over seeds."""
    shares: dict[str, dict[Any, list[float]]] = {}
    for task, case in RECALL.items():
        own = at_best(select(results, task=task), "token_loss")
        for result in select(own, metric="accuracy", case=case):
            if result.value is not None:
                shares.setdefault(result.model, {}).setdefault(result.seed, []).append(result.value)
    found = {}
    for model, of in shares.items():
        means = [statistics.mean(values) for values in of.values() if len(values) == len(RECALL)]
        if means:
            found[model] = Point(statistics.mean(means), statistics.stdev(means) if len(means) > 1 else None)
    return found


def _points(results: Iterable[Result]) -> dict[str, Point]:
    return {s.result.model: Point(s.mean, s.spread) for s in summarize(results) if s.mean is not None}
