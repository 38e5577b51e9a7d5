"""Simulated time of synchronous methods: the clock of a run, and steps without training for time and bytes only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from decentral.algorithms.features import Feature
from decentral.cluster.clock import Clock
from decentral.cluster.cluster import VirtualCluster, WaitsFor
from decentral.cluster.compute import GradientTimes
from decentral.cluster.timeline import Spans
from decentral.compression.rows import RowLayout
from decentral.config.schema import Config
from decentral.network.local import LocalNetwork
from decentral.training.gradient_times import Sleep, times_of_steps
from decentral.training.method import attendance_of, local_network, with_rate
from decentral.training.stepper import Extension, Stepper, collective_rows

if TYPE_CHECKING:
    from decentral.config.prepared import Prepared
    from decentral.network.network import Network
    from decentral.training.attendance import Attendance
    from decentral.training.oracle import GradientOracle

_ROUNDS = 256
_FEW = 1 << 20  # numbers, which take a millisecond or two


class SimulatedTime(Extension):
    """The clock of the stepper's network, whose links may change between steps."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def before_step(self, stepper: Stepper) -> None:
        """Update the links."""
        self.clock.begin_step(stepper.t)

    def state(self) -> dict[str, Any]:
        """Return the clock's state."""
        clock = self.clock
        state = torch.from_numpy(clock.state())
        return {"clock": state, "borders": clock.borders_state(), "collectives": clock.used}

    def load_state(self, part: dict[str, Any], step: int) -> None:
        """See `Extension`."""
        self.clock.load_state(part["clock"].numpy())
        self.clock.load_borders(part["borders"])
        self.clock.used = part.get("collectives", {})  # those that are older have none

    def rows(self) -> dict[str, Any]:
        """Return the chosen collectives."""
        return collective_rows(self.clock.used) if self.clock.chooses else {}


class Timekeeper(Extension):
    """A stepper that takes the same steps without training, for time and bytes of a model of another size."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper, self.traffic = stepper, stepper.traffic

    def before_step(self, stepper: Stepper) -> None:
        """Take the step."""
        self.stepper.step()

    def load_state(self, part: dict[str, Any], step: int) -> None:
        """Repeat all steps."""
        while self.stepper.t < step:
            self.stepper.step()

    def rows(self) -> dict[str, Any]:
        """Return the entries of the stepper."""
        return self.stepper.facts()


def time_of(
    run: Prepared,
    net: Network,
    oracle: GradientOracle,
    x: Tensor,
    total_steps: int,
    attendance: Attendance | None,
) -> list[Extension]:
    """Let a synchronous method take the time of the run's cluster: simulated, or asleep between processes, or both."""
    config, cluster, per_epoch = run.config, run.config.cluster, oracle.problem.steps_per_epoch
    times = times_of_steps(run, cluster, net, oracle.problem, x)
    oracle.sleep = None if isinstance(net, LocalNetwork) else Sleep(times)
    if not run.kind.has_clock:
        return []
    size = cluster.num_parameters
    if size is not None and known_without_training(config):
        timekeeper = without_training(
            config, cluster, times, size, config.precision.dtype, total_steps, steps_per_epoch=per_epoch
        )
        if attendance is not None:
            attendance.timekeeper = timekeeper.attendance
        return [Timekeeper(timekeeper)]
    clock = oracle.clock = net.traffic.clock = _clock(config, cluster, times, per_epoch)
    clock.chooses |= config.compress.chooses
    if size is not None:
        clock.bytes_scale = net.traffic.scale = size * config.precision.dtype.itemsize / x[0].nbytes
    return [SimulatedTime(clock)]


def _clock(
    config: Config,
    cluster: VirtualCluster,
    times: GradientTimes,
    steps_per_epoch: float | None,
    spans: Spans | None = None,
) -> Clock:
    """Return the clock of a synchronous method, the same on every process: it depends on shared numbers only."""
    n = times.num_workers
    changing = cluster.changing(n, config.seed, steps_per_epoch)
    return Clock(n, times, cluster.costs(n), cluster.waits_for is WaitsFor.everyone, spans, changing)


def without_training(
    config: Config,
    cluster: VirtualCluster,
    times: GradientTimes,
    num_parameters: int,
    dtype: torch.dtype,
    total_steps: int,
    steps_per_epoch: float | None = None,
    spans: Spans | None = None,
) -> Stepper:
    """Return a stepper of a synchronous method with zero models of `num_parameters`, for time and bytes only.

    Raises ConfigError if the network changes by epochs, and there are none (None).
    """
    net, n = local_network(config), times.num_workers
    clock = net.traffic.clock = _clock(config, cluster, times, steps_per_epoch, spans)
    phases = [each for t in range(min(net.rounds.period, _ROUNDS)) for each in net.rounds.phases(t)]
    pieces = math.lcm(net.rounds.num_pieces, *(len(each.matrices) or 1 for each in phases))
    few = pieces * min(num_parameters, config.compress.smallest_row)  # represent all of them
    x = torch.zeros(n, num_parameters if n * num_parameters <= _FEW else few, dtype=dtype)
    clock.bytes_scale = net.traffic.scale = num_parameters / x.shape[1]
    net.traffic.stands_for = {x.shape[1]: num_parameters}
    algorithm = with_rate(config, lambda t: 1.0, RowLayout.flat(x.shape[1]), steps_per_epoch or 1.0)
    oracle = _Instant(clock)
    attendance = attendance_of(config, algorithm, net, oracle, total_steps)
    return Stepper(algorithm, net, oracle, x, [SimulatedTime(clock)], attendance)


class _Instant:
    """An oracle that takes simulated time and returns zeros."""

    present: np.ndarray | None = None
    problem = None

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        if workers is None:  # counted like a run's oracle
            self.clock.gradient()
        return torch.zeros_like(x)


def known_without_training(config: Config) -> bool:
    """Return whether messages and times of a synchronous method are independent of gradients and measurements."""
    compress = config.compress
    return (
        compress.by_length
        and Feature.timeline in config.algo.supports
        and not (compress.adapts or compress.chooses or config.network.measure)
    )
