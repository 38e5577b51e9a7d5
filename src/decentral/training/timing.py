"""Time without training: what a method and a cluster make of a number of steps, and nothing else."""

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
from decentral.config.checks import goes_by_itself
from decentral.config.schema import Config
from decentral.training.assemble import mean_seconds, schedule_of, without_training
from decentral.training.oracle import kept, uneven

WORKERS_KEPT, STEPS_KEPT = 128, 40
"""How much of a timeline is kept to be looked at."""


class Timed(NamedTuple):
    """What a number of steps of all workers take in a virtual cluster."""

    simulated_s: float
    """Until the last worker has done its last step."""
    gradients: int
    """How many all workers have taken together."""
    bytes_sent: float
    """By all workers."""
    accounts: dict[str, np.ndarray]
    """Seconds of each worker, float64 [n]: compute, wait, exchange, and away if any was."""
    ages: dict[int, int]
    """How many contributions were so many versions old; {} for methods in rounds."""
    critical: list[int]
    """How often others waited for this worker last; [] for methods in rounds."""

    @property
    def lateness(self) -> Lateness:
        """What became of contributions that were late."""
        return Lateness(dict(sorted(self.ages.items())), list(self.critical))

    @property
    def step_s(self) -> float:
        """Seconds in which the workers take as many gradients as there are workers."""
        return self.simulated_s * len(self.accounts["compute"]) / self.gradients

    @property
    def waiting_share(self) -> float:
        """Of the workers' time, the share in which they wait for each other."""
        spent = {part: float(seconds.sum()) for part, seconds in self.accounts.items()}
        return spent["wait"] / sum(spent.values())


def timed(
    config: Config,
    num_steps: int,
    num_parameters: int,
    spans: Spans | None = None,
    first: int | None = None,
    after: int = 0,
    steps_per_epoch: float | None = None,
    ledger: list[Use] | None = None,
) -> Timed:
    """The time of `num_steps` steps of the configured method, with messages of so many parameters, in its cluster.

    Where the cluster describes another model (`cluster.num_parameters`), that many, in the precision of the run.

    spans   what is asked to keep who did what when
    first   only look at so many of these steps
    after   gradients take as long as those after so many of each worker
    steps_per_epoch  None: there are no epochs
    ledger  what goes through each port is added to it

    Raises ConfigError if the network changes by epochs, and there are none.
    """
    cluster, n = config.cluster, config.num_workers
    assert isinstance(cluster, VirtualCluster) and n is not None
    times = uneven(kept(cluster.gradient_times(n, config.seed), config), config).after(after)
    precision = config.precision if cluster.num_parameters else config.task.precision or config.precision
    dtype, num_parameters = precision.dtype, cluster.num_parameters or num_parameters
    first = min(first or num_steps, num_steps)
    if isinstance(config.algo, AsynchronousAlgorithm) and goes_by_itself(config):
        team = Team(config.rounds(), num_steps, config.seed, mean_seconds(times))
        schedule = schedule_of(config, num_steps)
        with _undisturbed():
            programs, costs = [config.algo.program(i, team) for i in range(n)], cluster.costs(n)
            found = Timeline(
                programs, times, costs, dtype.itemsize * num_parameters, n * num_steps, None, spans, schedule
            )
            found.ledger = ledger
            found.run() if first == num_steps else found.run(gradients=n * first)
        sent = found.sent_by_now()[0]
        return Timed(found.now, found.completed, sent, found.accounts(), found.ages, found.critical)
    with torch.no_grad(), _undisturbed():
        stepper = without_training(config, cluster, times, num_parameters, dtype, num_steps, steps_per_epoch, spans)
        clock = stepper.net.traffic.clock
        assert clock is not None
        clock.ledger = ledger
        for _ in range(first):
            stepper.step()
    gradients = n * first if stepper.attendance is None else int(stepper.attendance.steps.sum())
    return Timed(clock.latest_s, gradients, stepper.net.traffic.bytes_sent, clock.accounts(), {}, [])


def at_each_step(config: Config) -> tuple[list[float], list[float]]:
    """Simulated seconds and bytes sent by all workers, after 0, 1, ..., config.steps steps of a method in rounds whose
    cluster says how large its messages are."""
    cluster, n = config.cluster, config.num_workers
    assert isinstance(cluster, VirtualCluster) and cluster.num_parameters and config.steps and n is not None
    times = uneven(kept(cluster.gradient_times(n, config.seed), config), config)
    seconds, sent = [0.0], [0.0]
    with torch.no_grad(), _undisturbed():
        stepper = without_training(config, cluster, times, cluster.num_parameters, config.precision.dtype, config.steps)
        for _ in range(config.steps):
            stepper.step()
            seconds.append(stepper.simulated_s or 0.0)
            sent.append(stepper.traffic.bytes_sent)
    return seconds, sent


def spans_of(
    config: Config,
    num_steps: int,
    num_parameters: int,
    steps_per_epoch: float | None = None,
) -> list[Span]:
    """What the first workers do in the first of these steps."""
    spans = Spans(WORKERS_KEPT)
    timed(config, num_steps, num_parameters, spans, STEPS_KEPT, steps_per_epoch=steps_per_epoch)
    return spans.found


@contextmanager
def _undisturbed() -> Iterator[None]:
    """One thread, as rows of a few numbers are done before several have begun; and nobody looks for circles of objects,
    of which a timeline makes none."""
    threads, collected = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if collected:
            gc.enable()
