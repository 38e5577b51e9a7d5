"""The recorded operations of a run's workers, with times, in `operations.jsonl`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decentral.errors import ConfigError

if TYPE_CHECKING:
    from decentral.config.prepared import Kind
    from decentral.network.network import Network
    from decentral.training.oracle import GradientOracle

FILE = "operations.jsonl"
_NS = 1e-9


class Operations:
    """The operations of the local workers, each a dictionary, in order per thread:

        {worker, what, number, begin_s, end_s, ...}

    in seconds since the common start of all processes of the attempt.

    gradient   `number` counts the worker's gradients; what it sleeps as a straggler is part of it
    join       the worker waited for the sum of its group in version `number`: it took that of version `used`, in which
               its own row is that of version `contributed`
    exchange   its communication thread carried out version `number`, with its row of version `contributed`
    mean       it waited for the mean of all
    asked      it waited until the averaging before was over, and began one with `partner`
    outer      it waited for the server's model, after delivering its change
    arrive     at_s: process 0 applied its change, as arrival `number` at the server
    pause      it waited until all processes went on, as at evaluations
    update, ask, answer, average
               at_s, partner: what happened to its row, see `network.asynchronous.meeting.Pairs`
    push, take
               at_s, others: in its push `number` it left shares with these workers; or took those of these workers,
               after so many pushes of its own

    Synchronous methods have gradients (of all workers of a process together, under the first one), pushes and takes. A
    run in one process has the gradients of each worker, with the time of its forward and backward pass.
    """

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._zero_ns = time.monotonic_ns()

    def take(self) -> list[dict[str, Any]]:
        """Return and clear the recorded operations."""
        taken, self.found = self.found, []
        return taken

    def begin(self, zero_ns: int | None = None) -> None:
        """Set the common start of all processes to now, or to a time of `time.monotonic_ns`, which a host's processes
        share; clear earlier operations."""
        self._zero_ns = time.monotonic_ns() if zero_ns is None else zero_ns
        self.found.clear()

    def note(self, worker: int, what: str, number: int, began_ns: int | None = None, **facts: Any) -> None:
        """Record an operation that happens now, or began then (`time.monotonic_ns`) and ends now; from any thread."""
        now = self._seconds(time.monotonic_ns())
        times = {"at_s": now} if began_ns is None else {"begin_s": self._seconds(began_ns), "end_s": now}
        self.found.append({"worker": worker, "what": what, "number": number, **times, **facts})

    def gradients(self, done: Sequence[tuple[int, int]], seconds: Sequence[float]) -> None:
        """Record gradients (worker, number) that were computed in sequence, the last one ending now."""
        began = self._seconds(time.monotonic_ns() - round(sum(seconds) / _NS))
        for (worker, number), took in zip(done, seconds, strict=True):
            ended = round(began + took, 7)
            self.found.append(
                {"worker": worker, "what": "gradient", "number": number, "begin_s": began, "end_s": ended}
            )
            began = ended

    def _seconds(self, ns: int) -> float:
        return round((ns - self._zero_ns) * _NS, 7)


def record(oracle: GradientOracle, net: Network, kind: Kind) -> None:
    """Record gradients, and between processes the shares that synchronous workers push and take, from now on."""
    from decentral.network.local import LocalNetwork
    from decentral.network.processes import ProcessNetwork

    recorded = Operations()
    oracle.record(recorded, each=isinstance(net, LocalNetwork))
    if kind.asynchronous or not isinstance(net, ProcessNetwork):
        return

    def note(piece: int, worker: int, what: str, others: list[int]) -> None:
        pushes = net.rounds.num_pieces * (int(oracle.draws[worker - net.workers.start]) - 1) + piece
        recorded.note(worker, what, pushes + (what == "take"), others=others)

    net.note_pushes = note


def packed(operations: Iterable[dict[str, Any]]) -> bytes:
    """Return the operations as lines."""
    return "".join(json.dumps(one) + "\n" for one in operations).encode()


def append(parts: Sequence[bytes], directory: Path) -> int:
    """Append the lines of all processes to `operations.jsonl`; return its size in bytes, for the checkpoint."""
    with open(directory / FILE, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666)) as file:
        file.write(b"".join(parts))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def go_on_after(num_bytes: int | None, directory: Path) -> None:
    """Drop the lines after the checkpoint from which the run resumes: these operations are repeated, with new seconds.
    None: a checkpoint of an older version. Raises ConfigError if lines from before it are lost."""
    file = directory / FILE
    there = file.stat().st_size if file.exists() else 0
    if num_bytes is None or there == num_bytes:
        return
    if there < num_bytes:
        raise ConfigError(
            f"{file} has lost lines from before the run's checkpoint: delete the folder {directory} and rerun the "
            "command."
        )
    os.truncate(file, num_bytes)


def load(directory: Path) -> list[dict[str, Any]]:
    """Return the operations of a run, in order per thread. Raises OSError if they were not recorded."""
    return [json.loads(line) for line in (directory / FILE).read_text().splitlines()]
