"""Messages between processes that nobody has to wait for: one thread sends them, another one receives."""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import IntEnum
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.windows.meeting import gloo_group

_UNSENT_ROWS = 4
_FOREVER = timedelta(days=365)  # a receive that times out would break the connection
_GLANCE_S, _KNOCK_S, _PARTING_S = 0.05, 0.5, 10.0


class Kind(IntEnum):
    """What a message asks for."""

    put = 0
    accumulate = 1
    ask = 2  # for a registered row
    answer = 3
    lock = 4
    unlock = 5
    reached = 6  # has what was sent before this arrived?
    done = 7  # what was asked for (a lock, an arrival) has happened
    taken = 8  # a slot has been emptied
    leave = 9  # nothing comes after this
    farewell = 10  # nor after this: it answers `leave`
    knock = 11  # nothing: only who is there can be sent it


_WITH_ROW = (Kind.put, Kind.accumulate, Kind.answer)


class Message(NamedTuple):
    """About the slot of `sender` at `owner`; `token` tells answers apart."""

    kind: Kind
    owner: int = 0
    sender: int = 0
    weight: float = 1.0
    p: float = 0.0
    token: int = 0


class Post:
    """Mail over gloo, in a group of its own; to be made by all processes at once.

    gloo hands a row over when its receiver is ready, so a receiver always is: a thread that carries out each message
    as it comes, by `handle`, which must not wait for other processes. Messages from one process to another arrive in
    order. A process may leave when it likes: the receivers of the others let its own go.

    Raises, from whatever sends or waits: ConnectionError if the other process is gone, TimeoutError if it does not
    answer.
    """

    def __init__(self, like: Tensor, timeout_s: float, handle: Callable[[int, Message, Tensor | None], None]) -> None:
        """`like` is a row [P]; `handle` is called with the process that sends, the message, and the row if any."""
        self.rank, self.timeout_s, self._handle = dist.get_rank(), timeout_s, handle
        self._others = {peer for peer in range(dist.get_world_size()) if peer != self.rank}
        self._width, self._dtype = like.shape[-1], like.dtype
        self._group, self._tag = _group()
        self._outgoing: queue.SimpleQueue[tuple[int, Message, Tensor | None] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_UNSENT_ROWS)
        self._failure: BaseException | None = None
        self._guard = threading.Lock()
        self._left: set[int] = set()
        self._awaited: set[int] | None = None  # from whom a last message has to come, once we leave
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._send_all, self._receive_all)
        ]

    def start(self) -> None:
        """Begin to send and to receive."""
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def send(self, peer: int, message: Message, row: Tensor | None = None) -> None:
        """Send without waiting, in any thread. The row [P] must not change any more."""
        with self._guard:
            if peer in self._left:
                raise ConnectionError(f"connection closed by process {peer} of this run")
            self._outgoing.put((peer, message, row))

    def send_patiently(self, peer: int, message: Message, row: Tensor) -> None:
        """The same, but waits while many rows have not been sent; not for the thread that receives."""
        self._until(lambda: self._room.acquire(timeout=_GLANCE_S), lambda: peer, "to take rows")
        self.send(peer, message, row)

    def wait(self, event: threading.Event, peer: Callable[[], int], meaning: str) -> None:
        """Until the event is set, which depends on a process by now; `meaning` says what is waited for."""
        self._until(lambda: event.wait(_GLANCE_S), peer, meaning)

    def close(self) -> None:
        """Leave. Waits for the receivers of the others, but for nothing that they do."""
        atexit.unregister(self.close)
        with self._guard:
            if self._awaited is None:
                self._awaited = self._others - self._left
                for peer in self._awaited:
                    self._outgoing.put((peer, Message(Kind.leave), None))
                self._outgoing.put(None)
        for thread in self._threads:
            thread.join(_PARTING_S if self._failure is None else _GLANCE_S)

    def _until(self, done: Callable[[], bool], peer: Callable[[], int], meaning: str) -> None:
        """A receiver does not notice that a process has died, but what sends does: so we knock while we wait."""
        began = knocked = time.monotonic()
        while not done():
            if self._failure is not None:
                raise ConnectionError("connection closed by a process of this run") from self._failure
            if (at := peer()) in self._left:
                raise ConnectionError(f"connection closed by process {at} of this run")
            if time.monotonic() - knocked > _KNOCK_S and at in self._others:
                knocked = time.monotonic()
                self.send(at, Message(Kind.knock))
            if time.monotonic() - began > self.timeout_s:
                raise TimeoutError(
                    f"timed out after {self.timeout_s:g} s of waiting for process {at} of this run {meaning}"
                )

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            self._failure = failure

    def _send_all(self) -> None:
        while (letter := self._outgoing.get()) is not None:
            peer, message, row = letter
            dist.send(torch.tensor(message, dtype=torch.float64), peer, group=self._group, tag=self._tag)
            if row is not None:
                dist.send(row, peer, group=self._group, tag=self._tag + 1)
                if message.kind is not Kind.answer:
                    self._room.release()

    def _receive_all(self) -> None:
        header = torch.empty(len(Message._fields), dtype=torch.float64)
        while not self._parted():
            source = dist.recv(header, group=self._group, tag=self._tag)
            kind, owner, sender, weight, p, token = header.tolist()
            message = Message(Kind(int(kind)), int(owner), int(sender), weight, p, int(token))
            if message.kind in (Kind.leave, Kind.farewell):
                self._part_with(source, message.kind)
                continue
            if message.kind is Kind.knock:
                continue
            row = None
            if message.kind in _WITH_ROW:
                row = torch.empty(self._width, dtype=self._dtype)
                dist.recv(row, source, group=self._group, tag=self._tag + 1)
            self._handle(source, message, row)

    def _parted(self) -> bool:
        """Whether nothing can come any more."""
        with self._guard:
            return self._left == self._others or self._awaited == set()

    def _part_with(self, peer: int, kind: Kind) -> None:
        """The last message of a process: it leaves, or it lets us leave. Each two exchange one in either direction."""
        with self._guard:
            if kind is Kind.leave:
                self._left.add(peer)
            if self._awaited is not None:
                self._awaited.discard(peer)
            elif kind is Kind.leave:
                self._outgoing.put((peer, Message(Kind.farewell), None))


_tags: WeakKeyDictionary[dist.ProcessGroup, Iterator[int]] = WeakKeyDictionary()


def _group() -> tuple[dist.ProcessGroup, int]:
    """The group for mail, the same for all windows, with a pair of tags of its own for each."""
    group = gloo_group(_FOREVER)
    return group, next(_tags.setdefault(group, itertools.count(0, 2)))
