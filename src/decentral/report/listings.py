"""Further tables of a study, made from its numbers, and what such a table puts on the study's page."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.report import style
from decentral.report.entries import Entry, where
from decentral.report.spec import Table
from decentral.report.tables import chosen_values, escape, harmless, latex_table, markdown_table, measured, word
from decentral.store.files import csv_text

if TYPE_CHECKING:
    from decentral.report.results import Results


class Board(NamedTuple):
    """Content of report.html in place of a study's cells."""

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
        """Return its files by their names: the table as CSV, and as Markdown with the title and the sentences."""
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
    """Costs of each method to reach the target, a column for each axis, its end value, and the tuned value.

    The fastest method comes first. Methods of which half of the runs or more miss the target come last, by their value
    at the end. The CSV has means and standard deviations as numbers; a file beside it has the table in LaTeX.

    budget_s  simulated seconds of each run
    tuned     setting that was tuned; '' for none
    """

    name: str = "to_target"
    budget_s: float = 0.0
    tuned: str = ""

    def lines(self, results: Results) -> list[list[str]]:
        """A row for each cell."""
        cells = self._cells(results)
        axes = list(dict.fromkeys(axis for entries in cells for axis in entries))
        firsts = list(map(_first, cells))
        names = [label for label in results.labels if len({first.labels[label] for first in firsts}) > 1]
        names = names or results.labels[:1]
        rows = []
        for first, entries in zip(firsts, cells, strict=True):
            numbers = [self._number(axis, entries[axis]) if axis in entries else "-" for axis in axes]
            chosen = [chosen_values(results, first)] if self.tuned else []
            rows.append([*(first.labels[name] for name in names), *numbers, *chosen])
        heads = [_AXES.get(axis, f"{axis} at the end") for axis in axes]
        return [[*names, *heads, *([self.tuned] if self.tuned else [])], *rows]

    def texts(self, results: Results) -> dict[str, str]:
        """Return the table as Markdown and LaTeX, and its numbers as CSV."""
        rows: list[dict[str, Any]] = []
        for entries in self._cells(results):
            first = _first(entries)
            row: dict[str, Any] = {**first.labels, "runs": first.runs, "reached": len(first.values)}
            for axis, entry in entries.items():
                row |= {axis: entry.mean, f"{axis} std": entry.std}
            rates = " ".join(f"{rate:.6g}" for rate in first.rates)
            rows.append(row | {self.tuned or "rate": rates, "at_edge": first.at_edge})
        lines = [[escape(text) for text in line] for line in self.lines(results)]
        latex = latex_table(lines, self.left, " ".join([f"{self.title}.", *self.sentences(results)]), results.study)
        return super().texts(results) | {
            f"{self.file}.csv": csv_text(list(rows[0]) if rows else results.labels, [row.values() for row in rows]),
            f"{self.file}.tex": f"% Needs \\usepackage{{booktabs}}\n{latex}",
        }

    def sentences(self, results: Results) -> list[str]:
        """Return which method is the fastest, which sends the fewest bytes, and what the numbers are."""
        cells, best = self._cells(results), []
        for axis, does in (("simulated_s", "is the fastest"), ("bytes_sent", "sends the fewest bytes")):
            known = [entries[axis] for entries in cells if axis in entries]
            reached = [entry for entry in known if math.isfinite(entry.level(False))]
            if reached:
                first = min(reached, key=lambda entry: entry.level(False))
                best.append(f"{where(first.labels)} {does} ({style.amount(first.mean, axis)})")
        missed = f"No method reaches the target in {self.budget_s:.4g} simulated seconds"
        return [
            f"{'; '.join(best) or missed}.",
            f"Mean ± standard deviation over seeds; the model is averaged over the workers; each run had "
            f"{self.budget_s:.6g} simulated seconds.",
        ]

    def _cells(self, results: Results) -> list[dict[str, Entry]]:
        """Return axis -> entry of each cell, in the order of the table."""
        found: dict[tuple[str, ...], dict[str, Entry]] = {}
        for entry in results.entries():
            axis = entry.metric.partition(" to ")[0]
            found.setdefault(tuple(entry.labels.values()), {})[axis if axis in _AXES else entry.metric] = entry

        def rank(entries: dict[str, Entry]) -> tuple[float, float]:
            end = list(entries.values())[-1]
            larger = bool(results.larger_is_better(end.metric))
            return _first(entries).level(False), end.level(larger) * (-1 if larger else 1)

        return sorted(found.values(), key=rank)

    def _number(self, axis: str, entry: Entry) -> str:
        if not entry.values:
            missed = f"not within {self.budget_s:.3g} s" if axis == "simulated_s" else "-"
            return "diverged" if entry.diverged == entry.runs else missed
        size, unit = style.byte_unit(entry.mean) if axis == "bytes_sent" else (1.0, "")
        text = measured(entry.mean / size, entry.std and entry.std / size, Table(["method"], digits=0, precise=True))
        lost = f" ({len(entry.values)} of {entry.runs} runs)" if entry.lost else ""
        return f"{text} {unit}".strip() + lost


def _first(entries: dict[str, Entry]) -> Entry:
    """Return the time to the target of a cell."""
    return next(iter(entries.values()))


_AXES = {
    "simulated_s": "simulated s",
    "bytes_sent": "sent by all",
    "step": "steps",
    "epoch": "epochs",
    "wall_s": "wall s",
}
