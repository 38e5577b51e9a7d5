"""The contract of what a study measures: its settings, the job that computes its lines, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from decentral.measurements.computation import Computation
from decentral.measurements.values import Curve, Labels, Meaning, Value
from decentral.scheduling.job import Job
from decentral.settings import Settings


@dataclass
class Measurement(Settings, Computation):
    """One row of a study at one column. Its further fields are settings: keys of the study's YAML, and of its rows.

    A study composes the configuration from its base, the row and the column, and makes the measurement and its cells.
    """

    row_labels: ClassVar[tuple[str, ...]] = ("method", "topology")
    """Keys of a row that tell it from the others."""
    decides: ClassVar[frozenset[str]] = frozenset({"lr"})
    """Keys of decentral-run that a user cannot override; where lr is among them, neither rate nor seed decides."""
    timed: ClassVar[frozenset[str]] = frozenset()
    """Keys that elsewhere say where and how something is computed, but change what is measured: times."""
    meanings: ClassVar[dict[str, Meaning]] = {}
    """Of its metrics, by their names, as far as they are known."""

    @property
    def compared(self) -> str | None:
        """The metric that the published numbers are; None: all."""
        return None

    def check(self) -> None:
        """Raises ConfigError for a configuration that cannot be measured."""

    @classmethod
    def variants(cls, base: list[str], settings: dict[str, object]) -> dict[str, list[str]]:
        """Field -> what stands in the place of the row's overrides `base` in a further configuration that it needs."""
        return {}

    def beside(self, column: Sequence[Self]) -> Self:
        """The same, knowing all rows at its column; or what measures all of them together."""
        return self

    def jobs(self) -> list[Job]:
        """What has to be done before there are values."""
        return [self]

    def cells(self) -> list[Labels]:
        """The labels of its cells."""
        return [self.labels]

    def values(self, labels: Labels) -> Iterable[Value]:
        """Those of a cell, when all jobs are done; without the job's id and time, and the published number."""
        raise NotImplementedError

    def curves(self, labels: Labels) -> Iterable[Curve]:
        """Those of a cell, when all jobs are done."""
        return []
