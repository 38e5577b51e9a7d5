"""What an exchange of rows costs beyond the bytes that it must move: averaging, relaying and all-reduce over gloo."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from bench.baselines import Call, Setup
from bench.harness import Effort, Findings, Step, Table, Target, Together, benchmark, in_group
from bench.traffic import least_passes, relaying
from decentral.config.composition import compose, compose_all
from decentral.config.schema import Config
from decentral.data.dataset import ImageData
from decentral.measurements.timing import Turns, Verb, Work
from decentral.network.settings import Carrier
from decentral.network.world import World
from decentral.topology.rounds import Rounds

REPEATED = 3_000_000
"""How many numbers are exchanged before the clock is read."""
COPY = "one copy of a row in each process"


def configs_of(settings: Sequence[Sequence[str]], processes: int) -> list[Config]:
    """The configurations of a worker in each process; what they would train on plays no part."""
    common = ("task=quadratics", f"num_workers={processes}", f"processes={processes}", "device=cpu")
    return compose_all([[*common, *each] for each in settings])


def carried(config: Config, carrier: str) -> Config:
    """The same with another `network.transport`."""
    return replace(config, network=replace(config.network, transport=Carrier[carrier]))


def wall_over(found: Together, label: str, to: str) -> float:
    """The least wall times divided: what happens where nobody disturbs."""
    return found.wall.least(label) / found.wall.least(to)


def times(found: Together, label: str) -> dict[str, float]:
    """The columns that all tables have."""
    return {"wall_ms": 1e3 * found.wall.least(label), "cpu_ms": 1e3 * found.cpu.median(label)}


# -- the bytes, and nothing else ---------------------------------------------------------------------------------------


class Message(NamedTuple):
    """`width` numbers that worker `src` sends to worker `dst`."""

    src: int
    dst: int
    width: int


def messages(rounds: Rounds, num_coordinates: int, round: int) -> Iterator[Message]:
    """All that must be sent in a round: a piece of the model for each entry of W off the diagonal that is not zero."""
    pieces = [len(range(num_coordinates)[piece]) for piece in rounds.slices(num_coordinates)]
    for W, width in zip(rounds.mixing(round), pieces, strict=True):
        for src, dst in zip(W.graph.src.tolist(), W.graph.dst.tolist(), strict=True):
            yield Message(src, dst, width)


def least(config: Config, num_coordinates: int) -> tuple[float, float]:
    """Bytes (float32) and messages that a round of the topology needs, in the mean over its period."""
    rounds = config.rounds()
    needed = [message for round in range(rounds.period) for message in messages(rounds, num_coordinates, round)]
    return 4 * sum(message.width for message in needed) / rounds.period, len(needed) / rounds.period


class PointToPoint(Work):
    """`batch_isend_irecv` of the bytes that the topology asks for, from and to memory that is there already."""

    def __init__(self, config: Config, num_coordinates: int, world: World) -> None:
        rounds = config.rounds()
        each_round = [list(enumerate(messages(rounds, num_coordinates, round))) for round in range(rounds.period)]
        self.sends = [[(m, tag) for tag, m in each if m.src == world.rank] for each in each_round]
        self.receives = [[(m, tag) for tag, m in each if m.dst == world.rank] for each in each_round]
        self.row = torch.ones(num_coordinates)
        self.received = [torch.zeros(num_coordinates) for _ in range(max(map(len, self.receives)))]
        self.t = 0

    def __call__(self) -> None:
        """The messages of the next round."""
        sends, receives = self.sends[self.t], self.receives[self.t]
        self.t = (self.t + 1) % len(self.sends)
        operations = [
            dist.P2POp(dist.irecv, into[: m.width], m.src, tag=tag)
            for into, (m, tag) in zip(self.received, receives, strict=False)
        ]
        operations += [dist.P2POp(dist.isend, self.row[: m.width], m.dst, tag=tag) for m, tag in sends]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()


def copy(num_coordinates: int, world: World) -> Work:
    """A copy of a row in every process at once: two passes over memory, at the speed that it has for all of them."""
    return Call(partial(torch.zeros(num_coordinates).copy_, torch.ones(num_coordinates)))


def all_reduce(num_coordinates: int, world: World) -> Work:
    """One `all_reduce` of a flat tensor."""
    return Call(partial(dist.all_reduce, torch.zeros(num_coordinates)))


def floor(what: str, clock: str, least_s: float, other_s: float, wanted: float) -> str:
    """What stands in the way of being `wanted` times as fast as another step, if it is what takes `least_s`."""
    if other_s / least_s >= wanted:
        return ""
    took = f"{1e3 * least_s:.0f} ms{' of CPU' if clock == 'CPU' else ''}"
    return (
        f"{what}, at the speed of a copy in the same processes, take {took}, which would reach {other_s / least_s:.2f}"
    )


# -- averaging ---------------------------------------------------------------------------------------------------------

ALLREDUCE = "all-reduce (gloo's, a sum)"
RAW = "{}, its bytes alone"
_RING, _BOTH, _ONE_PEER = "ring, one neighbor", "ring, both neighbors", "one-peer exponential"
NEIGHBORS = {_RING: 1, _BOTH: 2, _ONE_PEER: 1}


@benchmark("all-reduce / averaging with neighbors, 8 processes over gloo")
def averaging(effort: Effort) -> Findings:
    """Figure 11 of the BlueFog paper (Ying et al., 2021): 1, 10 and 44 MB (11 million numbers); the last is judged."""
    processes, sizes = (6, (0.01,)) if effort.quick else (8, (1, 10, 44))
    settings = {
        _RING: ("topology=ring", "topology.direction=right"),
        _BOTH: ("topology=ring",),
        _ONE_PEER: ("topology=one_peer_exponential",),
        "inner-outer exponential": (
            "topology=inner_outer_exponential",
            f"topology.workers_per_machine={processes // 2}",
        ),
    }
    configs = [
        carried(one, "torch") for one in configs_of([("algo=dpsgd", *each) for each in settings.values()], processes)
    ]
    turns = []
    for numbers in (round(size * 1_000_000 / 4) for size in sizes):
        setups: dict[str, Setup] = {
            ALLREDUCE: partial(all_reduce, numbers),
            "all-reduce as the network's mean": partial(Verb, configs[0], numbers, "mean"),
            COPY: partial(copy, numbers),
        }
        for label, config in zip(settings, configs, strict=True):
            setups[label] = partial(Verb, config, numbers, "mix")
            setups[RAW.format(label)] = partial(PointToPoint, config, numbers)
        repeats = effort.repeats(max(1, REPEATED // numbers))
        turns.append(Turns(setups, effort.rounds, repeats, warm_up=configs[-1].topology.schedule(processes).period))
    found = in_group(processes, turns)
    rows: list[dict[str, Any]] = []
    for megabytes, one in zip(sizes, found, strict=True):
        for label in one.wall.seconds:
            ratios = {"wall": wall_over(one, ALLREDUCE, label), "cpu": one.cpu.ratio(ALLREDUCE, label)}
            rows.append({"exchange": label, "megabytes": megabytes} | times(one, label) | ratios)
    columns = {
        "exchange": "exchange",
        "megabytes": "MB",
        "wall_ms": "ms wall (least)",
        "cpu_ms": "ms CPU",
        "wall": "all-reduce / this, wall",
        "cpu": "all-reduce / this, CPU",
    }
    notes = [
        "All-reduce is one all_reduce of a flat tensor, which only adds up; the others end with the average.",
        "Over the loopback and on shared cores it is bytes that cost: for each worker all-reduce sends "
        "2 (n - 1) / n times its row, the ring to both neighbors sends it twice, the others once. What the paper "
        "gains besides, few messages over a slow network, is not seen here.",
        "The bytes alone are batch_isend_irecv from and to memory that is there already; nothing is averaged.",
    ]
    table = Table(f"An average between {processes} processes", columns, rows)
    return Findings([table], averaging_targets(found[-1], sizes[-1]), notes)


def averaging_targets(found: Together, megabytes: float) -> list[Target]:
    """Averaging on rings and on the one-peer graph should not take longer than all-reduce.

    An average reads d + 1 rows and writes one: d + 2 passes over memory, of which a copy has two.
    """
    targets = []
    for label, neighbors in NEIGHBORS.items():
        faster = {"wall": wall_over(found, ALLREDUCE, label), "CPU": found.cpu.ratio(ALLREDUCE, label).median}
        for clock, seconds in (("wall", found.wall.least), ("CPU", found.cpu.median)):
            least_s = seconds(RAW.format(label)) + (neighbors + 2) / 2 * seconds(COPY)
            what = f"its bytes alone, and the {neighbors + 2} passes over memory that an average takes at least"
            in_the_way = floor(what, clock, least_s, seconds(ALLREDUCE), 1.0)
            measure = f"all-reduce / {label}, {megabytes:g} MB ({clock})"
            targets.append(Target(measure, faster[clock], at_least=1.0, floor=in_the_way))
    return targets


# -- collectives -------------------------------------------------------------------------------------------------------

_GLOO = "gloo's all_reduce"
_CARRIERS = {"shared_memory": "through shared memory", "torch": "over gloo"}


# -- every verb, and relaying ------------------------------------------------------------------------------------------


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


@benchmark("an exchange of rows between 8 processes / its bytes alone; relaying / all-reduce")
def communication(effort: Effort) -> Findings:
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
        Target("messages per neighbor, tree and step (most)", worst_messages, at_most=1.0),
    ]
    exchange = {
        "exchange": "exchange",
        "parameters": "P",
        "raw_wall_ms": "raw (ms wall)",
        "torch_cpu": "gloo / raw, CPU",
        "torch_wall": "gloo / raw, wall",
        "shared_memory_cpu": "shared memory / raw, CPU",
        "shared_memory_wall": "shared memory / raw, wall",
        "bytes": "bytes / least",
        "messages": "messages per neighbor, tree and step",
    }
    relay = {
        "step": "step",
        "cpu_ms": "ms CPU",
        "wall_ms": "ms wall (least)",
        "cpu": "allreduce / this, CPU",
        "wall": "allreduce / this, wall",
    }
    notes = [
        "Raw is batch_isend_irecv over gloo of the same bytes to the same processes, from memory that is there "
        "already; an exchange also averages what arrives, or adds it up and passes it on.",
        "The steps have a gradient that is there already, and all of them do plain SGD, except the single "
        "all_reduce of one flat tensor. The thesis' way packs all parameters with cat, takes every other "
        "coordinate for each tree, sends the counts apart, and serves one neighbor after the other.",
    ]
    tables = [
        Table(f"One exchange between {size} processes", exchange, rows),
        Table(f"A step of RelaySGD on dbt without compute, {size} processes", relay, steps),
    ]
    return Findings(tables, targets, notes)


def exchange_rows(
    exchanges: Sequence[Exchange], size: int, sizes: Sequence[int], effort: Effort
) -> list[dict[str, Any]]:
    """A row for each exchange and number of parameters: both transports, and the raw bytes, in turn."""
    configs = configs_of([("algo=allreduce", *each.settings) for each in exchanges], size)
    cases = [(each, config, numbers) for numbers in sizes for each, config in zip(exchanges, configs, strict=True)]
    turns = []
    for each, config, numbers in cases:
        raw = partial(all_reduce, numbers) if each.verb == "mean" else partial(PointToPoint, config, numbers)
        setups: dict[str, Setup] = {"raw": raw}
        setups |= {carrier: partial(Verb, carried(config, carrier), numbers, each.verb) for carrier in _CARRIERS}
        repeats = effort.repeats(max(1, REPEATED // numbers))
        turns.append(Turns(setups, effort.rounds if repeats > 1 else effort.at_most(3), repeats))
    found = in_group(size, turns)
    return [_exchange_row(*case, one) for case, one in zip(cases, found, strict=True)]


def _exchange_row(each: Exchange, config: Config, numbers: int, found: Together) -> dict[str, Any]:
    row: dict[str, Any] = {"exchange": each.label, "parameters": numbers, "raw_wall_ms": 1e3 * found.wall.least("raw")}
    for carrier in _CARRIERS:
        row[f"{carrier}_cpu"] = found.cpu.ratio(carrier, "raw")
        row[f"{carrier}_wall"] = wall_over(found, carrier, "raw")
    row["bytes"], row["messages"] = None, None  # of an all-reduce nobody counts them
    if each.verb != "mean":
        least_bytes, least_messages = least(config, numbers)
        row["bytes"] = max(found.sent[carrier][0] for carrier in _CARRIERS) / least_bytes
        row["messages"] = max(found.sent[carrier][1] for carrier in _CARRIERS) / least_messages
    return row


STEP_ALLREDUCE, BYTES = "allreduce (gloo)", "the bytes of relaying on dbt alone (gloo)"
RELAYS = "relaysgd, dbt (gloo)", "relaysgd, dbt (shared memory)", "relaysgd, dbt, the thesis' way (gloo)"
_OVER_GLOO, _SHARED, _THESIS = RELAYS


def relay_rows(
    size: int, shapes: tuple[tuple[int, ...], ...], effort: Effort
) -> tuple[list[dict[str, Any]], list[Target]]:
    """Steps without compute of a model with these tensors: RelaySGD ours and the thesis' way, and all-reduce."""
    numbers = sum(math.prod(shape) for shape in shapes)
    trees = ("algo=relaysgd", "topology=dbt", "lr=0.001")
    relaysgd, thesis, allreduce = configs_of(
        [(*trees, "topology.split=contiguous"), (*trees, "topology.split=interleaved"), ("algo=allreduce", "lr=0.001")],
        size,
    )
    setups: dict[str, Setup] = {
        BYTES: partial(PointToPoint, relaysgd, numbers),
        COPY: partial(copy, numbers),
        "one all_reduce (gloo), no SGD": partial(all_reduce, numbers),
        STEP_ALLREDUCE: partial(Step, carried(allreduce, "torch"), numbers),
        _OVER_GLOO: partial(Step, carried(relaysgd, "torch"), numbers),
        _SHARED: partial(Step, carried(relaysgd, "shared_memory"), numbers),
        _THESIS: partial(ThesisRelay, thesis, shapes, False),
        f"{_THESIS}, freed memory is kept": partial(ThesisRelay, thesis, shapes, True),
    }
    (found,) = in_group(size, [Turns(setups, effort.rounds)])
    rows: list[dict[str, Any]] = []
    for label in setups:
        ratios = {"cpu": found.cpu.ratio(STEP_ALLREDUCE, label), "wall": wall_over(found, STEP_ALLREDUCE, label)}
        rows.append({"step": label} | times(found, label) | ratios)
    return rows, relay_targets(found, relaysgd)


