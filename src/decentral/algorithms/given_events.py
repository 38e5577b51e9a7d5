"""Inputs from files: the events of an asynchronous method (`algo.events`), and a method's random draws."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decentral.cluster.operations import Gradient, Local
from decentral.cluster.settings import LONGEST_S, Line, read_lines
from decentral.errors import ConfigError
from decentral.store.files import at_home

if TYPE_CHECKING:
    from decentral.cluster.operations import Operation, Pairs
    from decentral.network.asynchronous.protocol import Server

_HEAD = ["time", "what", "worker", "partner"]


class Event(NamedTuple):
    """An event. begin: the worker begins a gradient at its current model; update: it applies that gradient; average:
    the worker and its partner average; deliver: the worker delivers to the server; take: it takes the server's model;
    outer: both. `time` is in gradients."""

    time: float
    what: str
    worker: int
    partner: int


def read_events(name: str, num_workers: int, meets: Sequence[str]) -> list[Event]:
    """Read a CSV file with the header time,what,worker,partner. Raise ConfigError for impossible events.

    `meets` are the events that involve others: average, or outer, deliver and take."""
    said = f"algo.events={name}"
    head, *lines = read_lines("algo.events", name) or [Line(said, [])]
    if head.cells != _HEAD or not lines:
        raise ConfigError(f"{said} has no events: give the header time,what,worker,partner and lines below it.")
    events: list[Event] = []
    begun = [False] * num_workers
    for line in lines:
        line.check_columns(_HEAD)
        time, what = (
            line.number(0, "a time not before the previous one", events[-1].time if events else 0, LONGEST_S),
            line.cells[1],
        )
        worker = line.integer(2, "worker", num_workers)
        partner = line.integer(3, "worker", num_workers) if what == "average" else worker
        if what not in ("begin", "update", *meets) or (what == "average") == (partner == worker):
            further = "average with a partner" if meets == ("average",) else ", ".join(meets)
            raise ConfigError(f"{line.said} is not an event: use begin, update, or {further}.")
        if what in meets and what != "average" and begun[worker]:
            raise ConfigError(f"{line.said}: worker {worker} must first apply its gradient.")
        if what not in meets and begun[worker] == (what == "begin"):
            raise ConfigError(f"{line.said}: worker {worker} must begin exactly one gradient before each update.")
        begun[worker] = begun[worker] if what in meets else what == "begin"
        events.append(Event(time, what, worker, partner))
    return events


def read_draws(key: str, path: str, name: str, shape: tuple[str, ...], most: int | None = None) -> np.ndarray:
    """Read the Boolean array `name` of an .npz file, indexed by the step t in its first dimension; or, with
    `most`, of integers from 0 to it.

    `shape` names the dimensions, such as ("T", "P"). Raises ConfigError for an invalid file.
    """
    each = "0 or 1" if most is None else f"from 0 to {most}"
    said, wanted = f"{key}={path}", f"give an .npz file with {name} [{', '.join(shape)}], each {each}"
    if not at_home(path).is_file():
        raise ConfigError(f"{said} is not a file: {wanted}.")
    try:
        with np.load(at_home(path), allow_pickle=False) as file:
            draws = file[name]
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile, MemoryError, AttributeError):
        raise ConfigError(f"{said} cannot be read: {wanted}.") from None
    if draws.ndim != len(shape) or not draws.size or not np.isin(draws, np.arange((most or 1) + 1)).all():
        raise ConfigError(f"{said} holds {draws.dtype} {list(draws.shape)}: {wanted}.")
    return draws.astype(bool if most is None else np.int64)


class GivenEvents:
    """The given events, run in order with the row updates of the workers' programs, instead of a timeline."""

    def __init__(
        self,
        events: Sequence[Event],
        programs: Sequence[Iterator[Operation]],
        place: Pairs | Server,
        bytes_per_row: int,
        rows: Any,
    ) -> None:
        self.events, self.bytes_per_row, self.rows = events, bytes_per_row, rows
        self.place: Any = place
        self._own = [(each for each in program if isinstance(each, Gradient | Local)) for program in programs]
        self.drawn = [0] * len(programs)
        """Number of gradients that each worker has begun."""
        self.done = 0
        """Number of processed events."""
        self._sent = 0

    @property
    def now(self) -> float:
        """Return the time of the last event."""
        return self.events[self.done - 1].time if self.done else 0.0

    def sent_by_now(self) -> tuple[int, int]:
        """Return the number of bytes and messages sent."""
        return self._sent * self.bytes_per_row, self._sent

    def run(self, events: int) -> None:
        """Process events up to the given total number."""
        while self.done < events:
            event = self.events[self.done]
            self.done += 1
            _CARRY_OUT[event.what](self, event)

    def begin(self, event: Event) -> None:
        """Run the operations before a gradient, and begin it."""
        i = event.worker
        for operation in self._own[i]:
            if isinstance(operation, Gradient):
                self.drawn[i] += 1
                self.rows.begin_gradient(i, operation.copied)
                return
            self._local(i, operation, event.time)

    def update(self, event: Event) -> None:
        """Apply the finished gradient."""
        self.rows.end_gradient(event.worker)
        self._local(event.worker, next(self._own[event.worker]), event.time)

    def average(self, event: Event) -> None:
        """Average two workers atomically."""
        self._sent += 2
        self.rows.call(self.place.average, event.worker, event.partner, event.time)

    def server(self, event: Event) -> None:
        """Let the worker deliver to the server, which is beside worker 0, take its model, or both."""
        calls = {"deliver": [self.place.deliver], "take": [self.place.collect]}
        for what in calls.get(event.what, [self.place.deliver, self.place.collect]):
            self._sent += event.worker > 0
            self.rows.call(what, event.worker)

    def _local(self, i: int, operation: Any, now: float) -> None:
        self.rows.local(i, operation.what, self.drawn[i] - 1, *((now,) if operation.timed else ()))


_CARRY_OUT: dict[str, Callable[[GivenEvents, Event], None]] = {
    "begin": GivenEvents.begin,
    "update": GivenEvents.update,
    "average": GivenEvents.average,
    **dict.fromkeys(("outer", "deliver", "take"), GivenEvents.server),
}
