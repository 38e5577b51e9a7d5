"""Jobs side by side on this machine, each in a process group of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any

from decentral.host import devices
from decentral.host.exitcodes import NO_STATUS, signal_of
from decentral.runtime.supervise import prepare_server, start
from decentral.scheduling.attempt import Report, attempt_main
from decentral.scheduling.job import Job
from decentral.scheduling.pool import Ended, Pool, Seen, ended_without_report
from decentral.scheduling.slots import Resident, Seat, Slots
from decentral.store import Status
from decentral.store.failures import Failure
from decentral.terminal.progress import ADDRESS

_EXIT_S = 5.0  # for a process that has reported how its job ended


@dataclass
class _Running:
    job: Job
    seat: Seat
    residents: list[Resident]
    process: ForkServerProcess
    pipe: Connection
    report: Report | None = None
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
        self._folder = tempfile.mkdtemp(prefix="decentral-", dir="/tmp" if os.access("/tmp", os.W_OK) else None)
        self._progress = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._progress.bind(os.path.join(self._folder, "progress"))

    def expect(self, jobs: int) -> None:
        """Cores are shared out between so many."""
        self._waiting = jobs

    def has_room(self, job: Job) -> bool:
        """By the free slots, and by the memory of the GPUs."""
        return self._place(job) is not None

    def start(self, job: Job) -> None:
        """In a process of its own, which is in memory already."""
        place = self._place(job)
        assert place is not None, "ask has_room first"
        placed, seat = place
        self._number += 1
        environment = dict(os.environ) | {ADDRESS: f"{self._progress.getsockname()}:{self._number}"}
        if seat.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(seat.gpus)
        cores = max(seat.processes, seat.processes * devices.num_cores() // self._slots.count)
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=attempt_main, args=(placed, seat.processes, cores, theirs, environment), name=job.title
        )
        prepare_server(*job.modules)
        start(process)
        theirs.close()
        self._running[self._number] = _Running(job, seat, self._slots.take(seat), process, ours)

    def wait(self, timeout_s: float) -> list[Ended]:
        """Those whose processes are gone; nothing of their groups is left."""
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
        """By what the jobs say."""
        self._hear_progress()
        return [Seen(one.job, str(one.seat), one.fraction, one.text) for one in self._running.values()]

    def interrupt(self, grace_s: float) -> None:
        """SIGTERM to the leaders; after the grace SIGKILL to their groups."""
        for one in self._running.values():
            one.interrupted = True
            one.kill_at = time.monotonic() + grace_s
            with contextlib.suppress(ProcessLookupError):
                one.process.terminate()

    def close(self) -> None:
        """SIGKILL to all groups."""
        for number, one in list(self._running.items()):
            _kill_group(one.process)
            self._bury(number)
        self._progress.close()
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
        self._slots.free(one.seat, one.residents)
        if one.report is not None:
            return one.report.of(one.job)
        return _silent_end(one)

    def _hear_report(self, one: _Running) -> None:
        if one.report is not None or one.pipe.closed:
            return
        with contextlib.suppress(EOFError, OSError):
            if one.pipe.poll():
                one.report = one.pipe.recv()
                one.kill_at = time.monotonic() + _EXIT_S
                return
            return
        one.pipe.close()

    def _hear_progress(self) -> None:
        while True:
            try:
                number, fraction, text = self._progress.recv(4096).decode().split(" ", 2)
            except OSError:
                return
            one = self._running.get(int(number))
            if one is not None:
                one.fraction, one.text = float(fraction), text
                for resident in one.residents:
                    resident.seen = resident.seen or one.fraction > 0


def _silent_end(one: _Running) -> Ended:
    """A process that ended without a report."""
    code = one.process.exitcode or 0
    if code == 0 or (code > 0 and code != NO_STATUS):
        return Ended(one.job, Status.failed, Failure.error, f"its process ended with status {code}")
    killer = signal_of(code)
    how = f"was killed by {killer}" if killer else "died"
    return ended_without_report(one.job, f"its process (pid {one.process.pid}) {how}", one.interrupted)


def _kill_group(process: ForkServerProcess) -> None:
    """A process and the group that it leads, unless it has ended."""
    if process.exitcode is None:
        assert process.pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # it may not lead its group yet


def _kill_orphans(process: ForkServerProcess) -> None:
    """What is left of the group of a process that has ended.

    The system gives a process's number to nobody else while its group has members. So if there is a process of that
    number again, nothing is left of the group, and the group of that number is a stranger's.
    """
    assert process.pid is not None
    if process.exitcode != NO_STATUS and _exists(process.pid):
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
