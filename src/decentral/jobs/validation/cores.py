"""Work that all workers have to do on the cores that they share."""

from __future__ import annotations

import heapq

import numpy as np


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