def relay_targets(found: Together, relaysgd: Config) -> list[Target]:
    """Relaying against all-reduce by both transports, and the thesis' way against ours."""
    passes = least_passes(relaysgd.rounds(), relaying)
    least_s = found.cpu.median(BYTES) + passes / 2 * found.cpu.median(COPY)
    what = f"the bytes alone, and the least possible {passes:g} passes over memory"
    cases: Mapping[str, tuple[str, str, float]] = {
        "RelaySGD dbt throughput / all-reduce over gloo (CPU)": (STEP_ALLREDUCE, _OVER_GLOO, 0.83),
        "the same through shared memory / all-reduce over gloo (CPU)": (STEP_ALLREDUCE, _SHARED, 1.3),
        "thesis-style relay step / ours, both over gloo (CPU)": (_THESIS, _OVER_GLOO, 2.8),
    }
    targets = []
    for measure, (other, ours, wanted) in cases.items():
        in_the_way = "" if ours == _SHARED else floor(what, "CPU", least_s, found.cpu.median(other), wanted)
        targets.append(Target(measure, found.cpu.ratio(other, ours).median, at_least=wanted, floor=in_the_way))
    return targets


def vgg11_shapes() -> tuple[tuple[int, ...], ...]:
    """Those of the parameters of VGG-11 for images of 32 x 32 in 10 classes: 9,750,922 numbers."""
    config = compose(["model=vgg11", "data=synthetic", "data.image_size=32", "data.num_classes=10"])
    module = config.model.build(ImageData(shape=(3, 32, 32), num_classes=10))
    return tuple(tuple(parameter.shape) for parameter in module.parameters())


