"""Simulated time for workers that go on by themselves: who does what when, before any data is touched.

A worker is a program: a generator of operations (`operations.py`). An operation that concerns the worker alone says
when it is over; one in which workers meet (`groups.py`, `barrier.py`, `pairs.py`, `pushes.py`) lets it go on once the
clock has decided. Times depend on compute times, links and programs only, never on values, so that the same timeline
comes out whether or not there are rows to carry its operations out on.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, count
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from decentral.cluster.operations import check_ended

if TYPE_CHECKING:
    from decentral.cluster.compute import GradientTimes
    from decentral.cluster.costs import LinkCosts
    from decentral.cluster.operations import Operation, RowExecutor
    from decentral.cluster.spans import Spans

Meeting = TypeVar("Meeting", covariant=True)
_STEPS_AT_ONCE = 64
_Event = tuple[float, int, int | None, Callable[[float], object] | None]
"""When, in which order at that time, who goes on then, and what is called before."""
_Deferred = tuple[int | None, Callable[[float], object]]
"""Who goes on at this time, and what is called before."""


class MeetingPlace(Protocol[Meeting]):
    """What an operation in which workers meet is about: one object for all of them, with one meeting."""

    def open(self, timeline: Timeline) -> Meeting:
        """The meeting in a timeline that has just begun."""
        ...


class Lateness(NamedTuple):
    """What became of contributions that were late, up to a simulated time."""

    ages: dict[int, int]
    """How many contributions were so many versions old."""
    critical: list[int]
    """How often all, or a group, waited for this worker last."""


class Timeline:
    """The operations of n workers in the order of simulated time.

    Operations at the same time are in the order of workers; what a meeting decides comes after all who arrive then.
    """

    def __init__(
        self,
        programs: Sequence[Iterator[Operation]],
        times: GradientTimes,
        costs: LinkCosts,
        bytes_per_row: int,
        timed_bytes: float | None = None,
        most_gradients: float = inf,
        rows: RowExecutor | None = None,
        spans: Spans | None = None,
    ) -> None:
        """No gradient begins after the first `most_gradients` of all; whoever wants another one is done. What is sent
        takes as long as if a row had `timed_bytes` (None: as many as it has)."""
        self.n = len(programs)
        self.costs, self.rows, self.spans = costs, rows, spans
        self.bytes_per_row = bytes_per_row
        self.timed_bytes = float(bytes_per_row) if timed_bytes is None else timed_bytes
        self.now = 0.0
        """Seconds, simulated: nothing that happens later has happened."""
        self.drawn = [0] * self.n
        """How many gradients each worker has begun."""
        self.completed = 0
        """How many gradients all have ended."""
        self.compute_s, self.wait_s, self.exchange_s = ([0.0] * self.n for _ in range(3))
        """Seconds of each worker so far, with those of a gradient or a wait counted when it begins or ends."""
        self.bytes_sent = self.messages_sent = 0
        self.ages: dict[int, int] = {}
        """How often a contribution, or a model that was averaged, was so many versions old."""
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

    def run(self, gradients: float = inf, until_s: float = inf) -> bool:
        """Go on until so many gradients have been completed in all, or to a simulated time; False if all is over.

        Whatever happens at the time of the last of these gradients happens, too. Raises RuntimeError if the program of
        a worker ends before it has taken its share of all gradients.
        """
        heap, last, programs, computing, rows = self._heap, self._last, self._programs, self._computing, self.rows
        i: int | None
        call: Callable[[float], object] | None
        while heap or last:
            now = self.now
            if last and not (heap and heap[0][0] <= now):
                i, call = last.popleft()
            else:
                if heap[0][0] > now:
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
            for operation in programs[i]:
                ready = operation.begin(self, i, now)
                if ready is None:
                    break
                if ready > now or computing[i]:
                    heappush(heap, (ready, i, i, None))
                    break
            else:
                check_ended(i, self.drawn[i], self._share)
        return False

    def _seconds_of(self, i: int) -> Iterator[float]:
        """How long each gradient of worker i takes, one after the other."""
        return chain.from_iterable(self._block(number)[i] for number in count())

    def _block(self, number: int) -> list[array[float]]:
        """The same of some gradients of all workers: [n][_STEPS_AT_ONCE], close together in memory."""
        if number not in self._blocks:
            first = number * _STEPS_AT_ONCE
            seconds = self._times.seconds(first, first + _STEPS_AT_ONCE)
            self._blocks[number] = [array("d", row.tobytes()) for row in seconds.T]
            oldest = min(self.drawn) // _STEPS_AT_ONCE
            for done in [known for known in self._blocks if known < oldest]:
                del self._blocks[done]
        return self._blocks[number]

    def meeting(self, place: MeetingPlace[Meeting]) -> Meeting:
        """The one meeting of all operations with this place, which is compared by identity."""
        try:
            meeting: Meeting = self._meetings[place]
        except KeyError:
            meeting = self._meetings[place] = place.open(self)
        return meeting

    def nobody_else_at(self, now: float) -> bool:
        """Whether nothing else happens at this time, as far as is known."""
        return not self._last and not (self._heap and self._heap[0][0] <= now)

    def begin_gradient(self, i: int, now: float, copied: bool) -> float | None:
        """Worker i draws its next sample; when the gradient is there, None for never."""
        if not self._left:
            return None
        self._left -= 1
        if self.rows is not None:
            self.rows.begin_gradient(i, copied)
        seconds = next(self._seconds[i])
        self.drawn[i] += 1
        self._computing[i] = True
        self.compute_s[i] += seconds
        if self.spans is not None:
            self.spans.add(i, "compute", now, now + seconds)
        return now + seconds

    def at(self, time: float, call: Callable[[float], object]) -> None:
        """Call this at a time, after all workers that do something then."""
        if time == self.now:
            self._last.append((None, call))
        else:
            self._number += 1
            heappush(self._heap, (time, self._number, None, call))

    def resume(
        self, i: int, arrived: float, begins: float, ends: float, then: Callable[[float], object] | None
    ) -> None:
        """Let worker i go on at `ends`, after `then`: it has waited since it arrived, until an exchange began."""
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
        """Let worker i go on after `then`, which happens after what all workers do at this time."""
        self._last.append((i, then))

    def sent(self, messages: int, num_bytes: int) -> None:
        """Count messages."""
        self.messages_sent += messages
        self.bytes_sent += num_bytes

    def aged(self, age: int, times: int = 1) -> None:
        """Count what was so many versions old."""
        self.ages[age] = self.ages.get(age, 0) + times

    def accounts(self) -> dict[str, np.ndarray]:
        """Seconds of each worker so far, float64 [n]: computing, waiting and exchanging."""
        return {
            "compute": np.array(self.compute_s),
            "wait": np.array(self.wait_s),
            "exchange": np.array(self.exchange_s),
        }

    def lateness(self) -> Lateness:
        """What became of contributions so far."""
        return Lateness(dict(sorted(self.ages.items())), list(self.critical))
