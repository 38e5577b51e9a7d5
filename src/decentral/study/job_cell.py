"""A cell that reads its numbers from one job."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from decentral.scheduling.job import Job
from decentral.store import RunStore, Status
from decentral.study.study import Cell, Curve, Labels, Value

J = TypeVar("J", bound=Job)


@dataclass
class JobCell(Cell, Generic[J]):
    """One job, whose numbers are there when it is done; several cells may share it, and each reads its part.

    A kind of study says in `read` and `read_curves` how what the job has written becomes values and curves. The values
    get the job's id and an equal share of its time from here.
    """

    labels: Labels
    job: J

    @abstractmethod
    def read(self) -> Iterable[Value]:
        """The values, of a job that is done; without its id and its time."""

    def read_curves(self) -> Iterable[Curve]:
        """The curves, of a job that is done."""
        return []

    @property
    def sharing(self) -> int:
        """How many cells share the job."""
        return 1

    def jobs(self) -> list[Job]:
        """The one."""
        return [self.job]

    def values(self) -> list[Value]:
        """What `read` finds, as soon as the job is done."""
        if self.job.finished() is not Status.done:
            return []
        found = list(self.read())
        wall_s = float((RunStore.peek(self.job.directory) or {}).get("wall_s", 0.0)) / self.sharing / max(1, len(found))
        return [value._replace(run=self.job.id, wall_s=wall_s) for value in found]

    def curves(self) -> list[Curve]:
        """What `read_curves` finds, as soon as the job is done."""
        return list(self.read_curves()) if self.job.finished() is Status.done else []

    def wanted(self) -> int:
        """The job's seeds, where it has some: a value of each counts."""
        return len(getattr(self.job, "seeds", ()))
