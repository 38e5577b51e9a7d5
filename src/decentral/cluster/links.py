"""What it costs n workers to send, exchange, average and copy, in seconds: `cluster.links`.

alpha is the latency of a link in seconds, beta the seconds per byte, N the bytes of each worker's row. Formulas:
Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005; for the tree, a
reduction to a root followed by a broadcast; star, all-gather and broadcast as in Tyagi and Swany, Flexible
communication for optimal distributed learning over unpredictable networks, 2023, which has the same ring and tree.
What the additions take is not counted. log2 is rounded up where P is not a power of two (`whole`), as these algorithms
have whole phases; the last paper takes it as a real number (`math.log2`), which makes no difference to powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from decentral.cluster.settings import bandwidth, latency, read_lines
from decentral.errors import ConfigError
from decentral.settings import Settings, setting

Log2 = Callable[[int], float]


def whole(num_workers: int) -> float:
    """log2 P, rounded up: the phases of an algorithm."""
    return (num_workers - 1).bit_length()


class Collective(NamedTuple):
    """An algorithm for something that all workers do together."""

    formula: Callable[[int, float, float, float, float], float]
    """(P, log2 P, N, alpha, beta) -> seconds."""
    both_ways: bool
    """Whether a worker sends and receives at the same time, which takes twice as long through one port."""
    all_at_once: bool
    """Whether all workers of a machine send to another machine at the same time."""

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """How long P >= 2 workers take that begin together."""
        return self.formula(num_workers, log2(num_workers), num_bytes, alpha, beta)


RECURSIVE_DOUBLING = Collective(lambda P, log2, N, alpha, beta: log2 * (alpha + N * beta), True, True)
"""In each of log2 P phases workers exchange whole rows in pairs."""
RABENSEIFNER = Collective(
    lambda P, log2, N, alpha, beta: 2 * log2 * alpha + 2 * (P - 1) / P * N * beta, both_ways=True, all_at_once=True
)
"""Reduce-scatter by halving, all-gather by doubling."""
RING = Collective(
    lambda P, log2, N, alpha, beta: 2 * (P - 1) * (alpha + N / P * beta), both_ways=True, all_at_once=False
)
"""2 (P - 1) times a P-th of a row to the next worker."""
TREE = Collective(lambda P, log2, N, alpha, beta: 2 * log2 * (alpha + N * beta), both_ways=False, all_at_once=False)
"""Whole rows up a binomial tree and down again."""
STAR = Collective(lambda P, log2, N, alpha, beta: 2 * alpha + 2 * (P - 1) * N * beta, False, False)
"""Whole rows to one worker, a parameter server, and back: through its port one after the other."""
DIRECT = Collective(lambda P, log2, N, alpha, beta: 2 * (alpha + (P - 1) / P * N * beta), True, True)
"""Everybody adds up a P-th of all rows and gives it to all, in two phases in which all send to all: what processes of
one host do that see each other's memory."""
ALL_GATHER = Collective(lambda P, log2, N, alpha, beta: log2 * alpha + (P - 1) * N * beta, True, True)
"""What each worker contributes, N bytes at most, to all others, by recursive doubling."""
BROADCAST = Collective(lambda P, log2, N, alpha, beta: log2 * (alpha + N * beta), both_ways=False, all_at_once=False)
"""What one worker has to all others, down a binomial tree."""


