"""The contract of a benchmark: what it measures, and what it has found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Target:
    """What a figure should be, and what it is. One of `at_most` and `at_least` is set.

    `floor` says, where the target cannot be met, what stands in the way and which row of the findings shows it.
    """

    measure: str
    found: float
    at_most: float | None = None
    at_least: float | None = None
    floor: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure is what it should be; not a number never is."""
        if self.at_most is not None:
            return self.found <= self.at_most
        assert self.at_least is not None
        return self.found >= self.at_least


@dataclass(frozen=True)
class Table:
    """Rows of one kind. `columns` maps the keys to show to their headings, with units; other keys are only stored."""

    title: str
    columns: dict[str, str]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Findings:
    """Everything that a benchmark has measured."""

    tables: list[Table]
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Effort:
    """How long to measure: `rounds` in turn for each figure. `quick` asks for the smallest sizes, to try the code."""

    rounds: int = 7
    quick: bool = False


class Benchmark(ABC):
    """A dataclass without fields that have no default; `name` is what `decentral-bench` calls it."""

    name: str
    title: ClassVar[str]
    """One line: what is divided by what."""

    def refusal(self) -> str | None:
        """Why this cannot be measured on this machine, or None."""
        return None

    @abstractmethod
    def measure(self, effort: Effort) -> Findings:
        """Measure. May print nothing; progress is shown by the caller."""
