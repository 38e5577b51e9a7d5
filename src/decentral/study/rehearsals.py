"""Rehearsals of jobs, one after the other within half a minute, each in a process of its own; remembered for the next
time, beside prepared data."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

import decentral
from decentral.data.cache import cache_folder
from decentral.host.devices import num_cores
from decentral.jobs.rehearsal import Rehearsal, rehearse_main
from decentral.runtime.supervise import prepare_server, start
from decentral.scheduling.job import Job
from decentral.store.files import read_json, write_json
from decentral.store.provenance import processor

ALL_S = 30.0
"""That all rehearsals together may take."""
_EACH_S = 5.0
_LEAST_S = 1.0
_GRACE_S = 3.0  # for an evaluation
_START_S = 60.0  # until there is a process with PyTorch and the data, on a slow disk
_REMEMBERED = 500
_EDITION = 2  # raised when rehearsals measure otherwise: what is remembered of the one before is no use then


class Rehearsed(NamedTuple):
    """What was seen of a job, or why nothing was."""

    seen: Rehearsal | None
    why: str = ""


def rehearsed(jobs: Mapping[str, Job], measures: bool, tell: Callable[[str], None]) -> dict[str, Rehearsed]:
    """What is remembered of the jobs, and, if it `measures`, what is seen of the others, until the time is over.

    What is rehearsed is spread evenly over the jobs where there is no time for all.
    """
    memory = _Memory()
    found = {key: Rehearsed(seen) for key in jobs if (seen := memory.find(key)) is not None}
    waiting = [key for key in jobs if key not in found]
    if not measures or not waiting:
        return found
    prepare_server()
    tell(f"Measuring {_number(len(waiting))}, for at most {ALL_S:.0f} s; --plan=quick leaves this out.")
    stride = max(1, math.ceil(len(waiting) * _LEAST_S / ALL_S))
    left_s = ALL_S
    chosen = waiting[::stride]
    for number, key in enumerate(chosen):
        limit_s = min(_EACH_S, max(_LEAST_S, left_s / (len(chosen) - number)))
        if left_s < _LEAST_S:
            break
        tell(f"  {number + 1} of {len(chosen)}: {jobs[key].title}")
        found[key], spent_s = _rehearsal(jobs[key], limit_s)
        left_s -= spent_s
        if (seen := found[key].seen) is not None:
            memory.keep(key, seen)
    memory.write()
    return found


def _number(count: int) -> str:
    return "1 configuration" if count == 1 else f"{count} configurations"


def _rehearsal(job: Job, limit_s: float) -> tuple[Rehearsed, float]:
    """In a new process, which is killed when its time is over: what it saw by then counts; and how long it took."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=rehearse_main, args=(job, limit_s, theirs, dict(os.environ)), daemon=False)
    start(process)
    theirs.close()
    seen, why = None, f"it did not begin within {_START_S:.0f} s"
    began = time.monotonic()
    end = began + _START_S
    try:
        while ours.poll(max(0.0, end - time.monotonic())):
            kind, content = ours.recv()
            if kind == "begun":
                began = time.monotonic()
                end, why = began + limit_s + _GRACE_S, f"{limit_s:.0f} s are too short for a part of it"
            elif kind == "seen":
                seen = content
            else:
                why = content
                break
    except EOFError:
        why = "the process that measured it died"
    finally:
        _kill(process, ours)
    return Rehearsed(seen, "" if seen else why), time.monotonic() - began


def _kill(process: ForkServerProcess, pipe: Connection) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.join()
    pipe.close()


class _Memory:
    """A small file beside the prepared data: what was seen on this machine with these versions."""

    def __init__(self) -> None:
        self.path: Path = cache_folder() / "rehearsals.json"
        known = (read_json(self.path) if self.path.is_file() else None) or {}
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        here = [decentral.__version__, importlib.metadata.version("torch"), processor(), num_cores()]
        self._here = json.dumps([*here, _EDITION, Rehearsal._fields])

    def find(self, key: str) -> Rehearsal | None:
        values = self._known.get(self._digest(key))
        if not isinstance(values, dict) or values.keys() != set(Rehearsal._fields):
            return None
        if not all(isinstance(value, int | float) and 0 <= value < math.inf for value in values.values()):
            return None
        return Rehearsal(**values)

    def keep(self, key: str, seen: Rehearsal) -> None:
        self._known[self._digest(key)] = seen._asdict()

    def write(self) -> None:
        newest = dict(list(self._known.items())[-_REMEMBERED:])
        with contextlib.suppress(OSError):  # a cache that cannot be written
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, newest)

    def _digest(self, key: str) -> str:
        return hashlib.sha256(f"{self._here} {key}".encode()).hexdigest()[:16]
