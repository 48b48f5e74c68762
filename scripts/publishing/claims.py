r"""Writes the page of claims: what the sources say, what was measured here, and what became of each claim.

    python scripts/publishing/claims.py --claims scripts/measured/claims.yaml --into scripts/measured/CLAIMS.md

claims.yaml says in words what a source claims, and names results by file, model, metric and setting. Every figure of
the page that was measured here is read from those files of results: means over seeds, standard deviations, and
differences of models seed by seed. A claim about trained models that rests on fewer than three seeds is undecided.
"""

import argparse
import dataclasses
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from hf_seqmix._files import write_text
from hf_seqmix.training.json_fields import checked
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.results import KINDS, Result
from hf_seqmix.training.tables import markdown_table

SEEDS = 3
"""So many at least decide a claim about trained models."""

VERDICTS = {
    "reproduced": "what is claimed came out here, too",
    "refuted": "wrong as it stands, by exact computation",
    "refuted at our size": "something else came out of measurements here",
    "true but vacuous": "right, and says nothing about models of a practical size",
    "undecided": "with what would decide it",
}


CHOICES = {"pool": ("mean", "median"), "by": ("difference", "ratio", "percent"), "kind": KINDS}
"""Fields of a figure -> what they may be."""


@dataclass(frozen=True)
class Figure:
    """A figure of the page: the results that it is read from.

    Attributes:
        file: of results, relative to the file of claims.
        metric: of the results.
        model: of the results; empty for any.
        task: of the results; empty for any.
        setting: entries that the setting of the results has.
        kind: of the results.
        pool: what is shown of several seeds; mean comes with the standard deviation, median with the range.
        against: fields in which the results of another figure differ, with which these are compared seed by seed.
        by: how they are compared: this less the other, this over the other, or the difference in percent of the other.
        format: of a number.
        factor: by which values are multiplied, such as 100 for percent.
    """

    file: str
    metric: str
    model: str = ""
    task: str = ""
    setting: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "measured"
    pool: Literal["mean", "median"] = "mean"
    against: Mapping[str, Any] | None = None
    by: Literal["difference", "ratio", "percent"] = "ratio"
    format: str = ".3g"
    factor: float = 1.0


@dataclass(frozen=True)
class Claim:
    """A row of the page.

    Attributes:
        claim: in words.
        place: in the source.
        published: the figure that the source gives, if any.
        verdict: one of `VERDICTS`.
        measured: what was found, with {name} for a figure.
        figures: name -> what is read.
        size: of ours against theirs.
        trained: whether models were trained for it, so that seeds count.
        why: a sentence on the verdict; of an undecided claim, what would decide it.
        command: where the results name none.
    """

    claim: str
    place: str
    verdict: str
    published: str = "-"
    measured: str = "not measured"
    figures: Mapping[str, Figure] = field(default_factory=dict)
    size: str = "-"
    trained: bool = True
    why: str = ""
    command: str = ""


def read_claims(path: Path) -> dict[str, list[Claim]]:
    """Return the claims of a file by their sources.

    Raises:
        ValueError: the file cannot be read, a field is missing, unknown or of another type, or an undecided claim does
            not say what would decide it.
    """
    try:
        sources = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as claims: {error}") from error
    if not isinstance(sources, dict) or not all(isinstance(claims, list) for claims in sources.values()):
        raise ValueError(f"{path} has no lists of claims by source.")
    return {
        source: [_claim(entry, f"{path}, {source}, claim {place}") for place, entry in enumerate(claims, start=1)]
        for source, claims in sources.items()
    }


