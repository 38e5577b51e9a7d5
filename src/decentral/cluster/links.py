"""What it costs to send: `cluster.links`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from decentral.cluster.collectives import (
    AllReduce,
    Auto,
    Direct,
    Log2,
    Rabenseifner,
    RecursiveDoubling,
    Ring,
    RingOrTree,
    Star,
    Tree,
    whole,
)
from decentral.cluster.csv_file import check_columns, csv_path, gbps, index, read_lines, seconds
from decentral.cluster.settings import LONGEST_S, SLOWEST_GBPS
from decentral.errors import ConfigError
from decentral.settings import Settings, setting

_WHERE = "cluster.links"
_COLUMNS = ["source", "target", "latency_s", "bandwidth_gbps"]


class Ports(Enum):
    """What a worker can do at the same time."""

    duplex = "duplex"
    one = "one"


class CollectiveName(Enum):
    """How an all-reduce is carried out."""

    recursive_doubling = RecursiveDoubling
    rabenseifner = Rabenseifner
    ring = Ring
    tree = Tree
    star = Star
    direct = Direct
    auto = Auto
    ring_or_tree = RingOrTree


def _latency() -> Any:
    return setting(None, at_least=0, at_most=LONGEST_S, hint="a number of seconds", older=None)


def _bandwidth() -> Any:
    return setting(None, at_least=SLOWEST_GBPS, finite=False, hint="a number of Gbit/s", older=None)


@dataclass
class Links(Settings, where=_WHERE):
    """What it costs to send a message of N bytes: latency + 8 N / bandwidth. No number is taken for granted.

    latency_s               of a link, in seconds
    bandwidth_gbps          of a link, in Gbit/s; inf is one
    ports                   duplex: a worker sends and receives at the same time; one: one after the other. Several
                            messages of a worker go one after the other in both cases
    copy_gbps               what a worker copies within its memory, in Gbit/s; inf: copies cost nothing
    collective              of an all-reduce: recursive_doubling, rabenseifner, ring, tree, star or direct; auto: in
                            every step the fastest of the first four, ring_or_tree: of these two
    whole_phases            whether a tree of 6 workers takes 3 phases, log2 rounded up, as it does; or 2.58, as in the
                            formulas of the flexible communication paper. The same for all that has log2 in its cost
    workers_per_machine     L: workers i L to i L + L - 1 are on machine i, and the two numbers above are for links
                            inside of it (null: every worker is on a machine of its own)
    between_latency_s       of a link between two machines
    between_bandwidth_gbps  of a link between two machines
    shared_gbps             what all workers of a machine together send to other machines, and receive from them, in
                            Gbit/s (null: they do not disturb each other)
    file                    path of a CSV file with links of their own: lines source,target,latency_s,bandwidth_gbps,
                            of which each counts for this direction
    """

    latency_s: float | None = _latency()
    bandwidth_gbps: float | None = _bandwidth()
    ports: Ports = Ports.duplex
    copy_gbps: float | None = _bandwidth()
    collective: CollectiveName = CollectiveName.ring
    whole_phases: bool = field(default=True, metadata={"older": True})
    workers_per_machine: int | None = setting(None, at_least=1, older=None)
    between_latency_s: float | None = setting(
        None, at_least=0, at_most=LONGEST_S, hint="a number of seconds", older=None
    )
    between_bandwidth_gbps: float | None = _bandwidth()
    shared_gbps: float | None = _bandwidth()
    file: str | None = field(default=None, metadata={"older": None, "content": True})

    def open(self, num_workers: int) -> OpenLinks:
        """The same with units of computation. Raises ConfigError for what is missing or does not fit n workers."""
        between = ("between_latency_s", "between_bandwidth_gbps")
        needed = ("latency_s", "bandwidth_gbps", "copy_gbps", *(between if self.workers_per_machine else ()))
        for key in needed:
            if getattr(self, key) is None:
                raise ConfigError(f"cluster=machines needs {_WHERE}.{key}, which is not given: set {_WHERE}.{key}=...")
        for key in (*between, "shared_gbps"):
            if getattr(self, key) is not None and not self.workers_per_machine:
                raise ConfigError(
                    f"{_WHERE}.{key}={getattr(self, key):g} has no meaning without machines: set "
                    f"{_WHERE}.workers_per_machine, too."
                )
        L = self.workers_per_machine or 1
        if num_workers % L:
            raise ConfigError(
                f"{_WHERE}.workers_per_machine={L} does not divide num_workers={num_workers}: all machines have as "
                "many workers."
            )
        inside = self.latency_s or 0.0, seconds_per_byte(self.bandwidth_gbps)
        return OpenLinks(
            inside=inside,
            between=(self.between_latency_s or 0.0, seconds_per_byte(self.between_bandwidth_gbps))
            if self.workers_per_machine
            else inside,
            workers_per_machine=L,
            one_port=self.ports is Ports.one,
            copy=seconds_per_byte(self.copy_gbps),
            shared=seconds_per_byte(self.shared_gbps),
            collective=self.collective.value(),
            log2=whole if self.whole_phases else math.log2,
            table=read_links(self.file, num_workers) if self.file is not None else None,
        )


@dataclass(frozen=True)
class OpenLinks:
    """`Links` in seconds and seconds per byte."""

    inside: tuple[float, float]
    """(latency, seconds per byte) of a link between two workers of a machine."""
    between: tuple[float, float]
    """The same between machines."""
    workers_per_machine: int
    one_port: bool
    copy: float
    shared: float
    """Seconds per byte of what a machine's workers share; 0 if they share nothing."""
    collective: AllReduce
    log2: Log2
    """Of the number of workers, in what collectives cost."""
    table: LinkTable | None
    """Links of their own."""


def seconds_per_byte(gbps: float | None) -> float:
    """Of so many Gbit/s; 0 for inf and for None."""
    return 0.0 if gbps is None else 8e-9 / gbps


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
    key = "cluster.links.file"
    lines = read_lines(key, name, csv_path(key, name))
    if lines and lines[0].cells == _COLUMNS:
        del lines[0]
    if not lines:
        raise ConfigError(f"{key}={name} holds no links: give lines {','.join(_COLUMNS)}.")
    found: dict[int, tuple[float, float]] = {}
    for line in lines:
        check_columns(line, _COLUMNS)
        source, target = (index(line, cell, "worker", num_workers) for cell in line.cells[:2])
        if source == target:
            raise ConfigError(f"{line.said} is a link from worker {source} to itself: remove it.")
        if source * num_workers + target in found:
            raise ConfigError(f"{line.said} repeats the link {source},{target}: give every link once.")
        found[source * num_workers + target] = seconds(line, line.cells[2]), 8e-9 / gbps(line, line.cells[3])
    keys = sorted(found)
    latency, per_byte = np.array([found[k] for k in keys]).T
    return LinkTable(num_workers, np.array(keys), latency.copy(), per_byte.copy())
