"""Where the passes of one worker after the other are computed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Lanes:
    """One after the other, where everything is computed."""

    def __call__(self, turn: int) -> AbstractContextManager[object]:
        """A context for the passes of the worker whose turn it is."""
        return nullcontext()

    def join(self) -> None:
        """What follows begins after all of them."""
        return None
