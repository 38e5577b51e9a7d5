"""Links with costs of their own, in a CSV file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from decentral.cluster.csv_file import read_rows
from decentral.cluster.settings import LONGEST_S, SLOWEST_GBPS
from decentral.errors import ConfigError
from decentral.store.files import at_home


@dataclass(frozen=True)
class LinkTable:
    """Directed links source -> target of n workers, sorted by key = source n + target: arrays [E]."""

    num_workers: int
    key: np.ndarray
    latency: np.ndarray
    seconds_per_byte: np.ndarray

    def put(self, src: np.ndarray, dst: np.ndarray, latency: np.ndarray, per_byte: np.ndarray) -> None:
        """Write the costs of the links of this table into those [E] of the edges src -> dst."""
        wanted = src * self.num_workers + dst
        place = np.minimum(np.searchsorted(self.key, wanted), len(self.key) - 1)
        here = self.key[place] == wanted
        latency[here], per_byte[here] = self.latency[place[here]], self.seconds_per_byte[place[here]]

    @cached_property
    def links(self) -> dict[int, tuple[float, float]]:
        """key -> (latency, seconds per byte)."""
        pairs = zip(self.latency.tolist(), self.seconds_per_byte.tolist(), strict=True)
        return dict(zip(self.key.tolist(), pairs, strict=True))


def read_links(name: str, num_workers: int) -> LinkTable:
    """Read lines source,target,latency_s,bandwidth_gbps; a first line of words is passed over.

    Raises ConfigError, with file and line, for what is none of n workers, given twice, or no such number.
    """
    path = at_home(name)
    if not path.is_file():
        raise ConfigError(f"cluster.links.file={name} is not a file (looked for {path.absolute()}).")
    rows = read_rows("cluster.links.file", name, path)
    if rows and rows[0][1] == ["source", "target", "latency_s", "bandwidth_gbps"]:
        del rows[0]
    if not rows:
        raise ConfigError(
            f"cluster.links.file={name} holds no links: give lines source,target,latency_s,bandwidth_gbps."
        )
    found: dict[int, tuple[float, float]] = {}
    for line, row in rows:
        where = f"line {line} of cluster.links.file={name}"
        if len(row) != 4:
            raise ConfigError(f"{where} has {len(row)} columns: it has to be source,target,latency_s,bandwidth_gbps.")
        source, target = (_worker(where, cell, num_workers) for cell in row[:2])
        if source == target:
            raise ConfigError(f"{where} is a link from worker {source} to itself: remove it.")
        if source * num_workers + target in found:
            raise ConfigError(f"{where} repeats the link {source},{target}: give every link once.")
        latency, gbps = _number(where, row[2], LONGEST_S), _number(where, row[3])
        found[source * num_workers + target] = latency, 8e-9 / gbps
    key = sorted(found)
    latency_of, per_byte = np.array([found[k] for k in key]).T
    return LinkTable(num_workers, np.array(key), latency_of.copy(), per_byte.copy())


def _worker(where: str, cell: str, num_workers: int) -> int:
    if not (cell.isascii() and cell.isdigit() and int(cell) < num_workers):
        raise ConfigError(
            f"{where} has '{cell}' where a worker's number should be: with num_workers={num_workers} they are 0 to "
            f"{num_workers - 1}."
        )
    return int(cell)


def _number(where: str, cell: str, below: float | None = None) -> float:
    """A latency, if it has to be `below` something, or a bandwidth."""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if below is not None and not 0 <= value < below:
        raise ConfigError(f"{where} has '{cell}' where a latency in seconds, from 0 to {LONGEST_S:g}, should be.")
    if below is None and not value >= SLOWEST_GBPS:
        raise ConfigError(f"{where} has '{cell}' where a bandwidth in Gbit/s, at least {SLOWEST_GBPS:g}, should be.")
    return value
