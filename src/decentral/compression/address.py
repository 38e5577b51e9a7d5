"""Where what is random in a message comes from."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    """Whose row is encoded, in which step, as so manieth message in it: what is random in it depends on this and on the
    seed alone."""

    worker: int
    step: int
    message: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """What can be at hand at once in a step: worker and message."""
        return self.worker, self.message
