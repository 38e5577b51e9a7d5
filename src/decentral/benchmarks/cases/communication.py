"""What an exchange costs beyond the bytes that it must move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.benchmarks.baselines.exchanges import AllReduce, Copy, PointToPoint, messages
from decentral.benchmarks.baselines.thesis_relay import ThesisRelay
from decentral.benchmarks.cases.traffic import least_passes, relaying
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.data.description import ImageData
from decentral.jobs.timing.group import Together, Turns, in_group
from decentral.jobs.timing.verbs import Step, Verb

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.jobs.timing.group import Setup

_REPEATED = 3_000_000  # numbers that are exchanged before the clock is read
_MOST_ROUNDS = 3  # of what takes longer than that
_CARRIERS = ("torch", "shared_memory")
_VGG11 = ("model=vgg11", "data=synthetic", "data.image_size=32", "data.num_classes=10")
_EXCHANGE = {
    "exchange": "exchange",
    "parameters": "P",
    "raw_wall_ms": "raw (ms wall)",
    "torch_cpu": "gloo / raw, CPU",
    "torch_wall": "gloo / raw, wall",
    "shared_memory_cpu": "shared memory / raw, CPU",
    "shared_memory_wall": "shared memory / raw, wall",
    "bytes": "bytes / least",
    "messages": "messages per neighbour, tree and step",
}
ALLREDUCE, _GLOO, _SHARED = "allreduce (gloo)", "relaysgd, dbt (gloo)", "relaysgd, dbt (shared memory)"
BYTES, COPY = "the bytes of relaying on dbt alone (gloo)", "one copy of a row in each process"
_THESIS = "relaysgd, dbt, the thesis' way (gloo)"
_RELAY = {
    "step": "step",
    "cpu_ms": "ms CPU",
    "wall_ms": "ms wall (least)",
    "cpu": "allreduce / this, CPU",
    "wall": "allreduce / this, wall",
}


class Exchange(NamedTuple):
    """A verb on a topology."""

    label: str
    verb: str
    settings: tuple[str, ...]


EXCHANGES = (
    Exchange("mean (raw: one all_reduce)", "mean", ("topology=ring",)),
    Exchange("mix, ring", "mix", ("topology=ring",)),
    Exchange("mix, one_peer_exponential", "mix", ("topology=one_peer_exponential",)),
    Exchange("mix, exponential", "mix", ("topology=exponential",)),
    Exchange("mix, hypercube", "mix", ("topology=hypercube",)),
    Exchange("mix, torus", "mix", ("topology=torus",)),
    Exchange("relay, chain", "relay", ("topology=chain",)),
    Exchange("relay, bt", "relay", ("topology=bt",)),
    Exchange("relay, dbt in contiguous halves", "relay", ("topology=dbt", "topology.split=contiguous")),
    Exchange("relay, dbt interleaved", "relay", ("topology=dbt", "topology.split=interleaved")),
)


@dataclass
class Communication(Benchmark):
    """Eight processes, a worker in each, nothing computed but what the exchange itself needs."""

    name: str = "communication"
    title: ClassVar[str] = "an exchange of rows between 8 processes / its bytes alone; relaying / all-reduce"

    def measure(self, effort: Effort) -> Findings:
        """Each topology at two sizes, then the step of RelaySGD against all-reduce and the thesis' way."""
        size = 4 if effort.quick else 8
        sizes = (10_000,) if effort.quick else (1_000_000, 10_000_000)
        exchanges = EXCHANGES[1::7] if effort.quick else EXCHANGES
        rows = exchange_rows(exchanges, size, sizes, effort)
        steps, targets = relay_rows(size, ((100, 100), (11,)) if effort.quick else vgg11_shapes(), effort)
        worst_bytes = max(abs(row["bytes"] - 1) for row in rows if row["bytes"] is not None)
        worst_messages = max(row["messages"] for row in rows if row["messages"] is not None)
        targets += [
            Target("bytes on the wire / sum over edges: largest difference from 1", worst_bytes, at_most=0.0),
            Target("messages per neighbour, tree and step (most)", worst_messages, at_most=1.0),
        ]
        notes = [
            "Raw is batch_isend_irecv over gloo of the same bytes to the same processes, from memory that is there "
            "already; an exchange also averages what arrives, or adds it up and passes it on.",
            "The steps have a gradient that is there already, and all of them do plain SGD, except the single "
            "all_reduce of one flat tensor. The thesis' way packs all parameters with cat, takes every other "
            "coordinate for each tree, sends the counts apart, and serves one neighbour after the other.",
        ]
        tables = [
            Table(f"One exchange between {size} processes", _EXCHANGE, rows),
            Table(f"A step of RelaySGD on dbt without compute, {size} processes", _RELAY, steps),
        ]
        return Findings(tables, targets, notes)


