"""An operation that was begun and is not yet waited for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.profiler import record_function

from decentral.errors import ConfigError
from decentral.host.threads import on_the_same_gpu
from decentral.network import presence
from decentral.network.transports.posting import Silent, Work
from decentral.network.windows.locks import in_words

P = ParamSpec("P")
R = TypeVar("R")

_HINT = (
    "every rank has to call the same verbs in the same order, and step() equally often, which "
    "`for batch in peers.equally(batches):` sees to; "
    "decentral.join(..., check=True) compares what all ranks are about to do before anything is sent"
)


class Turn:
    """Whose turn it is to call the verbs of an object: one thread of the process that made it, until it is over."""

    def __init__(self, what: str, by_thread: bool) -> None:
        """`what` has the verbs. `by_thread`: ranks pair its calls by their order, which one thread decides."""
        self.over = ""
        """Why no verb can be called any more."""
        self._what = what
        self.process, self._by_thread = os.getpid(), threading.current_thread() if by_thread else None
        self.difference: Callable[[], str] = str
        """Who is at what, if ranks are known to be at different things; else ""."""
        self._lock = threading.RLock()
        self._under_way = ""

    @property
    def forked(self) -> bool:
        """Whether this process is a copy of the one that has the connections."""
        return os.getpid() != self.process

    def take(self, verb: str) -> None:
        """Begin a verb. Raises RuntimeError for one that would come between those of the other ranks."""
        if self.over:
            raise RuntimeError(f"{verb} {self.over}")
        refuse_a_fork(self.process, verb)
        if self._by_thread not in (None, threading.current_thread()):
            raise RuntimeError(
                f"{verb} in {_quoted(threading.current_thread())}, but {self._what} belongs to "
                f"{_quoted(self._by_thread)}: join and call all verbs in one thread, as ranks pair calls by their order"
            )
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"{verb} while another thread uses {self._what}: call its verbs in one thread")
        if self._by_thread and self._under_way:
            self._lock.release()
            raise RuntimeError(f"{verb} inside {self._under_way}: call it when {self._under_way} has returned")
        self._under_way = verb

    def give_back(self) -> None:
        """End a verb."""
        self._under_way = ""
        self._lock.release()


def refuse_a_fork(process: int, what: str) -> None:
    """RuntimeError if this process is not the one that has the connections, but a copy of it."""
    if os.getpid() != process:
        raise RuntimeError(
            f"{what} in process {os.getpid()}, which was forked from process {process} after decentral.join: "
            "the connections belong to that process alone, so call it there"
        )


def _quoted(thread: threading.Thread | None) -> str:
    return f"thread '{thread.name}'" if thread else ""


def guarded(method: Callable[P, R]) -> Callable[P, R]:
    """A verb, of an object with a `turn`: other ranks take part in it, and its errors are sentences."""
    name = method.__name__.lstrip("_")

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        turn: Turn = args[0].turn  # type: ignore[attr-defined]
        turn.take(name)
        try:
            presence.look()
            return method(*args, **kwargs)
        except (RuntimeError, OSError) as error:
            if told := turn.difference():
                raise ConfigError(told) from error
            _raise_with_a_hint(error)
        finally:
            turn.give_back()

    return called


@contextmanager
def hinted() -> Iterator[None]:
    """An error of the transport (a rank that is gone, or does something else) gets a note that says what to look at."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        _raise_with_a_hint(error)


def _raise_with_a_hint(error: Exception) -> NoReturn:
    told = in_words(error)
    if not is_hinted(told):
        of_others = isinstance(told, ConnectionError | TimeoutError | dist.DistError)
        if of_others:
            told = presence.named(told)
        if not is_hinted(told) and (of_others or type(told) is RuntimeError):
            told.add_note(_HINT)
    raise told from (error.__cause__ if told is error else error)


def is_hinted(error: BaseException) -> bool:
    """Whether it is an error of the transport, of those that the others have their part in."""
    return isinstance(error, presence.Gone) or any(note.startswith(_HINT) for note in getattr(error, "__notes__", []))


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
        self._process = os.getpid()
        self._works = works
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None
        self._arrival: _Arrival | None = None

    def wait(self) -> Any:
        """The result, when all messages have come and those sent have gone; the same one when asked again."""
        if self._finish is not None:
            refuse_a_fork(self._process, f"wait() for {self.verb}")
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
