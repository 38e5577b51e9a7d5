"""Lists of edges in files: reading and checking them."""

from __future__ import annotations

import csv
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decentral.errors import ConfigError

_COLUMNS = ("source", "target", "weight")


@dataclass(frozen=True)
class EdgeList:
    """Edges source[e] -> target[e], int64 [E], with weights float64 [E] or none; `place[e]` says where e was read."""

    path: Path
    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None
    place: list[str]

    def check(self, num_workers: int, directed: bool) -> None:
        """Raise ConfigError, naming the place, for what cannot be a graph on `num_workers` workers."""
        seen: dict[tuple[int, int], str] = {}
        for source, target, place in zip(self.source.tolist(), self.target.tolist(), self.place, strict=True):
            if min(source, target) < 0 or max(source, target) >= num_workers:
                raise ConfigError(
                    f"{place} of topology.path={self.path} has the edge {source},{target}, but with "
                    f"num_workers={num_workers} workers are numbered 0 to {num_workers - 1}."
                )
            if source == target and self.weight is None:
                raise ConfigError(
                    f"{place} of topology.path={self.path} is a loop from worker {source} to itself: "
                    "give all edges a weight, or remove the loop."
                )
            edge = (source, target) if directed else (min(source, target), max(source, target))
            if edge in seen:
                why = "" if directed else " (an edge goes both ways unless topology.directed=true)"
                raise ConfigError(
                    f"{place} of topology.path={self.path} repeats the edge {source},{target} of {seen[edge]}{why}: "
                    "list every edge once."
                )
            seen[edge] = place


def _no_edges(path: Path) -> ConfigError:
    return ConfigError(
        f"topology.path={path} holds no edges: give a .csv file with lines source,target[,weight], separated by "
        "commas, or an .npz file with the integers 'edges' [E, 2]."
    )


def read_csv(path: Path) -> EdgeList:
    """Read source,target[,weight], one edge a line; a first line of words names the columns."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            rows = [(f"line {reader.line_num}", [cell.strip() for cell in row]) for row in reader if any(row)]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(f"topology.path={path} cannot be read as CSV: {error}.") from error
    head = rows.pop(0) if rows and not any(_is_number(cell) for cell in rows[0][1]) else None
    if not rows:
        raise _no_edges(path)
    if head is not None:
        rows = _in_order(path, *head, rows)
    for place, row in rows:
        if len(row) not in (2, 3) or len(row) != len(rows[0][1]):
            raise ConfigError(
                f"{place} of topology.path={path} has {len(row)} columns: every line must be source,target "
                "or every line source,target,weight."
            )
    pairs = [(_integer(row[0], place, path), _integer(row[1], place, path)) for place, row in rows]
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    weight = None
    if rows and len(rows[0][1]) == 3:
        weight = np.array([_weight(row[2], place, path) for place, row in rows])
    return EdgeList(path, source, target, weight, [place for place, _ in rows])


def _in_order(
    path: Path, where: str, head: list[str], rows: list[tuple[str, list[str]]]
) -> list[tuple[str, list[str]]]:
    """The rows with their columns as `_COLUMNS`, whichever way the first line names them."""
    names = [cell.lstrip("# ").lower() for cell in head]
    if names and sorted(names) not in (sorted(_COLUMNS), sorted(_COLUMNS[:2])):
        raise ConfigError(
            f"{where} of topology.path={path} names the columns {','.join(head)}: name them source,target or "
            "source,target,weight, in any order, or leave this line out."
        )
    places = [names.index(name) for name in _COLUMNS if name in names]
    return [(place, [row[i] for i in places] if len(row) == len(places) else row) for place, row in rows]


def read_npz(path: Path) -> EdgeList:
    """Read the integers `edges` [E, 2] (source, target) and, where there are any, `weights` [E]."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            edges, weights = arrays["edges"], arrays.get("weights")
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        raise ConfigError(f"topology.path={path} cannot be read as .npz with an array 'edges': {error}.") from error
    if edges.ndim != 2 or edges.shape[1] != 2 or not np.issubdtype(edges.dtype, np.integer):
        raise ConfigError(
            f"'edges' of topology.path={path} must be integers of shape [E, 2], not {edges.dtype} {list(edges.shape)}."
        )
    if not len(edges):
        raise _no_edges(path)
    place = [f"row {e} of 'edges'" for e in range(len(edges))]
    source, target = edges.astype(np.int64).T
    if weights is None:
        return EdgeList(path, source, target, None, place)
    if weights.shape != (len(edges),):
        raise ConfigError(
            f"'weights' of topology.path={path} must have one entry for each of the {len(edges)} edges, "
            f"not the shape {list(weights.shape)}."
        )
    weight = np.array([_weight(str(value), where, path) for value, where in zip(weights.tolist(), place, strict=True)])
    return EdgeList(path, source, target, weight, place)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _integer(cell: str, place: str, path: Path) -> int:
    try:
        return int(np.int64(int(cell)))
    except (ValueError, OverflowError):
        raise ConfigError(f"{place} of topology.path={path} has '{cell}' where a worker's number should be.") from None


def _weight(cell: str, place: str, path: Path) -> float:
    if not (_is_number(cell) and math.isfinite(float(cell))):
        raise ConfigError(f"{place} of topology.path={path} has '{cell}' where a finite weight should be.")
    return float(cell)
