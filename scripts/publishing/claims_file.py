"""The file of claims: what its entries mean, and how they are read and checked."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from hf_seqmix.training.json_fields import checked
from hf_seqmix.training.results import KINDS

__all__ = ["VERDICTS", "Claim", "Figure", "read_claims"]

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

    @property
    def other_side(self) -> "Figure | None":
        """What this figure is compared with, if with anything."""
        if self.against is None:
            return None
        changed = {name: value for name, value in self.against.items() if name != "setting"}
        setting = {**self.setting, **self.against.get("setting", {})}
        return dataclasses.replace(self, against=None, **{**changed, "setting": setting})


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
