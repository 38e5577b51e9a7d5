"""What is sent between workers, and what arrives."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from decentral.network.asynchronous.buffers import Buffers


class Letter:
    """From worker `source` to worker `destination`, about `number`; with `rows` [P], flat, or without."""

    __slots__ = ("_release", "destination", "kind", "number", "rows", "source")

    def __init__(
        self,
        source: int,
        destination: int,
        kind: int,
        number: int,
        rows: Tensor | None,
        release: Callable[[], object] | None = None,
    ) -> None:
        self.source, self.destination, self.kind, self.number = source, destination, kind, number
        self.rows, self._release = rows, release

    def release(self) -> None:
        """The rows are not needed any more: their memory is used again. Without this call they stay as they are."""
        release, self._release, self.rows = self._release, None, None
        if release is not None:
            release()


class Draft:
    """Rows [P] of a letter to be, to be written in `rows`, which do not change after it has been sent."""

    def __init__(self, buffers: Buffers, like: Tensor) -> None:
        self.buffers, self.buffer = buffers, buffers.take(like.nbytes)
        self.rows = self.buffer.memory[: like.nbytes].view(like.dtype)

    def release(self) -> None:
        """The sender does not need the rows any more: their memory is used again once the receiver does not, either."""
        self.buffers.give_back(self.buffer)
