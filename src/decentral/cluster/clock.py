"""Simulated time for methods in rounds: a number for each worker, which gradients and exchanges put forward."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decentral.cluster.links import ALL_GATHER, BROADCAST, LinkCosts, Prices
from decentral.cluster.ports import Exchange as PortExchange
from decentral.cluster.ports import Movement, borders_of
from decentral.topology.delivery import Exchange, Neighbors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from decentral.cluster.compute import GradientTimes
    from decentral.cluster.network_changes import ChangingCosts
    from decentral.cluster.timeline import Spans
    from decentral.topology.rounds import RelayEdges

_BUCKET_BYTES = 25e6
"""Of the buckets of gradients that travel while the rest is computed: DistributedDataParallel's."""
_BACKWARD = 2 / 3
"""The share of a gradient that is its backward pass."""


class Underway(NamedTuple):
    """An exchange that has begun: float64 [n] each."""

    ready: np.ndarray
    """When each worker has all its messages, in seconds."""
    travelled: np.ndarray
    """How many seconds of the time until then are travel."""
    left: np.ndarray
    """When all messages of a worker have left its port."""
    num_bytes: np.ndarray
    """How many bytes these are."""
    messages: np.ndarray
    """How many messages."""


class Use(NamedTuple):
    """Bytes that go through a port of a worker, "out" or "into", from one simulated time to another."""

    worker: int
    way: str
    num_bytes: float
    begins: float
    ends: float


