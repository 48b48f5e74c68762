r"""Compares two models of compare_mixers.py or compare_lengths.py by classes of tokens, from their results alone.

    python scripts/studies/pair_gaps.py --results runs/lengths/length-100/results.jsonl \
        runs/lengths/length-500/results.jsonl --model ipa-p --against attention --output-dir runs/pair-gaps

Nats a token by which a model is behind another one, seed by seed: at recalled tokens and at all others (as
compare_lengths.py has them), at pairs of each frequency in the training text, and at recalled tokens by how far back
their pair stood. Each side has the rate of least
validation loss on the first seed. A negative figure means that the model is ahead. Writes pair-gaps.md and
pair-gaps.jsonl.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comparison.bins import gap_of_bins, pair_scores

from hf_seqmix.training.command import CommandParser, explained
from hf_seqmix.training.result_files import read_results, write_report
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run
from hf_seqmix.training.table_rows import row_results

Bins = Sequence[Mapping[str, Any]]
WHOLE = ("recall", "others")
BACK = "back "
"""Before the distance of recalled tokens."""
SETTING = ("length", "channels")
OF_A_SWEEP = ("learning_rate", "muon_learning_rate", "bf16", "threads")
"""Training arguments in which runs of one comparison may differ."""


def bounds_of(text: str) -> list[int | None]:
    """Return the bounds of a class that results name, such as "10-100", or "1000-", which is open."""
    low, _, high = text.partition("-")
    return [int(low), int(high) if high else None]


def bins_by_seed(results: Sequence[Result], model: str) -> dict[int, Bins]:
    """Return seed -> classes of tokens of the test text, at the rate of least validation loss on the first seed.

    Raises:
        ValueError: there is no such model, or its best rate has no classes.
    """
    mine = [result for result in results if result.model == model and result.metric in ("token_loss", "num_tokens")]
    whole = [each for each in mine if "train_count" not in each.setting and each.metric == "token_loss"]
    seeds = sorted({each.seed for each in whole if each.seed is not None})
    validation = {
        each.setting["learning_rate"]: each.value
        for each in whole
        if each.setting["split"] == "validation" and each.seed == seeds[0] and each.value is not None
    }
    if not validation:
        names = sorted({each.model for each in results})
        raise ValueError(
            f"there is no model {model!r} with a validation loss; these are there: {', '.join(names) or 'none'}."
        )
    best = min(validation, key=lambda rate: validation[rate])
    classes: dict[int, dict[tuple[str, str], dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for each in mine:
        where = each.setting
        if each.seed is not None and where["learning_rate"] == best and "train_count" in where:
            place = str(where["train_count"]), str(where["distance"])
            classes[each.seed][place] |= {
                "train_count": bounds_of(place[0]),
                "distance": bounds_of(place[1]),
                each.metric: each.value,
            }
    if not classes:
        raise ValueError(f"{model} has no losses by classes of tokens at its best rate {best:g}; run it again.")
    return {seed: list(found.values()) for seed, found in classes.items()}


def gaps_of(own: Bins, other: Bins) -> dict[str, float]:
    """Return how many nats a token the first model is behind.

    The keys are `recall` and `others`, the bounds of each frequency of pairs, such as "10-100", and of each distance
    of recalled tokens, such as "back 16-64".
    """
    gap = gap_of_bins(own, other)
    ours, theirs = (
        sorted(pair_scores(bins), key=lambda score: (score.train_count[0], score.distance[0])) for bins in (own, other)
    )
    found = {name: gap[name] for name in WHOLE if name in gap}
    groups: dict[str, list[int]] = defaultdict(list)
    for place, score in enumerate(ours):
        groups[_text(score.train_count)].append(place)
    for place, score in sorted(enumerate(ours), key=lambda each: each[1].distance[0]):
        if score.is_recall:
            groups[BACK + _text(score.distance)].append(place)
    for name, places in groups.items():
        own_nll, other_nll = (sum(scores[place].nll for place in places) for scores in (ours, theirs))
        found[name] = (own_nll - other_nll) / sum(ours[place].num_tokens for place in places)
    return found


def _text(bounds: tuple[int, int | None]) -> str:
    return f"{bounds[0]}-{'' if bounds[1] is None else bounds[1]}"


def _in_order(names: Iterable[str]) -> list[str]:
    """Return classes by their lower bounds; a length may lack some."""
    return sorted(names, key=lambda name: int(name.removeprefix(BACK).partition("-")[0]))


def row_of(results: Sequence[Result], model: str, other: str) -> dict[str, Any]:
    """Return a row of the table, with each gap by seed.

    Raises:
        ValueError: the two have no seed in common, their runs differ in more than model, rate and seed, or as
            `bins_by_seed`.
    """
    _check_alike([result.run for result in results if result.model in (model, other) and result.run is not None])
    run = next((result.run for result in results if result.model == model), None)
    ours, theirs = bins_by_seed(results, model), bins_by_seed(results, other)
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        raise ValueError(f"{model} has seeds {sorted(ours)} and {other} {sorted(theirs)}; no seed is common.")
    assert run is not None
    gaps = {seed: gaps_of(ours[seed], theirs[seed]) for seed in seeds}
    by_name = {name: [gaps[seed][name] for seed in seeds] for name in gaps[seeds[0]]}
    return {
        "length": run.data["block_size"],
        "channels": run.model["config_overrides"]["hidden_size"],
        "model": model,
        "against": other,
        "num_seeds": len(seeds),
        "by_seed_gap": {name: dict(zip(map(str, seeds), values, strict=True)) for name, values in by_name.items()},
        **{name: _shown(values) for name, values in by_name.items()},
    }


def _check_alike(runs: Sequence[Run]) -> None:
    """Refuse runs of several lengths of training, data or sizes, of which the newest would be taken for all."""
    common = [{k: v for k, v in run.training.items() if k not in OF_A_SWEEP} | {"data": run.data} for run in runs]
    models: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        models[run.model["name"]].append(run.model["config_overrides"])
    differing = _differing(common) + [field for fields in models.values() for field in _differing(fields)]
    if differing:
        raise ValueError(
            f"the results hold runs that differ in more than model, rate and seed: {'; '.join(differing)}. Give a "
            "file of one comparison."
        )


def _differing(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of fields that are not the same in all, with their values."""
    found = {
        name: sorted({json.dumps(each.get(name), sort_keys=True) for each in fields})
        for name in dict.fromkeys(name for each in fields for name in each)
    }
    return [f"{name} is {' and '.join(values)}" for name, values in found.items() if len(values) > 1]


