"""What it costs to send: `cluster.links`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

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
from decentral.cluster.link_file import LinkTable, read_links
from decentral.cluster.settings import check_bandwidth, check_seconds
from decentral.errors import ConfigError, check_at_least

_WHERE = "cluster.links"


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


@dataclass
class Links:
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

    latency_s: float | None = field(default=None, metadata={"older": None})
    bandwidth_gbps: float | None = field(default=None, metadata={"older": None})
    ports: Ports = Ports.duplex
    copy_gbps: float | None = field(default=None, metadata={"older": None})
    collective: CollectiveName = CollectiveName.ring
    whole_phases: bool = field(default=True, metadata={"older": True})
    workers_per_machine: int | None = field(default=None, metadata={"older": None})
    between_latency_s: float | None = field(default=None, metadata={"older": None})
    between_bandwidth_gbps: float | None = field(default=None, metadata={"older": None})
    shared_gbps: float | None = field(default=None, metadata={"older": None})
    file: str | None = field(default=None, metadata={"older": None, "content": True})

    def __post_init__(self) -> None:
        check_at_least(f"{_WHERE}.workers_per_machine", self.workers_per_machine)
        for key in ("latency_s", "between_latency_s"):
            check_seconds(f"{_WHERE}.{key}", getattr(self, key))
        for key in ("bandwidth_gbps", "copy_gbps", "between_bandwidth_gbps", "shared_gbps"):
            check_bandwidth(f"{_WHERE}.{key}", getattr(self, key))

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
