"""An operation that was begun and is not yet waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.profiler import record_function

from decentral.errors import ConfigError
from decentral.peers.wording import hinted


class Work(Protocol):
    """What torch.distributed gives for an operation under way, as far as it is needed here."""

    def wait(self) -> Any:
        """Until it is finished; on a GPU: until the current stream may use its result."""

    def is_completed(self) -> bool:
        """Whether it is finished."""


class Silent:
    """A message over gloo: it does not say whether it has arrived until somebody has waited for it."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._arrived = False

    def wait(self) -> None:
        """Until it has arrived, or gone; a second time at once."""
        if not self._arrived:
            self._work.wait()
            self._arrived = True

    def is_completed(self) -> bool:
        """Whether somebody has waited for it."""
        return self._arrived


class Handle:
    """A verb under way: `wait()` gives its result, `done()` says whether the messages have arrived.

    Until `wait()` has returned, the tensors that were given must not be changed (they are sent from where they lie) and
    the result does not exist. What takes several phases (hierarchical verbs) has the first one under way; the others
    follow in `wait()`. Handles may be waited for in any order, but that of a verb with several phases at the same place
    among the calls of all ranks.
    """

    def __init__(self, verb: str, works: Sequence[Work] | None, finish: Callable[[], Any]) -> None:
        """`works` are to be waited for before `finish` makes the result; None: it waits itself."""
        self.verb = verb
        self._works = works
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None
        self._arrival: _Arrival | None = None

    def wait(self) -> Any:
        """The result, when all messages have come and those sent have gone; the same one when asked again."""
        if self._finish is not None:
            with torch.no_grad(), record_function(f"decentral.{self.verb}.wait"), hinted():
                if self._arrival is not None:
                    self._arrival.wait()
                for work in self._works or ():
                    work.wait()
            with torch.no_grad(), record_function(f"decentral.{self.verb}.finish"), hinted():
                self._result = self._finish()
            self._finish, self._works = None, None
        return self._result

    def done(self) -> bool:
        """Whether `wait()` would find all messages arrived and sent; never blocks.

        gloo does not say whether a message has arrived until somebody waits for it. So the first question starts a
        thread that does; nothing is spent on handles that are never asked.

        Raises:
            ConfigError: it is a round of the schedule, of which nobody knows before `wait()`.
        """
        if self._finish is None:
            return True
        if self._works is None:
            raise ConfigError(
                f"done() cannot be asked of {self.verb} by a round of the schedule, only of calls with weights: use "
                "wait(), which returns at once if the messages are there."
            )
        if self._arrival is None:
            pending = [work for work in self._works if not work.is_completed()]
            silent = [work for work in pending if isinstance(work, Silent)]
            if len(silent) < len(pending) or not pending:
                return not pending
            self._arrival = _Arrival(silent)
        return self._arrival.happened()


class _Arrival:
    """Waits for works in a thread of its own."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="decentral handle", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for work in self._works:
                work.wait()
        except BaseException as error:  # raised again by whoever waits for the handle
            self._error = error

    def happened(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
