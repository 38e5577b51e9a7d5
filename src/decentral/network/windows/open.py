"""Implementations of windows, their selection for a group of processes, and push-sum on top of them.

In one process, or in shared memory of one host, all slots are addressable. Across hosts each process serves the
requests of others, sent as messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from functools import partial
from itertools import count

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.asynchronous.messages import Message
from decentral.network.locks import ByteLocks, Meeting, Turns
from decentral.network.settings import NetworkSettings
from decentral.network.transports.choose import shares_memory
from decentral.network.transports.shared_memory import Segments
from decentral.network.windows.window import Edges, Memory, Window
from decentral.topology.delivery import Exchange
from decentral.topology.graph import union
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds


class OneProcessWindow(Window):
    """All workers in this process, on any device, without locks."""

    def __init__(self, edges: Edges, t: Tensor, zero_init: bool = True) -> None:
        """t is [n, P]."""
        memory = Memory.plain(edges.num_workers, len(edges), t)
        super().__init__(edges, [range(edges.num_workers)], 0, {0: memory})
        self._begin(t, zero_init)


class SharedMemoryWindow(Window):
    """A window for the processes of one Linux host, with rows on the CPU; all create it at once.

    Wait-free: a sender adds a share to the receiver's slot regardless of what the receiver does. A dying process
    releases its locks, but may leave a slot half written.
    """

    def __init__(
        self, edges: Edges, layout: Sequence[range], t: Tensor, timeout_s: float, zero_init: bool = True
    ) -> None:
        """t [k, P] are the rows of the local workers."""
        rank, self._meeting = dist.get_rank(), Meeting(timeout_s)
        counts = [(len(workers), len(edges.of_owners(workers))) for workers in layout]
        rows = Segments([(k + e, t.shape[-1]) for k, e in counts], t.dtype).tensors
        weights = Segments([(k + e,) for k, e in counts], torch.float64).tensors
        marks = Segments([(e, 2) for _, e in counts], torch.int64).tensors
        parts = zip(rows, weights, marks, counts, strict=True)
        memories = {p: Memory(row, weight, mark, k) for p, (row, weight, mark, (k, _)) in enumerate(parts)}
        super().__init__(edges, layout, rank, memories)
        self._locks = ByteLocks(timeout_s)
        self._begin(t, zero_init)

    def mutex(self, owner: int, sender: int) -> AbstractContextManager[None]:
        """See `Window`. Raises TimeoutError if the lock is not free in time."""
        return self._locks.hold(self.edges.lock(owner, sender), self.edges.locked(owner, sender))

    def close(self) -> None:
        """See `Window`."""
        self._locks.close()
        self._memories = {}

    def _total(self, value: Tensor) -> Tensor:
        return self._meeting.total(value)


class Kind(IntEnum):
    """The request of a message. Its `number` matches replies to requests."""

    put = 0  # write the sender's slot at the receiver, with p as the value
    accumulate = 1
    ask = 2  # request the receiver's row, times the value
    answer = 3  # the row, with p as the value
    lock = 4  # lock a worker's slot at the receiver
    unlock = 5
    reached = 6  # have all earlier messages arrived?
    done = 7  # the request (a lock, an arrival) is complete
    taken = 8  # the sender has emptied the receiver's slot


class MessageWindow(Window):
    """A window for any processes with an initialized group, rows on any device; all create it at once.

    A put or an accumulation is in flight when the call returns. Messages are staged on the CPU.
    """

    def __init__(
        self, edges: Edges, layout: Sequence[range], t: Tensor, timeout_s: float, zero_init: bool = True
    ) -> None:
        """t [k, P] are the rows of the local workers."""
        rank = dist.get_rank()
        memory = Memory.plain(len(t), len(edges.of_owners(layout[rank])), t)
        super().__init__(edges, layout, rank, {rank: memory})
        self._meeting = Meeting(timeout_s)
        self._turns = Turns()
        self._tokens = count()
        self._open: set[int] = set()  # pending requests
        self._occupied: set[int] = set()  # remote slots that were written and not taken since
        self._begin(t, zero_init)
        self._mailbox = Mailbox(layout, timeout_s, opens=False)
        self._answered = self._mailbox.condition()
        self._mailbox.open(dict.fromkeys(Kind, self._handle))

    def vacant(self, owner: int, sender: int) -> bool:
        """See `Window`."""
        if self._process[owner] == self.rank:
            return super().vacant(owner, sender)
        return self.edges.number(owner, sender) not in self._occupied

    def mutex(self, owner: int, sender: int) -> AbstractContextManager[None]:
        """See `Window`. Raises what `Mailbox` raises."""
        return self._held(owner, sender, self.edges.lock(owner, sender))

    @contextmanager
    def _held(self, owner: int, sender: int, lock: int) -> Iterator[None]:
        what, token = self.edges.locked(owner, sender), self._token()
        peer = self._process[owner]
        here = peer == self.rank
        if here:
            self._turns.ask(lock, self.rank, lambda: self._close(token), keep=True)
        else:
            self._mailbox.send(sender, owner, Kind.lock, token)
        holder = lambda: self._turns.holder(lock) if here else peer  # noqa: E731
        try:
            self._wait(token, lambda: f"process {holder()} of this run to let go of {what}", None if here else peer)
            yield
        finally:
            if here:
                self._turns.give_back(lock, self.rank)
            else:
                self._mailbox.send(sender, owner, Kind.unlock, token)

    def close(self) -> None:
        """See `Window`."""
        self._mailbox.close()

    def _deliver(self, owner: int, sender: int, weight: float, add: bool) -> None:
        if self._process[owner] == self.rank:
            return super()._deliver(owner, sender, weight, add)
        self._occupied.add(self.edges.number(owner, sender))
        self._send_row(sender, owner, Kind.accumulate if add else Kind.put, 0, weight, patient=True)
        return self._count(self.t[sender - self.workers.start])

    def _fetch(self, owner: int, sender: int, weight: float) -> None:
        peer = self._process[sender]
        if peer == self.rank:
            return super()._fetch(owner, sender, weight)
        token = self._token()
        self._mailbox.send(owner, sender, Kind.ask, token, value=weight)
        return self._wait(token, lambda: f"process {peer} of this run to answer with the row of worker {sender}", peer)

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
        """Return the number of a new request."""
        token = next(self._tokens)
        self._open.add(token)
        return token

    def _close(self, token: int) -> None:
        """Mark a request as complete."""
        with self._answered:
            self._open.discard(token)
            self._answered.notify_all()

    def _wait(self, token: int, whom: Callable[[], str], process: int | None = None) -> None:
        """Wait until the request is complete."""
        with self._answered:
            self._mailbox.wait(self._answered, lambda: token not in self._open, whom, process)

    def _handle(self, message: Message) -> None:
        """Handle a message from another process, in the receiving thread."""
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
        """Report that a process's request is complete."""
        self._mailbox.send(self.workers.start, self.layout[message.process].start, Kind.done, message.number)

    def _write(self, message: Message) -> None:
        """Write or add the received row to a slot."""
        assert message.rows is not None
        place, row = self._place(message.destination, message.source), message.rows.to(self.t.device)
        write = self._memory.accumulate if message.kind == Kind.accumulate else self._memory.put
        write(place, row, message.value, 1.0)
        message.release()
        if message.kind == Kind.answer:
            self._close(message.number)


