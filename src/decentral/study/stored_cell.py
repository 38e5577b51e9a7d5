"""A cell whose runs are not here, but whose numbers were collected elsewhere."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from decentral.measurements.values import Labels, Value
from decentral.scheduling.job import Job
from decentral.store.files import read_json
from decentral.study.study import Cell


class StoredCell(Cell):
    """The rows of a values.csv: nothing is left to be run."""

    def __init__(self, labels: Labels, values: Sequence[Value], wanted: int = 0) -> None:
        self.labels = labels
        self._values, self._wanted = list(values), wanted

    def jobs(self) -> list[Job]:
        """None: they were carried out elsewhere."""
        return []

    def values(self) -> list[Value]:
        """As they were collected."""
        return self._values

    def wanted(self) -> int:
        """As it was collected."""
        return self._wanted


def beside(cells: Sequence[Cell], directory: Path, belongs: Callable[[Labels], bool]) -> list[StoredCell]:
    """What `directory` has collected of other cells than these, which have the same names of labels: of those that
    still belong to the study. Empty where there is nothing that can be read."""
    found = _collected(list(cells[0].labels) if cells else [], directory)
    known = {_key(cell.labels) for cell in cells}
    return [cell for key, cell in found.items() if key not in known and belongs(cell.labels)]


def stored(cells: Sequence[Cell], directory: Path, belongs: Callable[[Labels], bool]) -> dict[int, StoredCell]:
    """Number of a cell -> the same one with what `directory` has collected of it, of those that still belong to it.

    Only where all its jobs that are known today are among the runs there, by their ids: those are hashes of the whole
    configuration, so that it is the same computation. Nothing where there is no values.csv, or one that cannot be read.
    """
    found = _collected(list(cells[0].labels) if cells else [], directory)
    pairs = ((number, cell, found.get(_key(cell.labels))) for number, cell in enumerate(cells))
    return {
        number: there
        for number, cell, there in pairs
        if there is not None
        and belongs(cell.labels)
        and {job.id for job in cell.jobs()} <= {value.run for value in there.values()}
    }


def _key(labels: Labels) -> tuple[str, ...]:
    return tuple(str(word) for word in labels.values())


def _collected(names: Sequence[str], directory: Path) -> dict[tuple[str, ...], StoredCell]:
    """The cells that `directory` has collected, by the values of these labels."""
    rows_of: dict[tuple[str, ...], list[dict[str, str]]] = {}
    try:
        with open(directory / "values.csv", newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                rows_of.setdefault(tuple(row[name] for name in names), []).append(row)
        facts = read_json(directory / "study.json") or {}
        wanted = {tuple(json.loads(labels).values()): number for labels, number in facts.get("wanted", {}).items()}
        found = {}
        for key, rows in rows_of.items():
            labels: Labels = dict(zip(names, key, strict=True))
            number = wanted.get(tuple(labels[name] for name in sorted(names)), 0)
            found[key] = StoredCell(labels, [_value(labels, row) for row in rows], number)
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