class Clock(Prices):
    """Where each of n workers is in simulated time, in seconds: float64 [n].

    A gradient takes its compute time. A message leaves when its sender begins the exchange; a worker goes on once it
    has all of its messages: those of its neighbours, or, with `waits_for_everyone`, once all workers have begun.
    An all-reduce begins with the last of all workers. What is exchanged in the background costs the time that is left
    when it is waited for. Links may change from step to step. Who is absent neither computes nor waits nor is waited
    for, and collectives are those of the workers that are present.
    """

    def __init__(
        self,
        num_workers: int,
        times: GradientTimes,
        costs: LinkCosts,
        waits_for_everyone: bool = False,
        spans: Spans | None = None,
        changing: ChangingCosts | None = None,
    ) -> None:
        """`changing`: the links of every step, instead of `costs`, where the network changes under way."""
        super().__init__(num_workers, costs)
        self.times, self.spans = times, spans
        self.changing = changing
        self.waits_for_everyone = waits_for_everyone
        self.now = np.zeros(num_workers)
        self.out = np.zeros(num_workers)
        """When the port of each worker is free to send, and to receive: the same array where it has one port."""
        self.into = self.out if costs.ways == 2 else np.zeros(num_workers)
        self.borders = borders_of(costs, num_workers)
        """What the workers of each machine share."""
        self.underway: list[Underway] = []
        """What has begun and is waited for in another step, the oldest first."""
        self.ledger: list[Use] | None = None
        """What has gone through each port, if that is to be kept."""
        self.compute_s, self.wait_s, self.exchange_s, self.away_s = (np.zeros(num_workers) for _ in range(4))
        """Seconds that each worker has spent: they add up to `now`."""
        self.present: np.ndarray | None = None
        """[n], bool: who takes part; None: everybody."""
        self.gradients = 0
        """How many gradients each worker has taken."""
        self.gradient_s = np.zeros(num_workers), np.zeros(num_workers)
        """When each worker began its last one, and how long it took."""
        self.believed: LinkCosts | None = None
        """What is chosen by, where it is not known what links cost, but measured."""
        self.used: dict[str, list[float]] = {}
        """Name of a collective -> how often all have carried it out, and the seconds that it took them."""
        self.chooses = len(costs.links.collective.candidates) > 1
        """Whether which of them are used is decided on the way, so that a record of it says something."""

    @property
    def latest_s(self) -> float:
        """When the last worker is where it is."""
        return float(self.now.max())

    def let_pass(self, away: np.ndarray, until: float) -> None:
        """Workers that are not there or have been away until now, bool [n], are where time is."""
        seconds = np.where(away, np.maximum(until - self.now, 0.0), 0.0)
        self._span("away", self.now, self.now + seconds)
        self.now = self.now + seconds
        self.away_s += seconds

    def delay(self, workers: np.ndarray, seconds: float) -> None:
        """These workers, bool [n], wait for so long."""
        self.wait(Underway(self.now + seconds * workers, *np.zeros((4, self.n))))

    def begin_step(self, t: int) -> None:
        """Step t begins: until the next one links are as they are now."""
        if self.changing is not None:
            self.costs = self.changing.at(t, self.latest_s)

    def gradient(self) -> None:
        """Every worker computes its next gradient."""
        seconds = self._of_the_present(self.gradients_s(1))
        self.gradient_s = self.now, seconds
        self._span("compute", self.now, self.now + seconds)
        self.now = self.now + seconds
        self.compute_s += seconds
        self.gradients += 1

    def gradients_s(self, number: int) -> np.ndarray:
        """How long each worker takes for its next so many gradients, at its speed now: float64 [n]."""
        seconds = self.times.seconds(self.gradients, self.gradients + number).sum(axis=0)
        return np.asarray(seconds * self.costs.slower(self.now))

    def _of_the_present(self, each: np.ndarray) -> np.ndarray:
        """0 for the others."""
        return each if self.present is None else np.where(self.present, each, 0.0)

    def _latest(self, each: np.ndarray) -> float:
        """Of those that are present."""
        return float((each if self.present is None else each[self.present]).max())

    def begin(
        self, over: Exchange | RelayEdges | Neighbors, num_bytes: Sequence[float] | np.ndarray, extra: int = 0
    ) -> Underway:
        """All workers begin to send. A message has num_bytes[h] bytes for its piece h (over neighbors: num_bytes[j] for
        sender j), and `extra` bytes."""
        if over.memo.get("costs") is not self.costs:
            over.memo["costs"], over.memo["messages"] = self.costs, _messages(over)
            over.memo["plan"] = self.costs.plan(*over.memo["messages"][:2])
        src, dst, size = over.memo["messages"]
        if not len(src):
            return Underway(self.now, *np.zeros((4, self.n)))
        began = np.full(self.n, self._latest(self.now)) if self.waits_for_everyone else self.now
        each = (np.asarray(num_bytes, dtype=float) + extra)[size]
        moved = self._moved(over.memo["plan"], began, each)
        latest = began.copy()
        np.maximum.at(latest, dst, began[src])
        travelled = np.maximum(moved.ready - latest, 0.0)
        return Underway(moved.ready, travelled, moved.left, moved.sent, np.bincount(src, minlength=self.n))

    def begin_collective(self, name: str, num_bytes: float, overlaps: bool = False) -> tuple[Underway, int, float]:
        """All workers begin an all_reduce, allgather or broadcast of rows of num_bytes. Returns what is under way, the
        number of messages that all send for it, and how many rows these amount to.

        overlaps   rows are cut in buckets, and each travels once the last gradient has come so far
        """
        buckets = max(1, math.ceil(num_bytes / _BUCKET_BYTES)) if overlaps else 1
        begins = max(self._latest(each) for each in (self.now, self.out, self.into))
        members = None if self.present is None else np.flatnonzero(self.present).tolist()
        m = self.n if members is None else len(members)
        collective = {"allgather": ALL_GATHER, "broadcast": BROADCAST}.get(name)
        if collective is None:
            chosen = (self.believed or self.costs).all_reduce(m, num_bytes / buckets, begins)[0]
            name, collective = chosen.name, chosen.value
        starts, seconds = list[float](), 0.0
        end = self._latest(np.maximum(self.out, self.into)) if overlaps else begins
        for ready in self._ready(buckets) if overlaps else [begins]:
            starts.append(max(end, ready))
            took = self.costs.collective_s(collective, m, num_bytes / buckets, starts[-1], members)
            end, seconds = starts[-1] + took, seconds + took
        messages, rows = self.costs.sends(collective, m)
        used = self.used.setdefault(name, [0, 0.0])
        used[0] += 1
        used[1] += seconds
        each = self._of_the_present(np.full(self.n, rows * num_bytes / m))
        all_begin, ends = np.full(self.n, starts[0]), np.full(self.n, end)
        self._use(Movement(ends, all_begin, ends, all_begin, ends, each, each))
        sent = self._of_the_present(np.full(self.n, messages / m))
        travelled = min(seconds, end - self._latest(self.now)) if overlaps else seconds
        return Underway(ends, np.full(self.n, travelled), ends, each, sent), round(messages), rows

    def _ready(self, buckets: int) -> list[float]:
        """When all workers have each bucket of their last gradients."""
        began, took = self.gradient_s
        shares = 1 - _BACKWARD + _BACKWARD * np.arange(1, buckets + 1) / buckets
        return [self._latest(began + share * took) for share in shares]

    def _moved(self, plan: PortExchange, now: np.ndarray, num_bytes: float | np.ndarray) -> Movement:
        """What becomes of messages that begin now, which take the ports."""
        moved = plan.move(now, num_bytes, self.out, self.into, self.borders)
        self._use(moved)
        return moved

    def _use(self, moved: Movement) -> None:
        """The ports are taken by this."""
        np.maximum(self.out, moved.left, out=self.out, where=moved.sent > 0)
        np.maximum(self.into, moved.taken, out=self.into, where=moved.received > 0)
        if self.ledger is not None:
            out = zip(moved.sent, moved.begins, moved.left, strict=True)
            into = zip(moved.received, moved.opens, moved.taken, strict=True)
            for way, uses in (("out", out), ("into", into)):
                self.ledger += [Use(i, way, *map(float, use)) for i, use in enumerate(uses) if use[0]]

    def ping(self, src: np.ndarray, dst: np.ndarray, num_bytes: float) -> float:
        """Once all are there, messages of so many bytes go from src to dst (int64 [E], a worker in one pair at most)
        and back; returns half of what the slowest takes."""
        begun = self.latest_s
        there = self._moved(self.costs.plan(src, dst), np.full(self.n, begun), num_bytes)
        back = self._moved(self.costs.plan(dst, src), there.ready, num_bytes)
        self.wait(Underway(back.ready, back.ready - begun, *np.zeros((3, self.n))))
        return (float(back.ready.max()) - begun) / 2

    def not_left(self) -> tuple[int, int]:
        """Bytes and messages that have begun to leave, and are not out of their ports when the last worker is where it
        is."""
        staying = [(one, one.left > self.latest_s) for one in self.underway]
        num_bytes, messages = (
            sum(float(getattr(one, what)[stays].sum()) for one, stays in staying) for what in ("num_bytes", "messages")
        )
        return round(num_bytes), round(messages)

    def wait(self, underway: Underway) -> None:
        """All go on once an exchange is over for them."""
        spent = self._of_the_present(np.maximum(underway.ready - self.now, 0.0))
        exchanged = np.minimum(spent, underway.travelled)
        waited = spent - exchanged
        self._span("wait", self.now, self.now + waited)
        self._span("exchange", self.now + waited, self.now + spent)
        self.now = self.now + spent
        self.wait_s += waited
        self.exchange_s += exchanged

    def accounts(self) -> dict[str, np.ndarray]:
        """Seconds of each worker so far, float64 [n]: computing, waiting and exchanging, and away once somebody was."""
        found = {"compute": self.compute_s, "wait": self.wait_s, "exchange": self.exchange_s}
        return found | ({"away": self.away_s} if self.away_s.any() else {})

    def state(self) -> np.ndarray:
        """Everything it remembers, for a checkpoint: float64 [7 + 5 for each exchange underway, n], and a row more once
        somebody has been away."""
        gradients = np.full(self.n, self.gradients)
        underway = [row for one in self.underway for row in one] + ([self.away_s] if self.away_s.any() else [])
        return np.stack(
            [gradients, self.now, self.out, self.into, self.compute_s, self.wait_s, self.exchange_s, *underway]
        )

    def load_state(self, state: np.ndarray) -> None:
        """Go on from what `state` once gave."""
        gradients, self.now, out, into, self.compute_s, self.wait_s, self.exchange_s, *underway = np.array(state)
        self.gradients = int(gradients[0])
        self.out[:], self.into[:] = out, into
        each = len(Underway._fields)
        if len(underway) % each:
            self.away_s = underway.pop()
        self.underway = [Underway(*underway[first : first + each]) for first in range(0, len(underway), each)]

    def borders_state(self) -> list[list[list[float]]]:
        """When the borders of machines are busy from where the slowest worker is on, for a checkpoint."""
        each = [border for way in ("out", "into") for border in self.borders[way]]
        firsts = [bisect_right(border.ends, float(self.now.min())) for border in each]
        return [[border.begins[k:], border.ends[k:]] for border, k in zip(each, firsts, strict=True)]

    def load_borders(self, state: list[list[list[float]]]) -> None:
        """Go on from what `borders_state` once gave."""
        each = [border for way in ("out", "into") for border in self.borders[way]]
        for border, (begins, ends) in zip(each, state, strict=True):
            border.begins, border.ends = list(begins), list(ends)

    def _span(self, kind: str, begins: np.ndarray, ends: np.ndarray) -> None:
        if self.spans is not None:
            for worker, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
                self.spans.add(worker, kind, begin, end)


def _messages(over: Exchange | RelayEdges | Neighbors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sender and receiver of every message of an exchange, and which size it has, int64 [E]: one for each weight or
    edge, as long as its piece; between neighbors, as its sender says. Of messages that get lost, too: they travel, and
    are waited for, as all others."""
    if isinstance(over, Neighbors):
        return *over.sent, over.sent[0]
    if not isinstance(over, Exchange):
        return over.src, over.dst, over.piece
    graphs = [W.graph for W in over.sent]
    src, dst = (np.concatenate([getattr(graph, end) for graph in graphs]) for end in ("src", "dst"))
    return src, dst, np.repeat(np.arange(len(graphs)), [len(graph) for graph in graphs])
