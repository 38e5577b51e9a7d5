"""Validation of the clock on observed times: replay, and prediction with costs from even runs.

Workers share cores. A gradient takes several time slices of the scheduler, so all computing workers share the cores.
Updates and copies take less than one slice, so they are served first come, first served.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decentral.algorithms.asynchronous import AsynchronousAlgorithm
from decentral.cluster.cluster import KnownCluster, VirtualCluster
from decentral.cluster.links import CollectiveName, LinkCosts, Links
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.plugins.papers.validation.observed import pace, stale_share
from decentral.randomness import uniform

if TYPE_CHECKING:
    from decentral.plugins.papers.validation.observed import ObservedTimes, Recording

_PURPOSE = "validation: beyond what is planned"
_MOST_S, _LEAST_S = 0.05, 1e-9
_LATENCIES_S = (0.0, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3)
"""Candidate latencies of the message that a version has begun."""
_NUMBERS = 4096
"""Numbers of the simulated rows, in float32: topologies cut them into pieces like real rows."""


def bisected(low: float, high: float, halvings: int, below: Callable[[float], bool]) -> tuple[float, float]:
    """Halve the interval `halvings` times; the searched value is above each point that is `below`."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low, high


# -- cores -------------------------------------------------------------------------------------------------------------


def computed(sleeps: np.ndarray, work_s: np.ndarray, cores: int, drifting: bool) -> np.ndarray:
    """Return the durations of gradients in seconds [T, n]: a worker sleeps for `sleeps`, and then needs `work_s`
    seconds of a core to compute, both [T, n]. Whenever more workers compute than there are cores, each has an equal
    share of them.

    Workers begin a step together; if `drifting`, each begins its next gradient when its last one is finished.

    >>> computed(np.array([[0.0, 0.0, 1.0]]), np.array([[2.0, 2.0, 1.0]]), 1, False).tolist()
    [[4.5, 4.5, 4.0]]
    """
    if drifting:
        return np.diff(_computed_at(sleeps, work_s, cores), axis=0, prepend=0.0)
    return np.concatenate([_computed_at(*rows, cores) for rows in zip(sleeps[:, None], work_s[:, None], strict=True)])


def _computed_at(sleeps: np.ndarray, work_s: np.ndarray, cores: int) -> np.ndarray:
    """Return when each gradient is finished [T, n], if all workers begin their first one at 0."""
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
    """Return the total durations of gradients with `durations` [T, n] and `work_s` seconds of work after each. Every
    worker does its work on one core; the first to arrive gets the first free core.

    Workers begin a step together; if `drifting`, each begins its next gradient when its work is done.

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
    """Return the work per step that makes workers take `seconds` longer on average, including the wait for a core."""

    def short(work_s: float) -> bool:
        return float((shared(durations, work_s, cores, drifting) - durations).mean()) < seconds

    return bisected(0.0, max(seconds, 0.0), 30, short)[1]


def _served(ready: np.ndarray, work_s: float, cores: int) -> np.ndarray:
    free = [0.0] * cores
    done = np.empty_like(ready)
    for i in np.argsort(ready, kind="stable"):
        done[i] = max(float(ready[i]), heapq.heappop(free)) + work_s
        heapq.heappush(free, float(done[i]))
    return done


# -- the clock ---------------------------------------------------------------------------------------------------------


def runs_freely(config: Config) -> bool:
    """Return whether workers compute different numbers of gradients."""
    return isinstance(config.algo, AsynchronousAlgorithm) and config.algo.free_running


class Simulated(NamedTuple):
    """The clock's simulation of a run."""

    step_s: float
    stale_share: float | None


def links_of(case: Case, latency_s: float, transfer_s: float) -> Links:
    """Return links with a latency and a transfer time of a row; if messages are limited, both are added to the limits.
    All-reduces are those of processes: over shared memory, or in a ring if messages are limited; asynchronous methods
    use a butterfly."""
    network = case.config.network
    asynchronous = isinstance(case.config.algo, AsynchronousAlgorithm)
    usual = CollectiveName.ring if network.limited else CollectiveName.direct
    transfer_s += case.row_bytes * network.seconds_per_byte
    return Links(
        latency_s=latency_s + network.latency_ms / 1e3,
        bandwidth_gbps=8e-9 * 4 * _NUMBERS / transfer_s if transfer_s else math.inf,
        copy_gbps=math.inf,
        collective=CollectiveName.recursive_doubling if asynchronous else usual,
    )


