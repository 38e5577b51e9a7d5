"""The `report:` section of a study: which table, figures, published numbers and claims."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from decentral.config.parsing import build
from decentral.errors import ConfigError, suggest
from decentral.registry import components
from decentral.report.claims import Claim
from decentral.report.figures.figure import StudyFigure
from decentral.settings import setting
from decentral.store.files import check_name

Format = Literal["percent", "steps", "scientific", "plain"]


@dataclass
class Table:
    """A row per combination of `rows`, a column per value of `columns` (one column if there is none).

    format     percent (the value is in percent already), steps, scientific (1.5e-06) or plain
    digits     digits after the decimal point; null: 1, for plain 3
    precise    whether a cell gets more digits until its spread has two significant ones (tiny numbers: powers of ten)
    of         numbers with a table each: value (the study's number), worst, mean, averaged
    best       setting whose chosen value has a column; '': none
    heading    what the first metric is called; '': as the runs call it
    bold       whether the best entry of each column is bold, where it is ahead by more than the noise
    """

    rows: list[str]
    columns: str = ""
    format: Format = "plain"
    digits: int | None = None
    precise: bool = False
    of: list[Literal["value", "worst", "mean", "averaged"]] = field(default_factory=lambda: ["value"])
    best: str = ""
    heading: str = ""
    bold: bool = True


@dataclass
class Tolerance:
    """Tolerated distance of a number from the published one; with several, the widest counts.

    relative   share of the published value
    absolute   in its unit
    factor     ours is at most this factor larger or smaller
    """

    relative: float | None = None
    absolute: float | None = None
    factor: float | None = setting(None, at_least=1)

    def __post_init__(self) -> None:
        if self.relative is None and self.absolute is None and self.factor is None:
            raise ConfigError("a tolerance needs one of relative, absolute and factor.")


@dataclass
class Published:
    """The published numbers to compare with.

    item       item of the paper's file in decentral/published
    keys       numbers of the item that this study reproduces, as its rows and columns name them; [] for all
    scales     scales at which our numbers can be compared
    because    reason for this tolerance
    """

    item: str
    tolerance: Tolerance
    because: str
    scales: list[str] = field(default_factory=lambda: ["paper"])
    keys: list[str] = field(default_factory=list)


@dataclass
class ReportSpec:
    """All of it.

    claimed_by         origin of the claims: the paper, or us, where it only describes its method
    larger_is_better   direction of the first metric, and of those without one in the runs; null: as in the runs
    repeats            what distinguishes the values of a cell: seed, or round for timings; '': nothing, for computed
                       values
    listings           further tables of the numbers: see report/listings.py
    notes              sentences below the printed table
    """

    caption: str = ""
    claimed_by: Literal["paper", "us"] = "paper"
    larger_is_better: bool | None = None
    repeats: str = "seed"
    table: Table | None = None
    figures: list[StudyFigure] = field(default_factory=list)
    listings: list[Any] = field(default_factory=list)
    published: Published | None = None
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parse(section: dict[str, Any] | None, study: str) -> ReportSpec:
    """The section, checked. Raises ConfigError naming the study, the key and what would work."""
    where = f"study {study}: report"
    if not isinstance(section, dict | None):
        raise ConfigError(f"{where} is {section!r}: give keys with values.")
    section = dict(section or {})
    try:
        found: dict[str, list[Any]] = {key: _components(section.pop(key, None), key, where) for key in _LISTS}
        spec: ReportSpec = build(ReportSpec, section, where)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith("study ") else f"{where}: {text}") from None
    spec.figures, spec.claims, spec.listings = found["figures"], found["claims"], found["listings"]
    for key, taken in (("figures", []), ("listings", ["table", "values", "curves", "verdicts"])):
        for one in found[key]:
            check_name(one.file, f"{where}.{key}: name")
            if one.file.casefold() in taken:
                raise ConfigError(f"{where}.{key}: two are named '{one.file}': give each its own name.")
            taken.append(one.file.casefold())
    return spec


_LISTS = ("figures", "listings", "claims")


def _components(values: Any, key: str, where: str) -> list[Any]:
    """Build the component that `kind` of each chooses; `name` in the YAML names the files of figures and listings."""
    if not isinstance(values, list | None) or not all(isinstance(value, dict) for value in values or []):
        raise ConfigError(f"{where}.{key} must be a list, each item keys with values.")
    found = []
    for number, one in enumerate(values or []):
        kinds = components(f"report.{key}")  # listings need pandas: only where there are some
        own, place = dict(one), f"{where}.{key}[{number}]"
        kind, name = own.pop("kind", None), own.pop("name", f"{key[:-1]}{number}")
        if kind not in kinds:
            raise ConfigError(f"{place}.kind={kind} does not exist.{suggest(str(kind), kinds)}")
        found.append(build(kinds[kind], own if key == "claims" else own | {"file": name}, place))
    return found
