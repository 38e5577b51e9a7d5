"""The papers' numbers: rows of decentral/published/<paper>.csv."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from decentral.errors import ConfigError, suggest

PAPERS = {
    "relaysum": "RelaySum for Decentralized Deep Learning on Heterogeneous Data (Vogels et al., 2021)",
    "thesis": "Exploring Distributed Learning Algorithms with Communication Optimization (Bohl, 2022)",
}
"""Folder in results/ -> title."""

_FIGURES = {
    "fig5.1": ("relaysgd|dbt", "relaysgd|bt", "relaysgd|chain"),
    "fig5.2": ("relaysgd|dbt", "dpsgd|full", "model_averaging|full"),
    "fig5.3": ("relaysgd|dbt", "model_averaging|full"),
}
_TOPOLOGIES = {"fully_connected": "full", "binary_tree": "bt", "double_binary_trees": "dbt", "chain": "chain"}


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
    def computed(self) -> bool:
        """Whether the paper does not say it: somebody computed it with the authors' code, or from the definitions."""
        return self.note.startswith(("computed", "re-run"))


def numbers(paper: str, item: str) -> list[PublishedNumber]:
    """The numbers of an item, in the paper's order.

    Items of the thesis 'fig5.1-epoch-200' and the like are read off its learning curves at that epoch (test accuracy in
    percent, key 'relaysgd|dbt|alpha=0.1').

    Raises ConfigError if there is no such paper or item.
    """
    figure, _, epoch = item.partition("-epoch-")
    if paper == "thesis" and figure in _FIGURES and epoch.isdigit():
        return _curves_at(_FIGURES[figure], int(epoch))
    found = [_number(row) for row in _rows(paper) if row["item"] == item]
    if not found:
        raise ConfigError(
            f"published.item={item} is not in the published numbers of {paper}.{suggest(item, items(paper))}"
        )
    return found


def items(paper: str) -> list[str]:
    """The items that a paper has numbers for, in its order. Raises ConfigError if there is no such paper."""
    return list(dict.fromkeys(row["item"] for row in _rows(paper)))


@cache
def _rows(paper: str) -> list[dict[str, str]]:
    if paper not in PAPERS:
        raise ConfigError(f"there are no published numbers of paper={paper}.{suggest(paper, PAPERS)}")
    return _read(f"{paper}.csv")


def _read(name: str) -> list[dict[str, str]]:
    text = resources.files("decentral.published").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _number(row: dict[str, str]) -> PublishedNumber:
    key = f"{row['algorithm']}|{row['topology']}|{row['setting']}"
    is_number = re.fullmatch(r"[-+0-9.eE]+", row["value"]) is not None
    value = float(row["value"]) if is_number else None
    spread = float(row["spread"]) if row["spread"] else None
    return PublishedNumber(key, row["metric"], value, row["value"], row["unit"], spread, row["note"])


def _curves_at(lines: tuple[str, ...], epoch: int) -> list[PublishedNumber]:
    found = []
    for row in _read("thesis_curves.csv"):
        line = f"{row['algorithm']}|{_TOPOLOGIES[row['topology']]}"
        if line in lines and int(row["epoch"]) == epoch:
            value = round(100 * float(row["test_accuracy"]), 2)
            note = f"epoch {epoch}, lr={row['lr']}; from the author's log"
            found.append(
                PublishedNumber(f"{line}|alpha={row['alpha']}", "test_accuracy", value, f"{value}", "%", None, note)
            )
    if not found:
        raise ConfigError(f"the thesis has no epoch {epoch}: its curves have epochs 1 to 200.")
    return found