def known_cluster(durations: np.ndarray, links: Links) -> KnownCluster:
    """Return a cluster in which gradients take `durations` [T, n] seconds, with tiny rows."""
    n = durations.shape[1]
    return KnownCluster(durations, LinkCosts(links, n), num_parameters=_NUMBERS)


def simulated(config: Config, steps: int, cluster: KnownCluster) -> Simulated:
    """Simulate `steps` steps of a method in this cluster, with small rows.

    If workers compute different numbers of gradients, time and gradients are counted until the first worker is done, as
    in observed runs.
    """
    from decentral.cluster.timeline import Spans
    from decentral.training.timing import timed

    n = cluster.links.num_workers
    alone = replace(config, processes="1", cluster=cluster, record_operations=False, steps=steps)
    spans = Spans(n) if runs_freely(config) else None
    times = timed(prepare(alone), steps, _NUMBERS, spans)
    if spans is None:
        return Simulated(times.simulated_s / steps, stale_share(times.ages))
    begins: list[list[float]] = [[] for _ in range(n)]
    ends: list[list[float]] = [[] for _ in range(n)]
    for span in spans.found:
        if span.kind == "compute":
            begins[span.worker].append(span.begin_s)
            ends[span.worker].append(span.end_s)
    return Simulated(pace(begins, ends), None)


# -- costs -------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A method in a job: the configuration of its runs, and the job's facts that the clock needs."""

    config: Config
    steps: int
    warm_up: int
    sleeps: bool
    """True if a gradient is only sleep, False if only a straggler's delay is."""
    free_running: bool
    """True if workers compute different numbers of gradients."""
    row_bytes: int
    """Bytes of a message; 0 if messages are not limited and the size has no effect."""

    @classmethod
    def of(cls, job: ObservedTimes, name: str) -> Case:
        """Return the case of this method of the job."""
        config = job.config_of(name)
        row_bytes = 4 * (job.num_parameters or 0)
        return cls(config, job.steps, job.warm_up, job.num_parameters is not None, runs_freely(config), row_bytes)

    def planned(self, round_number: int, first: int, last: int) -> np.ndarray:
        """Return the planned sleep before gradients first ... last - 1 of a round: float64 [last - first, n]."""
        cluster, n = self.config.cluster, self.config.num_workers
        assert isinstance(cluster, VirtualCluster) and n is not None
        times = cluster.gradient_times(n, self.config.seed + round_number)
        return times.seconds(first, last) if self.sleeps else times.delays(first, last)


class Costs(NamedTuple):
    """The costs of a method besides sleep, in seconds, from even runs.

    beyond      extra time of each gradient beyond its sleep; for computed gradients, the core time of each
    work_s      core time per gradient for updates and copies
    latency_s   latency of a message
    transfer_s  transfer time of a row on a link, besides the latency
    rest_s      remaining time per gradient, if the clock takes longer even without these two (below 0), or if they have
                no effect on it
    """

    beyond: np.ndarray
    work_s: float
    latency_s: float = 0.0
    transfer_s: float = 0.0
    rest_s: float = 0.0

    def cluster(self, case: Case, durations: np.ndarray, cores: int) -> KnownCluster:
        """Return a cluster with these gradient times [T, n] and this method's other costs."""
        busy = shared(durations, self.work_s, cores, case.free_running)
        links = links_of(case, self.latency_s, self.transfer_s)
        return known_cluster(np.maximum(busy + self.rest_s, _LEAST_S), links)

    def predicted_cluster(self, case: Case, number: int, cores: int, first: int, num_steps: int) -> KnownCluster:
        """Return the configured cluster for gradients `first` to first + num_steps - 1 of a round, with these costs."""
        planned = case.planned(number, first, first + num_steps)
        places = np.arange(planned.shape[0])[:, None], np.arange(planned.shape[1])[None, :]
        drawn = uniform(case.config.seed + number, _PURPOSE, *places) * len(self.beyond)
        beyond = self.beyond[drawn.astype(np.int64)]
        durations = planned + beyond if case.sleeps else computed(planned, beyond, cores, case.free_running)
        return self.cluster(case, np.maximum(durations, _LEAST_S), cores)

    def predict(self, case: Case, number: int, cores: int) -> Simulated:
        """Simulate the configured sleep of a round, with these costs for everything else."""
        cluster = self.predicted_cluster(case, number, cores, case.warm_up, 2 * case.steps)
        return simulated(case.config, case.steps, cluster)

    def clock(self, case: Case, durations: np.ndarray, cores: int) -> Simulated:
        """Simulate these observed gradient times with these costs."""
        return simulated(case.config, case.steps, self.cluster(case, durations, cores))


