"""Messages between workers: in memory within a process; over gloo between processes, by threads that always listen."""

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
from decentral.network.settings import NetworkSettings
from decentral.network.transports.choose import shares_memory
from decentral.network.windows.locks import gloo_group

_SWITCH_S = 5e-4  # how long pure Python computes before a thread that has mail gets its turn
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
_NO_ROWS = -1
_UNSENT_ROWS = 4
_FOREVER = timedelta(days=365)  # a receive that times out would break the connection
_tags: WeakKeyDictionary[dist.ProcessGroup, Iterator[int]] = WeakKeyDictionary()
_eager: list[float] = []  # for each mailbox between processes: how long pure Python computed before it was opened

Handler = Callable[[Message], object]


class _System(IntEnum):
    """Kinds of messages that mailboxes send each other; those of workers are not negative."""

    leave = -1  # nothing comes after this: each two processes exchange one in either direction
    taken = -2  # the shared memory `number` is free again
    here = -3  # at barrier `number`


class _Header(NamedTuple):
    """What is sent of a message before its rows, as float64."""

    source: int
    destination: int
    kind: int
    number: int
    dtype: int = _NO_ROWS  # by place in `_DTYPES`
    num_bytes: int = 0
    pid: int = 0
    shared: int = NOT_SHARED  # the descriptor behind which the rows lie; else they follow
    value: float = 0.0


class Mailbox(Threads):
    """Messages to and from the workers of this process; to be made by all processes of the group at once.

    `send` copies rows, unless they are a draft's, and never waits for others unless it is told to be patient. What
    comes is handed to the handler of its kind, or else kept until somebody receives it. gloo hands a message over when
    its receiver is ready, so for each other process a thread always receives, and another thread sends. Messages
    between two processes arrive in order. With `shared`, which needs one host, rows lie in shared memory: they are
    copied once, and read where they lie; else they are copied, sent, and received.

    Everything that waits or sends raises ConnectionError if another process is gone, or leaves while it is waited for,
    TimeoutError if somebody takes longer than `timeout_s`, and what has happened in a thread of this process that works
    for all (`fail`). The death of a process is noticed at once by the thread that receives from it.
    """

    def __init__(self, layout: Sequence[range], timeout_s: float, shared: bool = False, *, opens: bool = True) -> None:
        """`layout` are the workers of each process, from `split_workers`. Unless it `opens` now, `open` does that."""
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
        # peer, header, and what is to be sent after it and then given back
        self._outgoing: queue.SimpleQueue[tuple[int, _Header, Buffer | None] | None] = queue.SimpleQueue()
        self._unsent, self._room = 0, self.condition(self._guard)
        self._threads: list[threading.Thread] = []
        if opens:
            self.open({})

    @classmethod
    def of(cls, settings: NetworkSettings, layout: Sequence[range], device: torch.device) -> Mailbox:
        """As `network.transport` asks for; all processes call this at once. Raises what `shares_memory` raises."""
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
        """Send a message; in any thread. `kind` is not negative.

        Rows, of any shape and on any device, are copied; a draft is sent as it is. Does not wait, unless `patient`
        while many rows have not been sent: not for the thread that receives.
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
        """Memory for rows of this length and dtype, to be sent to a worker without being copied."""
        return Draft(self._plain if self._process[destination] == self.rank else self._sharing, like)

    def handle(self, kind: int, handler: Handler) -> None:
        """Have all messages of a kind handled as they come, in the thread that brings them, which must not wait.

        In which order those are handled that came before this call is not said.
        """
        with self._guard:
            self._handlers[kind] = handler
            early = [self._boxes.pop(key) for key in list(self._boxes) if key[1] == kind]
        for message in (message for messages in early for message in messages):
            handler(message)

    def receive(self, destination: int, kind: int, number: int, source: int | None = None) -> Message:
        """Wait for a message of this kind and number to a local worker; from `source` if given, else from anybody."""
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
        """Leave: what was sent before still arrives. Waits for the mailboxes of the others, but for nothing that
        they do. To end well, all processes meet at a `barrier` first, as they do where a `with` statement ends, and no
        process ends before all have closed.

        Raises TimeoutError if the threads do not end, unless something has failed: then they end with the process.
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
        """Begin to send and to receive, with these handlers by kind: see `handle`."""
        self._handlers.update(handlers)
        if not self._others:
            return
        self._group = gloo_group(_FOREVER)  # the same for all mailboxes, each with a pair of tags of its own
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
        """After a failure, too, what comes is received: who sends to a process that does not receive waits for it."""
        first = torch.empty(len(_Header._fields), dtype=torch.float64)
        while True:
            try:
                dist.recv(first, peer, group=self._group, tag=self._tag)
                *whole, value = first.tolist()
                header = _Header._make([*map(int, whole), value])
                rows, release = self._rows(peer, header)
            except RuntimeError as error:
                raise gone(peer) from error
            except OSError:  # it has failed and closed the memory of rows that were on their way
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
                if not self._leaving:  # else nobody is answered any more
                    self.fail(failure)
        with self._guard:
            self.left.add(peer)
            if not self._leaving:
                self._tell(peer, _System.leave)
        self.tell_all()

    def _rows(self, peer: int, header: _Header) -> tuple[Tensor | None, Callable[[], object] | None]:
        """The rows of a message, and how their memory becomes free again."""
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
        """Let the process whose shared memory it is use it again."""
        with self._guard:
            if peer not in self.left and not self._leaving:
                self._tell(peer, _System.taken, number)
