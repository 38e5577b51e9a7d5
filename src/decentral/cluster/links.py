"""Costs of sending, exchanging, averaging and copying between n workers, in seconds: `cluster.links`.

alpha is the latency of a link in seconds, beta the seconds per byte, N the bytes of each worker's row. Formulas:
Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005; for the tree, a
reduction to a root followed by a broadcast; star, all-gather and broadcast as in Tyagi and Swany, Flexible
communication for optimal distributed learning over unpredictable networks, 2023, which has the same ring and tree.
Additions are free. log2 is rounded up if P is not a power of two (`whole`), as these algorithms have whole phases; the
last paper uses the real logarithm (`math.log2`), which is the same for powers of two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from decentral.cluster.ports import read_devices
from decentral.cluster.settings import bandwidth, latency, optional, read_lines
from decentral.errors import ConfigError
from decentral.settings import Settings, setting

Log2 = Callable[[int], float]


def whole(num_workers: int) -> float:
    """Return log2 P, rounded up: the phases of an algorithm."""
    return (num_workers - 1).bit_length()


Phase = list[tuple[int, int]]
"""(source, target) of simultaneous messages."""


def up_a_tree(num_workers: int) -> list[Phase]:
    """Return a binomial tree with worker 0 as its root, starting from the leaves."""
    bits = [1 << level for level in range((num_workers - 1).bit_length())]
    return [[(i + bit, i) for i in range(0, num_workers - bit, 2 * bit)] for bit in bits]


def turned(phases: list[Phase]) -> list[Phase]:
    """Return the messages reversed, last ones first."""
    return [[(target, source) for source, target in phase] for phase in reversed(phases)]


class Collective(NamedTuple):
    """An algorithm of a collective operation."""

    formula: Callable[[int, float, float, float, float], float]
    """(P, log2 P, N, alpha, beta) -> seconds."""
    sends: Callable[[int, float], tuple[float, float]]
    """(P, log2 P) -> total number of messages of all workers, and of rows."""
    both_ways: bool
    """True if a worker sends and receives simultaneously, which takes twice as long through one port."""
    all_at_once: bool
    """True if all workers of a machine send to another machine simultaneously."""
    phases: Callable[[int], list[Phase]] | None = None
    """P -> (source, target) of the rows sent in each phase, if workers differ."""

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """Return the time of P >= 2 workers that begin simultaneously."""
        return self.formula(num_workers, log2(num_workers), num_bytes, alpha, beta)


RECURSIVE_DOUBLING = Collective(
    lambda P, log2, N, alpha, beta: log2 * (alpha + N * beta),
    lambda P, log2: (P * log2, P * log2),
    both_ways=True,
    all_at_once=True,
)
"""In each of log2 P phases workers exchange whole rows in pairs."""
RABENSEIFNER = Collective(
    lambda P, log2, N, alpha, beta: 2 * log2 * alpha + 2 * (P - 1) / P * N * beta,
    lambda P, log2: (2 * P * log2, 2 * (P - 1)),
    both_ways=True,
    all_at_once=True,
)
"""Reduce-scatter by halving, then all-gather by doubling."""
RING = Collective(
    lambda P, log2, N, alpha, beta: 2 * (P - 1) * (alpha + N / P * beta),
    lambda P, log2: (2 * (P - 1) * P, 2 * (P - 1)),
    both_ways=True,
    all_at_once=False,
)
"""2 (P - 1) times, each worker sends a P-th of a row to the next worker."""
TREE = Collective(
    lambda P, log2, N, alpha, beta: 2 * log2 * (alpha + N * beta),
    lambda P, log2: (2 * (P - 1), 2 * (P - 1)),
    both_ways=False,
    all_at_once=False,
    phases=lambda P: [*up_a_tree(P), *turned(up_a_tree(P))],
)
"""Whole rows are sent up a binomial tree and down again."""
DOUBLE_TREE = Collective(
    lambda P, log2, N, alpha, beta: 2 * log2 * alpha + 2 * N * beta,
    lambda P, log2: (4 * (P - 1), 2 * (P - 1)),
    both_ways=True,
    all_at_once=True,
)
"""Two binary trees, each of which reduces and broadcasts half of the row in a pipeline of small pieces. A leaf of one
tree is an inner node of the other, so that no worker sends more than two rows: Sanders, Speck and Traeff, Two-tree
algorithms for full bandwidth broadcast, reduction and scan, 2009. It is NCCL's tree algorithm."""
STAR = Collective(
    lambda P, log2, N, alpha, beta: 2 * alpha + 2 * (P - 1) * N * beta,
    lambda P, log2: (2 * (P - 1), 2 * (P - 1)),
    both_ways=False,
    all_at_once=False,
    phases=lambda P: [[(i, 0)] for i in range(1, P)] + [[(0, i)] for i in range(1, P)],
)
"""Whole rows are sent to one worker, a parameter server, and back, sequentially through its port."""
DIRECT = Collective(
    lambda P, log2, N, alpha, beta: 2 * (alpha + (P - 1) / P * N * beta),
    lambda P, log2: (2 * P * (P - 1), 2 * (P - 1)),
    both_ways=True,
    all_at_once=True,
)
"""Every worker sums a P-th of all rows and sends it to all, in two all-to-all phases: the algorithm of processes of one
host with shared memory."""
ALL_GATHER = Collective(
    lambda P, log2, N, alpha, beta: log2 * alpha + (P - 1) * N * beta,
    lambda P, log2: (P * log2, P * (P - 1)),
    both_ways=True,
    all_at_once=True,
)
"""Each worker's contribution, at most N bytes, is sent to all others by recursive doubling."""
BROADCAST = Collective(
    lambda P, log2, N, alpha, beta: log2 * (alpha + N * beta),
    lambda P, log2: (P - 1, P - 1),
    both_ways=False,
    all_at_once=False,
    phases=lambda P: turned(up_a_tree(P)),
)
"""One worker's row is sent to all others, down a binomial tree."""


