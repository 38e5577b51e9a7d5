"""Windows across hosts: a thread of each process carries out what others ask for by message."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count

import torch.distributed as dist
from torch import Tensor

from decentral.network.windows.edges import Edges
from decentral.network.windows.meeting import Meeting
from decentral.network.windows.memory import Memory
from decentral.network.windows.post import Kind, Message, Post
from decentral.network.windows.turns import Turns
from decentral.network.windows.window import Window


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
