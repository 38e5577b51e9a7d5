"""The contract of a transport: rows and messages that cross between processes, in rounds that all take part in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor


class Row(NamedTuple):
    """A piece of the row of worker `worker` on its way to, or from, process `peer`. Both ends number rows alike."""

    worker: int
    piece: int
    peer: int
    tag: int


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


class Shared(ABC):
    """Rows on their way."""

    @abstractmethod
    def rows(self) -> list[Tensor]:
        """Wait for those that come [..., P'], in the order of `receives`; readable until `release`."""

    @abstractmethod
    def release(self) -> None:
        """They are not needed any more, and the rows that were sent may change."""


class Transport(ABC):
    """Every process calls the same methods in the same order. `wire_bytes` and `wire_messages` count what it sends."""

    name: ClassVar[str]
    """For the records: what `network.transport` calls it."""

    def __init__(self) -> None:
        self.wire_bytes = 0
        self.wire_messages = 0

    @property
    @abstractmethod
    def waited_s(self) -> float:
        """How long this process has had nothing to do but to wait for others, and for what they sent to arrive."""

    @abstractmethod
    def share(self, x: Tensor, pieces: Sequence[slice], sends: Sequence[Row], receives: Sequence[Row]) -> Shared:
        """Send pieces of the local rows x [k, ..., P], which must not change until `Shared.release`.

        Does not wait for those who receive. Several may be on their way, which all processes begin in the same order.
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

    def close(self) -> None:
        """Release what is held."""
        return None

    def _count(self, row: Tensor) -> None:
        self.wire_bytes += row.numel() * row.element_size()
        self.wire_messages += 1
