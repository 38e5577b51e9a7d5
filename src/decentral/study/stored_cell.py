"""A cell whose runs are not here, but whose numbers were collected elsewhere."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from decentral.scheduling.job import Job
from decentral.store.files import read_json
from decentral.study.study import Cell, Labels, Value


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
    names = list(cells[0].labels) if cells else []
    known = {tuple(str(cell.labels[name]) for name in names) for cell in cells}
    others: dict[tuple[str, ...], list[dict[str, str]]] = {}
    try:
        with open(directory / "values.csv", newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                others.setdefault(tuple(row[name] for name in names), []).append(row)
        facts = read_json(directory / "study.json") or {}
        wanted = {tuple(json.loads(labels).values()): number for labels, number in facts.get("wanted", {}).items()}
        found = []
        for key, rows in others.items():
            labels: Labels = dict(zip(names, key, strict=True))
            if key not in known and belongs(labels):
                number = wanted.get(tuple(labels[name] for name in sorted(names)), 0)
                found.append(StoredCell(labels, [_value(labels, row) for row in rows], number))
        return found
    except (OSError, KeyError, ValueError):
        return []


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
