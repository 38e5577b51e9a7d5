"""Cells of the benchmark that were computed elsewhere: as submitted, published, or collected here before."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decentral.measurements.values import Labels, Meaning, Row, Value
from decentral.scheduling.job import Job
from decentral.store.files import stored_table
from decentral.study.collect import read_facts, read_rows
from decentral.study.study import Cell

_NUMBERS = {**{key: key for key in ("value", "worst", "mean", "averaged", "wall_s")}, "lr": "rate"}
"""Field of `Value` -> column of values.csv."""


@dataclass
class StoredCell(Cell):
    """The rows of a values.csv, which need no jobs: they were computed elsewhere."""

    labels: Labels
    rows: list[Value]
    lines: list[Row] = field(default_factory=list)
    """Lines of curves.csv, in words."""
    number: int = 0

    def jobs(self) -> list[Job]:
        """Return no jobs."""
        return []

    def values(self) -> list[Value]:
        """Return the values as they were collected."""
        return self.rows

    def curves(self) -> list[Row]:
        """Return the lines as they were collected."""
        return self.lines

    def wanted(self) -> int:
        """Return the number as it was collected."""
        return self.number


def stored(
    cells: Sequence[Cell], directory: Path, belongs: Callable[[Labels], bool]
) -> tuple[dict[int, StoredCell], list[StoredCell]]:
    """Return the collected cells in `directory` that still belong to the study: index of a cell -> the same one, and
    other cells with the same label names.

    A cell is the same if all its own currently known jobs are among the runs there, by ID: these are hashes of the
    whole configuration, so it is the same computation. Empty without a readable values.csv.
    """
    if not cells:
        return {}, []
    names = list(cells[0].labels)
    found: dict[tuple[str, ...], StoredCell] = {}
    facts, curves = read_facts(directory), stored_table(directory / "curves.csv")
    if stored_table(directory / "values.csv") is None:
        return {}, []
    try:
        meanings = {name: Meaning(**known) for name, known in (facts.get("metrics") or {}).items()}
        for row in read_rows(directory / "values.csv"):
            labels: Labels = {name: row[name] for name in names}
            cell = found.setdefault(tuple(map(str, labels.values())), StoredCell(labels, []))
            cell.rows.append(_value(labels, row, meanings.get(row["metric"], Meaning())))
        for key, number in (facts.get("wanted") or {}).items():
            own = json.loads(key)
            if (place := tuple(str(own.get(name)) for name in names)) in found:
                found[place].number = number
        for line in read_rows(directory / "curves.csv") if curves else ():
            if (place := tuple(line[name] for name in names)) in found:
                found[place].lines.append({key: text for key, text in line.items() if text != ""})
    except (OSError, KeyError, TypeError, ValueError):
        return {}, []
    found = {key: cell for key, cell in found.items() if belongs(cell.labels)}
    same, runs = {}, {value.run for there in found.values() for value in there.values()}
    for number, own_cell in enumerate(cells):
        there = found.pop(tuple(map(str, own_cell.labels.values())), None)
        if there is not None and {job.id for job in own_cell.sources()} <= runs:
            same[number] = there
    return same, list(found.values())


def _value(labels: Labels, row: dict[str, str], meaning: Meaning) -> Value:
    values: dict[str, Any] = {key: row.get(key, "") for key in ("metric", "status", "run", "setting")}
    values |= {key: row[key] == "True" for key in ("chosen", "at_edge")}
    values |= {key: float(row[column]) if row[column] else math.nan for key, column in _NUMBERS.items()}
    return Value(labels, seed=int(row["seed"]), meaning=meaning, **values)
