"""What a step moves in memory, and what it allocates, counted operation by operation: no clock, no noise."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.harness import Effort, Findings, Table, Target, benchmark, ready
from decentral.compression.rows import RowLayout
from decentral.config.composition import compose
from decentral.config.schema import Config
from decentral.network.processes import ProcessNetwork, split_workers
from decentral.network.transports.posting import Message, Work
from decentral.network.transports.torch_distributed import TorchDistributed
from decentral.topology.delivery import Losses
from decentral.topology.rounds import Rounds
from decentral.training.method import with_rate
from decentral.training.stepper import Stepper

_ONLY_WRITE = ("copy_", "zero_", "fill_", "normal_", "uniform_")
"""In-place operations that do not look at what they overwrite."""
_N, _STEPS = 8, 12  # by then all messages have arrived once

Least = Callable[[int], int]


class Meter(TorchDispatchMode):
    """While it is entered: bytes that operations read and write, and bytes of the tensors that they make.

    Every operand of an operation counts as read once and every result as written once, also where it stays in the
    cache; views cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved_bytes = 0
        self.allocated_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation, and count it."""
        result = func(*args, **(kwargs or {}))
        expected = func._schema.arguments
        infos = [value.alias_info for value in expected]
        if any(info is not None and not info.is_write for info in infos):
            return result  # a view
        given = list(args) + [(kwargs or {}).get(value.name) for value in expected[len(args) :]]
        has_out = any(value.is_out for value in expected)
        looks = not has_out and not func.__name__.partition(".")[0].endswith(_ONLY_WRITE)
        for value, info in zip(given, infos, strict=True):
            written = info is not None and info.is_write
            self.moved_bytes += _bytes(value) * (written + (looks or not written))
        if not any(info is not None for info in infos):
            self.moved_bytes += _bytes(result)
            self.allocated_bytes += _bytes(result)
        return result


def _bytes(value: Any) -> int:
    """Of all tensors in it."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


class Silent(TorchDistributed):
    """A transport that carries nothing: what comes is whatever lies in the buffers."""

    def total(self, x: Tensor, factor: float) -> Tensor:
        """As if all other rows were zero."""
        return x.mul_(factor)

    def _go(self, sends: Sequence[Message], receives: Sequence[Message]) -> list[Work]:
        return []


def relaying(degree: int) -> int:
    """Least passes of RelaySGD with so many neighbors.

    Read x, g and the old messages, write y and the new ones; read y and what came, write x. With one neighbor there
    is no message but y itself.
    """
    return (3 + 2 * degree if degree > 1 else 3) + 2 + degree


def combining(degree: int) -> int:
    """Least passes of adapt then combine: read x and g, write y; read y and the neighbors' rows, write x."""
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


@benchmark("passes over memory per step / the least possible, and bytes allocated / the model's")
def traffic(effort: Effort) -> Findings:
    """Passes over memory, in rows of P numbers: one for each read or write, also of what is in the cache."""
    size = 1 << 21  # more, and all numbers stay the same
    rows = [count(settings, least, size) for settings, least in CASES]
    columns = {
        "settings": "settings",
        "passes": "passes per step",
        "least": "least possible",
        "ratio": "ratio",
        "allocated": "allocated / model",
    }
    allocated = max(row["allocated"] for row in rows)
    targets = [
        Target("passes over memory / the least possible, RelaySGD on dbt", rows[0]["ratio"], at_most=2.0),
        Target("bytes allocated per step / model size, worst case", allocated, at_most=0.1),
    ]
    title = f"update and exchange of one worker per process, mean over n = {_N}, P = {size:,}, plain SGD"
    notes = [
        "The least possible is for one pass that computes y and all messages at once and one that averages; it is "
        "worked out for relaying and for adapt-then-combine. The transport is not counted."
    ]
    return Findings([Table(title, columns, rows)], targets, notes)


def count(settings: Sequence[str], least: Least | None, num_parameters: int) -> dict[str, Any]:
    """Mean over the workers of what the last of a few steps moves and allocates, in rows of P numbers."""
    config = compose([*settings, "task=quadratics", f"num_workers={_N}"])
    meters = [_metered(config, rank, num_parameters) for rank in range(_N)]
    passes = statistics.fmean(meter.moved_bytes / (4 * num_parameters) for meter in meters)
    allocated = statistics.fmean(meter.allocated_bytes / (4 * num_parameters) for meter in meters)
    found: dict[str, Any] = {"settings": " ".join(settings), "passes": passes, "allocated": allocated}
    if least is not None:
        found["least"] = least_passes(config.topology.schedule(_N), least)
        found["ratio"] = passes / found["least"]
    return found


def least_passes(rounds: Rounds, least: Least) -> float:
    """The mean of `least` over workers, pieces and the rounds of a period."""
    graphs = [W.graph for round in range(rounds.period) for W in rounds.mixing(round)]
    return statistics.fmean(least(degree) for graph in graphs for degree in graph.indegree.tolist())


def _metered(config: Config, rank: int, P: int) -> Meter:
    """The last step of worker `rank`, alone in its process, whose messages go nowhere."""
    device, layout = torch.device("cpu"), split_workers(_N, _N)
    net = ProcessNetwork(config.topology.schedule(_N), Losses(0.0, 0), device, rank, layout, Silent())
    stepper = Stepper(with_rate(config, lambda t: 0.1, RowLayout.flat(P)), net, ready(P), torch.zeros(1, P))
    for _ in range(_STEPS):
        with Meter() as meter:
            stepper.step()
    return meter