class CollectiveName(Enum):
    """How an all-reduce is carried out: the mean of all workers' rows, on all of them."""

    recursive_doubling = RECURSIVE_DOUBLING
    rabenseifner = RABENSEIFNER
    ring = RING
    tree = TREE
    star = STAR
    direct = DIRECT
    auto = ("ring", "tree", "recursive_doubling", "rabenseifner")
    """The fastest of these for rows of this size over these links, the first one on a tie. By the formulas recursive
    doubling takes half as long as a tree and Rabenseifner's algorithm no longer than a ring; through one port, or where
    machines share their way out, others can be faster."""
    ring_or_tree = ("ring", "tree")
    """What Tyagi and Swany choose from: with x = alpha/beta a ring below x = c N, a tree above it, where for P > 2
    c = (log2 P - (P - 1)/P) / (P - 1 - log2 P)."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return getattr, (CollectiveName, self.name)  # by its name: formulas cannot be pickled

    @property
    def candidates(self) -> list[CollectiveName]:
        """What may be carried out for it."""
        return [self] if isinstance(self.value, Collective) else [CollectiveName[name] for name in self.value]


OF_MESSAGES = [CollectiveName[name] for name in ("recursive_doubling", "rabenseifner", "ring", "tree", "star")]
"""Those that consist of messages between two, which processes can choose from."""


_WHERE = "cluster.links"
_COLUMNS = ["source", "target", "latency_s", "bandwidth_gbps"]


class Ports(Enum):
    """What a worker can do at the same time."""

    duplex = "duplex"
    one = "one"


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

    latency_s: float | None = latency()
    bandwidth_gbps: float | None = bandwidth()
    ports: Ports = Ports.duplex
    copy_gbps: float | None = bandwidth()
    collective: CollectiveName = CollectiveName.ring
    whole_phases: bool = field(default=True, metadata={"older": True})
    workers_per_machine: int | None = setting(None, at_least=1, older=None)
    between_latency_s: float | None = latency()
    between_bandwidth_gbps: float | None = bandwidth()
    shared_gbps: float | None = bandwidth()
    file: str | None = field(default=None, metadata={"older": None, "content": True})

    def check(self, num_workers: int) -> None:
        """Raise ConfigError for what is missing or does not fit n workers."""
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
        if num_workers % (self.workers_per_machine or 1):
            raise ConfigError(
                f"{_WHERE}.workers_per_machine={self.workers_per_machine} does not divide num_workers={num_workers}: "
                "all machines have as many workers."
            )


def seconds_per_byte(gbps: float | None) -> float:
    """Of so many Gbit/s; 0 for inf and for None."""
    return 0.0 if gbps is None else 8e-9 / gbps


def read_links(name: str, num_workers: int) -> dict[int, tuple[float, float]]:
    """source n + target, ascending -> (latency, seconds per byte), from lines source,target,latency_s,bandwidth_gbps; a
    first line of words is passed over.

    Raises ConfigError, with file and line, for what is none of n workers, given twice, or no such number.
    """
    key = "cluster.links.file"
    lines = read_lines(key, name)
    if lines and lines[0].cells == _COLUMNS:
        del lines[0]
    if not lines:
        raise ConfigError(f"{key}={name} holds no links: give lines {','.join(_COLUMNS)}.")
    found: dict[int, tuple[float, float]] = {}
    for line in lines:
        line.check_columns(_COLUMNS)
        source, target = (line.integer(place, "worker", num_workers) for place in (0, 1))
        if source == target:
            raise ConfigError(f"{line.said} is a link from worker {source} to itself: remove it.")
        if source * num_workers + target in found:
            raise ConfigError(f"{line.said} repeats the link {source},{target}: give every link once.")
        found[source * num_workers + target] = line.seconds(2), seconds_per_byte(line.gbps(3))
    return dict(sorted(found.items()))


class LinkCosts:
    """The links between n workers. Sending N bytes from i to j takes latency + N seconds_per_byte; to itself nothing.

    Scalars are computed without numpy: an event loop asks for hundreds of thousands of them.
    """

    def __init__(self, links: Links, num_workers: int) -> None:
        """Raises ConfigError, see `Links.check`."""
        links.check(num_workers)
        self.links, self.num_workers = links, num_workers
        self.per_machine = links.workers_per_machine or 1
        self._inside = links.latency_s or 0.0, seconds_per_byte(links.bandwidth_gbps)
        self._between = self._inside
        if links.workers_per_machine:
            self._between = links.between_latency_s or 0.0, seconds_per_byte(links.between_bandwidth_gbps)
        self.shared = seconds_per_byte(links.shared_gbps)
        self._copy = seconds_per_byte(links.copy_gbps)
        self._table = {} if links.file is None else read_links(links.file, num_workers)
        self.ways = 2 if links.ports is Ports.one else 1
        self._alpha, self._beta = self.slowest = self._slowest()
        alike = self._inside == self._between or self.per_machine in (1, num_workers)
        self.uniform = not self._table and alike
        """Whether all links are alike."""

    def plan(self, src: np.ndarray, dst: np.ndarray) -> Exchange:
        """Exchanges along the edges src -> dst (integers [E])."""
        return Exchange(self, src, dst)

    def all_reduce_s(self, num_workers: int, num_bytes: float) -> float:
        """How long `num_workers` of the workers, who begin together, take for the mean of rows of so many bytes."""
        return self.all_reduce(num_workers, num_bytes)[1]

    def all_reduce(self, num_workers: int, num_bytes: float) -> tuple[CollectiveName, float]:
        """The same, and what they carry out: of what `cluster.links.collective` leaves to choose from, the fastest."""
        timed = [
            (each, self.collective_s(each.value, num_workers, num_bytes)) for each in self.links.collective.candidates
        ]
        return min(timed, key=lambda one: one[1])

    def collective_s(self, collective: Collective, num_workers: int, num_bytes: float) -> float:
        """How long `num_workers` of the workers, who begin together, take for it.

        By its formula (`collectives`) with alpha the largest latency and beta the most seconds per
        byte of all links between the n workers: the slowest link decides in every phase. Through one port what is
        sent and received at the same time takes twice as long. Where a machine's workers share their way out, L that
        send at the same time are L times as slow on it.
        """
        if num_workers < 2:
            return 0.0
        beta = self._beta
        if self.shared and self.num_workers > self.per_machine:
            beta = max(beta, (self.per_machine if collective.all_at_once else 1) * self.shared)
        ways = self.ways if collective.both_ways else 1
        log2 = whole if self.links.whole_phases else math.log2
        return collective.seconds(num_workers, num_bytes, self._alpha, ways * beta, log2)

    def fastest_all_reduce(self, num_workers: int, num_bytes: float) -> str:
        """The name of the collective made of messages that takes least for it; on a tie the first one."""
        return min(OF_MESSAGES, key=lambda each: self.collective_s(each.value, num_workers, num_bytes)).name

    def pair_s(self, i: int, j: int, num_bytes: float) -> float:
        """How long i and j take to exchange so many bytes with each other: latency + N seconds_per_byte of the slower
        direction; through one port latency + the bytes of both."""
        if self.uniform and i != j:
            return self._alpha + num_bytes * self.ways * self._beta
        there, back = self._link(i, j), self._link(j, i)
        per_byte = there[1] + back[1] if self.ways == 2 else max(there[1], back[1])
        return max(there[0], back[0]) + num_bytes * per_byte

    def message_s(self, i: int, j: int, num_bytes: float) -> float:
        """How long one message from i to j is on its way."""
        alpha, beta = self._link(i, j)
        return alpha + num_bytes * beta

    def hop_s(self, i: int, j: int) -> float:
        """How long a message from i to j takes that has next to no bytes: the latency."""
        return self._link(i, j)[0]

    def copy_s(self, num_bytes: float) -> float:
        """How long a worker copies so many bytes within its memory."""
        return num_bytes * self._copy

    def _link(self, i: int, j: int) -> tuple[float, float]:
        """(latency, seconds per byte) from i to j."""
        if i == j:
            return 0.0, 0.0
        if self._table and (own := self._table.get(i * self.num_workers + j)) is not None:
            return own
        return self._inside if i // self.per_machine == j // self.per_machine else self._between

    def of(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Latencies and seconds per byte of the links src -> dst (integers, any shape): float64."""
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
        """The largest latency and the most seconds per byte of all links."""
        n, L = self.num_workers, self.per_machine
        inside = n * (L - 1)
        own = sum(key // n // L == key % n // L for key in self._table)
        tiers = [self._inside] * (own < inside)
        tiers += [self._between] * (len(self._table) - own < n * (n - 1) - inside)
        found = [*tiers, *self._table.values()] or [(0.0, 0.0)]
        return max(latency for latency, _ in found), max(per_byte for _, per_byte in found)


class Exchange:
    """Messages along the edges src -> dst, all of which may be sent at the same time."""

    def __init__(self, costs: LinkCosts, src: np.ndarray, dst: np.ndarray) -> None:
        src, dst = np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64)
        self._order = None if np.all(dst[1:] >= dst[:-1]) else np.argsort(dst, kind="stable")
        if self._order is not None:
            src, dst = src[self._order], dst[self._order]
        self._costs, self._src, self._dst = costs, src, dst
        self._latency, self._per_byte = costs.of(src, dst)
        self._starts = np.flatnonzero(np.diff(dst, prepend=-1)) if len(dst) else np.empty(0, dtype=np.int64)
        self._crossing = src // costs.per_machine != dst // costs.per_machine

    def ready(self, now: np.ndarray, num_bytes: float | np.ndarray) -> np.ndarray:
        """When each worker has sent and received its messages, float64 [n], if it sends at its own time now_i:

            max(now_i, max over j that i hears of (now_j + latency_ij)) + transfer_i

        transfer_i: the messages of a worker go through its port one after the other. Duplex: the larger one of the
        sums of num_bytes seconds_per_byte over those that it receives and those that it sends; one port: both sums.
        Where a machine's workers share their way out, at least the bytes that cross the machine's border (the larger
        one of both directions, or with one port their sum) at that bandwidth, for all who have a part in it.
        Workers without edges are ready at once.

        num_bytes   of each message: a number, or float64 [E] in the order in which the edges were given
        """
        ready = np.array(now, dtype=np.float64)
        if not len(self._src):
            return ready
        each = np.broadcast_to(np.asarray(num_bytes, dtype=np.float64), self._src.shape)
        if self._order is not None:
            each = each[self._order]
        heard = np.maximum.reduceat(ready[self._src] + self._latency, self._starts)
        receivers = self._dst[self._starts]
        ready[receivers] = np.maximum(ready[receivers], heard)
        transfer = self._through_ports(*self._sums(each * self._per_byte))
        if self._costs.shared:
            across = self._sums(np.where(self._crossing, each, 0.0))
            received, sent = (each.reshape(-1, self._costs.per_machine) for each in across)
            border = self._costs.shared * self._through_ports(received.sum(axis=1), sent.sum(axis=1))
            transfer = np.maximum(transfer, np.where(received + sent > 0, border[:, None], 0.0).ravel())
        return ready + transfer

    def _sums(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sums of the values [E] over what each worker receives, and over what it sends: [n]."""
        n = self._costs.num_workers
        return np.bincount(self._dst, values, minlength=n), np.bincount(self._src, values, minlength=n)

    def _through_ports(self, received: np.ndarray, sent: np.ndarray) -> np.ndarray:
        return received + sent if self._costs.ways == 2 else np.maximum(received, sent)


class Prices:
    """How long n who begin together would take for something now, in seconds: n workers, or n processes."""

    def __init__(self, n: int, costs: LinkCosts, rows_each: float = 1.0) -> None:
        """`rows_each`: how many workers each of the n contributes for, where these are processes."""
        self.n, self.costs, self.rows_each = n, costs, rows_each
        self.bytes_scale = 1.0
        """How many times as large the rows are in truth as those that are exchanged."""

    def all_reduce(self, num_bytes: float) -> tuple[str, float]:
        """What they carry out for it, and how long it takes."""
        collective, seconds = self.costs.all_reduce(self.n, num_bytes * self.bytes_scale)
        return collective.name, seconds

    def collective(self, name: str, num_bytes: float) -> tuple[str, float]:
        """The same for an all_reduce, allgather or broadcast."""
        if name == "all_reduce":
            return self.all_reduce(num_bytes)
        return name, self.allgather_s(num_bytes) if name == "allgather" else self.broadcast_s(num_bytes)

    def mean_s(self, num_bytes: float) -> float:
        """An all-reduce of rows of so many bytes."""
        return self.all_reduce(num_bytes)[1]

    def allgather_s(self, num_bytes: float) -> float:
        """An all-gather of what is so many bytes for each worker."""
        return self.costs.collective_s(ALL_GATHER, self.n, num_bytes * self.bytes_scale * self.rows_each)

    def broadcast_s(self, num_bytes: float) -> float:
        """A broadcast of so many bytes."""
        return self.costs.collective_s(BROADCAST, self.n, num_bytes * self.bytes_scale)
