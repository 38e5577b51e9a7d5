"""What the workers of a run did and when, as `operations.jsonl` keeps it."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from decentral.errors import ConfigError

if TYPE_CHECKING:
    from decentral.network.asynchronous.meeting import Pairs
    from decentral.network.asynchronous.wait_avoiding import WaitAvoidingGroups

T = TypeVar("T")

FILE = "operations.jsonl"
_NS = 1e-9


class Operations:
    """The operations of the local workers, each a dictionary, those of a thread in their order:

        {worker, what, number, begin_s, end_s, ...}

    in seconds since all processes of the attempt began together.

    gradient   `number` counts the worker's gradients; what it sleeps as a straggler is part of it
    join       the worker waited for the sum of its group in version `number`: it took that of version `used`, in which
               its own row is that of version `contributed`
    exchange   its communication thread carried out version `number`, with its row of version `contributed`
    mean       it waited for the mean of all
    asked      it waited until the averaging before was over, and began one with `partner`
    pause      it waited until all processes went on, as at evaluations
    update, ask, answer, average
               at_s, partner: what happened to its row, see `network.asynchronous.pairs.Act`
    push, take
               at_s, others: in its push `number` it left shares with these workers; or took those of these workers,
               after so many pushes of its own

    Methods in rounds have gradients (of all workers of a process together, by the first of them), pushes and takes. A
    run in one process has the gradients of each worker, as long as its forward and backward pass took.
    """

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.pushes: Counter[int] = Counter()
        """How many shares each worker has pushed, in all attempts."""
        self._told: Counter[tuple[object, int]] = Counter()
        self._zero_ns = time.monotonic_ns()

    def take(self) -> list[dict[str, Any]]:
        """What was kept since the last time."""
        taken, self.found = self.found, []
        return taken

    def begin(self, zero_ns: int | None = None) -> None:
        """All processes begin together now, or at a time of `time.monotonic_ns`, which a host's processes share; what
        was kept before is forgotten."""
        self._zero_ns = time.monotonic_ns() if zero_ns is None else zero_ns
        self.found.clear()

    @contextmanager
    def during(self, worker: int, what: str, number: int, facts: dict[str, Any]) -> Iterator[None]:
        """Keep an operation that takes as long as the block, with the facts that are known at its end; any thread."""
        began = time.monotonic_ns()
        yield
        self.found.append({**_named(worker, what, number), **self._span(began, time.monotonic_ns()), **facts})

    def gradients(self, done: Sequence[tuple[int, int]], seconds: Sequence[float]) -> None:
        """Keep gradients (worker, number) that were computed one after the other, the last of them until now."""
        began = time.monotonic_ns() - round(sum(seconds) / _NS)
        for (worker, number), took in zip(done, seconds, strict=True):
            ended = began + round(took / _NS)
            self.found.append({**_named(worker, "gradient", number), **self._span(began, ended)})
            began = ended

    def pushed(self, what: str, worker: int, others: list[int]) -> None:
        """Keep what a window tells."""
        number = self.pushes[worker]
        self.pushes[worker] += what == "push"
        named, at_s = _named(worker, what, number), self._seconds(time.monotonic_ns())
        self.found.append({**named, "at_s": at_s, "others": others})

    def exchanges(self, groups: WaitAvoidingGroups) -> list[dict[str, Any]]:
        """What the communication threads of groups did since the last time."""
        return [
            {
                **_named(i, "exchange", one.version),
                **self._span(one.began_ns, one.ended_ns),
                "contributed": one.contributed,
            }
            for i, log in groups.log.items()
            for one in self._news(groups, i, log)
        ]

    def events(self, pairs: Pairs) -> list[dict[str, Any]]:
        """What happened since the last time to rows that are averaged in pairs."""
        return [
            {**_named(i, event.act.value, event.number), "at_s": self._seconds(event.at_ns), "partner": event.partner}
            for i, log in pairs.log.items()
            for event in self._news(pairs, i, log)
        ]

    def _news(self, of: object, worker: int, log: list[T]) -> list[T]:
        first, self._told[of, worker] = self._told[of, worker], len(log)
        return log[first:]

    def _span(self, began_ns: int, ended_ns: int) -> dict[str, float]:
        return {"begin_s": self._seconds(began_ns), "end_s": self._seconds(ended_ns)}

    def _seconds(self, ns: int) -> float:
        return round((ns - self._zero_ns) * _NS, 7)


def _named(worker: int, what: str, number: int) -> dict[str, Any]:
    return {"worker": worker, "what": what, "number": number}


def packed(operations: Iterable[dict[str, Any]]) -> bytes:
    """As lines."""
    return "".join(json.dumps(one) + "\n" for one in operations).encode()


def append(parts: Sequence[bytes], directory: Path) -> int:
    """Add the lines of all processes to `operations.jsonl`; how many bytes it has now, for the checkpoint."""
    with open(directory / FILE, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o644)) as file:
        file.write(b"".join(parts))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def go_on_after(num_bytes: int | None, directory: Path) -> None:
    """Forget what was added after the checkpoint from which the run goes on: it is done again, and its seconds begin
    anew. None: an older version has written it. Raises ConfigError if lines from before it are lost."""
    file = directory / FILE
    there = file.stat().st_size if file.exists() else 0
    if num_bytes is None or there == num_bytes:
        return
    if there < num_bytes:
        raise ConfigError(
            f"{file} has lost lines from before the checkpoint of its run: delete the folder {directory} and give the "
            "command again, which computes it anew."
        )
    os.truncate(file, num_bytes)


def load(directory: Path) -> list[dict[str, Any]]:
    """The operations of a run, those of each thread in their order. Raises OSError if they were not recorded."""
    return [json.loads(line) for line in (directory / FILE).read_text().splitlines()]
