"""Average consensus over time, with one slower worker: between processes, and simulated."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.cluster.cluster import Machines
from decentral.cluster.compute import ComputeTimes
from decentral.cluster.stragglers import Mode, Stragglers
from decentral.errors import ConfigError
from decentral.measurements.consensus import starts
from decentral.measurements.measurement import InProcesses, Measurement, check_losses
from decentral.measurements.timeline import cluster_of
from decentral.measurements.values import NOT_REACHED, Labels, Row, Value, curve
from decentral.network.settings import Carrier
from decentral.settings import setting

if TYPE_CHECKING:
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

    asynchronous   push-sum without waiting. In its turn, a worker works, gives each out-neighbor a share of its x and
                   p, and takes what has arrived. At the end, messages in transit are collected.
    synchronous    x_i <- sum_j W_ij x_j in rounds in which every worker waits for its neighbors.

    A line for each seed, slowdown and method (asynchronous first), with an entry for each worker (`races.Log`).

    slowdowns    factor by which the slow worker's turns take longer
    seeds        seeds of the vectors
    pause_s      work in each turn of the other workers, in seconds
    duration_s   total duration in seconds
    target       relative error; the time to reach it is a value
    dimension    dimension of the vectors
    """

    slowdowns: list[float] = setting([], at_least=1)
    seeds: list[int] = field(default_factory=list)
    pause_s: float = setting(0.005, above=0)
    duration_s: float = setting(4.0, above=0)
    target: float = setting(1e-6, above=0)
    dimension: int = 1000

    row_labels: ClassVar[tuple[str, ...]] = ("topology",)
    decides: ClassVar[frozenset[str]] = frozenset({"lr", "processes", "device"})
    timed: ClassVar[frozenset[str]] = frozenset({"network.transport"})
    axis: ClassVar[str] = "wall_s"
    """Axis of the seconds."""

    def check(self) -> None:
        """Check that there are synchronous workers to wait for, and one graph."""
        check_losses(self.config)
        if self.n < 2:
            raise ConfigError("num_workers=1 is too small: use 2 or more workers.")
        if self.config.rounds().period > 1:
            raise ConfigError(
                f"topology={self.config.topology.name} changes with the round, but asynchronous workers have no "
                "rounds: use a static topology, such as chain."
            )

    def parameters(self) -> dict[str, Any]:
        """Return seeds, slowdowns, the settings, and the transport if one was chosen."""
        carrier = self.config.network.transport
        transport = {} if carrier is Carrier.auto else {"transport": carrier.name}
        course = {"pause_s": self.pause_s, "duration_s": self.duration_s, "dimension": self.dimension}
        return {"seeds": self.seeds, "slowdowns": self.slowdowns, "course": course, **transport}

    def parts(self) -> list[dict[str, Any]]:
        """Return the parts, seed by seed."""
        names = ("seed", "slowdown", "asynchronous")
        return [dict(zip(names, each, strict=True)) for each in product(self.seeds, self.slowdowns, (True, False))]

    def cells(self) -> list[Labels]:
        """Return the cells, push-sum first."""
        pairs = product(METHODS, self.slowdowns)
        return [{"method": method, **self.labels, "slowdown": slowdown, "who": ""} for method, slowdown in pairs]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return the times after which the worst of the fast workers, and the straggler, stay below the target, the
        number of their turns, their errors after all messages have arrived, and the errors of the sums."""
        for line in self._of(labels):
            seed = line["seed"]
            for who, workers in _groups(line["workers"]).items():
                group_labels = labels | {"who": who}
                reached = max(_reached(one, self.target) for one in workers)
                known = math.isfinite(reached)
                metric, status = f"seconds to a relative error of {self.target:g}", "done" if known else NOT_REACHED
                yield Value(group_labels, reached if known else math.nan, metric, seed, status=status)
                yield Value(group_labels, sum(len(one["errors"]) for one in workers) / len(workers), TURNS, seed)
                yield Value(group_labels, max(one["end"] for one in workers), END, seed)
            yield Value(labels, line["mass_error"], MASS_ERROR, seed)
            if line["asynchronous"]:
                yield Value(labels, line["p_error"], P_ERROR, seed)
                yield Value(labels, min(one["smallest_p"] for one in line["workers"]), SMALLEST_P, seed)

    def curves(self, labels: Labels) -> Iterator[Row]:
        """Return the error of the worst of the fast workers, and of the straggler, over seconds."""
        times = [self.duration_s * number / _POINTS for number in range(1, _POINTS + 1)]
        for line in self._of(labels):
            for who, workers in _groups(line["workers"]).items():
                points = []
                for t in times:
                    taken = [bisect_right(one["seconds"], t) for one in workers]
                    if all(taken):  # each has had a turn by then
                        worst = max(one["errors"][count - 1] for one, count in zip(workers, taken, strict=True))
                        points.append((t, worst))
                yield from curve(labels | {"who": who}, ERROR, line["seed"], points, axes=[self.axis])

    def _of(self, labels: Labels) -> list[dict[str, Any]]:
        """Return the lines of a cell, by seed."""
        wanted = labels["slowdown"], METHODS[str(labels["method"])]
        return [line for line in self.found() if (line["slowdown"], line["asynchronous"]) == wanted]


def _groups(workers: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the fast workers and the straggler, which is the last worker."""
    return {"fast workers": workers[:-1], "straggler": workers[-1:]}


