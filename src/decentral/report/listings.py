"""Further tables of a study, made from its numbers, and what such a table puts on the study's page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.report.entries import Entry
from decentral.report.style import byte_unit
from decentral.report.tables import chosen_values, harmless, markdown_table, word
from decentral.store.files import csv_text

if TYPE_CHECKING:
    from decentral.report.results import Results


class Board(NamedTuple):
    """What report.html shows instead of a study's cells."""

    heads: list[str]
    rows: list[list[tuple[str, Any]]]
    """Of each line what is shown, and what it is sorted by."""
    curves: list[dict[str, Any]]
    axes: Mapping[str, str]
    """Key of the curves -> the label of its axis."""
    submissions: list[list[str]]
    """A head and rows; [] if there are none."""


@dataclass
class Listing(ABC):
    """A dataclass whose fields are its keys in the YAML; the subclass has a `name`, which is its `kind`.

    file     name of its files, <file>.csv and <file>.md (`name` in the YAML)
    title    heading above it
    """

    file: str = "listing"
    title: str = ""

    left: ClassVar[int] = 1
    """Number of leading text columns, aligned left."""

    @abstractmethod
    def lines(self, results: Results) -> list[list[str]]:
        """A head and rows, as a person reads them; only a head if there are no numbers yet. Raises ConfigError for a
        label or metric that does not exist."""

    def sentences(self, results: Results) -> list[str]:
        """Return the sentences below it."""
        return []

    def on_page(self, rows: list[list[str]]) -> list[list[str]]:
        """Return the rows shown on the page; the CSV has all."""
        return rows

    def texts(self, results: Results) -> dict[str, str]:
        """Its files by their names: the table as CSV, and as Markdown with the title and the sentences."""
        head, *rows = self.lines(results)
        escaped = [[word(text) for text in line] for line in (head, *self.on_page(rows))]
        table = markdown_table(escaped, self.left) if rows else "No results yet."
        blocks = [f"**{word(self.title)}**", table, *self.sentences(results)]
        markdown = harmless("\n\n".join(block for block in blocks if block) + "\n")
        return {f"{self.file}.csv": csv_text(head, rows), f"{self.file}.md": markdown}

    def board(self, results: Results) -> Board | None:
        """Return what report.html shows instead of cells; None if this listing does not change the page."""
        return None


@dataclass
class ToTarget(Listing):
    """What each method needed to reach the target, a column for each axis, its end value, and the tuned value.

    budget_s  simulated seconds of each run
    tuned     setting that was tuned; '' for none
    """

    name: str = "to_target"
    budget_s: float = 0.0
    tuned: str = ""

    def lines(self, results: Results) -> list[list[str]]:
        """A row for each cell."""
        cells: dict[tuple[str, ...], dict[str, Entry]] = {}
        for entry in results.entries():
            axis = entry.metric.partition(" to ")[0]
            cells.setdefault(tuple(entry.labels.values()), {})[axis if axis in _AXES else entry.metric] = entry
        labels = [k for k, label in enumerate(results.labels) if len({key[k] for key in cells}) > 1 or not k]
        axes = list(dict.fromkeys(axis for entries in cells.values() for axis in entries))
        heads = [_AXES.get(axis, f"{axis} at the end") for axis in axes]
        tuned = [self.tuned] if self.tuned else []
        rows = []
        for key, entries in cells.items():
            numbers = [self._number(axis, entries[axis]) if axis in entries else "-" for axis in axes]
            chosen = [chosen_values(results, next(iter(entries.values())))] if self.tuned else []
            rows.append([*(key[k] for k in labels), *numbers, *chosen])
        return [[*(results.labels[k] for k in labels), *heads, *tuned], *rows]

    def sentences(self, results: Results) -> list[str]:
        """Return what the numbers are."""
        return [
            f"Mean ± standard deviation over seeds; the model is averaged over the workers; each run had "
            f"{self.budget_s:.6g} simulated seconds."
        ]

    def _number(self, axis: str, entry: Entry) -> str:
        if not entry.values:
            missed = f"not within {self.budget_s:.3g} s" if axis == "simulated_s" else "-"
            return "diverged" if entry.diverged == entry.runs else missed
        size, unit = byte_unit(entry.mean) if axis == "bytes_sent" else (1.0, "")
        text = " ± ".join(f"{one / size:.4g}" for one in (entry.mean, entry.std) if one is not None)
        lost = f" ({len(entry.values)} of {entry.runs} runs)" if entry.lost else ""
        return f"{text} {unit}".strip() + lost


_AXES = {"simulated_s": "simulated s", "bytes_sent": "sent", "step": "steps", "epoch": "epochs", "wall_s": "wall s"}