class CollectiveName(Enum):
    """The algorithm of an all-reduce: the mean of all workers' rows, on all of them."""

    recursive_doubling = RECURSIVE_DOUBLING
    rabenseifner = RABENSEIFNER
    ring = RING
    tree = TREE
    double_tree = DOUBLE_TREE
    star = STAR
    direct = DIRECT
    auto = ("ring", "tree", "recursive_doubling", "rabenseifner")
    """The fastest of these for rows of this size over these links, the first one on a tie. By the formulas, recursive
    doubling takes half as long as a tree, and Rabenseifner's algorithm no longer than a ring. Through one port, or if
    machines share their uplink, others can be faster."""
    ring_or_tree = ("ring", "tree")
    """The choice of Tyagi and Swany: with x = alpha/beta a ring below x = c N, a tree above it, where for P > 2 c =
    (log2 P - (P - 1)/P) / (P - 1 - log2 P)."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return getattr, (CollectiveName, self.name)  # pickled by name, as formulas cannot be

    @property
    def candidates(self) -> list[CollectiveName]:
        """Return the collectives to choose from."""
        return [self] if isinstance(self.value, Collective) else [CollectiveName[name] for name in self.value]


OF_MESSAGES = [CollectiveName[name] for name in ("recursive_doubling", "rabenseifner", "ring", "tree", "star")]
"""Collectives of point-to-point messages, available between processes."""


_WHERE = "cluster.links"
_COLUMNS = ["source", "target", "latency_s", "bandwidth_gbps"]


class Ports(Enum):
    """The concurrency of a worker's sends and receives."""

    duplex = "duplex"
    one = "one"


