"""The network, the method and the attendance of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from decentral.algorithms.algorithm import Algorithm
from decentral.availability.availability import AlwaysPresent, Schedule
from decentral.compression.rows import RowLayout
from decentral.config.prepared import Prepared
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.world import World
from decentral.optim.optimizer import UnevenRule
from decentral.tasks.task import Problem
from decentral.topology.delivery import Losses

if TYPE_CHECKING:
    from decentral.topology.rounds import Rounds
    from decentral.training.attendance import Attendance

_STEPS_LOOKED_AT = 256


def open_network(config: Config, rounds: Rounds, world: World, has_clock: bool = False, loses: bool = True) -> Network:
    """Open the network of a configuration, for this process's workers; all processes call this at once.

    With loses=False no message is lost, regardless of the configuration.
    """
    losses = Losses(config.network.drop_probability if loses else 0.0, config.seed)
    if not world.distributed:
        config.network.check_several(1, has_clock)
        return LocalNetwork(rounds, losses)
    from decentral.cluster.cluster import fastest_collective
    from decentral.network.processes import join

    net = join(rounds, losses, world.device, world.rank, world.size, config.network)
    net.fastest = fastest_collective(config.network, config.cluster, net.n, world.size)
    return net


def local_network(config: Config) -> LocalNetwork:
    """Return the network of a configuration with all workers in this process and without losses."""
    return LocalNetwork(config.rounds(), Losses(0.0, config.seed))


def with_rate(
    config: Config,
    lr: Callable[[int], float],
    layout: RowLayout,
    steps_per_epoch: float = 1.0,
    changes: Callable[[int], dict[str, Any]] | None = None,
) -> Algorithm:
    """Return the configured algorithm with the configured local optimizer, this learning rate, step -> gamma_t, other
    `changes` of a schedule, and the configured compression for rows of this layout."""
    compressor = config.compress.bound(layout, config.seed, steps_per_epoch / config.algo.attends_steps)
    rule = config.optim.rule(lr, layout)
    return config.algo.bind(rule if changes is None else rule.scheduled(changes), compressor)  # type: ignore[no-any-return]


def learning_rate(
    config: Config, steps_per_epoch: float, total_steps: int, own: Tensor | None = None
) -> Callable[[int], Any]:
    """Return step t -> lr, or the workers' `own` rates [k, 1], times the factor of the schedule."""
    rate, lr = config.schedule.rates(steps_per_epoch, total_steps), config.lr if own is None else own
    return lambda t: lr * rate(t)


def open_algorithm(run: Prepared, problem: Problem, net: Network, x: Tensor, total_steps: int) -> Algorithm:
    """Return the algorithm of a run for the workers of this process, whose models are x [k, P]."""
    local = slice(net.workers.start, net.workers.stop)
    config, own, per_epoch = run.config, run.own.get("lr"), problem.steps_per_epoch
    rates = None if own is None else torch.from_numpy(own[local, None]).to(x)
    lr = learning_rate(config, per_epoch, total_steps, rates)
    changes = config.schedule.group_settings(config.optim, per_epoch, total_steps)
    algorithm = with_rate(config, lr, problem.layout(x[0]), per_epoch, changes)
    algorithm.num_samples = problem.num_samples
    if run.local_steps is None:
        return algorithm
    if changes is not None and any(map(changes, range(min(total_steps, _STEPS_LOOKED_AT)))):
        raise ConfigError(
            f"steps_per_worker cannot be used with schedule={config.schedule.name}, which changes more than the "
            "learning rate: leave one of them out, or set schedule.cycle_momentum=false."
        )
    return algorithm.bind(UnevenRule(algorithm.local, run.local_steps.of(net.workers)), algorithm.compressor)


def schedule_of(config: Config, total_steps: int) -> Schedule | None:
    """Return the schedule of present workers; None: all workers, always."""
    if isinstance(config.availability, AlwaysPresent):
        return None
    return config.availability.open(config.num_workers, config.seed, total_steps)  # type: ignore[no-any-return]


def attendance_of(
    config: Config, algorithm: Algorithm, net: Network, oracle: Any, total_steps: int
) -> Attendance | None:
    """Return the attendance of workers that may be absent; None: all workers attend all steps."""
    if (schedule := schedule_of(config, total_steps)) is None:
        return None
    from decentral.training.attendance import Attendance

    return Attendance(config, schedule, algorithm, net, oracle, total_steps)
