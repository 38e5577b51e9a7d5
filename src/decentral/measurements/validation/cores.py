"""Work that all workers have to do on the cores that they share.

A gradient takes several slices of the scheduler's time: all who compute at a moment share the cores. Updates and copies
take less than one: who comes first is served first.
"""

from __future__ import annotations

import heapq
import math

import numpy as np


def computed(sleeps: np.ndarray, work_s: np.ndarray, cores: int, drifting: bool) -> np.ndarray:
    """How long gradients take, seconds [T, n]: a worker sleeps for `sleeps`, and then has `work_s` seconds of a core to
    compute, both [T, n]. Whenever more workers compute than there are cores, each has an equal share of them.

    Workers begin a step together; or, where they are `drifting`, each begins its next one when its last one is there.

    >>> computed(np.array([[0.0, 0.0, 1.0]]), np.array([[2.0, 2.0, 1.0]]), 1, False).tolist()
    [[4.5, 4.5, 4.0]]
    """
    if drifting:
        return np.diff(_computed_at(sleeps, work_s, cores), axis=0, prepend=0.0)
    return np.concatenate([_computed_at(*rows, cores) for rows in zip(sleeps[:, None], work_s[:, None], strict=True)])


def _computed_at(sleeps: np.ndarray, work_s: np.ndarray, cores: int) -> np.ndarray:
    """When each gradient is there [T, n], if all workers begin their first one at 0."""
    steps, n = sleeps.shape
    done = np.zeros_like(sleeps)
    now = served = 0.0  # how long a worker has had a core that has computed all the time
    awake = [(float(sleeps[0, i]), i, 0) for i in range(n)]
    computing: list[tuple[float, int, int]] = []
    heapq.heapify(awake)
    while awake or computing:
        pace = min(1.0, cores / len(computing)) if computing else 1.0
        ends = now + (computing[0][0] - served) / pace if computing else math.inf
        if awake and awake[0][0] < ends:
            begins, i, t = heapq.heappop(awake)
            served += (begins - now) * pace
            now = begins
            heapq.heappush(computing, (served + float(work_s[t, i]), i, t))
            continue
        served, i, t = heapq.heappop(computing)
        now = done[t, i] = ends
        if t + 1 < steps:
            heapq.heappush(awake, (now + float(sleeps[t + 1, i]), i, t + 1))
    return done


def shared(durations: np.ndarray, work_s: float, cores: int, drifting: bool) -> np.ndarray:
    """`durations` [T, n] of gradients, each with `work_s` seconds of work after it, which one of the cores does: who
    comes first has the first core that is free.

    Workers begin a step together; or, where they are `drifting`, each begins its next one when its work is done.

    >>> shared(np.array([[1.0, 1.0, 4.0]]), 0.5, 1, False).tolist()
    [[1.5, 2.0, 4.5]]
    """
    if not drifting:
        return np.stack([_served(row, work_s, cores) for row in durations])
    steps, n = durations.shape
    done = np.zeros_like(durations)
    free = [0.0] * cores
    waiting = [(float(durations[0, i]), i, 0) for i in range(n)]
    heapq.heapify(waiting)
    while waiting:
        ready, i, t = heapq.heappop(waiting)
        done[t, i] = max(ready, heapq.heappop(free)) + work_s
        heapq.heappush(free, float(done[t, i]))
        if t + 1 < steps:
            heapq.heappush(waiting, (float(done[t, i] + durations[t + 1, i]), i, t + 1))
    return np.diff(done, axis=0, prepend=0.0)


def work_on_cores(durations: np.ndarray, seconds: float, cores: int, drifting: bool) -> float:
    """The work of each step for which workers take `seconds` longer on average, waiting for a core included."""
    low, high = 0.0, max(seconds, 0.0)
    for _ in range(30):
        middle = (low + high) / 2
        longer = float((shared(durations, middle, cores, drifting) - durations).mean())
        low, high = (middle, high) if longer < seconds else (low, middle)
    return high


def _served(ready: np.ndarray, work_s: float, cores: int) -> np.ndarray:
    free = [0.0] * cores
    done = np.empty_like(ready)
    for i in np.argsort(ready, kind="stable"):
        done[i] = max(float(ready[i]), heapq.heappop(free)) + work_s
        heapq.heappush(free, float(done[i]))
    return done
