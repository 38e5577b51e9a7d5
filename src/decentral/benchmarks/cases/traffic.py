"""What a step moves in memory, and what it allocates, counted operation by operation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.topology.rounds import Rounds

_N = 8
_STEPS = 12  # by then all messages have arrived once

Least = Callable[[int], int]


def relaying(degree: int) -> int:
    """Least passes of RelaySGD with so many neighbours.

    Read x, g and the old messages, write y and the new ones; read y and what came, write x. With one neighbour there
    is no message but y itself.
    """
    return (3 + 2 * degree if degree > 1 else 3) + 2 + degree


def combining(degree: int) -> int:
    """Least passes of adapt then combine: read x and g, write y; read y and the neighbours' rows, write x."""
    return 3 + 2 + degree


CASES: tuple[tuple[tuple[str, ...], Least | None], ...] = (
    (("algo=relaysgd", "topology=dbt"), relaying),
    (("algo=relaysgd", "topology=dbt", "topology.split=interleaved"), relaying),
    (("algo=relaysgd", "topology=chain"), relaying),
    (("algo=dpsgd", "topology=ring"), combining),
    (("algo=dpsgd", "topology=one_peer_exponential"), combining),
    (("algo=gradient_tracking", "topology=ring"), None),
    (("algo=d2", "topology=ring"), None),
    (("algo=sgp", "topology=one_peer_exponential"), None),
    (("algo=model_averaging",), None),
)


@dataclass
class Traffic(Benchmark):
    """Passes over memory, in rows of P numbers: one for each read or write, also of what is in the cache."""

    name: str = "traffic"
    title: ClassVar[str] = "passes over memory per step / the least possible, and bytes allocated / the model's"

    def measure(self, effort: Effort) -> Findings:
        """Count. Nothing is timed, so the numbers are the same everywhere."""
        size = 1 << 21  # more, and all numbers stay the same
        rows = [count(settings, least, size) for settings, least in CASES]
        first = rows[0]
        columns = {
            "settings": "settings",
            "passes": "passes per step",
            "least": "least possible",
            "ratio": "ratio",
            "allocated": "allocated / model",
        }
        targets = [
            Target("passes over memory / the least possible, RelaySGD on dbt", first["ratio"], at_most=2.0),
            Target("bytes allocated per step / model size, worst case", max(r["allocated"] for r in rows), at_most=0.1),
        ]
        title = f"update and exchange of one worker per process, mean over n = {_N}, P = {size:,}, plain SGD"
        notes = [
            "The least possible is for one pass that computes y and all messages at once and one that averages; it is "
            "worked out for relaying and for adapt-then-combine. The transport is not counted."
        ]
        return Findings([Table(title, columns, rows)], targets, notes)


def count(settings: Sequence[str], least: Least | None, num_parameters: int) -> dict[str, Any]:
    """Mean over the workers of what the last of a few steps moves and allocates, in rows of P numbers."""
    from decentral.config.composition import compose

    config = compose([*settings, "task=quadratics", f"num_workers={_N}"])
    rounds = config.topology.schedule(_N)
    counts = [_one(config, rank, num_parameters) for rank in range(_N)]
    passes, allocated = (statistics.fmean(c[i] for c in counts) for i in (0, 1))
    found: dict[str, Any] = {"settings": " ".join(settings), "passes": passes, "allocated": allocated}
    if least is not None:
        found["least"] = least_passes(rounds, least)
        found["ratio"] = passes / found["least"]
    return found


def least_passes(rounds: Rounds, least: Least) -> float:
    """The mean of `least` over workers, pieces and the rounds of a period."""
    graphs = [W.graph for round in range(rounds.period) for W in rounds.mixing(round)]
    return statistics.fmean(least(degree) for graph in graphs for degree in graph.indegree.tolist())


def _one(config: Config, rank: int, P: int) -> tuple[float, float]:
    """Passes and allocated rows in the last step of worker `rank`, alone in its process, whose messages go nowhere."""
    import torch

    from decentral.benchmarks.baselines.meter import Meter
    from decentral.benchmarks.baselines.silent import Silent
    from decentral.compression.row_layout import RowLayout
    from decentral.jobs.timing.verbs import ready
    from decentral.network.delivery import Losses
    from decentral.network.processes import ProcessNetwork, split_workers
    from decentral.training.assemble import with_rate
    from decentral.training.stepper import Stepper

    device, layout = torch.device("cpu"), split_workers(_N, _N)
    net = ProcessNetwork(config.topology.schedule(_N), Losses(0.0, 0), device, rank, layout, Silent())
    stepper = Stepper(with_rate(config, lambda t: 0.1, RowLayout.flat(P)), net, ready(P), torch.zeros(1, P))
    for _ in range(_STEPS):
        meter = Meter()
        with meter:
            stepper.step()
    return meter.moved_bytes / (4 * P), meter.allocated_bytes / (4 * P)
