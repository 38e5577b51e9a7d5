"""The papers' numbers: rows of decentral/published/<paper>.csv."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

from decentral.errors import ConfigError, suggest
from decentral.published import key

NUMBER, REFERENCE, EXCLUDED = "number", "reference", "excluded"


class Paper(NamedTuple):
    """A paper, as pages and figures call it."""

    short: str
    title: str


@dataclass(frozen=True)
class PublishedNumber:
    """One number of a paper; `value` is None where it says `text` instead ('diverges')."""

    key: str
    metric: str
    value: float | None
    text: str
    unit: str
    spread: float | None
    note: str

    @property
    def kind(self) -> str:
        """number: the paper says it. reference: somebody computed it with the authors' code, or from the definitions.
        excluded: it is not what it is said to be, as the note explains, and nothing can be compared with it."""
        if self.note.startswith("not an accuracy"):
            return EXCLUDED
        return REFERENCE if self.note.startswith(("computed", "re-run")) else NUMBER


def paper(name: str) -> Paper:
    """The paper of a folder in results/; one that is not known is called like its folder."""
    return papers().get(name, Paper(name, name))


@cache
def papers() -> dict[str, Paper]:
    """The papers that there are numbers of, by the name of their folder in results/."""
    return {row["paper"]: Paper(row["short"], row["title"]) for row in _rows("papers")}


def numbers(paper: str, item: str, keys: Sequence[str] = ()) -> list[PublishedNumber]:
    """The numbers of an item, in the paper's order: those with these keys, or all.

    Raises ConfigError if there is no such paper, item or key.
    """
    found = [_number(row) for row in _rows(paper) if row["item"] == item]
    if not found:
        raise ConfigError(
            f"published.item={item} is not in the published numbers of {paper}.{suggest(item, items(paper))}"
        )
    known = [one.key for one in found]
    wrong = next((key for key in keys if key not in known), None)
    if wrong is not None:
        raise ConfigError(f"published.keys: {item} of {paper} has no number {wrong}.{suggest(wrong, known)}")
    return [one for one in found if one.key in keys] if keys else found


def items(paper: str) -> list[str]:
    """The items that a paper has numbers for, in its order. Raises ConfigError if there is no such paper."""
    return list(dict.fromkeys(row["item"] for row in _rows(paper)))


@cache
def _rows(paper: str) -> list[dict[str, str]]:
    if paper != "papers" and paper not in papers():
        raise ConfigError(f"there are no published numbers of paper={paper}.{suggest(paper, papers())}")
    text = resources.files("decentral.published").joinpath(f"{paper}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _number(row: dict[str, str]) -> PublishedNumber:
    return PublishedNumber(
        key=key(f"{row['algorithm']}|{row['topology']}", row["setting"]),
        metric=row["metric"],
        value=float(row["value"]) if re.fullmatch(r"[-+0-9.eE]+", row["value"]) else None,
        text=row["value"],
        unit=row["unit"],
        spread=float(row["spread"]) if row["spread"] else None,
        note=row["note"],
    )
