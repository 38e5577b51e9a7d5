"""Windows across hosts: each process carries out what others ask for by message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from itertools import count

import torch.distributed as dist
from torch import Tensor

from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.asynchronous.messages import Message
from decentral.network.windows.locks import Meeting, Turns
from decentral.network.windows.slots import Edges, Memory
from decentral.network.windows.window import Window


class Kind(IntEnum):
    """What a message asks for. Its `number` tells answers apart."""

    put = 0  # into the slot of the worker that sends at the one that gets it, with p as the value
    accumulate = 1
    ask = 2  # for the row of the worker that gets it, times the value
    answer = 3  # the row, with p as the value
    lock = 4  # the slot of a worker at the one that gets it
    unlock = 5
    reached = 6  # has what was sent before this arrived?
    done = 7  # what was asked for (a lock, an arrival) has happened
    taken = 8  # the slot of the worker that gets it has been emptied by the one that sends


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
        self._open: set[int] = set()  # what has been asked for, and not answered
        self._occupied: set[int] = set()  # the slots elsewhere that have been written, and not taken since
        self._begin(t, zero_init)
        self._mailbox = Mailbox(layout, timeout_s, opens=False)
        self._answered = self._mailbox.condition()
        self._mailbox.open(dict.fromkeys(Kind, self._handle))

    def vacant(self, owner: int, sender: int) -> bool:
        """See `Window`."""
        if self._process[owner] == self.rank:
            return self._memory.is_empty(self._place(owner, sender))
        return self.edges.number(owner, sender) not in self._occupied

    def mutex(self, owner: int, sender: int) -> AbstractContextManager[None]:
        """See `Window`. Raises what `Mailbox` raises."""
        lock, what = self.edges.lock(owner, sender), self.edges.locked(owner, sender)
        if self._process[owner] == self.rank:
            return self._hold_here(lock, what)
        return self._hold_there(owner, sender, what)

    def close(self) -> None:
        """See `Window`."""
        self._mailbox.close()

    @contextmanager
    def _hold_here(self, lock: int, what: str) -> Iterator[None]:
        token = self._token()
        self._turns.ask(lock, self.rank, lambda: self._close(token), keep=True)
        try:
            self._wait(token, lambda: f"process {self._turns.holder(lock)} of this run to let go of {what}")
            yield
        finally:
            self._turns.give_back(lock, self.rank)

    @contextmanager
    def _hold_there(self, owner: int, sender: int, what: str) -> Iterator[None]:
        peer, token = self._process[owner], self._token()
        self._mailbox.send(sender, owner, Kind.lock, token)
        try:
            self._wait(token, lambda: f"process {peer} of this run to hand over {what}", peer)
            yield
        finally:
            self._mailbox.send(sender, owner, Kind.unlock, token)

    def _deliver(self, owner: int, sender: int, weight: float, add: bool) -> None:
        own = sender - self.workers.start
        row, p = self.t[own], float(self.p[own])
        if self._process[owner] == self.rank:
            with self.mutex(owner, sender):
                write = self._memory.accumulate if add else self._memory.put
                return write(self._place(owner, sender), row, p, weight)
        self._occupied.add(self.edges.number(owner, sender))
        self._send_row(sender, owner, Kind.accumulate if add else Kind.put, 0, weight, patient=True)
        return self._count(row)

    def _fetch(self, owner: int, sender: int, weight: float) -> None:
        peer = self._process[sender]
        if peer == self.rank:
            with self.mutex(owner, sender), self.mutex(sender, sender):
                own = sender - self.workers.start
                self._memory.put(self._place(owner, sender), self.t[own], float(self.p[own]), weight)
            return
        token = self._token()
        self._mailbox.send(owner, sender, Kind.ask, token, value=weight)
        self._wait(token, lambda: f"process {peer} of this run to answer with the row of worker {sender}", peer)

    def _taken(self, owner: int, sender: int) -> None:
        if self._process[sender] != self.rank:
            self._mailbox.send(owner, sender, Kind.taken, 0)

    def _flush(self) -> None:
        for peer, workers in enumerate(self.layout):
            if peer != self.rank:
                token = self._token()
                self._mailbox.send(self.workers.start, workers.start, Kind.reached, token)
                self._wait(token, lambda peer=peer: f"process {peer} of this run to receive", peer)  # type: ignore[misc]

    def _total(self, value: Tensor) -> Tensor:
        return self._meeting.total(value)

    def _send_row(self, sender: int, owner: int, kind: Kind, token: int, weight: float, patient: bool) -> None:
        """Send weight (t_j, p_j) of a local worker."""
        own = sender - self.workers.start
        draft = self._mailbox.draft(owner, self.t[own])
        draft.rows.copy_(self.t[own]).mul_(weight)
        p = weight * float(self.p[own])
        self._mailbox.send(sender, owner, kind, token, draft, value=p, patient=patient)
        draft.release()

    def _token(self) -> int:
        """The number of something that is asked for."""
        token = next(self._tokens)
        self._open.add(token)
        return token

    def _close(self, token: int) -> None:
        """It has happened."""
        with self._answered:
            self._open.discard(token)
            self._answered.notify_all()

    def _wait(self, token: int, whom: Callable[[], str], process: int | None = None) -> None:
        """Until it has happened."""
        with self._answered:
            self._mailbox.wait(self._answered, lambda: token not in self._open, whom, process)

    def _handle(self, message: Message) -> None:
        """Carry out a message from another process, in the thread that receives."""
        kind, owner, sender, who = message.kind, message.destination, message.source, message.process
        if kind == Kind.done:
            self._close(message.number)
        elif kind == Kind.reached:
            self._done(message)
        elif kind == Kind.taken:
            self._occupied.discard(self.edges.number(sender, owner))
        elif kind == Kind.unlock:
            self._turns.give_back(self.edges.lock(owner, sender), who)
        elif kind == Kind.lock:
            self._turns.ask(self.edges.lock(owner, sender), who, lambda: self._done(message), keep=True)
        elif kind == Kind.ask:
            asked, to = owner, sender
            answer = lambda: self._send_row(asked, to, Kind.answer, message.number, message.value, False)  # noqa: E731
            self._turns.ask(self.edges.lock(asked, asked), who, answer, keep=False)
        else:
            who = self.rank if kind == Kind.answer else who
            self._turns.ask(self.edges.lock(owner, sender), who, lambda: self._write(message), keep=False)

    def _done(self, message: Message) -> None:
        """Say that what a process asked for has happened."""
        self._mailbox.send(self.workers.start, self.layout[message.process].start, Kind.done, message.number)

    def _write(self, message: Message) -> None:
        """Put into, or add to, a slot what has come."""
        assert message.rows is not None
        place, row = self._place(message.destination, message.source), message.rows.to(self.t.device)
        write = self._memory.accumulate if message.kind == Kind.accumulate else self._memory.put
        write(place, row, message.value, 1.0)
        message.release()
        if message.kind == Kind.answer:
            self._close(message.number)
