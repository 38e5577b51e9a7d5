"""Windows across hosts: a thread of each process carries out what others ask for by message, another one sends."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from enum import IntEnum
from itertools import count
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.host.threads import on_the_same_gpu
from decentral.network.windows.locks import Meeting, Turns, gloo_group
from decentral.network.windows.slots import Edges, Memory
from decentral.network.windows.window import Window

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
        self._group, self._tag = mail_group()
        self._outgoing: queue.SimpleQueue[tuple[int, Message, Tensor | None] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_UNSENT_ROWS)
        self._failure: BaseException | None = None
        self._guard = threading.Lock()
        self._left: set[int] = set()
        self._awaited: set[int] | None = None  # from whom a last message has to come, once we leave
        self._threads = [
            threading.Thread(target=on_the_same_gpu(self._guarded), args=(work,), daemon=True)
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


def mail_group() -> tuple[dist.ProcessGroup, int]:
    """The group for mail, the same for all who ask, with a pair of tags of its own for each."""
    group = gloo_group(_FOREVER)
    return group, next(_tags.setdefault(group, count(0, 2)))


class MessageWindow(Window):
    """Any processes with an initialised group, rows on any device; to be made by all of them at once.

    A put or an accumulation is on its way when the call returns. Messages are staged on the CPU.
    """

    def __init__(
        self, edges: Edges, layout: Sequence[range], t: Tensor, timeout_s: float, zero_init: bool = True
    ) -> None:
        """t [k, P] are the rows of the local workers."""
        rank = dist.get_rank()
        memory = Memory.plain(len(t), len(edges.of_owners(layout[rank])), t)
        super().__init__(edges, layout, rank, memory)
        self._meeting = Meeting(timeout_s)
        self._turns = Turns()
        self._tokens = count()
        self._expected: dict[int, threading.Event] = {}
        self._occupied: set[int] = set()  # the slots elsewhere that have been written, and not taken since
        self._post = Post(t[0], timeout_s, self._handle)
        self._begin(t, zero_init)
        self._post.start()

    def vacant(self, owner: int, sender: int) -> bool:
        """See `Window`."""
        if self._process[owner] == self.rank:
            return self._memory.is_empty(self._place(owner, sender))
        return self.edges.number(owner, sender) not in self._occupied

    def mutex(self, owner: int, sender: int) -> AbstractContextManager[None]:
        """See `Window`. Raises what `Post` raises."""
        lock, what = self.edges.lock(owner, sender), self.edges.locked(owner, sender)
        if self._process[owner] == self.rank:
            return self._hold_here(lock, what)
        return self._hold_there(owner, sender, what)

    def close(self) -> None:
        """See `Window`."""
        self._post.close()

    @contextmanager
    def _hold_here(self, lock: int, what: str) -> Iterator[None]:
        granted = threading.Event()
        self._turns.ask(lock, self.rank, granted.set, keep=True)
        try:
            self._post.wait(granted, lambda: self._turns.holder(lock), f"to let go of {what}")
            yield
        finally:
            self._turns.give_back(lock, self.rank)

    @contextmanager
    def _hold_there(self, owner: int, sender: int, what: str) -> Iterator[None]:
        peer, granted = self._process[owner], threading.Event()
        self._post.send(peer, Message(Kind.lock, owner, sender, token=self._expect(granted)))
        try:
            self._post.wait(granted, lambda: peer, f"to hand over {what}")
            yield
        finally:
            self._post.send(peer, Message(Kind.unlock, owner, sender))

    def _deliver(self, owner: int, sender: int, weight: float, add: bool) -> None:
        own, peer = sender - self.workers.start, self._process[owner]
        row, p = self.t[own], float(self.p[own])
        if peer == self.rank:
            with self.mutex(owner, sender):
                write = self._memory.accumulate if add else self._memory.put
                return write(self._place(owner, sender), row, p, weight)
        self._occupied.add(self.edges.number(owner, sender))
        message = Message(Kind.accumulate if add else Kind.put, owner, sender, p=weight * p)
        self._post.send_patiently(peer, message, (row * weight).cpu())
        return self._count(row)

    def _fetch(self, owner: int, sender: int, weight: float) -> None:
        peer, arrived = self._process[sender], threading.Event()
        if peer == self.rank:
            with self.mutex(owner, sender), self.mutex(sender, sender):
                own = sender - self.workers.start
                self._memory.put(self._place(owner, sender), self.t[own], float(self.p[own]), weight)
            return
        self._post.send(peer, Message(Kind.ask, owner, sender, weight, token=self._expect(arrived)))
        self._post.wait(arrived, lambda: peer, f"to answer with the row of worker {sender}")

    def _taken(self, owner: int, sender: int) -> None:
        if self._process[sender] != self.rank:
            self._post.send(self._process[sender], Message(Kind.taken, owner, sender))

    def _flush(self) -> None:
        for peer in range(len(self.layout)):
            if peer != self.rank:
                self._reach(peer)

    def _total(self, value: Tensor) -> Tensor:
        return self._meeting.total(value)

    def _reach(self, peer: int) -> None:
        """Wait until a process has received what was sent to it."""
        arrived = threading.Event()
        self._post.send(peer, Message(Kind.reached, token=self._expect(arrived)))
        self._post.wait(arrived, lambda: peer, "to receive")

    def _expect(self, event: threading.Event) -> int:
        """A token for an answer that sets the event."""
        token = next(self._tokens)
        self._expected[token] = event
        return token

    def _handle(self, source: int, message: Message, row: Tensor | None) -> None:
        """Carry out a message from another process, in the thread that receives."""
        kind, owner, sender, *_, token = message
        if kind is Kind.done:
            self._expected.pop(token).set()
        elif kind is Kind.reached:
            self._post.send(source, Message(Kind.done, token=token))
        elif kind is Kind.taken:
            self._occupied.discard(self.edges.number(owner, sender))
        elif kind is Kind.unlock:
            self._turns.give_back(self.edges.lock(owner, sender), source)
        elif kind is Kind.lock:
            granted = Message(Kind.done, token=token)
            self._turns.ask(self.edges.lock(owner, sender), source, lambda: self._post.send(source, granted), keep=True)
        elif kind is Kind.ask:
            self._turns.ask(self.edges.lock(sender, sender), source, lambda: self._answer(source, message), keep=False)
        else:
            who = self.rank if kind is Kind.answer else source
            self._turns.ask(self.edges.lock(owner, sender), who, lambda: self._write(message, row), keep=False)

    def _answer(self, source: int, message: Message) -> None:
        """Send a registered row to who asked for it."""
        own = message.sender - self.workers.start
        answer = message._replace(kind=Kind.answer, p=message.weight * float(self.p[own]))
        self._post.send(source, answer, (self.t[own] * message.weight).cpu())

    def _write(self, message: Message, row: Tensor | None) -> None:
        """Put into, or add to, a slot what has come."""
        assert row is not None
        place, row = self._place(message.owner, message.sender), row.to(self.t.device)
        write = self._memory.accumulate if message.kind is Kind.accumulate else self._memory.put
        write(place, row, message.p, 1.0)
        if message.kind is Kind.answer:
            self._expected.pop(message.token).set()