@dataclass
class Links(Settings, where=_WHERE):
    """The cost of a message of N bytes: latency + 8 N / bandwidth. All numbers must be given.

    latency_s               latency of a link, in seconds
    bandwidth_gbps          bandwidth of a link, in Gbit/s; inf is allowed
    stall_gbps              s: a link of bandwidth b has the effective bandwidth b / (1 + s / b), so that slow links
                            lose more to queues and retransmissions (null: 0). study=time_measured finds about 0.015 for
                            TCP over shaped links
    host_gbps               bandwidth of the hosts at the ends of a link, in series with it (null: inf). stall_gbps and
                            host_gbps apply to all bandwidths given here
    ports                   duplex: a worker sends and receives at the same time; one: one after the other. In both
                            cases, messages that it starts to send at the same time share its port
    copy_gbps               copy bandwidth within a worker's memory, in Gbit/s; inf: copies are free
    collective              collective of an all-reduce: recursive_doubling, rabenseifner, ring, tree, double_tree, star
                            or direct; auto: in every step the fastest of the first four; ring_or_tree: the faster of
                            these two
    whole_phases            round log2 up in all costs: a tree of 6 workers takes 3 phases, as in reality; false: 2.58,
                            as in the formulas of the flexible communication paper
    workers_per_machine     L: workers i L to i L + L - 1 are on machine i, and latency_s and bandwidth_gbps describe
                            links within it (null: one worker per machine)
    between_latency_s       of a link between two machines
    between_bandwidth_gbps  of a link between two machines
    shared_gbps             bandwidth that all workers of a machine share for traffic to other machines, and from them,
                            in Gbit/s (null: no sharing)
    file                    path of a CSV file with the costs of individual links: lines
                            source,target,latency_s,bandwidth_gbps, each for this direction
    """

    latency_s: float | None = latency()
    bandwidth_gbps: float | None = bandwidth()
    stall_gbps: float | None = optional(at_least=0, hint="Gbit/s")
    host_gbps: float | None = bandwidth()
    ports: Ports = Ports.duplex
    copy_gbps: float | None = bandwidth()
    collective: CollectiveName = CollectiveName.ring
    whole_phases: bool = field(default=True, metadata={"older": True})
    workers_per_machine: int | None = setting(None, at_least=1, older=None)
    between_latency_s: float | None = latency()
    between_bandwidth_gbps: float | None = bandwidth()
    shared_gbps: float | None = bandwidth()
    file: str | None = field(default=None, metadata={"older": None, "content": True})

    def check(self, num_workers: int, devices: str | None = None) -> None:
        """Raise ConfigError for settings that are missing or do not fit n workers; `devices` define bandwidths."""
        for key in ("bandwidth_gbps", "stall_gbps", "host_gbps", "workers_per_machine", "file") if devices else ():
            if (value := getattr(self, key)) is not None:
                raise ConfigError(
                    f"{_WHERE}.{key}={value} has no effect with cluster.devices={devices}, which sets the speed of "
                    f"each worker's port: set {_WHERE}.{key}=null."
                )
        between = ("between_latency_s", "between_bandwidth_gbps")
        bandwidth = () if devices else ("bandwidth_gbps",)
        needed = ("latency_s", *bandwidth, "copy_gbps", *(between if self.workers_per_machine else ()))
        for key in needed:
            if getattr(self, key) is None:
                raise ConfigError(f"cluster=machines needs {_WHERE}.{key}, which is not given: set {_WHERE}.{key}=...")
        for key in (*between, "shared_gbps"):
            if getattr(self, key) is not None and not self.workers_per_machine:
                raise ConfigError(
                    f"{_WHERE}.{key}={getattr(self, key):g} has no effect without machines: set "
                    f"{_WHERE}.workers_per_machine, too."
                )
        if num_workers % (self.workers_per_machine or 1):
            raise ConfigError(
                f"{_WHERE}.workers_per_machine={self.workers_per_machine} does not divide num_workers={num_workers}: "
                "use a divisor of num_workers."
            )

    def seconds_per_byte(self, gbps: float | None) -> float:
        """Return the seconds per byte of a link of b Gbit/s: 8e-9 (1 / b + stall_gbps / b^2 + 1 / host_gbps), without
        terms whose setting is null."""
        link_s = seconds_per_byte(gbps)
        return link_s * (1 + (self.stall_gbps or 0.0) * link_s / 8e-9) + seconds_per_byte(self.host_gbps)


