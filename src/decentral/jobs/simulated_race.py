"""How the workers of a virtual cluster approach their mean, where one of them is slower than the others: a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.algorithms.async_push_sum import AsyncPushSum
from decentral.algorithms.asynchronous import Team
from decentral.cluster.cluster import Machines
from decentral.cluster.compute import ComputeTimes
from decentral.cluster.stragglers import Mode, Stragglers
from decentral.compression.row_layout import RowLayout
from decentral.errors import ConfigError
from decentral.jobs.consensus import error, no_gradient, starts
from decentral.jobs.race import Race, RaceSettings
from decentral.scheduling.job import Demand
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.config.schema import Config


@dataclass(frozen=True)
class SimulatedRace(Race):
    """`Race` in simulated time: a turn is a gradient of nothing that takes `pause_s`, of the last worker `slowdown`
    times as long, and messages take what the links of config.cluster cost.

    asynchronous   push-sum as in `async_push_sum`, with the weights of the topology: a share whose receiver has
                   not taken the one before stays with its sender
    synchronous    x_i <- sum_j W_ij x_j in rounds in which everybody waits for his neighbours
    """

    folder: ClassVar[str] = "simulated_races"

    @property
    def demand(self) -> Demand:
        """A core: nothing is timed."""
        return Demand(1, "cpu")

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """One after the other."""
        conditions = [
            {"seed": seed, "slowdown": slowdown, "asynchronous": asynchronous}
            for seed in self.seeds
            for slowdown in self.slowdowns
            for asynchronous in (True, False)
        ]
        for number, condition in enumerate(conditions[len(lines.known) :], len(lines.known)):
            if stop():
                return False
            take_part = push_sum if condition["asynchronous"] else in_rounds
            config = replace(self.config, cluster=slowed(self.config, self.settings, float(condition["slowdown"])))
            assert config.num_workers is not None
            x = starts(config.num_workers, self.settings.dimension, int(condition["seed"]))
            lines.append({**condition, **take_part(config, self.settings, x)})
            show((number + 1) / len(conditions), f"{number + 1} of {len(conditions)} races")
        return True


def slowed(config: Config, settings: RaceSettings, slowdown: float) -> Machines:
    """The cluster with turns of `pause_s`, its last worker so many times slower. Raises ConfigError without links."""
    if not isinstance(config.cluster, Machines) or config.num_workers is None:
        raise ConfigError("this cluster has no links: use cluster=machines, or one that is named, such as even.")
    stragglers = Stragglers(Mode.fixed, slowdown=slowdown, workers=[config.num_workers - 1])
    compute = ComputeTimes(mean_s=settings.pause_s)
    return replace(config.cluster, compute=compute, stragglers=stragglers if slowdown > 1 else Stragglers())


def push_sum(config: Config, settings: RaceSettings, x: Tensor) -> dict[str, Any]:
    """Asynchronous push-sum for x [n, d]: the line but for its condition."""
    from decentral.cluster.timeline import Timeline
    from decentral.training.assemble import local_network, with_rate
    from decentral.training.virtual import VirtualRows

    n, mean, total = len(x), x.mean(0), x.sum(0)
    config = replace(config, algo=AsyncPushSum())
    algorithm = with_rate(config, lambda t: 1.0, RowLayout.flat(x.shape[1]))
    assert isinstance(algorithm, AsyncPushSum)
    state = algorithm.init(x.clone(), local_network(config))
    rows = VirtualRows(algorithm, state, _NoGradients(), together=False)
    team = Team(config.rounds(), 0, 0, settings.pause_s)
    times, costs = config.cluster.gradient_times(n, 0), config.cluster.costs(n)
    programs = [algorithm.program(i, team) for i in range(n)]
    timeline = Timeline(programs, times, costs, x[0].numel() * x.element_size(), rows=rows)
    log, drawn = _Log(n), [1] * n
    while timeline.run(timeline.completed + 1, settings.duration_s) and timeline.drawn != drawn:
        for i in (i for i in range(n) if timeline.drawn[i] > drawn[i]):
            log.note(i, timeline.now, error(state.x[i : i + 1], mean), float(state.p[i, 0]))
        drawn = list(timeline.drawn)
    for key, (share, weight) in rows.underway.items():
        assert isinstance(key, tuple)  # ("share", from, to)
        algorithm.receive(state, key[2], share, weight)
    p, kept = float(state.p.sum()), (state.x * state.p).sum(0)
    ends = [error(state.x[i : i + 1], mean) for i in range(n)]
    return {
        "workers": log.entries(ends),
        "p_error": abs(p - n),
        "mass_error": float((kept - total).norm() / total.norm()),
    }


def in_rounds(config: Config, settings: RaceSettings, x: Tensor) -> dict[str, Any]:
    """Synchronous averaging of x [n, d], until the slowest worker's time is over."""
    import torch

    from decentral.cluster.clock import Clock
    from decentral.cluster.cluster import WaitsFor
    from decentral.training.assemble import local_network, with_rate
    from decentral.training.stepper import Stepper

    n, mean, total = len(x), x.mean(0), x.sum(0)
    net = local_network(config)
    waits_for_everyone = config.cluster.waits_for is WaitsFor.everyone
    clock = net.clock = Clock(n, config.cluster.gradient_times(n, 0), config.cluster.costs(n), waits_for_everyone)

    def turn(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        clock.gradient()
        return torch.zeros_like(x)

    stepper, log = Stepper(with_rate(config, lambda t: 1.0, RowLayout.flat(x.shape[1])), net, turn, x.clone()), _Log(n)
    while clock.latest_s < settings.duration_s:
        stepper.step()
        for i in range(n):
            log.note(i, float(clock.now[i]), error(stepper.models[i : i + 1], mean), 1.0)
    kept = stepper.models.sum(0)
    ends = [error(stepper.models[i : i + 1], mean) for i in range(n)]
    return {"workers": log.entries(ends), "p_error": 0.0, "mass_error": float((kept - total).norm() / total.norm())}


class _NoGradients:
    """Zeros for everybody."""

    def ahead(self, x: Tensor, places: list[int]) -> Tensor:
        """Like x."""
        return no_gradient(x, places)

    def over(self, place: int) -> None:
        """Nothing is counted."""


class _Log:
    """Errors of all workers after each of their turns, with their simulated times."""

    def __init__(self, n: int) -> None:
        self.seconds: list[list[float]] = [[] for _ in range(n)]
        self.errors: list[list[float]] = [[] for _ in range(n)]
        self.least = [1.0] * n

    def note(self, i: int, now: float, error: float, p: float) -> None:
        """Worker i has had a turn."""
        self.seconds[i].append(now)
        self.errors[i].append(error)
        self.least[i] = min(self.least[i], p)

    def entries(self, ends: list[float]) -> list[dict[str, Any]]:
        """One for each worker, like those of `race.ErrorLog`; `ends`: their errors when all has come home."""
        known = zip(self.seconds, self.errors, self.least, ends, strict=True)
        return [
            {"seconds": seconds, "errors": errors, "smallest_p": least, "end": end}
            for seconds, errors, least, end in known
        ]
