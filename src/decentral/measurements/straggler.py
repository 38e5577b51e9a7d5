"""Average consensus against time, with a worker that is slower than the others: between processes, and simulated."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.cluster.cluster import Machines, WaitsFor
from decentral.cluster.compute import ComputeTimes
from decentral.cluster.stragglers import Mode, Stragglers
from decentral.compression.row_layout import RowLayout
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.measurements.computation import InProcesses, check_losses
from decentral.measurements.consensus import error, no_gradient, starts
from decentral.measurements.gradient_times import cluster_of
from decentral.measurements.measurement import Measurement
from decentral.measurements.values import NOT_REACHED, Curve, Labels, Point, Value
from decentral.network.settings import Carrier
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.network.world import World

TURNS, END = "turns", "error at the end"
P_ERROR, MASS_ERROR, SMALLEST_P = "|sum of p - n|", "relative error of the sum of x", "smallest p on the way"
ERROR = "relative error"
METHODS = {"asynchronous push-sum": True, "synchronous averaging": False}
_POINTS = 100  # of a curve


@dataclass
class Race(Measurement):
    """Average consensus for `duration_s` by asynchronous push-sum and by synchronous averaging; the last of num_workers
    workers is slower.

    asynchronous   push-sum: a worker waits for nobody. In its turn it works, gives each out-neighbour a share of what
                   it has, x and p, and takes what has come. When the time is over what is on its way is collected.
    synchronous    x_i <- sum_j W_ij x_j in rounds in which everybody waits for his neighbours.

    A line for each seed and slowdown, for first one, then the other, with an entry for each worker, see `Log.entry`.

    slowdowns    how many times as long the slow worker's turns take
    seeds        of the vectors
    pause_s      of work in each turn of the others
    duration_s   of the whole
    target       the relative error whose time is a value
    dimension    of the vectors
    """

    slowdowns: list[float] = setting([], at_least=1)
    seeds: list[int] = field(default_factory=list)
    pause_s: float = setting(0.005, above=0)
    duration_s: float = setting(4.0, above=0)
    target: float = setting(1e-6, above=0)
    dimension: int = 1000

    lines: ClassVar[str] = "races.jsonl"
    row_labels: ClassVar[tuple[str, ...]] = ("topology",)
    decides: ClassVar[frozenset[str]] = frozenset({"lr", "processes", "device"})
    timed: ClassVar[frozenset[str]] = frozenset({"network.transport"})
    axis: ClassVar[str] = "wall_s"
    """Where seconds belong."""

    def check(self) -> None:
        """Somebody has to wait, on one graph."""
        check_losses(self.config)
        if self.n < 2:
            raise ConfigError("num_workers=1 cannot be used: one worker waits for nobody, use 2 or more.")
        if self.config.rounds().period > 1:
            raise ConfigError(
                f"topology={self.config.topology.name} changes from round to round, but there are no rounds where "
                "nobody waits: use a static one, such as chain."
            )

    def parameters(self) -> dict[str, Any]:
        """Seeds, slowdowns, the settings, and a transport that was chosen."""
        carrier = self.config.network.transport
        transport = {} if carrier is Carrier.auto else {"transport": carrier.name}
        course = {"pause_s": self.pause_s, "duration_s": self.duration_s, "dimension": self.dimension}
        return {"seeds": self.seeds, "slowdowns": self.slowdowns, "course": course, **transport}

    def parts(self) -> list[dict[str, Any]]:
        """Seed by seed."""
        names = ("seed", "slowdown", "asynchronous")
        return [dict(zip(names, each, strict=True)) for each in product(self.seeds, self.slowdowns, (True, False))]

    def cells(self) -> list[Labels]:
        """Push-sum first."""
        pairs = product(METHODS, self.slowdowns)
        return [{"method": method, **self.labels, "slowdown": slowdown, "who": ""} for method, slowdown in pairs]

    def values(self, labels: Labels) -> Iterator[Value]:
        """When the worst of the fast workers, and the straggler, have come to the target for good, how many turns they
        took, and where they are when all has come home; and what became of the sums."""
        for line in self._of(labels):
            seed = line["seed"]
            for who, workers in _groups(line["workers"]).items():
                own = labels | {"who": who}
                reached = max(_reached(one, self.target) for one in workers)
                known = math.isfinite(reached)
                metric, status = f"seconds to a relative error of {self.target:g}", "done" if known else NOT_REACHED
                yield Value(own, reached if known else math.nan, metric, seed, status=status)
                yield Value(own, sum(len(one["errors"]) for one in workers) / len(workers), TURNS, seed)
                yield Value(own, max(one["end"] for one in workers), END, seed)
            yield Value(labels, line["mass_error"], MASS_ERROR, seed)
            if line["asynchronous"]:
                yield Value(labels, line["p_error"], P_ERROR, seed)
                yield Value(labels, min(one["smallest_p"] for one in line["workers"]), SMALLEST_P, seed)

    def curves(self, labels: Labels) -> Iterator[Curve]:
        """The error of the worst of the fast workers, and of the straggler, over seconds."""
        times = [self.duration_s * number / _POINTS for number in range(1, _POINTS + 1)]
        for line in self._of(labels):
            for who, workers in _groups(line["workers"]).items():
                errors = [(t, max(_error_at(one, t) for one in workers)) for t in times]
                points = [Point(error, {self.axis: t}) for t, error in errors if math.isfinite(error)]
                yield Curve(labels | {"who": who}, ERROR, "", line["seed"], points)

    def _of(self, labels: Labels) -> list[dict[str, Any]]:
        """The lines of a cell, by seed."""
        wanted = labels["slowdown"], METHODS[str(labels["method"])]
        return [one for one in self.found() if (one["slowdown"], one["asynchronous"]) == wanted]


def _groups(workers: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The last one is the straggler."""
    return {"fast workers": workers[:-1], "straggler": workers[-1:]}