def seconds_per_byte(gbps: float | None) -> float:
    """Return the seconds per byte at `gbps`; 0 for inf and for None."""
    return 0.0 if gbps is None else 8e-9 / gbps


def read_links(name: str, num_workers: int) -> dict[int, tuple[float, float]]:
    """Return source n + target, ascending -> (latency, seconds per byte), from lines
    source,target,latency_s,bandwidth_gbps; a header is skipped.

    Raises ConfigError, with file and line, for invalid workers, duplicates, and invalid numbers.
    """
    key = "cluster.links.file"
    lines = read_lines(key, name)
    if lines and lines[0].cells == _COLUMNS:
        del lines[0]
    if not lines:
        raise ConfigError(f"{key}={name} holds no links: give lines {','.join(_COLUMNS)}.")
    links: dict[int, tuple[float, float]] = {}
    for line in lines:
        line.check_columns(_COLUMNS)
        source, target = (line.integer(place, "worker", num_workers) for place in (0, 1))
        if source == target:
            raise ConfigError(f"{line.said} is a link from worker {source} to itself: remove it.")
        if source * num_workers + target in links:
            raise ConfigError(f"{line.said} repeats the link {source},{target}: give each link once.")
        links[source * num_workers + target] = line.seconds(2), seconds_per_byte(line.gbps(3))
    return dict(sorted(links.items()))


