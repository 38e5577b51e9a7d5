"""All-reduces of ours between processes, through shared memory and over gloo, against gloo's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.benchmarks.baselines.exchanges import AllReduce
from decentral.benchmarks.cases.communication import carried, composed
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.jobs.timing.group import Together, Turns, in_group
from decentral.jobs.timing.verbs import Verb

if TYPE_CHECKING:
    from decentral.jobs.timing.group import Setup

_GLOO = "gloo's all_reduce"
_CARRIERS = {"shared_memory": "through shared memory", "torch": "over gloo"}
_AT_MOST = {"shared_memory": 1.0, "torch": 1.3}
_COLLECTIVES = ("ring", "rabenseifner", "tree")
_COLUMNS = {
    "collective": "all-reduce",
    "wall_ms": "ms wall (least)",
    "cpu_ms": "ms CPU, all processes",
    "wall": "this / gloo's, wall",
    "cpu": "this / gloo's, CPU",
}


@dataclass
class Collectives(Benchmark):
    """Eight processes with a row each; `network.collective` says how they arrive at the mean."""

    name: str = "collectives"
    title: ClassVar[str] = "all-reduces of ours between 8 processes / gloo's own"

    def measure(self, effort: Effort) -> Findings:
        """Rows of 10 million numbers (40 MB); the ring is judged."""
        processes, numbers = (4, 2_000) if effort.quick else (8, 10_000_000)
        settings = [("algo=allreduce", f"network.collective={name}") for name in _COLLECTIVES]
        setups: dict[str, Setup] = {_GLOO: AllReduce(numbers)}
        for name, config in zip(_COLLECTIVES, composed(settings, processes), strict=True):
            for carrier in _CARRIERS:
                setups[_label(name, carrier)] = Verb(carried(config, carrier), numbers, "mean")
        (found,) = in_group(processes, [Turns(setups, min(effort.rounds, 5), warm_up=1)])
        targets = [
            Target(f"{_label('ring', carrier)} / {_GLOO} (wall)", _ratio(found, _label("ring", carrier)), at_most)
            for carrier, at_most in _AT_MOST.items()
        ]
        table = Table(
            f"The mean of rows of {numbers:,} float32 between {processes} processes",
            _COLUMNS,
            [_row(label, found) for label in setups],
        )
        return Findings([table], targets, ["Gloo's only adds up; the others end with the mean."])


def _label(collective: str, carrier: str) -> str:
    return f"{collective}, {_CARRIERS[carrier]}"


def _ratio(found: Together, label: str) -> float:
    """The least wall times divided: what happens where nobody disturbs."""
    return found.wall.least(label) / found.wall.least(_GLOO)


def _row(label: str, found: Together) -> dict[str, Any]:
    return {
        "collective": label,
        "wall_ms": 1e3 * found.wall.least(label),
        "cpu_ms": 1e3 * found.cpu.median(label),
        "wall": _ratio(found, label),
        "cpu": found.cpu.ratio(label, _GLOO),
    }
