"""Average consensus with one slower worker: by asynchronous push-sum and in rounds, between processes and in simulated
time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from decentral.algorithms.async_push_sum import AsyncPushSum
from decentral.algorithms.asynchronous import Team
from decentral.cluster.clock import Clock
from decentral.cluster.cluster import WaitsFor
from decentral.cluster.timeline import Timeline
from decentral.compression.rows import RowLayout
from decentral.config.schema import Config
from decentral.measurements.consensus import error, no_gradient
from decentral.network.processes import join
from decentral.network.windows.open import open_window
from decentral.network.windows.window import Edges
from decentral.network.world import World
from decentral.topology.delivery import Losses
from decentral.training.method import local_network, with_rate
from decentral.training.stepper import Stepper
from decentral.training.virtual import VirtualRows


class Log:
    """A worker's errors after each of its turns, with the times."""

    def __init__(self) -> None:
        self.seconds, self.errors, self.smallest_p = list[float](), list[float](), 1.0

    def note(self, now: float, error: float, p: float = 1.0) -> None:
        """Record the error and the push-sum weight after a turn."""
        self.seconds.append(now)
        self.errors.append(error)
        self.smallest_p = min(self.smallest_p, p)

    def entry(self, end: float) -> dict[str, Any]:
        """Return the log's entry with the error after all messages have arrived."""
        return {"seconds": self.seconds, "errors": self.errors, "smallest_p": self.smallest_p, "end": end}


def _mass_error(total: Tensor, x: Tensor) -> float:
    """Return the error of the sum of all rows relative to that of x."""
    return float((total - x.sum(0)).norm() / x.sum(0).norm())


# -- between processes -------------------------------------------------------------------------------------------------


def push_sum(
    config: Config, world: World, pauses: list[float], duration_s: float, x: Tensor
) -> tuple[dict[str, Any], dict[str, float]]:
    """Run asynchronous push-sum for x [n, d]. Return this worker's entry, and the errors of the sums of p and x."""

    n, i, mean = len(x), world.rank, x.mean(0)
    edges = Edges.of(config.rounds().mixing(0)[0].graph)
    share = 1 / (1 + len(edges.receivers[i]))
    window = open_window(config.network, edges, [range(j, j + 1) for j in range(n)], x[i : i + 1])
    log, seconds = Log(), _stop_watch(world)
    while seconds() < duration_s:
        time.sleep(pauses[i])
        window.accumulate(i, dict.fromkeys(edges.receivers[i], share), share)
        window.collect(i)
        now = seconds()
        log.note(now, error(window.t / window.p[0], mean), float(window.p[0]))
    window.drain()
    end = error(window.t / window.p[0], mean)
    total_p, total_x = window.p.clone(), window.t[0].clone()
    for total in (total_p, total_x):
        dist.all_reduce(total)
    window.close()  # when all is well: a process that fails does not wait for the others
    return log.entry(end), {"p_error": abs(float(total_p[0]) - n), "mass_error": _mass_error(total_x, x)}


def in_rounds(
    config: Config, world: World, pauses: list[float], duration_s: float, x: Tensor
) -> tuple[dict[str, Any], dict[str, float]]:
    """Run synchronous averaging of x [n, d] for as long as the slowest worker needs for its turns."""

    i, mean = world.rank, x.mean(0)
    net = join(config.rounds(), Losses(0.0, 0), world.device, i, world.size, config.network)
    own, log, seconds = x[i : i + 1].clone(), Log(), _stop_watch(world)
    for t in range(math.ceil(duration_s / pauses[-1])):
        time.sleep(pauses[i])
        own = net.mix(own, t)
        now = seconds()
        log.note(now, error(own, mean))
    total = own[0].clone()
    dist.all_reduce(total)
    net.close()
    return log.entry(error(own, mean)), {"p_error": 0.0, "mass_error": _mass_error(total, x)}


def _stop_watch(world: World) -> Any:
    """Return a function that gives the seconds since all processes were ready, to a microsecond."""
    world.barrier()
    began = time.perf_counter()
    return lambda: round(time.perf_counter() - began, 6)


# -- simulated ---------------------------------------------------------------------------------------------------------


def simulated_push_sum(config: Config, duration_s: float, x: Tensor) -> dict[str, Any]:
    """Simulate asynchronous push-sum for x [n, d]. Return the line without its key."""
    n, mean = len(x), x.mean(0)
    config = replace(config, algo=AsyncPushSum())
    algorithm = with_rate(config, lambda t: 1.0, RowLayout.flat(x.shape[1]))
    assert isinstance(algorithm, AsyncPushSum)
    state = algorithm.init(x.clone(), local_network(config))
    rows = VirtualRows(algorithm, state, _NoGradients(), together=False)
    team = Team(config.rounds(), 0, 0, config.cluster.compute.mean_s)
    times, costs = config.cluster.gradient_times(n, 0), config.cluster.costs(n)
    programs = [algorithm.program(i, team) for i in range(n)]
    timeline = Timeline(programs, times, costs, x[0].numel() * x.element_size(), rows=rows)
    logs, drawn = [Log() for _ in range(n)], [1] * n
    while timeline.run(timeline.completed + 1, duration_s) and timeline.drawn != drawn:
        for i in (i for i in range(n) if timeline.drawn[i] > drawn[i]):
            logs[i].note(timeline.now, error(state.x[i : i + 1], mean), float(state.p[i, 0]))
        drawn = list(timeline.drawn)
    for key, (share, weight) in rows.underway.items():
        assert isinstance(key, tuple)  # ("share", from, to)
        algorithm.receive(state, key[2], share, weight)
    p, kept = float(state.p.sum()), (state.x * state.p).sum(0)
    workers = [log.entry(error(state.x[i : i + 1], mean)) for i, log in enumerate(logs)]
    return {"workers": workers, "p_error": abs(p - n), "mass_error": _mass_error(kept, x)}


def simulated_rounds(config: Config, duration_s: float, x: Tensor) -> dict[str, Any]:
    """Simulate synchronous averaging of x [n, d] until the slowest worker's time is over."""
    n, mean = len(x), x.mean(0)
    net = local_network(config)
    waits_for_everyone = config.cluster.waits_for is WaitsFor.everyone
    clock = net.traffic.clock = Clock(
        n, config.cluster.gradient_times(n, 0), config.cluster.costs(n), waits_for_everyone
    )

    def turn(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        clock.gradient()
        return no_gradient(x)

    stepper = Stepper(with_rate(config, lambda t: 1.0, RowLayout.flat(x.shape[1])), net, turn, x.clone())
    logs = [Log() for _ in range(n)]
    while clock.latest_s < duration_s:
        stepper.step()
        for i, log in enumerate(logs):
            log.note(float(clock.now[i]), error(stepper.models[i : i + 1], mean))
    workers = [log.entry(error(stepper.models[i : i + 1], mean)) for i, log in enumerate(logs)]
    return {"workers": workers, "p_error": 0.0, "mass_error": _mass_error(stepper.models.sum(0), x)}


class _NoGradients:
    """Zero gradients for all workers."""

    def prefetch(self, x: Tensor, places: list[int]) -> Tensor:
        """Return zeros in the shape of x."""
        return no_gradient(x, places)

    def complete(self, place: int) -> None:
        """Do nothing: gradients are not counted."""