def _shown(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):+.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


@explained("pair_gaps.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows of the table."""
    parser = CommandParser("pair_gaps.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--results", type=Path, nargs="+", required=True, help="results.jsonl, one length each")
    parser.add_argument("--model", required=True, help="name of the model in the results")
    parser.add_argument("--against", nargs="+", required=True, metavar="MODEL", help="the models it is compared with")
    parser.add_argument("--output-dir", type=Path, required=True, help="where results and tables go")
    arguments = parser.parse_args(argv)
    files = [read_results(path) for path in arguments.results]
    rows = [row_of(results, arguments.model, other) for other in arguments.against for results in files]
    rows.sort(key=lambda row: (row["channels"], row["against"], row["length"]))
    classes = {name for row in rows for name in row["by_seed_gap"]}.difference(WHOLE)
    frequencies, distances = (
        _in_order(name for name in classes if name.startswith(BACK) == far) for far in (False, True)
    )
    first = {"channels": "channels", "length": "length", "against": "against"}
    last = {"num_seeds": "seeds"}
    columns = first | {"recall": "at recalled tokens", "others": "at all others"}
    columns |= {name: f"pairs {name} times" for name in frequencies} | last
    by_distance = first | {name: f"{name.removeprefix(BACK)} tokens back" for name in distances} | last
    behind = f"Nats a token by which {arguments.model} is behind"
    sections = [
        (f"{behind}; pairs by how often they stood in the training text", rows, columns),
        (f"{behind} at recalled tokens, by how far back their pair stood", rows, by_distance),
    ]
    numbers = [{key: value for key, value in row.items() if key not in (*WHOLE, *classes)} for row in rows]
    kept = row_results(numbers, "lm-causal", "model", inner={"by_seed_gap": ("tokens", "seed")}, setting=SETTING)
    write_report(arguments, "pair-gaps", sections, kept)
    return rows


if __name__ == "__main__":
    main()