_USUAL_BYTES, _NEVER = 32 << 20, (1 << 31) - 1  # 32 MiB is where malloc's own threshold ends up
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def give_back_from(size: int) -> None:
    """Let malloc map blocks of at least so many bytes apart, and give them back when they are freed (glibc only)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, size)
        mallopt(_M_TRIM_THRESHOLD, min(2 * size, _NEVER))


class ThesisRelay(Work):
    """SGD on separate tensors, then relaying with blocking messages (Bohl 2022; Vogels et al., Algorithm 1).

    In every step all parameters are concatenated into a new flat tensor; each tree takes every d-th coordinate of it;
    the model and the number of models in it are two messages; neighbors are served in turn, the one with the smaller
    rank sends last; the average is a new tensor, and is copied back tensor by tensor.

    Large tensors that are freed go back to the system, and cost page faults when they come again, as in any program
    that does not tell malloc otherwise; with `keeps_memory` they do not, as in ours, where the launcher has told it.
    """

    def __init__(self, config: Config, shapes: tuple[tuple[int, ...], ...], keeps_memory: bool, world: World) -> None:
        assert config.num_workers is not None
        self.rank, self.keeps_memory = world.rank, keeps_memory
        graphs = config.topology.schedule(config.num_workers).graphs()
        self.neighbors = [graph.senders()[world.rank].tolist() for graph in graphs]
        self.parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
        for parameter in self.parameters:
            parameter.grad = torch.ones_like(parameter)
        self.optimizer = torch.optim.SGD(self.parameters, lr=config.lr)
        size, d = sum(parameter.numel() for parameter in self.parameters), len(graphs)
        self.received: list[dict[int, Tensor]] = []
        for h, neighbors in enumerate(self.neighbors):
            self.received.append({j: torch.zeros(len(range(h, size, d))) for j in neighbors})
        self.counts = [{j: torch.zeros(1) for j in neighbors} for neighbors in self.neighbors]

    def __call__(self) -> None:
        """A step."""
        if self.keeps_memory:
            self._step()
            return
        give_back_from(_USUAL_BYTES)
        self._step()
        give_back_from(_NEVER)

    def _step(self) -> None:
        self.optimizer.step()
        packed = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        d = len(self.neighbors)
        for h in range(d):
            packed[h::d] = self._relayed(packed[h::d], h)
        start = 0
        for parameter in self.parameters:
            parameter.detach().copy_(packed[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()

    def _relayed(self, x: Tensor, h: int) -> Tensor:
        """The average over the models that have arrived in this piece."""
        received, counts = self.received[h], self.counts[h]
        for j in self.neighbors[h]:
            if j < self.rank:
                self._send(x, h, j)
            dist.recv(received[j], j)
            dist.recv(counts[j], j)
            if j > self.rank:
                self._send(x, h, j)
        return (x + sum(received.values())) / (1 + sum(counts.values()))

    def _send(self, x: Tensor, h: int, j: int) -> None:
        others = [k for k in self.neighbors[h] if k != j]
        dist.send((x + sum(self.received[h][k] for k in others)).contiguous(), j)
        dist.send(torch.ones(1) + sum(self.counts[h][k] for k in others), j)
