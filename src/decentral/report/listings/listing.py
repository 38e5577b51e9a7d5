"""The contract of a further table of a study: what its numbers say beside the table of the numbers themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.report.tables import harmless, markdown_table, word
from decentral.store.files import csv_text

if TYPE_CHECKING:
    from decentral.report.results import Results


@dataclass
class Listing(ABC):
    """A dataclass whose fields are its keys in the YAML; the subclass has a `name`, which is its `kind`.

    file     name of its files, <file>.csv and <file>.md (`name` in the YAML)
    title    what stands above it
    """

    file: str = "listing"
    title: str = ""

    left: ClassVar[int] = 1
    """How many of its columns are words, to be set to the left."""

    @abstractmethod
    def lines(self, results: Results) -> list[list[str]]:
        """A head and rows, as a person reads them; only a head if there are no numbers yet. Raises ConfigError for a
        label or metric that does not exist."""

    def sentences(self, results: Results) -> list[str]:
        """What stands below it."""
        return []

    def as_csv(self, results: Results) -> str:
        """The same table."""
        head, *rows = self.lines(results)
        return csv_text(head, rows)

    def as_markdown(self, results: Results) -> str:
        """The title, the table and the sentences."""
        lines = [[word(text) for text in line] for line in self.lines(results)]
        blocks = [
            f"**{word(self.title)}**",
            markdown_table(lines, self.left) if len(lines) > 1 else "Nothing was run yet.",
        ]
        blocks += self.sentences(results)
        return harmless("\n\n".join(block for block in blocks if block) + "\n")
