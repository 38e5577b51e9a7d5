"""How a script ends that a rank has broken off: in a sentence that says why."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

import decentral
from decentral.errors import ConfigError
from decentral.host.torchrun import place, under_torchrun
from decentral.network import presence
from decentral.registry import blame
from decentral.script.handle import is_hinted

_PACKAGE = Path(decentral.__file__).resolve().parent
_STORE_S = 2.0  # that a rank waits for torchrun, to hear whether another has spoken


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
        ours = isinstance(error, ConfigError) or is_hinted(error) or _is_refusal(error)
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


def _is_refusal(error: BaseException) -> bool:
    """Whether the package itself says that a call came at the wrong time, say after `close`."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, RuntimeError) and Path(frames[-1].filename).resolve().is_relative_to(_PACKAGE)


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
