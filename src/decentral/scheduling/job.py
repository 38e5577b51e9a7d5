"""What a scheduler carries out: a piece of work with a directory of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from decentral.registry import plugins
from decentral.store import RunStore, Status


def _unpickled(passport: str, module: str, name: str) -> Any:
    """A job without its fields, in a process that from now on finds components of one's own, which may be in them."""
    plugins.enter(passport)
    cls = getattr(import_module(module), name)
    return cls.__new__(cls)


class Demand(NamedTuple):
    """What a job occupies while it runs."""

    processes: int | None = 1
    """Processes with a core (or a GPU) each; None leaves the choice to the launcher."""

    device: str = "cpu"
    """'cpu', 'cuda', a certain GPU ('cuda:1'), or 'auto': a GPU where there are some."""

    alone: bool = False
    """Whether nothing else may run on the machine meanwhile: it takes times."""


class Job(ABC):
    """A dataclass that can be pickled. Whoever carries it out may be killed at any moment: the next one goes on."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not plugins.passport():
            return super().__reduce_ex__(protocol)
        return _unpickled, (plugins.passport(), type(self).__module__, type(self).__name__), self.__dict__

    command: str = ""
    """What a user types to carry out just this job, if there is such a thing."""

    @property
    @abstractmethod
    def id(self) -> str:
        """12 hexadecimal digits: what is computed, whatever the device and the paths."""

    @property
    @abstractmethod
    def directory(self) -> Path:
        """A run directory (see `decentral.store`): its status.json says how far the job is."""

    @property
    @abstractmethod
    def title(self) -> str:
        """A few words for a line of a table."""

    @property
    def demand(self) -> Demand:
        """What the job occupies."""
        return Demand()

    @property
    def modules(self) -> tuple[str, ...]:
        """What takes long to import: the process from which jobs are started has it in memory."""
        return ("decentral.runtime.worker",)

    def placed(self, processes: int) -> Job:
        """The same job with the number of processes that the launcher has chosen for it, if `demand` left it open."""
        return self

    @abstractmethod
    def carry_out(self) -> Status:
        """Do the work, or what is left of it, in this process, and record it in the directory."""

    def finished(self) -> Status | None:
        """done or diverged, if that is how this very job has ended before. Reads a small file."""
        return RunStore.finished(self.directory, self.id)

    def held(self) -> float:
        """The share of an unfinished job that is stored, from 0 to 1: the next attempt goes on from there. Never
        raises."""
        facts = RunStore.peek(self.directory) or {}
        unfinished = facts.get("run_id") == self.id and facts.get("status") not in (Status.done, Status.diverged)
        return self._stored(facts) if unfinished else 0.0

    def _stored(self, facts: dict[str, Any]) -> float:
        """That share, by what the status of the job says: its `fraction`."""
        fraction = facts.get("fraction")
        return min(1.0, max(0.0, fraction)) if isinstance(fraction, int | float) else 0.0
