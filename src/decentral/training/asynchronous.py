"""Steppers of asynchronous methods: in simulated time, by given events, or with a thread per worker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch.distributed as dist

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Team
from decentral.cluster.cluster import Machines, VirtualCluster
from decentral.cluster.compute import ComputeTimes
from decentral.cluster.links import Links
from decentral.network.local import LocalNetwork
from decentral.network.processes import split_workers
from decentral.training.ahead import AheadOracle
from decentral.training.gradient_times import Sleep, mean_seconds, mean_seconds_each, times_of_steps
from decentral.training.method import schedule_of

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Algorithm
    from decentral.config.prepared import Prepared
    from decentral.network.network import Network
    from decentral.training.oracle import GradientOracle
    from decentral.training.stepper import Stepper

_EQUALLY_FAST = Machines(
    compute=ComputeTimes(mean_s=1.0), links=Links(latency_s=0.0, bandwidth_gbps=math.inf, copy_gbps=math.inf)
)
"""A gradient takes a second, everything else no time."""


def open_asynchronous(
    run: Prepared, algorithm: Algorithm, net: Network, oracle: GradientOracle, x: Tensor, total_steps: int
) -> Stepper:
    """Create the stepper of asynchronous workers; between processes of a described cluster stragglers sleep."""
    assert isinstance(algorithm, AsynchronousAlgorithm)
    config, described = run.config, isinstance(run.config.cluster, VirtualCluster)
    cluster = config.cluster if described else _EQUALLY_FAST
    times = times_of_steps(run, cluster, net, oracle.problem, x)
    team = Team(net.rounds, total_steps, config.seed, mean_seconds(times), mean_seconds_each(times))
    assert isinstance(oracle, AheadOracle)
    if not isinstance(net, LocalNetwork):
        from decentral.network.asynchronous.mailbox import Mailbox
        from decentral.training.between_processes import ThreadedStepper

        mailbox = Mailbox.of(config.network, split_workers(net.n, dist.get_world_size()), x.device)
        return ThreadedStepper(algorithm, net, oracle, x, team, mailbox, Sleep(times) if described else None)
    if events := algorithm.given_events(net.n):
        from decentral.training.given import GivenStepper

        return GivenStepper(algorithm, net, oracle, x, team, events)
    from decentral.training.virtual import AsynchronousStepper

    size = cluster.num_parameters
    num_bytes = x[0].nbytes if size is None else size * config.precision.dtype.itemsize
    schedule = schedule_of(config, total_steps)
    stepper = AsynchronousStepper(algorithm, net, oracle, x, team, (times, cluster.costs(net.n)), num_bytes, schedule)
    stepper.tells_time = run.kind.has_clock
    return stepper