class LinkCosts:
    """The links between n workers. Sending N bytes from i to j takes latency + N seconds_per_byte; 0 from i to i.

    Scalars are computed without numpy: an event loop needs hundreds of thousands of them.
    """

    def __init__(self, links: Links, num_workers: int, devices: str | None = None) -> None:
        """Create the costs; `devices` is a file with the ports of each worker, see `ports.read_devices`. Raises
        ConfigError, see `Links.check`."""
        links.check(num_workers, devices)
        self.devices = None if devices is None else read_devices(devices, num_workers)
        self.links, self.num_workers = links, num_workers
        self.per_machine = links.workers_per_machine or 1
        self._inside = links.latency_s or 0.0, links.seconds_per_byte(links.bandwidth_gbps)
        self._between = self._inside
        if links.workers_per_machine:
            self._between = links.between_latency_s or 0.0, links.seconds_per_byte(links.between_bandwidth_gbps)
        self.shared = seconds_per_byte(links.shared_gbps)
        self._copy = seconds_per_byte(links.copy_gbps)
        self._table = {} if links.file is None else read_links(links.file, num_workers)
        self.ways = 2 if links.ports is Ports.one else 1
        self._alpha, self._beta = self.slowest = self._slowest()
        alike = self._inside == self._between or self.per_machine in (1, num_workers)
        self.uniform = not self._table and alike
        """Whether all links are alike."""

    def sends(self, collective: Collective, num_workers: int) -> tuple[float, float]:
        """Return its total number of messages and rows; log2 is as in its time."""
        log2 = whole if self.links.whole_phases else math.log2
        return collective.sends(num_workers, log2(num_workers)) if num_workers > 1 else (0, 0)

    def port_s(self, way: str, begins: np.ndarray, num_bytes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """Return the time of each worker's port, "out" or "into", from `begins` for `num_bytes`, all float64 [n]:
        `seconds`, unless devices define ports."""
        if self.devices is None:
            return seconds
        each = zip(self.devices, begins.tolist(), num_bytes.tolist(), strict=True)
        return np.array([device.ends(way, begun, size) - begun for device, begun, size in each])

    def slower(self, begins: np.ndarray) -> np.ndarray | float:
        """Return the slowdown factor of a gradient that a worker begins then, float64 [n]."""
        if self.devices is None:
            return 1.0
        return np.array([device.slower(now) for device, now in zip(self.devices, begins.tolist(), strict=True)])

    def all_reduce_s(self, num_workers: int, num_bytes: float) -> float:
        """Return the time of an all-reduce of rows of `num_bytes` by `num_workers` that begin simultaneously."""
        return self.all_reduce(num_workers, num_bytes)[1]

    def all_reduce(self, num_workers: int, num_bytes: float, begins: float = 0.0) -> tuple[CollectiveName, float]:
        """Return the fastest all-reduce allowed by `cluster.links.collective`, and its time."""
        timed = [
            (each, self.collective_s(each.value, num_workers, num_bytes, begins))
            for each in self.links.collective.candidates
        ]
        return min(timed, key=lambda one: one[1])

    def collective_s(
        self,
        collective: Collective,
        num_workers: int,
        num_bytes: float,
        begins: float = 0.0,
        members: Sequence[int] | None = None,
    ) -> float:
        """Return the time of a collective by `num_workers` that begin simultaneously.

        `begins` and `members` (None: all) matter if devices define ports: the slowest worker determines each phase.

        Uses its formula (`collectives`) with alpha the largest latency and beta the most seconds per byte of all links
        between the n workers: the slowest link determines every phase. Through one port, simultaneous sends and
        receives take twice as long. If a machine's workers share its uplink, L simultaneous senders are L times as slow
        on it.
        """
        if num_workers < 2:
            return 0.0
        log2 = whole if self.links.whole_phases else math.log2
        ways = self.ways if collective.both_ways else 1
        if self.devices is not None:
            devices = self.devices if members is None else [self.devices[j] for j in members]
            ends = begins
            if collective.phases is None:
                size = collective.seconds(num_workers, num_bytes, 0.0, float(ways), log2)
                ends = max(device.ends(way, begins, size) for device in devices for way in ("out", "into"))
            for phase in collective.phases(num_workers) if collective.phases else ():
                uses = [each for source, target in phase for each in ((source, "out"), (target, "into"))]
                ends = max(devices[j].ends(way, ends, num_bytes) for j, way in uses)
            return collective.seconds(num_workers, num_bytes, self._alpha, 0.0, log2) + ends - begins
        beta = self._beta
        if self.shared and self.num_workers > self.per_machine:
            beta = max(beta, self._across(collective, num_workers) * self.shared)
        return collective.seconds(num_workers, num_bytes, self._alpha, ways * beta, log2)

    def _across(self, collective: Collective, num_workers: int) -> int:
        """Return the maximum number of a phase's messages across a machine's border in one direction (one port: in
        both)."""
        if collective.phases is None:
            return self.per_machine if collective.all_at_once else 1
        most = 0
        for phase in collective.phases(num_workers):
            ends = [(i // self.per_machine, j // self.per_machine) for i, j in phase]
            crossing = [(a, b) for a, b in ends if a != b]
            of_machines = [Counter(a for a, _ in crossing), Counter(b for _, b in crossing)]
            if self.ways == 2:
                of_machines = [of_machines[0] + of_machines[1]]
            most = max(most, *(count for each in of_machines for count in each.values()), 0)
        return most

    def fastest_all_reduce(self, num_workers: int, num_bytes: float) -> str:
        """Return the name of the fastest point-to-point collective; the first one on a tie."""
        return min(OF_MESSAGES, key=lambda each: self.collective_s(each.value, num_workers, num_bytes)).name

    def pair_s(self, i: int, j: int, num_bytes: float, begins: float = 0.0) -> float:
        """Return the time for i and j to exchange `num_bytes`: latency + N seconds_per_byte of the slower direction;
        through one port latency + the bytes of both."""
        if self.devices is not None:
            size = self.ways * num_bytes
            ends = max(self.devices[k].ends(way, begins, size) for k in (i, j) for way in ("out", "into"))
            return self._alpha + ends - begins
        if self.uniform and i != j:
            return self._alpha + num_bytes * self.ways * self._beta
        there, back = self._link(i, j), self._link(j, i)
        per_byte = there[1] + back[1] if self.ways == 2 else max(there[1], back[1])
        return max(there[0], back[0]) + num_bytes * per_byte

    def message_s(self, i: int, j: int, num_bytes: float) -> float:
        """Return the time of one message from i to j."""
        alpha, beta = self._link(i, j)
        return alpha + num_bytes * beta

    def hop_s(self, i: int, j: int) -> float:
        """Return the time of a tiny message from i to j: the latency."""
        return self._link(i, j)[0]

    def copy_s(self, num_bytes: float) -> float:
        """Return the time to copy `num_bytes` within a worker's memory."""
        return num_bytes * self._copy

    def _link(self, i: int, j: int) -> tuple[float, float]:
        """Return (latency, seconds per byte) from i to j."""
        if i == j:
            return 0.0, 0.0
        if self._table and (link := self._table.get(i * self.num_workers + j)) is not None:
            return link
        return self._inside if i // self.per_machine == j // self.per_machine else self._between

    def of(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return latencies and seconds per byte of the links src -> dst (integers, any shape): float64."""
        src, dst = np.broadcast_arrays(np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64))
        same = (src // self.per_machine == dst // self.per_machine)[..., None]
        costs = np.where(same, self._inside, self._between)
        if self._table:
            keys, wanted = np.array(list(self._table)), src * self.num_workers + dst
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            here = keys[place] == wanted
            costs[here] = np.array(list(self._table.values()))[place[here]]
        costs[src == dst] = 0.0
        return costs[..., 0], costs[..., 1]

    def _slowest(self) -> tuple[float, float]:
        """Return the largest latency and seconds per byte of all links."""
        n, L = self.num_workers, self.per_machine
        inside = n * (L - 1)
        own = sum(key // n // L == key % n // L for key in self._table)
        tiers = [self._inside] * (own < inside)
        tiers += [self._between] * (len(self._table) - own < n * (n - 1) - inside)
        found = [*tiers, *self._table.values()] or [(0.0, 0.0)]
        return max(latency for latency, _ in found), max(per_byte for _, per_byte in found)


class Prices:
    """Current costs, in seconds, of collectives of n workers or processes that begin simultaneously."""

    def __init__(self, n: int, costs: LinkCosts, rows_each: float = 1.0) -> None:
        """Create the prices; `rows_each` is the number of workers per process, if the n are processes."""
        self.n, self.costs, self.rows_each = n, costs, rows_each
        self.bytes_scale = 1.0
        """Factor by which true rows are larger than the exchanged ones."""

    def collective(self, name: str, num_bytes: float) -> tuple[str, float]:
        """Return the algorithm of an all_reduce, allgather or broadcast of rows of `num_bytes`, and its time."""
        if name == "all_reduce":
            chosen, seconds = self.costs.all_reduce(self.n, num_bytes * self.bytes_scale)
            return chosen.name, seconds
        return name, self.allgather_s(num_bytes) if name == "allgather" else self.broadcast_s(num_bytes)

    def mean_s(self, num_bytes: float) -> float:
        """Return the time of an all-reduce of rows of `num_bytes`."""
        return self.collective("all_reduce", num_bytes)[1]

    def allgather_s(self, num_bytes: float) -> float:
        """Return the time of an all-gather of `num_bytes` per worker."""
        return self.costs.collective_s(ALL_GATHER, self.n, num_bytes * self.bytes_scale * self.rows_each)

    def broadcast_s(self, num_bytes: float) -> float:
        """Return the time of a broadcast of `num_bytes`."""
        return self.costs.collective_s(BROADCAST, self.n, num_bytes * self.bytes_scale)
