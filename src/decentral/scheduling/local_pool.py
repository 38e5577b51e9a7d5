"""Parallel jobs on this machine, each in its own process group; bookkeeping of CPU slots, and of GPUs with their runs'
memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

from decentral.errors import ConfigError
from decentral.host import machine
from decentral.host.processes import NO_STATUS, signal_of
from decentral.runtime.devices import kind_of
from decentral.runtime.supervise import prepare_server, start
from decentral.scheduling.attempt import attempt_main
from decentral.scheduling.job import Demand, Ended, Job, Pool, Seen, ended_without_report
from decentral.store import Status
from decentral.store.failures import Failure
from decentral.terminal.progress import ADDRESS

_EXIT_S = 5.0  # for a process that has reported how its job ended
_UNSEEN_S = 20.0  # after this time a run has allocated its memory
_MARGIN = 1.1  # factor on the memory of the largest run
_READING_S = 1.0  # validity of the driver's reading


class Seat(NamedTuple):
    """The resources assigned to a job."""

    processes: int
    gpus: tuple[str, ...] = ()
    """One for each process, as CUDA_VISIBLE_DEVICES names them; none for a job on the CPU."""
    alone: bool = False
    """True if nothing else may start meanwhile."""

    def __str__(self) -> str:
        if self.gpus:
            return " ".join(f"cuda:{gpu}" for gpu in self.gpus)
        return f"{self.processes} cores" if self.processes > 1 else "cpu"


@dataclass(eq=False)
class Taken:
    """A seat with a run."""

    seat: Seat
    since: float
    seen: bool = False
    """True once the run has done a step, so that the driver's numbers include all its memory."""


