"""An operation that was begun and is not yet waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import record_function

from decentral.errors import ConfigError
from decentral.host.threads import on_the_same_gpu
from decentral.network.transports.posting import Silent, Work

_HINT = (
    "every rank has to call the same verbs in the same order, and step() equally often, which "
    "`for batch in peers.equally(batches):` sees to; "
    "decentral.join(..., check=True) compares what all ranks are about to do before anything is sent"
)


@contextmanager
def hinted() -> Iterator[None]:
    """An error of the transport (a rank that is gone, or does something else) gets a note that says what to look at."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        error.add_note(_HINT)
        raise


def is_hinted(error: BaseException) -> bool:
    """Whether it is an error of the transport, of those that the others have their part in."""
    return any(note.startswith(_HINT) for note in getattr(error, "__notes__", []))


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
        self._thread = threading.Thread(target=on_the_same_gpu(self._run), name="decentral handle", daemon=True)
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
