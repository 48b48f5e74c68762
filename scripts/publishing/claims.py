r"""Writes the page of claims: what the sources say, what was measured here, and what became of each claim.

    python scripts/publishing/claims.py --claims scripts/measured/claims.yaml --into scripts/measured/CLAIMS.md

claims.yaml says in words what a source claims, and names results by file, model, metric and setting. Every figure of
the page that was measured here is read from those files of results: means over seeds, standard deviations, and
differences of models seed by seed. A claim about trained models that rests on fewer than three seeds is undecided.
"""

import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from claims_file import VERDICTS, Claim, Figure, read_claims

from hf_seqmix._files import write_text
from hf_seqmix.training.command import CommandParser
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.tables import markdown_table

SEEDS = 3
"""So many at least decide a claim about trained models."""
OUTPUT = re.compile(r" --output-dir \S+")


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

    def page(self, figure: Figure) -> str | None:
        """Return the folder whose README.md says how a figure was measured: the nearest one above its file."""
        folders = [folder.as_posix() for folder in Path(figure.file).parents][:-1]
        return next((folder for folder in folders if (self.folder / folder / "README.md").is_file()), None)

    def values(self, figure: Figure) -> dict[int | None, float]:
        """Return seed -> value of a figure; of a comparison, for the seeds that both sides have."""
        results = self.of(figure)
        if lost := [result.seed for result in results if result.value is None]:
            raise ValueError(
                f"{figure.metric} of {figure.model or 'any model'} in {figure.file} has no value for seeds {lost}, "
                "which diverged: claim what holds with these seeds, such as how many diverged."
            )
        own = {result.seed: result.value * figure.factor for result in results if result.value is not None}
        if figure.other_side is None:
            return own
        other = self.values(figure.other_side)
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
        "trained models. Numbers in brackets are commands, at the end, and links are the pages of the figures. Files "
        "below DATA, and other inputs that the repository lacks, are yours: those pages say which texts and images "
        "they are. To check a row, run its commands, and compare the results by the metric, model and setting that "
        "claims.yaml names.",
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
    pages = dict.fromkeys(page for figure in claim.figures.values() if (page := results.page(figure)))
    measured += "".join(f" [{page}]({page}/README.md)" for page in pages)
    verdict = f"**{claim.verdict}**" + (f": {claim.why}" if claim.why else "")
    shown_seeds = str(fewest) if claim.trained and seeds else "-"
    own = {"claim": f"{claim.claim} ({claim.place})", "published": claim.published, "measured": measured}
    return {**own, "size": claim.size, "seeds": shown_seeds, "verdict": verdict}


def _commands(claim: Claim, results: Results) -> Iterator[str]:
    if claim.command:
        yield claim.command
    for figure in claim.figures.values():
        for side in filter(None, (figure, figure.other_side)):
            yield from dict.fromkeys(result.command for result in results.of(side) if result.command)


def _number(command: str, commands: list[str]) -> int:
    """Return the place of a command in the list, which holds commands that differ in their output folder once."""
    known = [OUTPUT.sub("", each) for each in commands]
    if (bare := OUTPUT.sub("", command)) in known:
        return known.index(bare) + 1
    # Nobody who tries a command writes over the results that are kept.
    commands.append(command.replace("--output-dir scripts/measured/", "--output-dir runs/"))
    return len(commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Write what the command line says; return 0, or 2 with one line about what is wrong."""
    parser = CommandParser(prog="claims.py", description=__doc__, allow_abbrev=False)
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
