"""What is free on this machine: CPU slots, and GPUs with the memory that their runs take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from decentral.errors import ConfigError
from decentral.runtime.devices import kind_of
from decentral.scheduling.job import Demand

_UNSEEN_S = 20.0  # after so long a run has taken the memory that it takes
_MARGIN = 1.1  # of what the largest run took
_READING_S = 1.0  # how long what the driver said counts


class Seat(NamedTuple):
    """Where a job runs."""

    processes: int
    gpus: tuple[str, ...] = ()
    """One for each process, as CUDA_VISIBLE_DEVICES names them; none for a job on the CPU."""
    alone: bool = False
    """Whether nothing else may start meanwhile."""

    def __str__(self) -> str:
        if self.gpus:
            return " ".join(f"cuda:{gpu}" for gpu in self.gpus)
        return f"{self.processes} cores" if self.processes > 1 else "cpu"


@dataclass
class Resident:
    """A run on a GPU."""

    since: float
    seen: bool = False
    """Whether it has done a step, so that the driver's numbers include all that it takes."""


@dataclass
class Gpu:
    """One GPU and the runs of this launcher on it."""

    name: str
    residents: list[Resident] = field(default_factory=list)
    empty_bytes: int | None = None
    """Free when the first of the residents came; None if the driver does not tell."""


class Slots:
    """Who may start. A process takes one CPU slot, and on GPUs a place on one of them as well.

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
        self.gpus = [Gpu(name) for name in gpus]
        self.runs_per_gpu = runs_per_gpu
        self._free_bytes, self._clock = free_bytes, clock
        self._reading: tuple[float, dict[str, int]] = (-_READING_S, {})
        self._used = 0
        self._alone = False
        self._largest_bytes = 0

    def seat(self, demand: Demand, waiting: int) -> Seat | None:
        """Where a job can run now; None if it has to wait. It takes nothing yet: see `take`.

        Of a job that leaves the number of processes open, the slots (or GPUs) are shared out between `waiting` jobs.
        Raises ConfigError for a job that needs GPUs which are not there, so that it would wait for ever.
        """
        kind = kind_of(demand.device, len(self.gpus))
        allowed = self._allowed(demand) if kind == "cuda" else []
        if self._alone or (demand.alone and self._used):
            return None
        if kind == "cpu":
            free = self.count - self._used
            processes = demand.processes or max(1, min(free, self.count // max(1, waiting)))
            return Seat(processes, alone=demand.alone) if processes <= free or not self._used else None
        processes = demand.processes or max(1, len(self.gpus) // max(1, waiting))
        if self._used and processes > self.count - self._used:
            return None
        fitting = [gpu for gpu in self._by_room() if gpu in allowed and self._fits(gpu)]
        if demand.processes is None:
            processes = max(1, min(processes, len(fitting)))
        gpus = tuple(gpu.name for gpu in fitting[:processes])
        return Seat(processes, gpus, demand.alone) if len(fitting) >= processes else None

    def take(self, seat: Seat) -> list[Resident]:
        """Occupy it; give what this returns back to `free`."""
        self._used += seat.processes
        self._alone = seat.alone
        residents = []
        for gpu in self.gpus:
            if gpu.name in seat.gpus:
                if not gpu.residents:
                    gpu.empty_bytes = self._free(gpu, fresh=True)
                residents.append(Resident(self._clock()))
                gpu.residents.append(residents[-1])
        return residents

    def free(self, seat: Seat, residents: Sequence[Resident]) -> None:
        """The job that was there has ended."""
        self._used -= seat.processes
        self._alone = False
        for gpu in self.gpus:
            self._measure(gpu)
            gpu.residents = [one for one in gpu.residents if not any(one is gone for gone in residents)]
        self._reading = (-_READING_S, {})

    def _allowed(self, demand: Demand) -> list[Gpu]:
        """The GPUs that a job may use. Raises ConfigError if it has more processes than these."""
        certain = demand.device.partition(":")[2]
        allowed = self.gpus[int(certain) : int(certain) + 1] if certain else self.gpus
        needed = demand.processes or 1
        if needed > len(allowed):
            raise ConfigError(
                f"processes={needed} with device={demand.device} needs {needed} GPUs, here is {len(allowed)}: every "
                "process needs one of its own; use fewer processes, or device=cpu."
            )
        return allowed

    def _by_room(self) -> list[Gpu]:
        """The GPUs, those with the fewest runs and the most memory first."""
        return sorted(self.gpus, key=lambda gpu: (len(gpu.residents), -(self._free(gpu) or 0)))

    def _fits(self, gpu: Gpu) -> bool:
        if not gpu.residents:
            return True
        if self.runs_per_gpu is not None:
            return len(gpu.residents) < self.runs_per_gpu
        self._measure(gpu)
        needed = int(_MARGIN * self._largest_bytes)
        free = self._free(gpu)
        if not needed or free is None:
            return False
        unseen = sum(not self._settled(one) for one in gpu.residents)
        return free >= needed * (1 + unseen)

    def _measure(self, gpu: Gpu) -> None:
        """Learn how much a run takes, from a GPU on which all have taken what they take."""
        if not gpu.residents or gpu.empty_bytes is None or not all(map(self._settled, gpu.residents)):
            return
        free = self._free(gpu)
        if free is not None:
            self._largest_bytes = max(self._largest_bytes, (gpu.empty_bytes - free) // len(gpu.residents))

    def _settled(self, one: Resident) -> bool:
        return one.seen or self._clock() - one.since >= _UNSEEN_S

    def _free(self, gpu: Gpu, fresh: bool = False) -> int | None:
        read_at, reading = self._reading
        if fresh or self._clock() - read_at >= _READING_S:
            reading = self._free_bytes()
            self._reading = (self._clock(), reading)
        return reading.get(gpu.name)