class Slots:
    """Slots of cores and GPUs. A process takes one CPU slot, and on GPUs a place on one of them as well.

    `runs_per_gpu` None lets as many runs share a GPU as its memory has room for, by `free_bytes()`: the next one starts
    when what the others take has been seen, and there is room for another as large as the largest so far.
    """

    def __init__(
        self,
        count: int,
        gpus: Sequence[str] = (),
        runs_per_gpu: int | None = None,
        free_bytes: Callable[[], dict[str, int]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = count
        self.gpus = list(gpus)
        self.runs_per_gpu = runs_per_gpu
        self._free_bytes, self._clock = free_bytes, clock
        self._taken: list[Taken] = []
        self._empty: dict[str, int] = {}  # bytes that were free when the first of the runs on a GPU came
        self._largest_bytes = 0  # that a run took on a GPU
        self._free: dict[str, int] = {}
        self._read_at = float("-inf")

    def seat(self, demand: Demand, waiting: int) -> Seat | None:
        """Return the resources on which a job can run now; None if it must wait. Does not take them yet: see `take`.

        For a job with an open number of processes, the slots (or GPUs) are divided between `waiting` jobs. Raises
        ConfigError for a job that needs missing GPUs, since it would wait forever.
        """
        kind = kind_of(demand.device, len(self.gpus))
        allowed = self._allowed(demand) if kind == "cuda" else []
        used = sum(one.seat.processes for one in self._taken)
        if any(one.seat.alone for one in self._taken) or (demand.alone and used):
            return None
        if kind == "cpu":
            processes = demand.processes or max(1, min(self.count - used, self.count // max(1, waiting)))
            return Seat(processes, alone=demand.alone) if processes <= self.count - used or not used else None
        processes = demand.processes or max(1, len(self.gpus) // max(1, waiting))
        if used and processes > self.count - used:
            return None
        self._read()
        by_room = sorted(allowed, key=lambda gpu: (len(self._runs(gpu)), -self._free.get(gpu, 0)))
        fitting = [gpu for gpu in by_room if self._fits(gpu)]
        if demand.processes is None:
            processes = max(1, min(processes, len(fitting)))
        return Seat(processes, tuple(fitting[:processes]), demand.alone) if len(fitting) >= processes else None

    def take(self, seat: Seat) -> Taken:
        """Occupy the seat; give the returned object back to `free`."""
        self._read(anew=True)
        for gpu in seat.gpus:
            if not self._runs(gpu):
                self._empty[gpu] = self._free.get(gpu, 0)
        self._taken.append(Taken(seat, self._clock()))
        return self._taken[-1]

    def free(self, taken: Taken) -> None:
        """Release the seat of a job that has ended."""
        self._measure(taken.seat.gpus)
        self._taken.remove(taken)
        self._read_at = float("-inf")

    def _allowed(self, demand: Demand) -> list[str]:
        """Return the GPUs that a job may use. Raises ConfigError if it has more processes than these."""
        certain = demand.device.partition(":")[2]
        allowed = self.gpus[int(certain) : int(certain) + 1] if certain else self.gpus
        needed = demand.processes or 1
        if needed > len(allowed):
            raise ConfigError(
                f"processes={needed} with device={demand.device} needs {needed} GPUs, one per process, but "
                f"{len(allowed)} can be used here: use fewer processes, or device=cpu."
            )
        return allowed

    def _runs(self, gpu: str) -> list[Taken]:
        return [one for one in self._taken if gpu in one.seat.gpus]

    def _fits(self, gpu: str) -> bool:
        runs = self._runs(gpu)
        if not runs:
            return True
        if self.runs_per_gpu is not None:
            return len(runs) < self.runs_per_gpu
        self._measure([gpu])
        settled = all(map(self._is_settled, runs))
        return settled and 0 < _MARGIN * self._largest_bytes <= self._free.get(gpu, 0)

    def _is_settled(self, one: Taken) -> bool:
        return one.seen or self._clock() - one.since >= _UNSEEN_S

    def _measure(self, gpus: Iterable[str]) -> None:
        """Learn how much a run takes, from GPUs on which all have taken what they take."""
        for gpu in gpus:
            runs = self._runs(gpu)
            if gpu in self._free and all(map(self._is_settled, runs)):
                self._largest_bytes = max(self._largest_bytes, (self._empty[gpu] - self._free[gpu]) // len(runs))

    def _read(self, anew: bool = False) -> None:
        """Read the free resources from the driver, unless just done."""
        if anew or self._clock() - self._read_at >= _READING_S:
            self._free, self._read_at = self._free_bytes(), self._clock()


@dataclass
class _Running:
    job: Job
    taken: Taken
    process: ForkServerProcess
    pipe: Connection
    report: Ended | None = None
    kill_at: float | None = None
    interrupted: bool = False
    fraction: float | None = None
    text: str = ""


class LocalPool(Pool):
    """Starts its processes from one server that has imported what takes long: a fifth of a second instead of three."""

    shares_devices = True

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._waiting = 1
        self._running: dict[int, _Running] = {}
        self._number = 0
        self._folder = Path(tempfile.mkdtemp(prefix="decentral-"))  # has a file for the progress of each job

    def expect(self, jobs: int) -> None:
        """Divide the cores between this number of jobs."""
        self._waiting = jobs

    def has_room(self, job: Job) -> bool:
        """Return whether there are free slots, and memory on the GPUs."""
        return self._place(job) is not None

    def start(self, job: Job) -> None:
        """Start the job in its own process, forked from the warm server."""
        place = self._place(job)
        assert place is not None, "ask has_room first"
        placed, seat = place
        self._number += 1
        environment = dict(os.environ) | {ADDRESS: str(self._folder / str(self._number))}
        if seat.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(seat.gpus)
        cores = max(seat.processes, seat.processes * machine.num_cores() // self._slots.count)
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=attempt_main, args=(placed, seat.processes, cores, theirs, environment), name=job.title
        )
        prepare_server(*job.modules)
        start(process)
        theirs.close()
        self._running[self._number] = _Running(job, self._slots.take(seat), process, ours)

    def wait(self, timeout_s: float) -> list[Ended]:
        """Return the jobs whose processes have ended, including their groups."""
        if not self._running:
            time.sleep(timeout_s)
            return []
        deadlines = [one.kill_at for one in self._running.values() if one.kill_at is not None]
        until = min([time.monotonic() + timeout_s, *deadlines])
        objects: list[Any] = [one.process.sentinel for one in self._running.values()]
        objects += [one.pipe for one in self._running.values() if one.report is None and not one.pipe.closed]
        wait(objects, max(0.0, until - time.monotonic()))
        self._hear_progress()
        ended = []
        for number, one in list(self._running.items()):
            self._hear_report(one)
            if one.kill_at is not None and time.monotonic() >= one.kill_at:
                _kill_group(one.process)
            if one.process.exitcode is not None:
                ended.append(self._bury(number))
        return ended

    def look(self) -> list[Seen]:
        """Return the progress that the jobs have sent."""
        self._hear_progress()
        return [Seen(one.job, str(one.taken.seat), one.fraction, one.text) for one in self._running.values()]

    def interrupt(self, grace_s: float) -> None:
        """Send SIGTERM to the leaders; after the grace, SIGKILL to their groups."""
        for one in self._running.values():
            one.interrupted = True
            one.kill_at = time.monotonic() + grace_s
            with contextlib.suppress(ProcessLookupError):
                one.process.terminate()

    def close(self) -> None:
        """Send SIGKILL to all groups."""
        for number, one in list(self._running.items()):
            _kill_group(one.process)
            self._bury(number)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _place(self, job: Job) -> tuple[Job, Seat] | None:
        seat = self._slots.seat(job.demand, self._waiting)
        if seat is None:
            return None
        placed = job.placed(seat.processes)
        needed = placed.demand.processes or seat.processes  # it may take fewer than it was offered
        return placed, seat._replace(processes=needed, gpus=seat.gpus[:needed])

    def _bury(self, number: int) -> Ended:
        one = self._running.pop(number)
        one.process.join()
        self._hear_report(one)
        _kill_orphans(one.process)
        one.pipe.close()
        self._slots.free(one.taken)
        if one.report is not None:
            return one.report
        code = one.process.exitcode or 0
        if code == 0 or (code > 0 and code != NO_STATUS):
            return Ended(one.job, Status.failed, Failure.error, f"its process ended with status {code}")
        killer = signal_of(code)
        how = f"was killed by {killer}" if killer else "died"
        return ended_without_report(one.job, f"its process (pid {one.process.pid}) {how}", one.interrupted)

    def _hear_report(self, one: _Running) -> None:
        if one.report is not None or one.pipe.closed:
            return
        with contextlib.suppress(EOFError, OSError):
            if one.pipe.poll():
                one.report = Ended(one.job, *one.pipe.recv())
                one.kill_at = time.monotonic() + _EXIT_S
                return
            return
        one.pipe.close()

    def _hear_progress(self) -> None:
        for number, one in self._running.items():
            with contextlib.suppress(OSError, ValueError):  # it has not said anything yet, or is about to
                fraction, text = (self._folder / str(number)).read_text(encoding="utf-8").split(" ", 1)
                one.fraction, one.text = float(fraction), text
                one.taken.seen = one.taken.seen or one.fraction > 0


def _kill_group(process: ForkServerProcess) -> None:
    """Kill a process and the group that it leads, unless it has ended."""
    if process.exitcode is None:
        assert process.pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # it may not lead its group yet


def _kill_orphans(process: ForkServerProcess) -> None:
    """Kill the rest of the group of an ended process.

    The system does not reuse a process ID while its group has members. So if a process with this ID exists again, the
    old group is gone, and the group of this ID belongs to another process.
    """
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.exitcode != NO_STATUS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, 0)
                return
        os.killpg(process.pid, signal.SIGKILL)
