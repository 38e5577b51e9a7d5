"""Fault injection, to test that a run survives.

The environment variable DECENTRAL_FAULTS holds a JSON list such as

    [{"rank": 1, "step": 40, "kind": "kill"}, {"rank": 0, "step": 60, "kind": "disk_full"}]

Each fault happens once per run directory, before the given step (or the first one after it) on the process with that
rank; a fault listed twice happens in two attempts. Without the variable there is no injector and no overhead.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch

from decentral.errors import ConfigError

VARIABLE = "DECENTRAL_FAULTS"


class Fault(NamedTuple):
    """A fault before a step on a process; the file `mark` records that it has happened."""

    rank: int
    step: int
    kind: str
    mark: Path


class Injected(RuntimeError):
    """An injected bug."""


class Injector:
    """The pending faults of one process."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.step)

    def at(self, step: int) -> None:
        """Trigger a fault due before this step, one per call."""
        if self._faults and step >= self._faults[0].step:
            fault = self._faults.pop(0)
            fault.mark.touch(exist_ok=False)
            KINDS[fault.kind]()


def injector(rank: int, directory: Path) -> Injector | None:
    """Return the injector of process `rank` of the run in `directory`; None unless DECENTRAL_FAULTS has a fault for it.

    Raises ConfigError if the variable is invalid.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        faults = [
            Fault(int(one["rank"]), int(one["step"]), str(one["kind"]), directory / f".fault{number}")
            for number, one in enumerate(json.loads(text))
        ]
    except (ValueError, KeyError, TypeError):
        faults = []
    if not faults or any(fault.kind not in KINDS for fault in faults):
        raise ConfigError(
            f'{VARIABLE}={text} is not a list of faults: write [{{"rank": 1, "step": 40, "kind": "kill"}}], '
            f"with one of the kinds {', '.join(KINDS)}."
        )
    own = [fault for fault in faults if fault.rank == rank and not fault.mark.exists()]
    return Injector(own) if own else None


def _raise(error: Exception) -> NoReturn:
    raise error


KINDS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": lambda: _raise(Injected("a bug that was asked for")),
    "oom": lambda: _raise(torch.OutOfMemoryError("CUDA out of memory (asked for)")),
    "disk_full": lambda: _raise(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    "exit": lambda: os._exit(3),
}
"""The kinds of faults."""