def _reached(one: dict[str, Any], target: float) -> float:
    """Return the seconds after which a worker's error stays below the target; infinite if it does not."""
    above = [number for number, error in enumerate(one["errors"]) if not error <= target]
    first = above[-1] + 1 if above else 0
    return float(one["seconds"][first]) if first < len(one["seconds"]) else math.inf


# -- between processes -------------------------------------------------------------------------------------------------


@dataclass
class Straggler(Race, InProcesses):
    """`Race` with one process per worker. A share is 1 / (outdegree + 1) (BlueFog paper, Listing 3)."""

    name: str = "straggler"
    folder: ClassVar[str] = "races"

    def check(self) -> None:
        """Check that there is a process for each worker."""
        super().check()
        self.config = replace(self.config, processes=str(self.n), device="cpu")

    def part(self, world: World, opened: None, seed: int, slowdown: float, asynchronous: bool) -> dict[str, Any]:
        """Run this process's worker."""
        from decentral.plugins.papers.validation import races

        x = starts(self.n, self.dimension, seed)
        pauses = [self.pause_s] * (self.n - 1) + [self.pause_s * slowdown]
        take_part = races.push_sum if asynchronous else races.in_rounds
        entry, sums = take_part(self.config, world, pauses, self.duration_s, x)
        workers = [json.loads(content) for content in world.collect_any(json.dumps(entry).encode())]
        return {"workers": workers, **sums}


# -- simulated ---------------------------------------------------------------------------------------------------------


@dataclass
class SimulatedStraggler(Race):
    """`Race` in simulated time: a turn is an empty gradient that takes `pause_s`, and messages take the time of
    config.cluster's links. Push-sum is `async_push_sum` with the weights of the topology: a share whose receiver has
    not taken the previous one stays with its sender."""

    name: str = "simulated_straggler"
    folder: ClassVar[str] = "simulated_races"
    axis: ClassVar[str] = "simulated_s"

    def check(self) -> None:
        """Check that there are links."""
        super().check()
        if not isinstance(cluster_of(self.config), Machines):
            raise ConfigError("this cluster has no links: use cluster=machines, or a named one, such as even.")

    def line(self, seed: int, slowdown: float, asynchronous: bool) -> dict[str, Any]:
        """Return the entries of all workers, simulated in this process."""
        from decentral.plugins.papers.validation import races

        slow = Stragglers(Mode.fixed, slowdown=slowdown, workers=[self.n - 1]) if slowdown > 1 else Stragglers()
        compute = ComputeTimes(mean_s=self.pause_s)
        config = replace(self.config, cluster=replace(self.config.cluster, compute=compute, stragglers=slow))
        x = starts(self.n, self.dimension, seed)
        return (races.simulated_push_sum if asynchronous else races.simulated_rounds)(config, self.duration_s, x)
