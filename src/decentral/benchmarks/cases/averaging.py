"""Averaging with neighbours against all-reduce: Figure 11 of the BlueFog paper (Ying et al., 2021), over gloo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.benchmarks.baselines.exchanges import AllReduce, Copy, PointToPoint
from decentral.benchmarks.cases.communication import carried, composed
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.jobs.timing.group import Together, Turns, in_group
from decentral.jobs.timing.verbs import Verb

if TYPE_CHECKING:
    from decentral.jobs.timing.group import Setup

ALLREDUCE, _MEAN = "all-reduce (gloo's, a sum)", "all-reduce as the network's mean"
_RING, _BOTH = "ring, one neighbour", "ring, both neighbours"
_ONE_PEER, _INNER_OUTER = "one-peer exponential", "inner-outer exponential"
_RAW = "{}, its bytes alone"
COPY = "one copy of a row in each process"
_NEIGHBOURS = {_RING: 1, _BOTH: 2, _ONE_PEER: 1}
_BYTES_PER_NUMBER, _BYTES_PER_MB = 4, 1_000_000
_REPEATED = 3_000_000  # numbers that are averaged before the clock is read
_COLUMNS = {
    "exchange": "exchange",
    "megabytes": "MB",
    "wall_ms": "ms wall (least)",
    "cpu_ms": "ms CPU",
    "wall": "all-reduce / this, wall",
    "cpu": "all-reduce / this, CPU",
}


@dataclass
class Averaging(Benchmark):
    """Eight processes, a worker in each; every exchange goes over gloo."""

    name: str = "averaging"
    title: ClassVar[str] = "all-reduce / averaging with neighbours, 8 processes over gloo"

    def measure(self, effort: Effort) -> Findings:
        """1, 10 and 44 MB (11 million numbers in float32); the largest is judged."""
        sizes: tuple[float, ...]
        processes, sizes = (6, (0.01,)) if effort.quick else (8, (1, 10, 44))
        found = timed(processes, sizes, effort)
        rows = [
            _row(label, megabytes, times)
            for megabytes, times in zip(sizes, found, strict=True)
            for label in times.wall.seconds
        ]
        notes = [
            "All-reduce is one all_reduce of a flat tensor, which only adds up; the others end with the average.",
            "Over the loopback and on shared cores it is bytes that cost: for each worker all-reduce sends "
            "2 (n - 1) / n times its row, the ring to both neighbours sends it twice, the others once. What the paper "
            "gains besides, few messages over a slow network, is not seen here.",
            "The bytes alone are batch_isend_irecv from and to memory that is there already; nothing is averaged.",
        ]
        title = f"An average between {processes} processes"
        return Findings([Table(title, _COLUMNS, rows)], judged(found[-1], sizes[-1]), notes)


def timed(processes: int, megabytes: tuple[float, ...], effort: Effort) -> list[Together]:
    """Times of all exchanges, in turn, for each size of a worker's row."""
    machines = f"topology.workers_per_machine={processes // 2}"
    settings = {
        _RING: ("topology=ring", "topology.direction=right"),
        _BOTH: ("topology=ring",),
        _ONE_PEER: ("topology=one_peer_exponential",),
        _INNER_OUTER: ("topology=inner_outer_exponential", machines),
    }
    configs = [
        carried(one, "torch") for one in composed([("algo=dpsgd", *each) for each in settings.values()], processes)
    ]
    turns = []
    for numbers in (round(size * _BYTES_PER_MB / _BYTES_PER_NUMBER) for size in megabytes):
        setups: dict[str, Setup] = {
            ALLREDUCE: AllReduce(numbers),
            _MEAN: Verb(configs[0], numbers, "mean"),
            COPY: Copy(numbers),
        }
        for label, config in zip(settings, configs, strict=True):
            setups |= {label: Verb(config, numbers, "mix"), _RAW.format(label): PointToPoint(config, numbers)}
        repeats = 1 if effort.quick else max(1, _REPEATED // numbers)
        turns.append(Turns(setups, effort.rounds, repeats, warm_up=configs[-1].topology.schedule(processes).period))
    return in_group(processes, turns)


def judged(found: Together, megabytes: float) -> list[Target]:
    """Averaging on rings and on the one-peer graph should not take longer than all-reduce, in wall and in CPU time."""
    return [
        Target(
            f"all-reduce / {label}, {megabytes:g} MB ({clock})",
            faster(found, label, clock),
            at_least=1.0,
            floor=floor_of_an_average(found, label, clock),
        )
        for label in _NEIGHBOURS
        for clock in ("wall", "CPU")
    ]


def faster(found: Together, label: str, clock: str) -> float:
    """How many times as fast as all-reduce: the least wall times, or the median of the rounds' ratios of CPU times."""
    if clock == "wall":
        return found.wall.least(ALLREDUCE) / found.wall.least(label)
    return found.cpu.ratio(ALLREDUCE, label).median


def floor_of_an_average(found: Together, label: str, clock: str) -> str:
    """What stands in the way of being faster, if it is the bytes and what an average takes at least.

    That is to read d + 1 rows and to write one: d + 2 passes over memory, of which a copy has two.
    """
    times = found.wall.least if clock == "wall" else found.cpu.median
    passes = _NEIGHBOURS[label] + 2
    least_s = times(_RAW.format(label)) + passes / 2 * times(COPY)
    reached = times(ALLREDUCE) / least_s
    if reached >= 1:
        return ""
    return (
        f"its bytes alone, sent and received by gloo, and the {passes} passes over memory that an average takes at "
        f"least, at the speed of a copy in the same processes, take {1e3 * least_s:.0f} ms, which would reach "
        f"{reached:.2f}"
    )


def _row(label: str, megabytes: float, found: Together) -> dict[str, Any]:
    return {
        "exchange": label,
        "megabytes": megabytes,
        "wall_ms": 1e3 * found.wall.least(label),
        "cpu_ms": 1e3 * found.cpu.median(label),
        "wall": faster(found, label, "wall"),
        "cpu": found.cpu.ratio(ALLREDUCE, label),
    }
