"""What it is worth not to wait for who is late: steps of real processes whose workers sleep instead of computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.jobs.timing.group import Together, Turns, in_group
from decentral.jobs.timing.sleeping import Sleeping, Still

if TYPE_CHECKING:
    from decentral.config.schema import Config

_COLUMNS = {
    "method": "method",
    "wall_ms": "ms wall",
    "cpu_ms": "ms CPU, all processes",
    "exchange_ms": "ms beyond the undelayed compute",
    "speed_up": "WAGMA's step, by the same transport, is faster by",
}
_WAGMA, _ALL, _RING = "wagma, S = 4, tau = 10", "allreduce", "dpsgd, ring"
_GLOO = " (gloo)"
_OVER_GLOO = "network.transport=torch"
_TAU = 10
_COMPARED = {
    _ALL: ("algo=allreduce", "topology=ring"),
    _RING: ("algo=dpsgd", "topology=ring"),
    _WAGMA: ("algo=wagma", "algo.tau=10", "algo.group_size=4"),
}
_METHODS = {
    **_COMPARED,
    **{label + _GLOO: (*settings, _OVER_GLOO) for label, settings in _COMPARED.items()},
    "wagma, groups that wait": ("algo=wagma", "algo.tau=10", "algo.group_size=4", "algo.wait_avoiding=false"),
    "eager_sgd, solo": ("algo=eager_sgd",),
    "local_sgd, tau = 10": ("algo=local_sgd", "algo.period_steps=10"),
    "sgp, one_peer_exponential": ("algo=sgp", "topology=one_peer_exponential"),
    "adpsgd, ring": ("algo=adpsgd", "topology=ring"),
}


class Size(NamedTuple):
    """How many processes exchange how many numbers, for how many steps in a row."""

    processes: int
    parameters: int
    steps: int
    mean_s: float
    delay_s: float


_FULL = Size(8, 1_000_000, 40, 0.160, 0.080)
_QUICK = Size(4, 1_000, 10, 0.004, 0.002)
_MOST_ROUNDS = 2


@dataclass
class NobodyWaits(Benchmark):
    """Two workers drawn anew in every step are late; all methods have the same delays, and no gradient to compute."""

    name: str = "nobody_waits"
    title: ClassVar[str] = "a step of other methods / WAGMA's, where two of eight workers are late in every step"

    def measure(self, effort: Effort) -> Findings:
        """All methods in turn, many steps each."""
        size = _QUICK if effort.quick else _FULL
        rounds = 1 if effort.quick else min(effort.rounds, _MOST_ROUNDS)
        methods = _COMPARED if effort.quick else _METHODS
        setups = {
            label: Sleeping(configured(size, settings, rounds), size.steps, _TAU) for label, settings in methods.items()
        }
        (found,) = in_group(size.processes, [Turns(setups, rounds, warm_up=0)])
        title = f"A step of {size.processes} processes, rows of {size.parameters} floats, {size.steps} steps in a row"
        return Findings(
            [Table(title, _COLUMNS, rows_of(found, size))],
            targets_of(found, size, rounds),
            [notes_of(size, undelayed_exchanges(size, rounds))],
        )


def rows_of(found: Together, size: Size) -> list[dict[str, Any]]:
    """A row for each method, per step."""
    rows = []
    for label in found.wall.seconds:
        wall_s = found.wall.median(label) / size.steps
        times = {"wall_ms": 1e3 * wall_s, "exchange_ms": 1e3 * (wall_s - size.mean_s)}
        cpu = {"cpu_ms": 1e3 * found.cpu.median(label) / size.steps}
        rows.append({"method": label, **times, **cpu, "speed_up": found.wall.ratio(label, _wagma(label))})
    return rows


def _wagma(label: str) -> str:
    """WAGMA with the same transport."""
    return _WAGMA + _GLOO if label.endswith(_GLOO) else _WAGMA


class Least(NamedTuple):
    """What the steps take if no exchange took any time, in seconds: what these delays cost who waits for whom."""

    for_all: float
    for_neighbors: float
    every_tau: float


def least(seconds: np.ndarray) -> Least:
    """From what each gradient takes [steps, n]: waiting for all, on a ring, and for all every `_TAU` steps."""
    ring = seconds[0] * 0
    for step in seconds:
        ready = ring + step
        ring = ready.copy()
        for shift in (1, -1):
            np.maximum(ring, np.roll(ready, shift), out=ring)
    apart = sum(float(seconds[t : t + _TAU].sum(0).max()) for t in range(0, len(seconds), _TAU))
    return Least(float(seconds.max(1).sum()), float(ring.max()), apart)


def targets_of(found: Together, size: Size, rounds: int) -> list[Target]:
    """Against waiting for all, and for two neighbours, over gloo where that is measured, as between machines."""
    free = undelayed_exchanges(size, rounds)
    over = _GLOO if _ALL + _GLOO in found.wall.seconds else ""
    wanted = {_ALL: (1.25, free.for_all), _RING: (1.10, free.for_neighbors)}
    return [
        Target(
            f"{label}{over}'s step / WAGMA's (wall)",
            found.wall.ratio(label + over, _WAGMA + over)[0],
            at_least=wanted_ratio,
            floor=f"with exchanges that take no time, these delays make it {waits / free.every_tau:.2f}: workers that "
            f"meet every {_TAU} steps wait for the slowest sum of {_TAU}. What is more, {label}'s own exchange costs.",
        )
        for label, (wanted_ratio, waits) in wanted.items()
    ]


def undelayed_exchanges(size: Size, rounds: int) -> Least:
    """What all the rounds take if exchanges take no time."""
    config = configured(size, _METHODS[_WAGMA], rounds)
    times = config.cluster.gradient_times(size.processes, config.seed)
    firsts = range(_TAU, _TAU + rounds * size.steps, size.steps)
    return Least(*np.sum([least(times.seconds(first, first + size.steps)) for first in firsts], axis=0))


def notes_of(size: Size, free: Least) -> str:
    """What all of them do, and what is the most that WAGMA can gain here."""
    return (
        f"A gradient takes {1e3 * size.mean_s:g} ms, and {1e3 * size.delay_s:g} ms more for two workers that are drawn "
        "in every step; it is slept, by every worker in a process of its own. Rows go through shared memory, where "
        "exchanges take least, or over gloo, as between machines. All methods do plain SGD from pause to pause. If no "
        f"exchange took any time, these delays would make all-reduce's step {free.for_all / free.every_tau:.2f} times, "
        f"and the ring's {free.for_neighbors / free.every_tau:.2f} times as long as WAGMA's: workers that meet every "
        f"{_TAU} steps wait for the slowest sum of {_TAU}. The rest is what the exchanges of the others take."
    )


def configured(size: Size, settings: Sequence[str], rounds: int) -> Config:
    """The run of a method with one worker in each process."""
    from decentral.config.composition import compose

    places = (f"num_workers={size.processes}", f"processes={size.processes}", f"steps={rounds * size.steps + _TAU}")
    cluster = (
        *("cluster=two_delayed", f"cluster.compute.mean_s={size.mean_s:g}"),
        f"cluster.stragglers.delay_s={size.delay_s:g}",
    )
    shared = ("task=quadratics", "task.dimension=2", "optim=sgd", "device=cpu", "progress=false")
    config = compose([*shared, *places, *cluster, *settings])
    return replace(config, task=Still(dimension=size.parameters))
