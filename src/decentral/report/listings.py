"""Further tables of a study, made from its numbers, and what such a table puts on the study's page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.report.tables import harmless, markdown_table, word
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
