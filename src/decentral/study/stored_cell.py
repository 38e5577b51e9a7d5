"""A cell whose runs are not here, but whose numbers were collected elsewhere."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from decentral.scheduling.job import Job
from decentral.study.study import Cell, Labels, Value


class StoredCell(Cell):
    """The rows of a values.csv: nothing is left to be run."""

    def __init__(self, labels: Labels, values: Sequence[Value]) -> None:
        self.labels = labels
        self._values = list(values)

    def jobs(self) -> list[Job]:
        """None: they were carried out elsewhere."""
        return []

    def values(self) -> list[Value]:
        """As they were collected."""
        return self._values


def stored(cells: Sequence[Cell], directory: Path) -> dict[int, StoredCell]:
    """Number of a cell -> the same one with what `directory` has collected of it.

    Only where all its jobs that are known today are among the runs there, by their ids: those are hashes of the whole
    configuration, so that it is the same computation. Nothing where there is no values.csv, or one that cannot be read.
    """
    try:
        with open(directory / "values.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        found: dict[int, StoredCell] = {}
        for number, cell in enumerate(cells):
            words = {name: str(word) for name, word in cell.labels.items()}
            own = [row for row in rows if words.items() <= row.items()]
            if own and {job.id for job in cell.jobs()} <= {row["run"] for row in own}:
                found[number] = StoredCell(cell.labels, [_value(cell.labels, row) for row in own])
        return found
    except (OSError, KeyError, ValueError):
        return {}


def _value(labels: Labels, row: dict[str, str]) -> Value:
    return Value(
        labels=labels,
        value=_number(row["value"]),
        metric=row["metric"],
        seed=int(row["seed"]),
        lr=_number(row["rate"]),
        chosen=row["chosen"] == "True",
        at_edge=row["at_edge"] == "True",
        status=row["status"],
        run=row["run"],
        worst=_number(row["worst"]),
        mean=_number(row["mean"]),
        averaged=_number(row["averaged"]),
        wall_s=_number(row["wall_s"]),
    )


def _number(text: str) -> float:
    return float(text) if text else math.nan