def exchange_rows(
    exchanges: Sequence[Exchange], size: int, sizes: Sequence[int], effort: Effort
) -> list[dict[str, Any]]:
    """A row for each exchange and number of parameters: both transports, and the raw bytes, in turn."""
    configs = composed([("algo=allreduce", *each.settings) for each in exchanges], size)
    cases = [(each, config, numbers) for numbers in sizes for each, config in zip(exchanges, configs, strict=True)]
    turns = []
    for each, config, numbers in cases:
        raw = AllReduce(numbers) if each.verb == "mean" else PointToPoint(config, numbers)
        setups: dict[str, Setup] = {"raw": raw}
        setups |= {carrier: Verb(carried(config, carrier), numbers, each.verb) for carrier in _CARRIERS}
        repeats = 1 if effort.quick else max(1, _REPEATED // numbers)
        turns.append(Turns(setups, effort.rounds if repeats > 1 else min(effort.rounds, _MOST_ROUNDS), repeats))
    found = in_group(size, turns)
    return [_exchange_row(*case, times) for case, times in zip(cases, found, strict=True)]


def _exchange_row(each: Exchange, config: Config, numbers: int, found: Together) -> dict[str, Any]:
    row: dict[str, Any] = {"exchange": each.label, "parameters": numbers, "raw_wall_ms": 1e3 * found.wall.least("raw")}
    for carrier in _CARRIERS:
        row[f"{carrier}_cpu"] = found.cpu.ratio(carrier, "raw")
        row[f"{carrier}_wall"] = found.wall.least(carrier) / found.wall.least("raw")
    row["bytes"], row["messages"] = None, None  # of an all-reduce nobody counts them
    if each.verb != "mean":
        least_bytes, least_messages = least(config, numbers)
        row["bytes"] = max(found.sent[carrier][0] for carrier in _CARRIERS) / least_bytes
        row["messages"] = max(found.sent[carrier][1] for carrier in _CARRIERS) / least_messages
    return row


def least(config: Config, num_coordinates: int) -> tuple[float, float]:
    """Bytes (float32) and messages that a round of the topology needs, in the mean over its period."""
    assert config.num_workers is not None
    schedule = config.rounds()
    needed = [message for round in range(schedule.period) for message in messages(schedule, num_coordinates, round)]
    return 4 * sum(message.width for message in needed) / schedule.period, len(needed) / schedule.period


def relay_rows(
    size: int, shapes: tuple[tuple[int, ...], ...], effort: Effort
) -> tuple[list[dict[str, Any]], list[Target]]:
    """Steps without compute of a model with these tensors: RelaySGD ours and the thesis' way, and all-reduce."""
    import math

    numbers = sum(math.prod(shape) for shape in shapes)
    trees = ("algo=relaysgd", "topology=dbt", "lr=0.001")
    relaysgd, thesis, allreduce = composed(
        [(*trees, "topology.split=contiguous"), (*trees, "topology.split=interleaved"), ("algo=allreduce", "lr=0.001")],
        size,
    )
    setups: dict[str, Setup] = {
        BYTES: PointToPoint(relaysgd, numbers),
        COPY: Copy(numbers),
        "one all_reduce (gloo), no SGD": AllReduce(numbers),
        ALLREDUCE: Step(carried(allreduce, "torch"), numbers),
        _GLOO: Step(carried(relaysgd, "torch"), numbers),
        _SHARED: Step(carried(relaysgd, "shared_memory"), numbers),
        _THESIS: ThesisRelay(thesis, shapes),
        f"{_THESIS}, freed memory is kept": ThesisRelay(thesis, shapes, keeps_memory=True),
    }
    (found,) = in_group(size, [Turns(setups, effort.rounds)])
    rows = [
        {
            "step": label,
            "cpu_ms": 1e3 * found.cpu.median(label),
            "wall_ms": 1e3 * found.wall.least(label),
            "cpu": found.cpu.ratio(ALLREDUCE, label),
            "wall": found.wall.least(ALLREDUCE) / found.wall.least(label),
        }
        for label in setups
    ]
    over = {label: found.cpu.ratio(ALLREDUCE, label).median for label in (_GLOO, _SHARED)}
    naive = found.cpu.ratio(_THESIS, _GLOO).median
    return rows, [
        Target(
            "RelaySGD dbt throughput / all-reduce over gloo (CPU)",
            over[_GLOO],
            at_least=0.83,
            floor=floor_of_a_step(found, relaysgd, ALLREDUCE, 0.83),
        ),
        Target("the same through shared memory / all-reduce over gloo (CPU)", over[_SHARED], at_least=1.3),
        Target(
            "thesis-style relay step / ours, both over gloo (CPU)",
            naive,
            at_least=2.8,
            floor=floor_of_a_step(found, relaysgd, _THESIS, 2.8),
        ),
    ]


def floor_of_a_step(found: Together, relaysgd: Config, other: str, wanted: float) -> str:
    """What stands in the way of being `wanted` times as fast as `other`, if it is the bytes and the least passes."""
    passes = least_passes(relaysgd.rounds(), relaying)
    least_s = found.cpu.median(BYTES) + passes * found.cpu.median(COPY) / 2
    reached = found.cpu.median(other) / least_s
    if reached >= wanted:
        return ""
    return (
        f"the bytes alone, and the least possible {passes:g} passes over memory at the speed of a copy in the same "
        f"processes, take {1e3 * least_s:.0f} ms of CPU, which would reach {reached:.2f}"
    )


def vgg11_shapes() -> tuple[tuple[int, ...], ...]:
    """Those of the parameters of VGG-11 for images of 32 x 32 in 10 classes: 9,750,922 numbers."""
    from decentral.config.composition import compose

    config = compose([*_VGG11, "num_workers=8"])
    module = config.model.build(ImageData(shape=(3, 32, 32), num_classes=10))
    return tuple(tuple(parameter.shape) for parameter in module.parameters())


def composed(settings: Sequence[Sequence[str]], size: int) -> list[Config]:
    """The configurations of a worker in each of `size` processes; what they would train on plays no part."""
    from decentral.config.composition import compose_all

    common = ("task=quadratics", f"num_workers={size}", f"processes={size}", "device=cpu")
    return compose_all([[*common, *each] for each in settings])


def carried(config: Config, carrier: str) -> Config:
    """The same with another `network.transport`."""
    from dataclasses import replace

    from decentral.network.settings import Carrier

    return replace(config, network=replace(config.network, transport=Carrier[carrier]))
