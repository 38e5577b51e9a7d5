"""Simulated time for asynchronous workers: the schedule of operations, independent of data.

A worker is a program: a generator of operations (`operations.py`). A local operation returns its completion time; one
that involves several workers (all, groups, pairs) resumes them once the clock has decided. Times depend only on compute
times, links and programs, never on values, so the timeline is the same with or without rows.

`timeline.json`, which ui.perfetto.dev and chrome://tracing open, is in the Trace Event Format: one complete event
("ph": "X") for each span, with `ts` and `dur` in microseconds of simulated time, on a track for each worker.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, count
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from decentral.cluster.clock import Use
from decentral.cluster.operations import check_ended
from decentral.cluster.ports import borders_of
from decentral.store.files import read_json, write_text

if TYPE_CHECKING:
    from decentral.availability.availability import Schedule
    from decentral.cluster.compute import GradientTimes
    from decentral.cluster.links import LinkCosts
    from decentral.cluster.operations import Operation, RowExecutor

FILE = "timeline.json"


class Span(NamedTuple):
    """An interval of simulated time, in seconds, in which a worker computes, waits or exchanges."""

    worker: int
    kind: str
    begin_s: float
    end_s: float


class Spans:
    """The spans of the first workers of a timeline."""

    def __init__(self, workers: int) -> None:
        """Keep the spans of the first `workers` workers."""
        self.found: list[Span] = []
        self._workers = workers

    def add(self, worker: int, kind: str, begin_s: float, end_s: float) -> None:
        """Add a span of nonzero length."""
        if end_s > begin_s and worker < self._workers:
            self.found.append(Span(worker, kind, begin_s, end_s))


def write_spans(directory: Path, spans: Iterable[Span]) -> Path:
    """Replace `timeline.json` atomically; returns its path."""
    spans = sorted(spans, key=lambda span: (span.worker, span.begin_s))
    names = {
        worker: {"name": "thread_name", "ph": "M", "pid": 0, "tid": worker, "args": {"name": f"worker {worker}"}}
        for worker in sorted({span.worker for span in spans})
    }
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "simulated time"}},
        *names.values(),
        *({"name": span.kind, "ph": "X", "pid": 0, "tid": span.worker, **_times(span)} for span in spans),
    ]
    lines = ",\n".join(json.dumps(event) for event in events)
    path = directory / FILE
    write_text(path, f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n')
    return path


def read_spans(directory: Path) -> list[Span]:
    """Read `timeline.json`; empty if there is none. Never raises."""
    events = (read_json(directory / FILE) or {}).get("traceEvents", [])
    return [
        Span(one["tid"], one["name"], one["ts"] / 1e6, (one["ts"] + one["dur"]) / 1e6)
        for one in events
        if one.get("ph") == "X"
    ]


def _times(span: Span) -> dict[str, float]:
    return {"ts": round(1e6 * span.begin_s, 3), "dur": round(1e6 * (span.end_s - span.begin_s), 3)}


Meeting = TypeVar("Meeting")
_STEPS_AT_ONCE = 64
_Event = tuple[float, int, int | None, Callable[[float], object] | None]
"""Time, order at that time, worker to resume, and function to call before."""
_Deferred = tuple[int | None, Callable[[float], object]]
"""Worker to resume at this time, and function to call before."""


class Lateness(NamedTuple):
    """Statistics of late contributions, up to a simulated time."""

    ages: dict[int, int]
    """Age in versions -> number of contributions."""
    critical: list[int]
    """How often all, or a group, waited for this worker last."""


class Timeline:
    """The operations of n workers, in order of simulated time.

    Simultaneous operations are in worker order; decisions of meetings come after all simultaneous arrivals.
    """

    def __init__(
        self,
        programs: Sequence[Iterator[Operation]],
        times: GradientTimes,
        costs: LinkCosts,
        bytes_per_row: int,
        most_gradients: float = inf,
        rows: RowExecutor | None = None,
        spans: Spans | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        """Create the timeline. After `most_gradients` gradients of all workers no further one begins, and workers that
        want one are done. An absent worker's next operation, by a `schedule` in seconds, begins at its return."""
        self.n = len(programs)
        self.costs, self.rows, self.spans = costs, rows, spans
        self.bytes_per_row = bytes_per_row
        self.now = 0.0
        """Current simulated time in seconds; nothing later has happened."""
        self.drawn = [0] * self.n
        """Number of gradients begun by each worker."""
        self.completed = 0
        """Number of completed gradients of all workers."""
        self.compute_s, self.wait_s, self.exchange_s = ([0.0] * self.n for _ in range(3))
        """Seconds of each worker so far; a gradient counts at its beginning, a wait at its end."""
        self.away_s = [0.0] * self.n
        """Seconds so far in which each worker was away and would have begun an operation."""
        self.away = set[int]()
        """The currently absent workers."""
        self.out, self.into = [0.0] * self.n, [0.0] * self.n
        """Time when each worker's port is free to send, and to receive; the same list if it has one port."""
        if costs.ways == 2:
            self.into = self.out
        self.ledger: list[Use] | None = None
        """The use of each port, if recorded."""
        self._borders = borders_of(costs, self.n)
        self._sent = [0, 0]
        """Bytes and messages that had left their ports at the last query."""
        self.leaving: list[tuple[float, int, int]] = []
        """Time, bytes and messages of those still leaving."""
        self.ages = Counter[int]()
        """Age in versions -> count of contributions or averaged models."""
        self.critical = [0] * self.n
        """How often all, or a group, waited for this worker last."""
        self._left, self._share = most_gradients, most_gradients / self.n
        self._programs = programs
        self._times = times
        self._blocks: dict[int, list[array[float]]] = {}
        self._seconds = [self._seconds_of(i) for i in range(self.n)]
        self._computing = [False] * self.n
        self._meetings: dict[Any, Any] = {}
        self._number = self.n
        self._heap: list[_Event] = [(0.0, i, i, None) for i in range(self.n)]
        self._last: deque[_Deferred] = deque()  # after what is in the heap for the same time
        self._schedule = schedule
        self._resting: dict[int, tuple[float, Operation]] = {}  # since when, and what is begun next
        if schedule is not None:
            self._look(0.0)

    def run(self, gradients: float = inf, until_s: float = inf) -> bool:
        """Run until this total number of completed gradients, or to a simulated time; return False if all is over.

        Everything at the time of the last of these gradients also happens. Raises RuntimeError if the program of a
        worker ends before it has taken its share of all gradients.
        """
        heap, last, programs, computing, rows = self._heap, self._last, self._programs, self._computing, self.rows
        away, resting = self.away, self._resting
        i: int | None
        call: Callable[[float], object] | None
        while heap or last:
            now = self.now
            if last and not (heap and heap[0][0] <= now):
                i, call = last.popleft()
            else:
                if heap[0][0] > now:
                    if heap[0][1] < 0 and len(heap) == 1 and self._left <= 0:  # others would come, and do nothing
                        return False
                    now = heap[0][0]
                    if now > until_s or self.completed >= gradients:
                        return True
                    self.now = now
                _, _, i, call = heappop(heap)
            if call is not None:
                call(now)
            if i is None:
                continue
            if computing[i]:
                computing[i] = False
                self.completed += 1
                if rows is not None:
                    rows.end_gradient(i)
            for operation in programs[i] if i not in resting else self._woken(i, now):
                if i in away:
                    resting[i] = now, operation
                    break
                ready = operation.begin(self, i, now)
                if ready is None:
                    break
                if ready > now or computing[i]:
                    heappush(heap, (ready, i, i, None))
                    break
            else:
                check_ended(i, self.drawn[i], self._share)
        return False

    def _look(self, now: float) -> None:
        """Update the absent workers and resume returning ones, before all other operations at this time."""
        assert self._schedule is not None
        self.away.clear()
        self.away.update(np.flatnonzero(~self._schedule.at(now)).tolist())
        for i in self._resting:
            if i not in self.away:
                heappush(self._heap, (now, i, i, None))
        until = self._schedule.next_change(now)
        if until < inf:
            heappush(self._heap, (until, -1, None, self._look))

    def _woken(self, i: int, now: float) -> Iterator[Operation]:
        """Yield the next operations of worker i, which was away."""
        since, operation = self._resting.pop(i)
        self.away_s[i] += now - since
        if self.spans is not None:
            self.spans.add(i, "away", since, now)
        return chain([operation], self._programs[i])

    def _seconds_of(self, i: int) -> Iterator[float]:
        """Yield the time of each gradient of worker i, in order."""
        return chain.from_iterable(self._block(number)[i] for number in count())

    def _block(self, number: int) -> list[array[float]]:
        """Return the times of a block of gradients of all workers: [n][_STEPS_AT_ONCE], contiguous in memory."""
        if number not in self._blocks:
            first = number * _STEPS_AT_ONCE
            seconds = self._times.seconds(first, first + _STEPS_AT_ONCE)
            self._blocks[number] = [array("d", row.tobytes()) for row in seconds.T]
            oldest = min(self.drawn) // _STEPS_AT_ONCE
            for done in [known for known in self._blocks if known < oldest]:
                del self._blocks[done]
        return self._blocks[number]

    def meeting(self, place: object, kind: Callable[[Any, Timeline], Meeting]) -> Meeting:
        """Return the meeting of all operations with this place, compared by identity."""
        if place not in self._meetings:
            self._meetings[place] = kind(place, self)
        meeting: Meeting = self._meetings[place]
        return meeting

    def nobody_else_at(self, now: float) -> bool:
        """Return whether nothing else is known to happen at this time."""
        return not self._last and not (self._heap and self._heap[0][0] <= now)

    def begin_gradient(self, i: int, now: float, copied: bool) -> float | None:
        """Let worker i draw its next sample; return when the gradient is complete, None for never."""
        if not self._left:
            return None
        self._left -= 1
        if self.rows is not None:
            self.rows.begin_gradient(i, copied)
        seconds = next(self._seconds[i])
        if self.costs.devices is not None:
            seconds *= self.costs.devices[i].slower(now)
        self.drawn[i] += 1
        self._computing[i] = True
        self.compute_s[i] += seconds
        if self.spans is not None:
            self.spans.add(i, "compute", now, now + seconds)
        return now + seconds

    def foretold(self, i: int, now: float, first: int, gradients: int) -> float:
        """Return when worker i will have taken its gradients from number `first` on, if it begins now and goes on."""
        for number in range(first, first + gradients):
            seconds = self._block(number // _STEPS_AT_ONCE)[i][number % _STEPS_AT_ONCE]
            now += seconds if self.costs.devices is None else seconds * self.costs.devices[i].slower(now)
        return now

    def remind(self, time: float, call: Callable[[float], object]) -> None:
        """Schedule a call at a time, which does not prolong the run; at most one such call may be pending."""
        heappush(self._heap, (time, -2, None, call))

    def at(self, time: float, call: Callable[[float], object]) -> None:
        """Schedule a call at a time, after all workers' operations then."""
        if time == self.now:
            self._last.append((None, call))
        else:
            self._number += 1
            heappush(self._heap, (time, self._number, None, call))

    def resume(
        self, i: int, arrived: float, begins: float, ends: float, then: Callable[[float], object] | None
    ) -> None:
        """Resume worker i at `ends`, after `then`: it has waited from its arrival until the exchange began."""
        waited = (begins if begins < ends else ends) - arrived
        if waited > 0.0:
            self.wait_s[i] += waited
        else:
            waited = 0.0
        if (exchanged := ends - arrived - waited) > 0.0:
            self.exchange_s[i] += exchanged
        if self.spans is not None:
            self.spans.add(i, "wait", arrived, arrived + waited)
            self.spans.add(i, "exchange", arrived + waited, ends)
        heappush(self._heap, (ends, i, i, then))

    def defer(self, i: int, then: Callable[[float], object]) -> None:
        """Resume worker i after `then`, which follows all workers' operations at this time."""
        self._last.append((i, then))

    def sent_by_now(self) -> tuple[int, int]:
        """Return the number of bytes and messages that have left their ports."""
        leaving, self.leaving = self.leaving, []
        for left, num_bytes, messages in leaving:
            if left > self.now:
                self.leaving.append((left, num_bytes, messages))
            else:
                self._sent[0] += num_bytes
                self._sent[1] += messages
        return self._sent[0], self._sent[1]

    def crosses(self, way: str, i: int, other: int, num_bytes: float, begins: float) -> float:
        """Return when bytes between workers i and `other` have passed "out" of or "into" the machine of i, through the
        shared link of its workers (`cluster.links.shared_gbps`)."""
        machine = i // self.costs.per_machine
        if not self.costs.shared or machine == other // self.costs.per_machine:
            return begins
        return self._borders[way][machine].carry(begins, num_bytes * self.costs.shared)

    def busy(self, workers: Iterable[int], each: float, begins: float, ends: float) -> None:
        """Occupy both ports of these workers, with `each` bytes in each direction."""
        out, into = self.out, self.into
        for j in workers:
            out[j] = into[j] = ends
            if self.ledger is not None:
                self.ledger += [Use(j, way, each, begins, ends) for way in ("out", "into")]

    def accounts(self) -> dict[str, np.ndarray]:
        """Return each worker's seconds so far, float64 [n]: compute, wait, exchange, and away if any worker is."""
        seconds = {
            "compute": np.array(self.compute_s),
            "wait": np.array(self.wait_s),
            "exchange": np.array(self.exchange_s),
        }
        if self._schedule is not None:
            resting = [self.now - self._resting[i][0] if i in self._resting else 0.0 for i in range(self.n)]
            seconds["away"] = np.array(self.away_s) + resting
        return seconds

    def lateness(self) -> Lateness:
        """Return the statistics of contributions so far."""
        return Lateness(dict(sorted(self.ages.items())), list(self.critical))
