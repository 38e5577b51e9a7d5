"""Simulated time of a method on a cluster, without training."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Team
from decentral.cluster.clock import Use
from decentral.cluster.cluster import VirtualCluster
from decentral.cluster.timeline import Lateness, Span, Spans, Timeline
from decentral.config.prepared import Prepared
from decentral.training.clock import without_training
from decentral.training.gradient_times import known_times, mean_seconds, mean_seconds_each
from decentral.training.method import schedule_of

WORKERS_KEPT, STEPS_KEPT = 128, 40
"""Number of workers and steps kept of a timeline."""


class Timed(NamedTuple):
    """The cost of a number of steps of all workers in a virtual cluster."""

    simulated_s: float
    """Time until the last worker's last step."""
    gradients: int
    """Total number of gradients of all workers."""
    bytes_sent: float
    """Total bytes of all workers."""
    accounts: dict[str, np.ndarray]
    """Seconds of each worker, float64 [n]: compute, wait, exchange, and away if any worker was."""
    ages: dict[int, int]
    """Age in versions -> number of contributions; {} for synchronous methods."""
    critical: list[int]
    """Number of times that each worker was the last one waited for; [] for synchronous methods."""
    collectives: dict[str, list[float]]
    """Name of a collective -> its count and total seconds; {} for asynchronous methods."""

    @property
    def lateness(self) -> Lateness:
        """Return the statistics of late contributions."""
        return Lateness(dict(sorted(self.ages.items())), list(self.critical))

    @property
    def step_s(self) -> float:
        """The seconds per n gradients of n workers."""
        return self.simulated_s * len(self.accounts["compute"]) / self.gradients

    @property
    def waiting_share(self) -> float:
        """The share of the workers' time spent waiting for each other."""
        spent = {part: float(seconds.sum()) for part, seconds in self.accounts.items()}
        return spent["wait"] / sum(spent.values())


def timed(
    run: Prepared,
    num_steps: int,
    num_parameters: int,
    spans: Spans | None = None,
    first: int | None = None,
    after: int = 0,
    steps_per_epoch: float | None = None,
    ledger: list[Use] | None = None,
) -> Timed:
    """Return the time of `num_steps` steps of a run's method in its cluster, with messages of `num_parameters`.

    If the cluster describes another model (`cluster.num_parameters`), its size counts, in the precision of the run.

    spans   records the workers' activities
    first   simulate only this many of the steps
    after   skip this many gradient times of each worker
    steps_per_epoch  None: there are no epochs
    ledger  receives the use of each port

    Raises ConfigError if the network changes by epochs and there are none.
    """
    config, cluster, n = run.config, run.config.cluster, run.config.num_workers
    assert isinstance(cluster, VirtualCluster) and n is not None
    times = known_times(run).after(after)
    precision = config.precision if cluster.num_parameters else config.task.precision or config.precision
    dtype, num_parameters = precision.dtype, cluster.num_parameters or num_parameters
    first = min(first or num_steps, num_steps)
    if isinstance(config.algo, AsynchronousAlgorithm) and run.kind.asynchronous:
        team = Team(config.rounds(), num_steps, config.seed, mean_seconds(times), mean_seconds_each(times))
        schedule = schedule_of(config, num_steps)
        with _undisturbed():
            programs, costs = [config.algo.program(i, team) for i in range(n)], cluster.costs(n)
            found = Timeline(
                programs, times, costs, dtype.itemsize * num_parameters, n * num_steps, None, spans, schedule
            )
            found.ledger = ledger
            found.run() if first == num_steps else found.run(gradients=n * first)
        sent = found.sent_by_now()[0]
        return Timed(found.now, found.completed, sent, found.accounts(), found.ages, found.critical, {})
    with torch.no_grad(), _undisturbed():
        stepper = without_training(config, cluster, times, num_parameters, dtype, num_steps, steps_per_epoch, spans)
        clock = stepper.net.traffic.clock
        assert clock is not None
        clock.ledger = ledger
        for _ in range(first):
            stepper.step()
    gradients = n * first if stepper.attendance is None else int(stepper.attendance.steps.sum())
    return Timed(clock.latest_s, gradients, stepper.net.traffic.bytes_sent, clock.accounts(), {}, [], clock.used)


def at_each_step(run: Prepared) -> tuple[list[float], list[float]]:
    """Return simulated seconds and total bytes after 0, 1, ..., config.steps steps of a synchronous method, with a
    message size from the cluster."""
    config, cluster, times = run.config, run.config.cluster, known_times(run)
    assert isinstance(cluster, VirtualCluster) and cluster.num_parameters and config.steps
    seconds, sent = [0.0], [0.0]
    with torch.no_grad(), _undisturbed():
        stepper = without_training(config, cluster, times, cluster.num_parameters, config.precision.dtype, config.steps)
        for _ in range(config.steps):
            stepper.step()
            seconds.append(stepper.simulated_s or 0.0)
            sent.append(stepper.traffic.bytes_sent)
    return seconds, sent


def spans_of(run: Prepared, num_steps: int, num_parameters: int, steps_per_epoch: float | None = None) -> list[Span]:
    """Return the activities of the first workers in the first steps."""
    spans = Spans(WORKERS_KEPT)
    timed(run, num_steps, num_parameters, spans, STEPS_KEPT, steps_per_epoch=steps_per_epoch)
    return spans.found


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Use one thread, as tiny rows do not pay for several, and disable the cyclic garbage collector, as a timeline
    creates no cycles."""
    threads, collected = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if collected:
            gc.enable()
