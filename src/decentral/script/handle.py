"""Operations: call order, handles of operations in flight, and one-sentence errors when a rank fails."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.profiler import record_function

import decentral
from decentral.errors import ConfigError
from decentral.host.torch_state import on_the_same_gpu
from decentral.host.torchrun import place, under_torchrun
from decentral.network import presence
from decentral.network.locks import in_words
from decentral.network.transports.posting import Silent, Work
from decentral.registry import blame
from decentral.runtime.process_group import answers

P = ParamSpec("P")
R = TypeVar("R")

_HINT = (
    "all ranks must call the same operations in the same order, and step() equally often, as with `for batch in "
    "peers.equally(batches):`; decentral.join(..., check=True) compares the next operation of all ranks before "
    "anything is sent"
)


_PACKAGE = Path(decentral.__file__).resolve().parent
_STORE_S = 2.0  # seconds that a rank waits for torchrun to learn whether another rank reported


class Turn:
    """The right to call the operations of an object: one thread of the creating process, until it is closed."""

    def __init__(self, what: str, by_thread: bool) -> None:
        """Guard the operations of `what`. `by_thread`: ranks match calls by order, so one thread must make them."""
        self.over = ""
        """Why no operation is possible any more."""
        self._what = what
        self.process, self._by_thread = os.getpid(), threading.current_thread() if by_thread else None
        self.difference: Callable[[], str] = str
        """Describe which rank makes which call, if they are known to differ; else ""."""
        self._lock = threading.RLock()

    @property
    def forked(self) -> bool:
        """True if this process is a fork of the one with the connections."""
        return os.getpid() != self.process

    def take(self, verb: str) -> None:
        """Begin an operation. Raises RuntimeError for one that would interleave with those of other ranks."""
        if self.over:
            raise RuntimeError(f"{verb} {self.over}")
        refuse_a_fork(self.process, verb)
        here = threading.current_thread()
        if self._by_thread and self._by_thread is not here:
            raise RuntimeError(
                f"{verb} in thread '{here.name}', but {self._what} belongs to thread '{self._by_thread.name}': join "
                "and call all operations in one thread, because ranks match calls by their order"
            )
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"{verb} while another thread uses {self._what}: call its operations in one thread")

    def give_back(self) -> None:
        """End an operation."""
        self._lock.release()


def refuse_a_fork(process: int, what: str) -> None:
    """Raise RuntimeError if this process is a fork of the one with the connections."""
    if os.getpid() != process:
        raise RuntimeError(
            f"{what} in process {os.getpid()}, which was forked from process {process} after decentral.join: only "
            "that process owns the connections; call it there"
        )


def guarded(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method a collective operation of an object with a `turn`, with one-sentence errors."""
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


def verb(method: Callable[P, Handle]) -> Callable[P, Any]:
    """Make a method that begins an operation return its result, or with `async_op=True` the handle."""
    name = f"decentral.{method.__name__}"

    @guarded
    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> Any:
        with torch.no_grad(), record_function(name):
            handle = method(*args, **kwargs)
        return handle if kwargs.get("async_op") else handle.wait()

    return called


@contextmanager
def hinted() -> Iterator[None]:
    """Add a hint to errors of the transport (a rank that is gone or makes another call)."""
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
    """Return whether it is a transport error, which other ranks may have caused."""
    return isinstance(error, presence.Gone) or any(note.startswith(_HINT) for note in getattr(error, "__notes__", []))


