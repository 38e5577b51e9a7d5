"""The interface of a transport: rows and messages between processes, in rounds that involve all processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.transports.posting import Limiter, Limits


def binomial_tree(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """Return the parent of `rank` (None for the root) and its children, largest subtrees first.

    Relative to the root, the parent of p is p with its lowest set bit cleared.
    """
    place = (rank - root) % size
    lowest = place & -place if place else 1 << (size - 1).bit_length()
    parent = None if not place else (place - lowest + root) % size
    steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1)) if place + (1 << bit) < size]
    return parent, [(place + step + root) % size for step in steps]


CPU = torch.device("cpu")
ALIGNED = 64
"""Alignment of buffers in bytes."""


def aligned(num_bytes: int) -> int:
    """Round up to the alignment of buffers."""
    return -(-num_bytes // ALIGNED) * ALIGNED


def grown(num_bytes: int) -> int:
    """Round up to a power of two, for buffers of varying size: reallocation is rare, and memory at most doubles."""
    return 1 << max(12, (num_bytes - 1).bit_length())


class CutEdge(NamedTuple):
    """An edge into a local worker from a worker of `peer`; its message is `width` numbers in row `row` of m.

    The opposite message is row `back` of the peer's m.
    """

    row: int
    peer: int
    back: int
    width: int
    tag: int  # of the incoming message
    back_tag: int  # of the outgoing message


class Buffer(NamedTuple):
    """Bytes to send to the processes `peers`: the concatenated `parts`.

    Parts of wide types come first. With limited bandwidth the first of `peers` receives first. `number` identifies a
    process's buffer within an exchange.
    """

    parts: Sequence[Tensor]
    peers: Sequence[int]
    number: int = 0

    @property
    def num_bytes(self) -> int:
        """The number of bytes."""
        return sum(part.nbytes for part in self.parts)

    def pack(self, place: Tensor) -> None:
        """Write them into `place`, uint8 [num_bytes]."""
        start = 0
        for part in self.parts:
            end = start + part.nbytes
            target = place[start:end].view(part.dtype)
            (target if part.dim() == 1 else target.view(part.shape)).copy_(part)
            start = end


class Expected(NamedTuple):
    """An expected buffer from process `peer`, with its size and number; `place`, uint8, may receive it directly."""

    peer: int
    num_bytes: int
    number: int = 0
    place: Tensor | None = None


class Underway(ABC):
    """Buffers in flight."""

    @abstractmethod
    def wait(self) -> list[Tensor]:
        """Return the received buffers, uint8 [num_bytes] each, in the order of `expected`; readable until `release`."""

    @abstractmethod
    def release(self) -> None:
        """Release the received buffers; sent ones may change from now on."""


class Transport(ABC):
    """A transport. All processes call the same methods in the same order; `wire_bytes`, `wire_messages` count sends."""

    name: ClassVar[str]
    """Its name for `network.transport`, for the run's records."""

    limits_totals: ClassVar[bool]
    """True if `total` also consists of messages that can be limited."""

    def __init__(self, limits: Limits | None = None) -> None:
        """Create the transport; `limits` delay every message to another process."""
        self.limiter = Limiter(limits) if limits is not None else None
        self.wire_bytes = 0
        self.wire_messages = 0

    @property
    @abstractmethod
    def waited_s(self) -> float:
        """Return the time this process has waited for others and for their messages, in seconds."""

    @abstractmethod
    def begin(
        self,
        buffers: Sequence[Buffer],
        expected: Sequence[Expected],
        room: tuple[int, int],
        device: torch.device = CPU,
        note: int = 0,
        what: str = "",
    ) -> Underway:
        """Send buffers, which must not change until `Underway.release`, without waiting for the receivers.

        Several may be in flight; all processes begin them in the same order. `room` is the maximum number of bytes and
        buffers a process sends; `note`, of 24 bits, is sent along and identifies `what` they are, so that a mismatch
        between processes is detected. Not counted.
        """

    @abstractmethod
    def open(self, m: Tensor, edges: Sequence[CutEdge]) -> tuple[Tensor, list[Tensor | None]]:
        """Begin a round of messages. Return new rows like m for incoming ones, and where to write outgoing ones.

        None leaves the choice to the caller: any memory of m, which is donated, or of the relayed rows.
        """

    @abstractmethod
    def deliver(self, edges: Sequence[CutEdge], outgoing: Sequence[Tensor]) -> None:
        """Send the messages and wait for incoming ones: afterwards the rows from `open` are complete."""

    @abstractmethod
    def total(self, x: Tensor, factor: float) -> Tensor:
        """x_p <- factor times the sum over processes q of x_q, for one row x [..., P] on each process; in place."""

    @abstractmethod
    def reserve(self, num_bytes: int, num_buffers: int = 1) -> None:
        """Set the maximum that any process passes to one `exchange`. All processes call this with the same values."""

    @abstractmethod
    def exchange(
        self,
        buffers: Sequence[Buffer],
        expected: Sequence[Expected],
        device: torch.device = CPU,
        unchanged: bool = False,
    ) -> list[Tensor]:
        """Send buffers and return the received ones: uint8 [num_bytes] each, in the order of `expected`.

        They are readable until the next `exchange` or `done`, possibly in the offered places. Not every process has to
        participate. Not counted. With `unchanged`, the caller does not change sent data before it has arrived or `done`
        is called, so the call does not wait for it.
        """

    def done(self) -> None:
        """Release the buffers of the last `exchange`; for processes without another one soon. Data sent `unchanged` may
        change afterwards."""

    def tell_of_something_new(self) -> None:
        """Let processes that wait for this one in another call notice, if possible; all processes call it."""

    def spread(self, buffer: Buffer | None, root: int, num_bytes: int, device: torch.device = CPU) -> Tensor | None:
        """Broadcast a buffer from process `root` along a binomial tree. Return uint8 [num_bytes]; None on `root`.

        All processes call this at once, after `reserve`. Counted.
        """
        parent, children = binomial_tree(dist.get_rank(), dist.get_world_size(), root)
        came = None if parent is None else self.exchange([], [Expected(parent, num_bytes)], device)[0].clone()
        parts = [came] if came is not None else buffer.parts if buffer is not None else []
        self.count(len(children), len(children) * num_bytes)
        self.exchange([Buffer(parts, children)], [], device)
        return came

    def close(self) -> None:
        """Release all resources once everything sent has arrived."""
        if self.limiter is not None:
            self.limiter.close()

    def count(self, num_messages: int, num_bytes: int) -> None:
        """Count messages of this process and their total bytes."""
        self.wire_messages += num_messages
        self.wire_bytes += num_bytes
