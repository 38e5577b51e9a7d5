"""Messages between workers: in memory within a process; over gloo, with always-receiving threads, between processes."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from itertools import count
from typing import NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.asynchronous.messages import NOT_SHARED, Buffer, Buffers, Draft, Message, Threads, gone, opened
from decentral.network.locks import gloo_group
from decentral.network.settings import NetworkSettings
from decentral.network.transports.choose import shares_memory

_SWITCH_S = 5e-4  # thread switch interval, so that a thread with messages soon runs
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
_NO_ROWS = -1
_UNSENT_ROWS = 4
_FOREVER = timedelta(days=365)  # a receive that times out would break the connection
_tags: WeakKeyDictionary[dist.ProcessGroup, Iterator[int]] = WeakKeyDictionary()
_eager: list[float] = []  # for each mailbox between processes: the previous thread switch interval

Handler = Callable[[Message], object]


class _System(IntEnum):
    """Kinds of messages between mailboxes; those of workers are not negative."""

    leave = -1  # the last message; every two processes exchange one in each direction
    taken = -2  # the shared memory `number` is free again
    here = -3  # at barrier `number`


class _Header(NamedTuple):
    """The header of a message, sent before its rows, as float64."""

    source: int
    destination: int
    kind: int
    number: int
    dtype: int = _NO_ROWS  # index in `_DTYPES`
    num_bytes: int = 0
    pid: int = 0
    shared: int = NOT_SHARED  # the descriptor of the rows' shared memory; else the rows follow
    value: float = 0.0


class Mailbox(Threads):
    """Messages to and from the workers of this process; all processes of the group create it at once.

    `send` copies rows, except those of a draft, and never waits for others unless `patient`. An incoming message goes
    to the handler of its kind, or is kept until it is received. gloo transfers a message only when its receiver is
    ready, so for each other process one thread always receives and another one sends. Messages between two processes
    arrive in order. With `shared`, which needs one host, rows are in shared memory: copied once and read in place;
    otherwise they are copied, sent and received.

    All waits and sends raise ConnectionError if another process is gone or leaves meanwhile, TimeoutError if one takes
    longer than `timeout_s`, and the failure of a service thread of this process (`fail`). The thread that receives from
    a process notices its death at once.
    """

    def __init__(self, layout: Sequence[range], timeout_s: float, shared: bool = False, *, opens: bool = True) -> None:
        """Create the mailbox; `layout` has the workers of each process. With opens=False, call `open` later."""
        super().__init__(timeout_s)
        self.layout = layout
        self.rank = dist.get_rank() if len(layout) > 1 else 0
        self.workers, self.num_workers = layout[self.rank], layout[-1].stop
        self.shared = shared
        self._process = [rank for rank, workers in enumerate(layout) for _ in workers]
        self._others = set(range(len(layout))) - {self.rank}
        self._plain, self._sharing = Buffers(shared=False), Buffers(shared=shared)
        self._seen: dict[tuple[int, int], Tensor] = {}  # the memory of others, by process and descriptor
        self._guard = threading.Lock()
        self._arrived = {worker: self.condition(self._guard) for worker in self.workers}
        self._boxes: defaultdict[tuple[int, int, int], list[Message]] = defaultdict(list)
        self._handlers: dict[int, Handler] = {}
        self._leaving = False
        self._barriers = 0
        # peer, header, and the buffer to send after it and then release
        self._outgoing: queue.SimpleQueue[tuple[int, _Header, Buffer | None] | None] = queue.SimpleQueue()
        self._unsent, self._room = 0, self.condition(self._guard)
        self._threads: list[threading.Thread] = []
        if opens:
            self.open({})

    @classmethod
    def of(cls, settings: NetworkSettings, layout: Sequence[range], device: torch.device) -> Mailbox:
        """Create it by `network.transport`; all processes call this at once. Raises what `shares_memory` raises."""
        return cls(layout, settings.timeout_s, shares_memory(settings, layout, device))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.barrier()
        finally:
            self.close()

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(
        self,
        source: int,
        destination: int,
        kind: int,
        number: int,
        rows: Tensor | Draft | None = None,
        *,
        value: float = 0.0,
        patient: bool = False,
    ) -> None:
        """Send a message, from any thread. `kind` is not negative.

        Rows, of any shape and on any device, are copied; a draft is sent uncopied. Does not wait, unless `patient` and
        many rows are unsent: do not use this in a receiving thread.
        """
        assert kind >= 0
        process = self._process[destination]
        if patient and process != self.rank:
            with self._room:
                whom = lambda: f"process {process} of this run to take rows"  # noqa: E731
                self.wait(self._room, lambda: self._unsent < _UNSENT_ROWS, whom, process)
        if isinstance(rows, Tensor):
            draft = self.draft(destination, rows)
            draft.rows.copy_(rows.reshape(-1))
            self._post(source, destination, kind, number, value, draft)
            draft.release()
        else:
            self._post(source, destination, kind, number, value, rows)

    def draft(self, destination: int, like: Tensor) -> Draft:
        """Return memory for rows of this length and dtype, which `send` need not copy."""
        return Draft(self._plain if self._process[destination] == self.rank else self._sharing, like)

    def handle(self, kind: int, handler: Handler) -> None:
        """Set the handler of all messages of a kind. It runs in the receiving thread and must not wait.

        The order of messages that arrived before this call is unspecified.
        """
        with self._guard:
            self._handlers[kind] = handler
            early = [self._boxes.pop(key) for key in list(self._boxes) if key[1] == kind]
        for message in (message for messages in early for message in messages):
            handler(message)

    def receive(self, destination: int, kind: int, number: int, source: int | None = None) -> Message:
        """Wait for a message of this kind and number to a local worker, from `source` if given, else from any."""
        process = None if source is None else self._process[source]
        who = "a message" if source is None else f"process {process} of this run to answer for worker {source}"
        found: list[Message] = []

        def taken() -> bool:
            messages = self._boxes.get((destination, kind, number), [])
            place = next((at for at, message in enumerate(messages) if source in (None, message.source)), None)
            if place is not None:
                found.append(messages.pop(place))
                if not messages:
                    del self._boxes[destination, kind, number]
            return place is not None

        with self._arrived[destination]:
            self.wait(self._arrived[destination], taken, lambda: who, process)
        return found[0]

    def barrier(self) -> None:
        """Wait for all processes; in one thread of each."""
        self._barriers += 1
        own, others = self.workers.start, [self.layout[peer].start for peer in sorted(self._others)]
        for other in others:
            self._post(own, other, _System.here, self._barriers, 0.0, None)
        for other in others:
            self.receive(own, _System.here, self._barriers, other)

    def close(self) -> None:
        """Leave; earlier messages still arrive. Waits only for the other mailboxes. For a clean shutdown, all processes
        first pass a `barrier`, as at the end of a `with` statement, and no process ends before all have closed.

        Raises TimeoutError if the threads do not end, except after a failure: then they end with the process.
        """
        if not self._others:
            return
        atexit.unregister(self.close)
        with self._guard:
            if not self._leaving:
                self._leaving = True
                for peer in self._others - self.left:
                    self._tell(peer, _System.leave)
                self._outgoing.put(None)
                before_s = _eager.pop()
                if not _eager:
                    sys.setswitchinterval(before_s)
        self.end(self._threads, "the other processes of this run to let go")
        self._sharing.close()
        self._seen.clear()

    # -- how -----------------------------------------------------------------------------------------------------------

    def open(self, handlers: Mapping[int, Handler]) -> None:
        """Start sending and receiving, with these handlers by kind: see `handle`."""
        self._handlers.update(handlers)
        if not self._others:
            return
        self._group = gloo_group(_FOREVER)  # shared by all mailboxes, each with its own pair of tags
        self._tag = next(_tags.setdefault(self._group, count(0, 2)))
        _eager.append(_eager[-1] if _eager else sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_S)
        self._threads = [self.start(f"mail: from {peer}", self._receive_from, peer) for peer in self._others]
        self._threads.append(self.start("mail: sends", self._send_all))
        atexit.register(self.close)

    def _post(self, source: int, destination: int, kind: int, number: int, value: float, draft: Draft | None) -> None:
        self.check()
        peer = self._process[destination]
        if peer == self.rank:
            rows, release = None, None
            if draft is not None:
                draft.buffers.hold(draft.buffer)
                rows, release = draft.rows, draft.release
            self._deliver(Message(peer, source, destination, kind, number, value, rows, release))
            return
        header, buffer = _Header(source, destination, kind, number, value=value), None
        if draft is not None:
            held = draft.buffers.hold(draft.buffer)
            described = _DTYPES.index(draft.rows.dtype), draft.rows.nbytes, os.getpid(), held.number
            header = _Header(source, destination, kind, number, *described, value)
            buffer = held if held.number == NOT_SHARED else None
        with self._guard:
            if peer in self.left or self._leaving:
                raise gone(peer)
            self._unsent += buffer is not None
            self._outgoing.put((peer, header, buffer))

    def _tell(self, peer: int, kind: _System, number: int = 0) -> None:
        header = _Header(self.workers.start, self.layout[peer].start, kind, number)
        self._outgoing.put((peer, header, None))

    def _deliver(self, message: Message) -> None:
        with self._guard:
            handler = self._handlers.get(message.kind)
            if handler is None:
                self._boxes[message.destination, message.kind, message.number].append(message)
                self._arrived[message.destination].notify_all()
        if handler is not None:
            handler(message)

    def _send_all(self) -> None:
        while (one := self._outgoing.get()) is not None:
            peer, header, buffer = one
            try:
                dist.send(torch.tensor(header, dtype=torch.float64), peer, group=self._group, tag=self._tag)
                if buffer is not None:
                    dist.send(buffer.memory, peer, group=self._group, tag=self._tag + 1)
            except RuntimeError:
                self.fail(gone(peer))  # the other processes still hear that this one leaves
            if buffer is not None:
                self._sharing.give_back(buffer)
                with self._room:
                    self._unsent -= 1
                    self._room.notify_all()

    def _receive_from(self, peer: int) -> None:
        """Receive from a process, even after a failure: a sender would wait for a process that does not receive."""
        first = torch.empty(len(_Header._fields), dtype=torch.float64)
        while True:
            try:
                dist.recv(first, peer, group=self._group, tag=self._tag)
                *whole, value = first.tolist()
                header = _Header._make([*map(int, whole), value])
                rows, release = self._rows(peer, header)
            except RuntimeError as error:
                raise gone(peer) from error
            except OSError:  # the peer failed and closed the memory of rows in flight
                self.fail(gone(peer))
                continue
            if header.kind == _System.leave:
                break
            if header.kind == _System.taken:
                self._sharing.give_back_number(header.number)
                continue
            try:
                self._deliver(Message(peer, *header[:4], header.value, rows, release))
            except Exception as failure:
                if not self._leaving:  # after leaving, requests get no answer
                    self.fail(failure)
        with self._guard:
            self.left.add(peer)
            if not self._leaving:
                self._tell(peer, _System.leave)
        self.tell_all()

    def _rows(self, peer: int, header: _Header) -> tuple[Tensor | None, Callable[[], object] | None]:
        """Return the rows of a message, and a function that releases their memory."""
        if header.dtype == _NO_ROWS:
            return None, None
        if header.shared == NOT_SHARED:
            buffer = self._plain.take(header.num_bytes)
            dist.recv(buffer.memory, peer, group=self._group, tag=self._tag + 1)
            memory, release = buffer.memory, lambda: self._plain.give_back(buffer)
        else:
            key = peer, header.shared
            if key not in self._seen:
                self._seen[key] = opened(header.pid, header.shared, max(1, header.num_bytes))
            memory, release = self._seen[key], lambda: self._return(peer, header.shared)
        return memory[: header.num_bytes].view(_DTYPES[header.dtype]), release

    def _return(self, peer: int, number: int) -> None:
        """Return shared memory to its process for reuse."""
        with self._guard:
            if peer not in self.left and not self._leaving:
                self._tell(peer, _System.taken, number)
