"""Costs from even runs at one size, and what they predict elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decentral.cluster.cluster import VirtualCluster
from decentral.cluster.known import KnownCluster
from decentral.config.schema import Config
from decentral.measurements.validation.cores import computed, shared, work_on_cores
from decentral.measurements.validation.replay import Simulated, known_cluster, links_of, simulated
from decentral.randomness import uniform

if TYPE_CHECKING:
    from decentral.measurements.validation.observed import ObservedTimes
    from decentral.measurements.validation.recording import Recording

_PURPOSE = "validation: beyond what is planned"
_HALVINGS = 14
_MOST_S = 0.05
_LEAST_S = 1e-9
_LATENCIES_S = (0.0, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3)
"""Of word that a version has begun."""


class Case(NamedTuple):
    """A method in a job: how its runs are configured, and what the clock needs to know of the job."""

    config: Config
    steps: int
    warm_up: int
    sleeps: bool
    """Whether all of a gradient's time is slept, or only a straggler's delay."""
    free_running: bool
    """Whether workers take different numbers of gradients."""

    @classmethod
    def of(cls, job: ObservedTimes, name: str) -> Case:
        """From the job and the method's name."""
        from decentral.algorithms.asynchronous import AsynchronousAlgorithm

        config = job.config_of(name)
        free = isinstance(config.algo, AsynchronousAlgorithm) and config.algo.free_running
        return cls(config, job.steps, job.warm_up, job.num_parameters is not None, free)

    def planned(self, round_number: int, first: int, last: int) -> np.ndarray:
        """How long workers were to sleep before gradients first ... last - 1 of a round: float64 [last - first, n]."""
        cluster, n = self.config.cluster, self.config.num_workers
        assert isinstance(cluster, VirtualCluster) and n is not None
        times = cluster.gradient_times(n, self.config.seed + round_number)
        return times.seconds(first, last) if self.sleeps else times.delays(first, last)


class Costs(NamedTuple):
    """What a method costs beside sleep, in seconds, from even runs.

    beyond      how much longer than what was slept each gradient took; where gradients are computed: the work of a core
                that each of them is
    work_s      of a core, for each gradient: updates and copies
    latency_s   of a message
    transfer_s  of a row on a link, beside the latency
    rest_s      for each gradient, if the clock takes longer even without these two (below 0), or if they make no
                difference to it
    """

    beyond: np.ndarray
    work_s: float
    latency_s: float = 0.0
    transfer_s: float = 0.0
    rest_s: float = 0.0

    def cluster(self, case: Case, durations: np.ndarray, cores: int) -> KnownCluster:
        """Where gradients take so long [T, n], and everything else what it costs this method."""
        busy = shared(durations, self.work_s, cores, case.free_running)
        links = links_of(case.config, self.latency_s, self.transfer_s)
        return known_cluster(np.maximum(busy + self.rest_s, _LEAST_S), links)

    def clock(self, case: Case, durations: np.ndarray, cores: int) -> Simulated:
        """What the clock says of it."""
        return simulated(case.config, case.steps, self.cluster(case, durations, cores))


@dataclass(frozen=True)
class Calibration:
    """The costs of each method."""

    costs: Mapping[str, Costs]

    def replay(self, case: Case, recording: Recording) -> Simulated:
        """The clock with the durations of gradients as they were recorded; all else from the calibration."""
        return self.costs[recording.method].clock(case, recording.durations(), recording.cores)

    def predict(self, case: Case, name: str, round_number: int, cores: int) -> Simulated:
        """The clock with what was configured, and what the calibration says of all else."""
        cluster = self.cluster(case, name, round_number, cores, case.warm_up, 2 * case.steps)
        return simulated(case.config, case.steps, cluster)

    def cluster(self, case: Case, name: str, round_number: int, cores: int, first: int, num_steps: int) -> KnownCluster:
        """What is configured for gradients `first` to first + num_steps - 1, with the costs that were calibrated."""
        planned = case.planned(round_number, first, first + num_steps)
        all_beyond = self.costs[name].beyond
        places = np.arange(planned.shape[0])[:, None], np.arange(planned.shape[1])[None, :]
        drawn = uniform(case.config.seed + round_number, _PURPOSE, *places) * len(all_beyond)
        beyond = all_beyond[drawn.astype(np.int64)]
        durations = planned + beyond if case.sleeps else computed(planned, beyond, cores, case.free_running)
        return self.costs[name].cluster(case, np.maximum(durations, _LEAST_S), cores)


def calibrate(cases: Mapping[str, Case], recordings: Sequence[Recording]) -> Calibration:
    """From runs of all methods in one even cluster."""
    by_method = {name: [one for one in recordings if one.method == name] for name in cases}
    return Calibration({name: _costs(case, by_method[name]) for name, case in cases.items()})


def _costs(case: Case, recordings: list[Recording]) -> Costs:
    """Of one method. Latency and transfer cannot be told apart by the time of a step alone. Where contributions can be
    stale, both are fitted: with a longer latency, word of a version comes later, and fewer are. Else all is latency."""
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
    """Of the time that gradients took in an even run, the share in which a worker had a core; 1 where it slept."""
    if case.sleeps:
        return 1.0
    durations, low, high = recording.durations(), 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = computed(np.zeros_like(durations), middle * durations, recording.cores, case.free_running)
        low, high = (middle, high) if found.mean() < durations.mean() else (low, middle)
    return high


def _missing_s(case: Case, recordings: list[Recording], costs: Costs) -> float:
    """By how much the clock's steps are shorter than the observed ones, on average."""
    steps = [one.step_s(case.free_running) - costs.clock(case, one.durations(), one.cores).step_s for one in recordings]
    return float(np.mean(steps))


def _unlike(case: Case, recordings: list[Recording], costs: Costs) -> tuple[float, float]:
    """How far the clock is from what was observed: in steps, to 0.1 %, then in shares of stale contributions."""
    clocks = [costs.clock(case, one.durations(), one.cores) for one in recordings]
    shares = [
        (one.stale_share or 0.0) - (clock.stale_share or 0.0) for one, clock in zip(recordings, clocks, strict=True)
    ]
    steps = np.mean([one.step_s(case.free_running) for one in recordings])
    return round(abs(_missing_s(case, recordings, costs)) / float(steps), 3), abs(float(np.mean(shares)))


def _with_transfer(case: Case, recordings: list[Recording], costs: Costs) -> Costs:
    """These costs, and the transfer that goes with them."""
    seconds = _fitted_s(case, recordings, lambda seconds: costs._replace(transfer_s=seconds))
    return costs._replace(transfer_s=seconds)


def _fitted_s(case: Case, recordings: list[Recording], costs: Callable[[float], Costs]) -> float:
    """The latency or transfer with which the clock takes as long as was observed; 0 if it takes longer without any, or
    if it makes no difference."""

    def short(seconds: float) -> bool:
        return _missing_s(case, recordings, costs(seconds)) > 0

    low, high = 0.0, _MOST_S
    if not short(low) or short(high):
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return (low + high) / 2
