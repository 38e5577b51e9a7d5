"""Verbs: whose turn it is, what is under way, and how a script ends that a rank has broken off: in a sentence that says
why."""

from __future__ import annotations

import os
import socket
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
from decentral.network.transports.posting import Silent, Work
from decentral.network.windows.locks import in_words
from decentral.registry import blame

P = ParamSpec("P")
R = TypeVar("R")

_HINT = (
    "all ranks must call the same operations in the same order, and step() equally often, as with `for batch in "
    "peers.equally(batches):`; decentral.join(..., check=True) compares the next operation of all ranks before "
    "anything is sent"
)


_PACKAGE = Path(decentral.__file__).resolve().parent
_STORE_S = 2.0  # that a rank waits for torchrun, to hear whether another has spoken


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
        here = threading.current_thread()
        if self._by_thread and self._by_thread is not here:
            raise RuntimeError(
                f"{verb} in thread '{here.name}', but {self._what} belongs to thread '{self._by_thread.name}': join "
                "and call all operations in one thread, because ranks match calls by their order"
            )
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"{verb} while another thread uses {self._what}: call its operations in one thread")
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
            f"{what} in process {os.getpid()}, which was forked from process {process} after decentral.join: only "
            "that process owns the connections; call it there"
        )


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


def verb(method: Callable[P, Handle]) -> Callable[P, Any]:
    """A guarded method that begins a message; callers get its result, or with `async_op=True` the handle."""
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

    def __init__(self, verb: str, works: Sequence[Work] | None, *finish: Callable[[], Any]) -> None:
        """`works` are to be waited for (None: `finish` waits); the last `finish` to be called has the result."""
        self.verb = verb
        self._process = os.getpid()
        self._works = works
        self._finish = finish
        self._result: Any = None
        self._arrival: Future[None] | None = None

    def wait(self) -> Any:
        """The result, when all messages have come and those sent have gone; the same one when asked again."""
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
        """Whether `wait()` would find all messages arrived and sent; never blocks.

        gloo does not say whether a message has arrived until somebody waits for it. So the first question starts a
        thread that does; nothing is spent on handles that are never asked.

        Raises:
            ConfigError: it is a round of the schedule, of which nobody knows before `wait()`.
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
    """Wait for works in a thread of its own."""
    arrival: Future[None] = Future()

    def run() -> None:
        try:
            for work in works:
                work.wait()
            arrival.set_result(None)
        except BaseException as error:  # raised again by whoever waits for the handle
            arrival.set_exception(error)

    threading.Thread(target=on_the_same_gpu(run), name="decentral handle", daemon=True).start()
    return arrival


# -- the end of a script ----------------------------------------------------------------------------------------------


def end_in_a_sentence() -> None:
    """From now on, what the library refuses and what ranks suffer from each other ends a script with one sentence.

    A rank that waits in vain takes its neighbours with it, and each of them has a traceback of its own, through code
    that is not the user's. Instead, the first of them says what happened, and in which line of the script; where a rank
    has died, all of them do. The exit status is 1 on all of them. DECENTRAL_TRACEBACK=1 brings the tracebacks back. Any
    other exception is as it was.
    """
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook()


class _Hook:
    """What Python calls with an exception that nobody has caught."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        ours = isinstance(error, ConfigError) or is_hinted(error)
        if isinstance(error, RuntimeError):  # the package itself says that a call came at the wrong time
            ours |= Path(traceback.extract_tb(trace)[-1].filename).resolve().is_relative_to(_PACKAGE)
        if not ours or os.environ.get("DECENTRAL_TRACEBACK"):
            self._before(kind, error, trace)
        elif isinstance(error, presence.Gone) or _is_first():
            print(f"decentral: {sentence(error)}", file=sys.stderr, flush=True)


def leave_at_the_end(rank: int) -> None:
    """When this process ends, it leaves the group; if another rank has died by then, with a sentence and status 1.

    That of a rank that is ended by an exception is noticed by the others.
    """
    Finalize(None, _leave, (rank,), exitpriority=-1)  # runs in processes of multiprocessing, too; late in both


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
    """Which rank was where, what it ran into, and what to do about it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if blame.is_own(frame.filename)]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    rank = f"rank {dist.get_rank()}" if dist.is_initialized() else f"rank {place().rank}" if under_torchrun() else ""
    told = [", ".join(word for word in (rank, where) if word), str(error), *getattr(error, "__notes__", [])]
    text = " ".join(": ".join(part.rstrip(".: ") for part in told if part).split())
    return text if text.endswith("?") else f"{text}."


def _is_first() -> bool:
    """Whether no other rank of this attempt has spoken: torchrun counts. Where it is silent, all of them speak."""
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
    """Without what torch writes about a store whose process is gone: pages, and not through Python."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def answers(address: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((address, port), _STORE_S).close()
    except OSError:
        return False
    return True