class Handle:
    """An operation in flight: `wait()` returns its result, `done()` tells whether the messages have arrived.

    Until `wait()` returns, the input tensors must not change (they are sent in place) and the result does not exist.
    Operations with several phases (hierarchical ones) have only the first in flight; the others run in `wait()`.
    Handles may be waited for in any order, but one with several phases at the same position among the calls of all
    ranks.
    """

    def __init__(self, verb: str, works: Sequence[Work] | None, *finish: Callable[[], Any]) -> None:
        """Create a handle that waits for `works` (None: `finish` waits); the last `finish` returns the result."""
        self.verb = verb
        self._process = os.getpid()
        self._works = works
        self._finish = finish
        self._result: Any = None
        self._arrival: Future[None] | None = None

    def wait(self) -> Any:
        """Wait for all messages and return the result; later calls return the same object."""
        if self._finish:
            refuse_a_fork(self._process, f"wait() for {self.verb}")
            with torch.no_grad(), record_function(f"decentral.{self.verb}.wait"), hinted():
                if self._arrival is not None:
                    self._arrival.result()
                for work in self._works or ():
                    work.wait()
            with torch.no_grad(), record_function(f"decentral.{self.verb}.finish"), hinted():
                for each in self._finish:
                    self._result = each()
            self._finish, self._works = (), None
        return self._result

    def done(self) -> bool:
        """Return whether `wait()` would not block; never blocks.

        gloo reports the arrival of a message only after a wait. So the first call starts a thread that waits; handles
        without a call cost nothing.

        Raises:
            ConfigError: it is a round of the schedule, whose state is unknown before `wait()`.
        """
        if not self._finish:
            return True
        if self._works is None:
            raise ConfigError(
                f"done() is only available for calls with weights, not for {self.verb} by a round of the schedule: "
                "use wait(), which returns at once if the messages have arrived."
            )
        if self._arrival is None:
            pending = [work for work in self._works if not work.is_completed()]
            silent = [work for work in pending if isinstance(work, Silent)]
            if len(silent) < len(pending) or not pending:
                return not pending
            self._arrival = _arrival(silent)
        return self._arrival.done()


def _arrival(works: Sequence[Work]) -> Future[None]:
    """Wait for works in a separate thread."""
    arrival: Future[None] = Future()

    def run() -> None:
        try:
            for work in works:
                work.wait()
            arrival.set_result(None)
        except BaseException as error:  # re-raised when the handle is waited for
            arrival.set_exception(error)

    threading.Thread(target=on_the_same_gpu(run), name="decentral handle", daemon=True).start()
    return arrival


# -- the end of a script ----------------------------------------------------------------------------------------------


def end_in_a_sentence() -> None:
    """End scripts with one sentence for errors of this library and for failures of other ranks.

    A failing rank takes its neighbors down, each with its own traceback through code that is not the user's. Instead,
    the first of them reports what happened, and in which line of the script; if a rank died, all of them do. The exit
    status is 1 on all of them. DECENTRAL_TRACEBACK=1 restores tracebacks. Other exceptions are unchanged.
    """
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook()


class _Hook:
    """The excepthook, called with an uncaught exception."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        ours = isinstance(error, ConfigError) or is_hinted(error)
        if isinstance(error, RuntimeError):  # raised by the package for a call at the wrong time
            ours |= Path(traceback.extract_tb(trace)[-1].filename).resolve().is_relative_to(_PACKAGE)
        if not ours or os.environ.get("DECENTRAL_TRACEBACK"):
            self._before(kind, error, trace)
        elif isinstance(error, presence.Gone) or _is_first():
            print(f"decentral: {sentence(error)}", file=sys.stderr, flush=True)


def leave_at_the_end(rank: int) -> None:
    """Leave the group when this process ends; if another rank has died, with an error sentence and status 1.

    The other ranks notice a rank that ends with an exception.
    """
    Finalize(None, _leave, (rank,), exitpriority=-1)  # also runs in multiprocessing children; late in both


def _leave(rank: int) -> None:
    error = sys.exception() or getattr(sys, "last_value", None)
    properly = error is None or (isinstance(error, SystemExit) and not error.code)
    try:
        if properly:
            presence.look(now=True)
    except presence.Gone as gone:
        script = getattr(sys.modules["__main__"], "__file__", "")
        print(f"decentral: rank {rank}, at the end of {script or 'the script'}: {gone}.", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)
    presence.leave(properly)


def sentence(error: BaseException) -> str:
    """Describe where a rank failed, why, and what to do."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if blame.is_own(frame.filename)]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    rank = f"rank {dist.get_rank()}" if dist.is_initialized() else f"rank {place().rank}" if under_torchrun() else ""
    told = [", ".join(word for word in (rank, where) if word), str(error), *getattr(error, "__notes__", [])]
    text = " ".join(": ".join(part.rstrip(".: ") for part in told if part).split())
    return text if text.endswith("?") else f"{text}."


def _is_first() -> bool:
    """Return whether this rank reports first in this attempt, by torchrun's counter; without a counter, all report."""
    if not under_torchrun():
        return True
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if not answers(address, port):
            return True
        with quiet():
            store = dist.TCPStore(
                address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_STORE_S)
            )
            return bool(store.add(f"decentral ended {place().attempt}", 1) == 1)
    except (KeyError, ValueError, RuntimeError, OSError):
        return True


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress torch's long native output about a store whose process is gone."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
