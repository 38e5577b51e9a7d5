"""The contract of a transport: rows and messages that cross between processes, in rounds that all take part in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.transports.posting import Limiter, Limits


def binomial_tree(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """The parent of `rank` (None: it is the root), and its children, those with the most below them first.

    Counted from the root, the parent of p is p without its lowest binary digit that is one.
    """
    place = (rank - root) % size
    lowest = place & -place if place else 1 << (size - 1).bit_length()
    parent = None if not place else (place - lowest + root) % size
    steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1)) if place + (1 << bit) < size]
    return parent, [(place + step + root) % size for step in steps]


CPU = torch.device("cpu")
ALIGNED = 64
"""Buffers begin at multiples of so many bytes."""


def aligned(num_bytes: int) -> int:
    """The next place at which a buffer can begin."""
    return -(-num_bytes // ALIGNED) * ALIGNED


def grown(num_bytes: int) -> int:
    """How much memory to take where so much is needed and sizes keep changing: a power of two, so that it is taken
    seldom, and never more than twice as much."""
    return 1 << max(12, (num_bytes - 1).bit_length())


class CutEdge(NamedTuple):
    """An edge into a local worker from one of `peer`'s, whose message is `width` numbers in row `row` of m.

    The message that goes back is row `back` of the peer's m.
    """

    row: int
    peer: int
    back: int
    width: int
    tag: int  # of the message that comes
    back_tag: int  # of the message that goes


class Buffer(NamedTuple):
    """Bytes on their way to the processes `peers`: those of `parts`, one after the other.

    Parts of wide numbers come first, and where messages are limited the first of `peers` has it first. `number` tells
    the buffers of a process in an exchange from each other.
    """

    parts: Sequence[Tensor]
    peers: Sequence[int]
    number: int = 0

    @property
    def num_bytes(self) -> int:
        """How many there are."""
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
    """A buffer of so many bytes from process `peer`, which numbers it so; `place`, uint8, may take it up at once."""

    peer: int
    num_bytes: int
    number: int = 0
    place: Tensor | None = None


class Underway(ABC):
    """Buffers on their way."""

    @abstractmethod
    def wait(self) -> list[Tensor]:
        """Those that come, uint8 [num_bytes] each, in the order of `expected`; readable until `release`."""

    @abstractmethod
    def release(self) -> None:
        """They are not needed any more, and what was sent may change."""


class Transport(ABC):
    """Every process calls the same methods in the same order. `wire_bytes` and `wire_messages` count what it sends."""

    name: ClassVar[str]
    """For the records: what `network.transport` calls it."""

    limits_totals: ClassVar[bool]
    """Whether `total`, too, is made of messages that can be limited."""

    def __init__(self, limits: Limits | None = None) -> None:
        """`limits` make every message to another process late."""
        self.limiter = Limiter(limits) if limits is not None else None
        self.wire_bytes = 0
        self.wire_messages = 0

    @property
    @abstractmethod
    def waited_s(self) -> float:
        """How long this process has had nothing to do but to wait for others, and for what they sent to arrive."""

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
        """Send buffers, which must not change until `Underway.release`; does not wait for those who receive.

        Several may be on their way, which all processes begin in the same order. `room` is how many bytes, and in how
        many buffers, a process sends at most; `note`, of 24 bits, travels with them and says `what` they are: who is at
        something else hears of it. Not counted.
        """

    @abstractmethod
    def open(self, m: Tensor, edges: Sequence[CutEdge]) -> tuple[Tensor, list[Tensor | None]]:
        """Begin a round of messages: new rows like m for those that will come, and where to write those that go.

        None leaves the place to the caller: anywhere in the memory of m, which is donated, or of what is relayed.
        """

    @abstractmethod
    def deliver(self, edges: Sequence[CutEdge], outgoing: Sequence[Tensor]) -> None:
        """Send the messages, and wait for those that come: after this the rows that `open` gave are complete."""

    @abstractmethod
    def total(self, x: Tensor, factor: float) -> Tensor:
        """x_p <- factor times the sum over processes q of x_q, for one row x [..., P] on each process; in place."""

    @abstractmethod
    def reserve(self, num_bytes: int, num_buffers: int = 1) -> None:
        """From now on no process gives more than that to one `exchange`. All processes say so, and the same."""

    @abstractmethod
    def exchange(
        self,
        buffers: Sequence[Buffer],
        expected: Sequence[Expected],
        device: torch.device = CPU,
        unchanged: bool = False,
    ) -> list[Tensor]:
        """Send buffers, and wait for those that come: uint8 [num_bytes] each, in the order of `expected`.

        They can be read until the next `exchange` or `done`; they may lie in the places that were offered. Not every
        process has to take part in it. Not counted. With `unchanged`, nothing of what is sent changes before it has
        come or `done` has been called, and nobody waits for it here.
        """

    def done(self) -> None:
        """What came in the last `exchange` is not needed any more: said by those who take part in no other soon. What
        was sent `unchanged` may change after this."""

    def tell_of_something_new(self) -> None:
        """Those who wait for this process in another call than this hear of it, if they can; all processes call it."""

    def spread(self, buffer: Buffer | None, root: int, num_bytes: int, device: torch.device = CPU) -> Tensor | None:
        """A buffer of so many bytes from process `root`, which alone has it, to all: uint8 [num_bytes]; None there.

        Along a binomial tree. All processes call this at once, after `reserve`. Counted.
        """
        parent, children = binomial_tree(dist.get_rank(), dist.get_world_size(), root)
        came = None if parent is None else self.exchange([], [Expected(parent, num_bytes)], device)[0].clone()
        parts = [came] if came is not None else buffer.parts if buffer is not None else []
        self.count(len(children), len(children) * num_bytes)
        self.exchange([Buffer(parts, children)], [], device)
        return came

    def close(self) -> None:
        """Release what is held, once everything that was sent has arrived."""
        if self.limiter is not None:
            self.limiter.close()

    def count(self, num_messages: int, num_bytes: int) -> None:
        """This process sends so many messages that have so many bytes together."""
        self.wire_messages += num_messages
        self.wire_bytes += num_bytes