def _claim(entry: Any, where: str) -> Claim:
    texts = ("claim", "place", "verdict", "published", "measured", "size", "why", "command")
    kinds: dict[str, Any] = {**dict.fromkeys(texts, str), "figures": Mapping}
    is_trained = entry.get("trained", True) if isinstance(entry, dict) else True
    given = {name: value for name, value in entry.items() if name != "trained"} if isinstance(entry, dict) else entry
    fields = checked(given, kinds, {"claim", "place", "verdict"}, where)
    if fields["verdict"] not in VERDICTS:
        raise ValueError(f"{where}: verdict {fields['verdict']!r} is none of {', '.join(VERDICTS)}.")
    if fields["verdict"] == "undecided" and not fields.get("why"):
        raise ValueError(f"{where} is undecided; say in 'why' what would decide it.")
    names: dict[str, Any] = {each.name: (str, Mapping) for each in dataclasses.fields(Figure)}
    names |= {"factor": (int, float)}
    figures = {
        name: _figure(figure, names, f"{where}, figure {name!r}") for name, figure in fields.get("figures", {}).items()
    }
    return Claim(**{**fields, "figures": figures, "trained": is_trained})


def _figure(entry: Any, kinds: Mapping[str, Any], where: str) -> Figure:
    fields = checked(entry, kinds, {"file", "metric"}, where)
    for name, allowed in CHOICES.items():
        if fields.get(name, allowed[0]) not in allowed:
            raise ValueError(f"{where}: {name} is {fields[name]!r}; it must be one of {', '.join(allowed)}.")
    checked(fields.get("against", {}), kinds, set(), f"{where}, 'against'")
    return Figure(**fields)


