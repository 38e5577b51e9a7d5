"""Where all workers of all processes meet: the mean of their rows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from decentral.network.asynchronous.mail import PostOffice
from decentral.network.transports.shared_memory import SharedMemory
from decentral.network.windows.locks import Meeting


class _Round(NamedTuple):
    rows: dict[int, Tensor]  # by worker
    mean: list[Tensor]  # empty, or the one there is


class AllWorkers:
    """The mean over all workers, each of which asks for it in a thread of its own; to be made by all processes at once.

    The last one of a process to come adds up its rows and goes through an all-reduce for all of them (shared memory
    where the letters have that, else gloo); meanwhile post offices carry on, so that nobody's mail waits for it.
    """

    def __init__(self, office: PostOffice) -> None:
        self._office = office
        self._condition = office.condition()
        self._rounds: dict[int, _Round] = {}
        self._memory = SharedMemory(office.layout, office.timeout_s) if office.shared else None
        self._meeting = Meeting(office.timeout_s) if len(office.layout) > 1 and not office.shared else None

    def mean(self, worker: int, row: Tensor, number: int) -> Tensor:
        """1/n sum_j x_j over all workers j, once all have asked with the same number: [P] -> [P].

        On the CPU. All workers of a process get the same tensor, not to be changed. Raises what `PostOffice` raises.
        """
        office, size = self._office, len(self._office.workers)
        office.check()
        with self._condition:
            round = self._rounds.setdefault(number, _Round({}, []))
            round.rows[worker] = row
            complete = len(round.rows) == size
            if complete:
                del self._rounds[number]
            else:
                office.wait(
                    self._condition,
                    lambda: round.mean,
                    lambda: f"the other workers to meet worker {worker} at number {number}",
                )
        if complete:
            mean = self._reduce([round.rows[own] for own in office.workers])
            with self._condition:
                round.mean.append(mean)
                self._condition.notify_all()
        return round.mean[0]

    def close(self) -> None:
        """Let go of the memory."""
        if self._memory is not None:
            self._memory.close()

    def _reduce(self, rows: list[Tensor]) -> Tensor:
        """Add up the rows of this process in the order of workers, and those of all processes."""
        total = rows[0].to("cpu", copy=True)
        for row in rows[1:]:
            total.add_(row.cpu())
        try:
            if self._memory is not None:
                return self._memory.total(total, 1 / self._office.num_workers)
            if self._meeting is not None:
                self._meeting.total(total)
        except BaseException as failure:
            if isinstance(failure, RuntimeError):  # gloo's, where it is the first to notice
                self._office.hear_who_is_gone()
                self._office.check()
            self._office.fail(failure)
            raise
        return total.mul_(1 / self._office.num_workers)
