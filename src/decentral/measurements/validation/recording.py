"""What was observed of a run, and what a step of it took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Recording(NamedTuple):
    """When the workers of a run did what, in seconds since all began together."""

    method: str
    round: int
    steps: int
    cores: int
    """That all workers shared."""
    ended_s: list[float]
    """When each worker had taken its last step."""
    first: list[int]
    """The number of each worker's first gradient here: before it, it had taken so many."""
    begin_s: list[list[float]]
    """[n][gradient] when each gradient began, sleep included."""
    end_s: list[list[float]]
    waited_s: list[float]
    """How long each worker waited for others."""
    ages: dict[int, int]
    """How many contributions to sums of groups were so many versions old; {} where there are no groups."""
    operations: list[dict[str, Any]]
    """All others than gradients, see `training.operations`."""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Recording:
        """From a line of observed.jsonl."""
        known = {name: line[name] for name in cls._fields if name != "ages"}
        return cls(**known, ages={int(age): count for age, count in line["ages"].items()})

    @property
    def num_workers(self) -> int:
        """n."""
        return len(self.begin_s)

    @property
    def stale_share(self) -> float | None:
        """Of the contributions to sums of groups, the share that was not of the version that was summed."""
        return stale_share(self.ages)

    def durations(self) -> np.ndarray:
        """How long gradients took: float64 [T, n], T the most that a worker took. Who took fewer has its own ones again
        from the first on."""
        own = [np.subtract(ends, begins) for begins, ends in zip(self.begin_s, self.end_s, strict=True)]
        most = max(map(len, own))
        return np.stack([np.resize(one, most) for one in own], axis=1)

    def beyond(self, planned: np.ndarray) -> np.ndarray:
        """How much longer each gradient took than `planned` [T, n], by the number of the gradient: float64 [all]."""
        found = []
        for i, (begins, ends) in enumerate(zip(self.begin_s, self.end_s, strict=True)):
            numbers = self.first[i] + np.arange(len(begins))
            found.append(np.subtract(ends, begins) - planned[numbers, i])
        return np.concatenate(found)

    def work_s(self) -> float:
        """Seconds for each gradient in which a worker neither computes it nor waits: for updates and copies, mean."""
        found = []
        for begins, ends, until, waited in zip(self.begin_s, self.end_s, self.ended_s, self.waited_s, strict=True):
            gradients = sum(end - begin for begin, end in zip(begins, ends, strict=True))
            found.append((until - begins[0] - gradients - waited) / len(begins))
        return max(0.0, float(np.mean(found)))

    def step_s(self, free_running: bool) -> float:
        """Seconds in which the workers take as many gradients as there are workers: see `pace`, or, where all take the
        same number of steps, the time of the last of all divided by that number."""
        return pace(self.begin_s, self.end_s) if free_running else max(self.ended_s) / self.steps


def pace(begin_s: list[list[float]], end_s: list[list[float]]) -> float:
    """n T / G: T when the first worker has ended its last gradient, G how many gradients all have taken by then, of
    which one that goes on counts by the part that is over.

    >>> pace([[0.0, 1.0], [0.0, 2.0]], [[1.0, 2.0], [2.0, 4.0]])
    1.3333333333333333
    """
    until = min(ends[-1] for ends in end_s)
    taken = 0.0
    for begins, ends in zip(begin_s, end_s, strict=True):
        for begin, end in zip(begins, ends, strict=True):
            taken += min(1.0, max(0.0, (until - begin) / (end - begin)))
    return len(begin_s) * until / taken


def stale_share(ages: Mapping[int, int]) -> float | None:
    """The share of contributions that are older than what they contribute to; None if there are none."""
    contributions = sum(ages.values())
    return sum(count for age, count in ages.items() if age > 0) / contributions if contributions else None
