"""Simulated time for synchronous methods: a clock per worker, advanced by gradients and exchanges."""

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
"""Bucket size for gradients sent during the backward pass: DistributedDataParallel's."""
_BACKWARD = 2 / 3
"""The backward pass's share of a gradient's time."""


class Underway(NamedTuple):
    """An exchange in flight: float64 [n] each."""

    ready: np.ndarray
    """The time when each worker has all its messages, in seconds."""
    traveled: np.ndarray
    """The seconds of transfer in the time until then."""
    left: np.ndarray
    """The time when all messages of a worker have left its port."""
    num_bytes: np.ndarray
    """The bytes of these messages."""
    messages: np.ndarray
    """The number of messages."""


class Use(NamedTuple):
    """Bytes through a worker's port, "out" or "into", in an interval of simulated time."""

    worker: int
    way: str
    num_bytes: float
    begins: float
    ends: float


class Clock(Prices):
    """The simulated time of each of n workers, in seconds: float64 [n].

    A gradient takes its compute time. A message leaves when its sender begins the exchange; a worker continues once it
    has all its messages from neighbors, or, with `waits_for_everyone`, once all workers have begun. An all-reduce
    begins with the last of all workers. A background exchange costs only the time remaining at its wait. Links may
    change from step to step. Absent workers neither compute nor wait, no worker waits for them, and collectives involve
    only present workers.
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
        """Create the clock; `changing` are the links of every step, instead of `costs`, if the network changes during
        the run."""
        super().__init__(num_workers, costs)
        self.times, self.spans = times, spans
        self.changing = changing
        self.waits_for_everyone = waits_for_everyone
        self.now = np.zeros(num_workers)
        self.out = np.zeros(num_workers)
        """The time when each worker's port is free to send, and to receive: the same array if it has one port."""
        self.into = self.out if costs.ways == 2 else np.zeros(num_workers)
        self.borders = borders_of(costs, num_workers)
        """The shared borders of each machine's workers."""
        self.underway: list[Underway] = []
        """Exchanges in flight to wait for in another step, oldest first."""
        self.ledger: list[Use] | None = None
        """The use of each port, if recorded."""
        self.compute_s, self.wait_s, self.exchange_s, self.away_s = (np.zeros(num_workers) for _ in range(4))
        """Seconds that each worker has spent: their sum is `now`."""
        self.present: np.ndarray | None = None
        """[n], bool: the present workers; None: all."""
        self.gradients = 0
        """Number of gradients of each worker."""
        self.gradient_s = np.zeros(num_workers), np.zeros(num_workers)
        """The start and duration of each worker's last gradient."""
        self.believed: LinkCosts | None = None
        """The measured link costs used for decisions, if true costs are unknown."""
        self.used: dict[str, list[float]] = {}
        """Name of a collective -> its count and total seconds."""
        self.chooses = len(costs.links.collective.candidates) > 1
        """True if the run chooses between collectives, so that recording them is useful."""

    @property
    def latest_s(self) -> float:
        """Return the time of the last worker."""
        return float(self.now.max())

    def let_pass(self, away: np.ndarray, until: float) -> None:
        """Advance absent and just-returned workers, bool [n], to the current time."""
        seconds = np.where(away, np.maximum(until - self.now, 0.0), 0.0)
        self._span("away", self.now, self.now + seconds)
        self.now = self.now + seconds
        self.away_s += seconds

    def delay(self, workers: np.ndarray, seconds: float) -> None:
        """Let these workers, bool [n], wait for `seconds`."""
        self.wait(Underway(self.now + seconds * workers, *np.zeros((4, self.n))))

    def begin_step(self, t: int) -> None:
        """Begin step t: links are constant until the next step."""
        if self.changing is not None:
            self.costs = self.changing.at(t, self.latest_s)

    def gradient(self) -> None:
        """Let every worker compute its next gradient."""
        seconds = self._of_the_present(self.gradients_s(1))
        self.gradient_s = self.now, seconds
        self._span("compute", self.now, self.now + seconds)
        self.now = self.now + seconds
        self.compute_s += seconds
        self.gradients += 1

    def gradients_s(self, number: int) -> np.ndarray:
        """Return each worker's time for its next `number` gradients, at its current speed: float64 [n]."""
        seconds = self.times.seconds(self.gradients, self.gradients + number).sum(axis=0)
        return np.asarray(seconds * self.costs.slower(self.now))

    def _of_the_present(self, each: np.ndarray) -> np.ndarray:
        """Return the values of present workers, 0 for others."""
        return each if self.present is None else np.where(self.present, each, 0.0)

    def _latest(self, each: np.ndarray) -> float:
        """Return the maximum over present workers."""
        return float((each if self.present is None else each[self.present]).max())

    def begin(
        self, over: Exchange | RelayEdges | Neighbors, num_bytes: Sequence[float] | np.ndarray, extra: int = 0
    ) -> Underway:
        """Let all workers begin to send. A message has num_bytes[h] bytes for its piece h (between neighbors:
        num_bytes[j] for sender j), plus `extra` bytes."""
        if over.memo.get("costs") is not self.costs:
            over.memo["costs"], over.memo["messages"] = self.costs, _messages(over)
            over.memo["plan"] = PortExchange(self.costs, *over.memo["messages"][:2])
        src, dst, size = over.memo["messages"]
        if not len(src):
            return Underway(self.now, *np.zeros((4, self.n)))
        began = np.full(self.n, self._latest(self.now)) if self.waits_for_everyone else self.now
        each = (np.asarray(num_bytes, dtype=float) + extra)[size]
        moved = self._moved(over.memo["plan"], began, each)
        latest = began.copy()
        np.maximum.at(latest, dst, began[src])
        traveled = np.maximum(moved.ready - latest, 0.0)
        return Underway(moved.ready, traveled, moved.left, moved.sent, np.bincount(src, minlength=self.n))

    def begin_collective(self, name: str, num_bytes: float, overlaps: bool = False) -> tuple[Underway, int, float]:
        """Let all workers begin an all_reduce, allgather or broadcast of rows of num_bytes. Return the exchange in
        flight, its total number of messages, and the number of rows they amount to.

        overlaps   rows are cut into buckets, each sent as soon as the last gradient has it
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
        traveled = min(seconds, end - self._latest(self.now)) if overlaps else seconds
        return Underway(ends, np.full(self.n, traveled), ends, each, sent), round(messages), rows

    def _ready(self, buckets: int) -> list[float]:
        """Return the times when all workers have each bucket of their last gradients."""
        began, took = self.gradient_s
        shares = 1 - _BACKWARD + _BACKWARD * np.arange(1, buckets + 1) / buckets
        return [self._latest(began + share * took) for share in shares]

    def _moved(self, plan: PortExchange, now: np.ndarray, num_bytes: float | np.ndarray) -> Movement:
        """Move messages that begin now, and occupy the ports."""
        moved = plan.move(now, num_bytes, self.out, self.into, self.borders)
        self._use(moved)
        return moved

    def _use(self, moved: Movement) -> None:
        """Occupy the ports for this movement."""
        np.maximum(self.out, moved.left, out=self.out, where=moved.sent > 0)
        np.maximum(self.into, moved.taken, out=self.into, where=moved.received > 0)
        if self.ledger is not None:
            out = zip(moved.sent, moved.begins, moved.left, strict=True)
            into = zip(moved.received, moved.opens, moved.taken, strict=True)
            for way, uses in (("out", out), ("into", into)):
                self.ledger += [Use(i, way, *map(float, use)) for i, use in enumerate(uses) if use[0]]

    def ping(self, src: np.ndarray, dst: np.ndarray, num_bytes: float) -> float:
        """Send messages of `num_bytes` from src to dst (int64 [E], disjoint pairs) and back, once all are ready; return
        half the time of the slowest."""
        begun = self.latest_s
        there = self._moved(PortExchange(self.costs, src, dst), np.full(self.n, begun), num_bytes)
        back = self._moved(PortExchange(self.costs, dst, src), there.ready, num_bytes)
        self.wait(Underway(back.ready, back.ready - begun, *np.zeros((3, self.n))))
        return (float(back.ready.max()) - begun) / 2

    def not_left(self) -> tuple[int, int]:
        """Return bytes and messages that are still leaving their ports at the time of the last worker."""
        staying = [(one, one.left > self.latest_s) for one in self.underway]
        num_bytes, messages = (
            sum(float(getattr(one, what)[stays].sum()) for one, stays in staying) for what in ("num_bytes", "messages")
        )
        return round(num_bytes), round(messages)

    def wait(self, underway: Underway) -> None:
        """Let every worker continue once its exchange is over."""
        spent = self._of_the_present(np.maximum(underway.ready - self.now, 0.0))
        exchanged = np.minimum(spent, underway.traveled)
        waited = spent - exchanged
        self._span("wait", self.now, self.now + waited)
        self._span("exchange", self.now + waited, self.now + spent)
        self.now = self.now + spent
        self.wait_s += waited
        self.exchange_s += exchanged

    def accounts(self) -> dict[str, np.ndarray]:
        """Return each worker's seconds so far, float64 [n]: compute, wait, exchange, and away if any worker was."""
        seconds = {"compute": self.compute_s, "wait": self.wait_s, "exchange": self.exchange_s}
        return seconds | ({"away": self.away_s} if self.away_s.any() else {})

    def state(self) -> np.ndarray:
        """Return its state for a checkpoint: float64 [7 + 5 for each exchange in flight, n], and another row once a
        worker was away."""
        gradients = np.full(self.n, self.gradients)
        underway = [row for one in self.underway for row in one] + ([self.away_s] if self.away_s.any() else [])
        return np.stack(
            [gradients, self.now, self.out, self.into, self.compute_s, self.wait_s, self.exchange_s, *underway]
        )

    def load_state(self, state: np.ndarray) -> None:
        """Restore the result of `state`."""
        gradients, self.now, out, into, self.compute_s, self.wait_s, self.exchange_s, *underway = np.array(state)
        self.gradients = int(gradients[0])
        self.out[:], self.into[:] = out, into
        each = len(Underway._fields)
        if len(underway) % each:
            self.away_s = underway.pop()
        self.underway = [Underway(*underway[first : first + each]) for first in range(0, len(underway), each)]

    def borders_state(self) -> list[list[list[float]]]:
        """Return the busy intervals of machine borders after the slowest worker's time, for a checkpoint."""
        each = [border for way in ("out", "into") for border in self.borders[way]]
        firsts = [bisect_right(border.ends, float(self.now.min())) for border in each]
        return [[border.begins[k:], border.ends[k:]] for border, k in zip(each, firsts, strict=True)]

    def load_borders(self, state: list[list[list[float]]]) -> None:
        """Restore the result of `borders_state`."""
        each = [border for way in ("out", "into") for border in self.borders[way]]
        for border, (begins, ends) in zip(each, state, strict=True):
            border.begins, border.ends = list(begins), list(ends)

    def _span(self, kind: str, begins: np.ndarray, ends: np.ndarray) -> None:
        if self.spans is not None:
            for worker, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
                self.spans.add(worker, kind, begin, end)


def _messages(over: Exchange | RelayEdges | Neighbors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sender, receiver and size index of every message of an exchange, int64 [E]: one for each weight or edge,
    sized by its piece; between neighbors, by its sender. Lost messages are included: they take time like all others."""
    if isinstance(over, Neighbors):
        return *over.sent, over.sent[0]
    if not isinstance(over, Exchange):
        return over.src, over.dst, over.piece
    graphs = [W.graph for W in over.sent]
    src, dst = (np.concatenate([getattr(graph, end) for graph in graphs]) for end in ("src", "dst"))
    return src, dst, np.repeat(np.arange(len(graphs)), [len(graph) for graph in graphs])