def open_window(
    settings: NetworkSettings, edges: Edges, layout: Sequence[range], t: Tensor, zero_init: bool = True
) -> Window:
    """Open the window that `network.transport` selects; all processes of the group call this at once.

    `layout` has the workers of each process, t [k, P] the rows of the local ones. Raises what `shares_memory` raises.
    """
    if len(layout) == 1:
        return OneProcessWindow(edges, t, zero_init)
    kind = SharedMemoryWindow if shares_memory(settings, layout, t.device) else MessageWindow
    return kind(edges, layout, t, settings.timeout_s, zero_init)


class Pushes:
    """Shares in flight of rows [k, P] and their weights p [k, d]; see `Network.push`.

    All processes create it at once. With d = 1 returned rows are in the window's memory: passed to the next call, they
    need no copy.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        rounds: Rounds,
        layout: Sequence[range],
        x: Tensor,
        note: Callable[[int, int, str, list[int]], object] | None = None,
    ) -> None:
        """Open the windows; `layout` has the workers of each process, x [k, P] are example rows."""
        self.pieces = rounds.slices(x.shape[-1])
        self.windows = [
            open_window(settings, _edges(rounds, h), layout, x[:, piece]) for h, piece in enumerate(self.pieces)
        ]
        if note is not None:  # see `ProcessNetwork.note_pushes`
            for h, window in enumerate(self.windows):
                window.note = partial(note, h)

    def push(self, x: Tensor, p: Tensor, shares: Exchange) -> tuple[Tensor, Tensor]:
        """Push the shares of the local workers, then collect the shares that arrived for them.

        A sender keeps a share while the receiver has not taken the previous one.
        """
        if "columns" not in shares.memo:
            columns = [_columns(W, window.workers) for W, window in zip(shares.pieces, self.windows, strict=True)]
            shares.memo["columns"] = columns
        self._bring(x, p)
        for window, columns in zip(self.windows, shares.memo["columns"], strict=True):
            for sender in window.workers:
                window.push(sender, *columns[sender])
            for owner in window.workers:
                window.collect(owner)
        return self._fetch(x)

    def drain(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Deliver everything in flight, together with the other processes. Raises what `Window.drain` raises."""
        self._bring(x, p)
        for window in self.windows:
            window.drain()
        return self._fetch(x)

    def close(self) -> None:
        """Close the windows."""
        for window in self.windows:
            window.close()

    @property
    def wire_bytes(self) -> int:
        """The bytes that this process has sent to others."""
        return sum(window.wire_bytes for window in self.windows)

    @property
    def wire_messages(self) -> int:
        """The number of messages that this process has sent."""
        return sum(window.wire_messages for window in self.windows)

    def _bring(self, x: Tensor, p: Tensor) -> None:
        for h, (window, piece) in enumerate(zip(self.windows, self.pieces, strict=True)):
            window.p.copy_(p[:, h])
            if x.data_ptr() != window.t.data_ptr():
                window.t.copy_(x[:, piece])

    def _fetch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.stack([window.p for window in self.windows], dim=1)
        if len(self.windows) == 1:
            return self.windows[0].t, p
        for window, piece in zip(self.windows, self.pieces, strict=True):
            x[:, piece] = window.t
        return x, p


def _edges(rounds: Rounds, piece: int) -> Edges:
    """Return the edges that carry messages in any round."""
    return Edges.of(union(rounds.num_workers, (rounds.mixing(r)[piece].graph for r in range(rounds.period))))


def _columns(W: MixingMatrix, senders: Iterable[int]) -> dict[int, tuple[dict[int, float], float]]:
    """Return, for each of these senders j, the shares W_ij of its receivers i, and its own share."""
    order = np.argsort(W.src, kind="stable")
    src, receivers, weights = W.src[order], W.dst[order], W.weight[order]
    columns = {}
    for j in senders:
        entries = slice(*np.searchsorted(src, [j, j + 1]))
        shares = dict(zip(receivers[entries].tolist(), weights[entries].tolist(), strict=True))
        own = shares.pop(j, 0.0)
        columns[j] = shares, own
    return columns