def _reached(one: dict[str, Any], target: float) -> float:
    """Seconds until a worker's error is below the target for good; infinite if it is not."""
    above = [number for number, error in enumerate(one["errors"]) if not error <= target]
    first = above[-1] + 1 if above else 0
    return float(one["seconds"][first]) if first < len(one["seconds"]) else math.inf


def _error_at(one: dict[str, Any], t: float) -> float:
    """A worker's error at a time: that of its last turn; infinite before the first."""
    known = [error for second, error in zip(one["seconds"], one["errors"], strict=True) if second <= t]
    return float(known[-1]) if known else math.inf


class Log:
    """A worker's errors after each of its turns, and when that was."""

    def __init__(self) -> None:
        self.seconds, self.errors, self.smallest_p = list[float](), list[float](), 1.0

    def note(self, now: float, error: float, p: float = 1.0) -> None:
        """The error and the push-sum weight after a turn."""
        self.seconds.append(now)
        self.errors.append(error)
        self.smallest_p = min(self.smallest_p, p)

    def entry(self, end: float) -> dict[str, Any]:
        """With the error when everything has come home."""
        return {"seconds": self.seconds, "errors": self.errors, "smallest_p": self.smallest_p, "end": end}


def _mass_error(total: Tensor, x: Tensor) -> float:
    """Of the sum of all rows, which was that of x."""
    return float((total - x.sum(0)).norm() / x.sum(0).norm())


# -- between processes -------------------------------------------------------------------------------------------------


@dataclass
class Straggler(Race, InProcesses):
    """`Race` in as many processes as there are workers. A share is 1 / (outdegree + 1) (BlueFog paper, Listing 3)."""

    name: str = "straggler"
    folder: ClassVar[str] = "races"

    def check(self) -> None:
        """A process for each worker."""
        super().check()
        self.config = replace(self.config, processes=str(self.n), device="cpu")

    def part(self, world: World, opened: None, seed: int, slowdown: float, asynchronous: bool) -> dict[str, Any]:
        """This process hosts one worker."""
        x = starts(self.n, self.dimension, seed)
        pauses = [self.pause_s] * (self.n - 1) + [self.pause_s * slowdown]
        take_part = push_sum if asynchronous else in_rounds
        own, sums = take_part(self.config, world, pauses, self.duration_s, x)
        workers = [json.loads(content) for content in world.collect_any(json.dumps(own).encode())]
        return {"workers": workers, **sums}


def push_sum(
    config: Config, world: World, pauses: list[float], duration_s: float, x: Tensor
) -> tuple[dict[str, Any], dict[str, float]]:
    """Asynchronous push-sum for x [n, d]: this worker's entry, and what has become of the sums of p and x."""
    import torch.distributed as dist

    from decentral.network.windows.open import open_window
    from decentral.network.windows.window import Edges

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
    """Synchronous averaging of x [n, d], which lasts as long as the slowest worker needs for its turns."""
    import torch.distributed as dist

    from decentral.network.processes import join
    from decentral.topology.delivery import Losses

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
    """Seconds since all processes were ready, to a microsecond."""
    world.barrier()
    began = time.perf_counter()
    return lambda: round(time.perf_counter() - began, 6)


# -- simulated ---------------------------------------------------------------------------------------------------------


@dataclass
class SimulatedStraggler(Race):
    """`Race` in simulated time: a turn is a gradient of nothing that takes `pause_s`, and messages take what the links
    of config.cluster cost. Push-sum is `async_push_sum` with the weights of the topology: a share whose receiver has
    not taken the one before stays with its sender."""

    name: str = "simulated_straggler"
    folder: ClassVar[str] = "simulated_races"
    axis: ClassVar[str] = "simulated_s"

    def check(self) -> None:
        """There have to be links."""
        super().check()
        if not isinstance(cluster_of(self.config), Machines):
            raise ConfigError("this cluster has no links: use cluster=machines, or one that is named, such as even.")

    def line(self, seed: int, slowdown: float, asynchronous: bool) -> dict[str, Any]:
        """All workers in this process."""
        slow = Stragglers(Mode.fixed, slowdown=slowdown, workers=[self.n - 1]) if slowdown > 1 else Stragglers()
        compute = ComputeTimes(mean_s=self.pause_s)
        config = replace(self.config, cluster=replace(self.config.cluster, compute=compute, stragglers=slow))
        x = starts(self.n, self.dimension, seed)
        return (simulated_push_sum if asynchronous else simulated_rounds)(config, self.duration_s, x)


def simulated_push_sum(config: Config, duration_s: float, x: Tensor) -> dict[str, Any]:
    """Asynchronous push-sum for x [n, d]: the line but for its key."""
    from decentral.algorithms.async_push_sum import AsyncPushSum
    from decentral.algorithms.asynchronous import Team
    from decentral.cluster.timeline import Timeline
    from decentral.training.assemble import local_network, with_rate
    from decentral.training.virtual import VirtualRows

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
    """Synchronous averaging of x [n, d], until the slowest worker's time is over."""
    from decentral.cluster.clock import Clock
    from decentral.training.assemble import local_network, with_rate
    from decentral.training.stepper import Stepper

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
    """Zeros for everybody."""

    def prefetch(self, x: Tensor, places: list[int]) -> Tensor:
        """Like x."""
        return no_gradient(x, places)

    def complete(self, place: int) -> None:
        """Nothing is counted."""