def without_messages(case: Case, number: int) -> Simulated:
    """Simulate a null model: the configured times of a round, where everything but gradients takes no time."""
    planned = case.planned(number, case.warm_up, case.warm_up + 2 * case.steps)
    links = Links(latency_s=0.0, bandwidth_gbps=math.inf, copy_gbps=math.inf)
    return simulated(case.config, case.steps, known_cluster(np.maximum(planned, _LEAST_S), links))


def pooled(costs: Sequence[Costs]) -> Costs:
    """Return the costs of an unobserved method: the means of other methods' costs."""
    beyond = np.concatenate([one.beyond for one in costs])
    return Costs(beyond, *(float(np.mean([one[k] for one in costs])) for k in range(1, len(Costs._fields))))


def calibrated(case: Case, recordings: Sequence[Recording]) -> Costs:
    """Return the costs of one method, fitted to its runs in one even cluster.

    Latency and transfer cannot be told apart by the time of a step alone. If contributions can be stale, both are
    fitted: with a longer latency, the message of a version arrives later, and fewer contributions are stale. Otherwise
    everything is latency."""
    beyond = [
        one.beyond(case.planned(one.round, 0, max(one.first) + len(one.durations()))) * _share_of_a_core(case, one)
        for one in recordings
    ]
    work = [work_on_cores(one.durations(), one.work_s(), one.cores, case.free_running) for one in recordings]
    free = Costs(np.concatenate(beyond), float(np.mean(work)))
    if any(one.stale_share is None for one in recordings):
        costs = free._replace(latency_s=_fitted_s(case, recordings, lambda seconds: free._replace(latency_s=seconds)))
    else:
        tried = [_with_transfer(case, recordings, free._replace(latency_s=seconds)) for seconds in _LATENCIES_S]
        costs = min(tried, key=lambda one: _unlike(case, recordings, one))
    return costs._replace(rest_s=_missing_s(case, recordings, costs))


def _share_of_a_core(case: Case, recording: Recording) -> float:
    """Return the share of gradients' time in an even run during which a worker had a core; 1 if it slept."""
    if case.sleeps:
        return 1.0
    durations = recording.durations()

    def short(share: float) -> bool:
        computed_s = computed(np.zeros_like(durations), share * durations, recording.cores, case.free_running)
        return bool(computed_s.mean() < durations.mean())

    return bisected(0.0, 1.0, 14, short)[1]


def _missing_s(case: Case, recordings: Sequence[Recording], costs: Costs) -> float:
    """Return how much shorter the clock's steps are than the observed ones, on average."""
    steps = [
        recording.step_s(case.free_running) - costs.clock(case, recording.durations(), recording.cores).step_s
        for recording in recordings
    ]
    return float(np.mean(steps))


def _unlike(case: Case, recordings: Sequence[Recording], costs: Costs) -> tuple[float, float]:
    """Return the distance between clock and observation: in steps, to 0.1 %, then in shares of stale contributions."""
    clocks = [costs.clock(case, one.durations(), one.cores) for one in recordings]
    shares = [
        (one.stale_share or 0.0) - (clock.stale_share or 0.0) for one, clock in zip(recordings, clocks, strict=True)
    ]
    steps = np.mean([one.step_s(case.free_running) for one in recordings])
    return round(abs(_missing_s(case, recordings, costs)) / float(steps), 3), abs(float(np.mean(shares)))


def _with_transfer(case: Case, recordings: Sequence[Recording], costs: Costs) -> Costs:
    """Return these costs with the transfer time that fits them."""
    seconds = _fitted_s(case, recordings, lambda seconds: costs._replace(transfer_s=seconds))
    return costs._replace(transfer_s=seconds)


def _fitted_s(case: Case, recordings: Sequence[Recording], costs: Callable[[float], Costs]) -> float:
    """Return the latency or transfer time with which the clock takes as long as observed; 0 if it takes longer without
    any, or if it has no effect."""

    def short(seconds: float) -> bool:
        return _missing_s(case, recordings, costs(seconds)) > 0

    if not short(0.0) or short(_MOST_S):
        return 0.0
    return sum(bisected(0.0, _MOST_S, 14, short)) / 2
