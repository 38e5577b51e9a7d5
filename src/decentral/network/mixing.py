"""Rows on their way through the exchanges of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from decentral.topology.delivery import Exchange

Begin = Callable[[Tensor, Exchange], Callable[[], object]]
"""Begins to mix rows in place; what it returns, when called, ends it."""


class Mixing:
    """Rows that are being mixed, from `Network.begin_mix`."""

    def __init__(self, begin: Begin, x: Tensor, exchanges: Sequence[Exchange], halve: bool) -> None:
        """The exchanges of a round, one after the other; `halve`: (x + the result) / 2 instead of the result."""
        self._begin, self._x, self._later = begin, x, list(exchanges[1:])
        self._own = x.clone() if halve else None
        self._finish = begin(x, exchanges[0]) if exchanges else None

    def wait(self) -> Tensor:
        """The mixed rows, in the memory of x. To be called once."""
        if self._finish is not None:
            self._finish()
        for later in self._later:
            self._begin(self._x, later)()
        return self._x if self._own is None else self._x.add_(self._own).mul_(0.5)