class Results:
    """Files of results, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, list[Result]] = {}

    def of(self, figure: Figure) -> list[Result]:
        """Return the results of a figure, one a seed.

        Raises:
            ValueError: there are none, or two of one seed.
        """
        if figure.file not in self._files:
            self._files[figure.file] = read_results(self.folder / figure.file)
        found = [result for result in self._files[figure.file] if _is_of(result, figure)]
        words = f"{figure.metric} of {figure.model or 'any model'} in {figure.file}, {dict(figure.setting)}"
        if not found:
            raise ValueError(f"no results: {words}.")
        twice = [seed for seed, times in Counter(result.seed for result in found).items() if times > 1]
        if twice:
            settings = [dict(result.setting) for result in found if result.seed == twice[0]][:2]
            raise ValueError(f"several results of seed {twice[0]}: {words}; settings differ: {settings}.")
        return found

    def values(self, figure: Figure) -> dict[int | None, float]:
        """Return seed -> value of a figure; of a comparison, for the seeds that both sides have."""
        results = self.of(figure)
        if lost := [result.seed for result in results if result.value is None]:
            raise ValueError(
                f"{figure.metric} of {figure.model or 'any model'} in {figure.file} has no value for seeds {lost}, "
                "which diverged: claim what holds with these seeds, such as how many diverged."
            )
        own = {result.seed: result.value * figure.factor for result in results if result.value is not None}
        if figure.against is None:
            return own
        changed = {name: value for name, value in figure.against.items() if name != "setting"}
        setting = {**figure.setting, **figure.against.get("setting", {})}
        other = self.values(dataclasses.replace(figure, against=None, **{**changed, "setting": setting}))
        both = [seed for seed in own if seed in other]
        if not both:
            raise ValueError(f"{figure.metric} in {figure.file}: no seed of {figure.model} is one of the other side.")
        return {seed: _compared(own[seed], other[seed], figure.by) for seed in both}


def _is_of(result: Result, figure: Figure) -> bool:
    same = {"metric": figure.metric, "kind": figure.kind}
    same |= {name: value for name in ("model", "task") if (value := getattr(figure, name))}
    return all(getattr(result, name) == value for name, value in same.items()) and all(
        result.setting.get(name) == value for name, value in figure.setting.items()
    )


def _compared(own: float, other: float, by: str) -> float:
    if other == 0 and by != "difference":
        raise ValueError(f"{own} has no {by} to 0: compare by difference.")
    if by == "ratio":
        return own / other
    return own - other if by == "difference" else 100 * (own / other - 1)


def shown(figure: Figure, values: Sequence[float]) -> str:
    """Return the mean and the standard deviation of values, or their median and range, as text."""
    if figure.pool == "median":
        middle = format(statistics.median(values), figure.format)
        if len(values) == 1:
            return middle
        return f"{middle} ({min(values):{figure.format}} to {max(values):{figure.format}})"
    mean = format(statistics.mean(values), figure.format)
    if len(values) == 1:
        return mean
    spread = figure.format.removeprefix("+")
    return f"{mean} ± {statistics.stdev(values):{spread}}"


def render(sources: Mapping[str, Sequence[Claim]], results: Results) -> str:
    """Return the page.

    Raises:
        ValueError: a figure has no results, too few seeds decide a claim about trained models, or no command is named.
    """
    commands: list[str] = []
    counts = Counter(claim.verdict for claims in sources.values() for claim in claims)
    parts = [
        "# What became of the claims",
        "Claims of the sources with the figure that was published, the figure that was measured here, and a "
        "verdict. The figures of this page are read from the files of results beside it by `python "
        "scripts/publishing/claims.py --claims scripts/measured/claims.yaml --into scripts/measured/CLAIMS.md`.",
        "Models here are small and were trained for minutes, so a verdict holds for that size. ± is the standard "
        f"deviation over seeds; differences are taken seed by seed. Fewer than {SEEDS} seeds decide nothing about "
        "trained models. Numbers in brackets are commands, at the end.",
        "\n".join(f"- **{name}** ({counts[name]}): {meaning}." for name, meaning in VERDICTS.items()),
    ]
    for source, claims in sources.items():
        rows = [_row(claim, results, commands) for claim in claims]
        columns = {"claim": "claim", "published": "published", "measured": "here", "size": "sizes"}
        columns |= {"seeds": "seeds", "verdict": "verdict"}
        parts += [f"## {source}", markdown_table(rows, columns)]
    parts += ["## Commands", "\n".join(f"{place}. `{command}`" for place, command in enumerate(commands, start=1))]
    return "\n\n".join(parts) + "\n"


def _row(claim: Claim, results: Results, commands: list[str]) -> dict[str, Any]:
    texts, seeds = {}, []
    for name, figure in claim.figures.items():
        values = results.values(figure)
        texts[name] = shown(figure, list(values.values()))
        seeds += [len(values)] if figure.kind == "measured" else []
    fewest = min(seeds, default=0)
    if claim.trained and fewest < SEEDS and claim.verdict != "undecided":
        raise ValueError(
            f"'{claim.claim}' is {claim.verdict} by {fewest} seeds; with fewer than {SEEDS} a claim about trained "
            "models is undecided."
        )
    try:
        measured = claim.measured.format(**texts)
    except (KeyError, IndexError) as error:
        raise ValueError(f"'{claim.claim}' names the figure {error}, which its figures do not have.") from error
    numbers = sorted({_number(command, commands) for command in _commands(claim, results)})
    if not numbers and claim.verdict != "undecided":
        raise ValueError(f"'{claim.claim}' is {claim.verdict}, and neither it nor its results name a command.")
    measured += f" [{', '.join(map(str, numbers))}]" if numbers else ""
    verdict = f"**{claim.verdict}**" + (f": {claim.why}" if claim.why else "")
    shown_seeds = str(fewest) if claim.trained and seeds else "-"
    own = {"claim": f"{claim.claim} ({claim.place})", "published": claim.published, "measured": measured}
    return {**own, "size": claim.size, "seeds": shown_seeds, "verdict": verdict}


def _commands(claim: Claim, results: Results) -> Iterator[str]:
    if claim.command:
        yield claim.command
        return
    for figure in claim.figures.values():
        yield from dict.fromkeys(result.command for result in results.of(figure) if result.command)


def _number(command: str, commands: list[str]) -> int:
    if command not in commands:
        commands.append(command)
    return commands.index(command) + 1


def main(argv: Sequence[str] | None = None) -> int:
    """Write what the command line says; return 0, or 2 with one line about what is wrong."""
    parser = argparse.ArgumentParser(
        prog="claims.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--claims", type=Path, required=True, help="file of claims; results lie beside it")
    parser.add_argument("--into", type=Path, metavar="FILE", help="where the page goes; it is printed by default")
    arguments = parser.parse_args(argv)
    try:
        page = render(read_claims(arguments.claims), Results(arguments.claims.parent))
        if arguments.into is None:
            print(page, end="")
        else:
            write_text(arguments.into, page)
            print(f"{arguments.into}: written")
    except (ValueError, OSError) as error:
        print(f"claims.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
