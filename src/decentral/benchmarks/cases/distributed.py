"""What a step of several processes costs beyond the forward and backward passes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.benchmarks.baselines.training import DataParallel, Passes, Training
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.jobs.timing.group import Together, Turns, in_group

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.jobs.timing.group import Setup

_COMMON = ("data=synthetic", "data.image_size=32", "data.num_classes=10", "partition=iid", "device=cpu", "optim=sgd")
_COLUMNS = {
    "model": "model",
    "parameters": "P",
    "processes": "processes",
    "step": "step",
    "cpu_ms": "ms CPU",
    "wall_ms": "ms wall (least)",
    "cpu": "/ passes alone, CPU",
    "wall": "/ passes alone, wall",
    "ddp": "DDP / this, CPU",
}
_PASSES, _DDP = "passes alone", "DistributedDataParallel"


class Method(NamedTuple):
    """An algorithm on a topology."""

    label: str
    settings: tuple[str, ...]


_RING = Method("dpsgd, ring", ("algo=dpsgd", "topology=ring"))
_ALLREDUCE = Method("allreduce", ("algo=allreduce", "topology=ring"))
_RELAY = Method("relaysgd, dbt", ("algo=relaysgd", "topology=dbt", "topology.split=contiguous"))
_SGP = Method("sgp, one_peer_exponential", ("algo=sgp", "topology=one_peer_exponential"))
_FEW = (_RING, _RELAY, _ALLREDUCE, _SGP)
_OTHERS = (
    Method("dpsgd, ring (gloo)", (*_RING.settings, "network.transport=torch")),
    Method("relaysgd, dbt (gloo)", (*_RELAY.settings, "network.transport=torch")),
    Method("allreduce (gloo)", (*_ALLREDUCE.settings, "network.transport=torch")),
    Method("relaysgd_grad, dbt", ("algo=relaysgd_grad", "topology=dbt", "topology.split=contiguous")),
    Method("d2, ring", ("algo=d2", "topology=ring", "topology.weights=constant", "topology.edge_weight=0.25")),
    Method("exact_diffusion, ring", ("algo=exact_diffusion", "topology=ring")),
    Method("gradient_tracking, ring", ("algo=gradient_tracking", "topology=ring")),
    Method("qg_dpsgd, ring", ("algo=qg_dpsgd", "topology=ring")),
    Method("local_sgd", ("algo=local_sgd", "topology=ring")),
    Method("model_averaging", ("algo=model_averaging", "topology=ring")),
)

_COMPRESSED = (
    Method("allreduce, top-k 1 %", (*_ALLREDUCE.settings, "compress=topk", "compress.keep=0.01")),
    Method("choco, ring, top-k 1 %", ("algo=choco", "topology=ring", "compress=topk", "compress.keep=0.01")),
    Method("beer, ring, top-k 1 %", ("algo=beer", "topology=ring", "compress=topk", "compress.keep=0.01")),
    Method("motef, ring, top-k 1 %", ("algo=motef", "topology=ring", "compress=topk", "compress.keep=0.01")),
)

_BLUEFOG = (
    Method("dpsgd awc, ring", (*_RING.settings, "algo.mode=awc")),
    Method("dmsgd, ring", ("algo=dmsgd", "topology=ring")),
    Method("decentlam, ring", ("algo=decentlam", "topology=ring")),
    Method("extra, ring", ("algo=extra", "topology=ring")),
    Method("push_diging, one_peer_exponential", ("algo=push_diging", "topology=one_peer_exponential")),
    Method("async_push_sum, one_peer_exponential", ("algo=async_push_sum", "topology=one_peer_exponential")),
)


class Case(NamedTuple):
    """A model, by how many processes, with which batches; the sets of methods that fit into memory together."""

    label: str
    model: str
    sizes: tuple[int, ...]
    batch_size: int
    sets: tuple[tuple[Method, ...], ...]
    most_rounds: int
    judged: bool


CASES = (
    Case("narrow VGG-11, batch 32", "narrow", (8, 4), 32, (_FEW, _OTHERS, _BLUEFOG, _COMPRESSED), 5, True),
    Case("narrow VGG-11, batch 8", "narrow", (8,), 8, (_FEW,), 7, True),
    Case("VGG-11, batch 32", "vgg11", (8, 4), 32, (_FEW,), 2, True),
    Case("ResNet-50, batch 2", "resnet50", (8, 4), 2, (_FEW[:1], _FEW[1:2], _FEW[2:]), 2, False),
)
QUICK = Case("narrow VGG-11, batch 2", "narrow", (2,), 2, ((_RING, _ALLREDUCE),), 1, True)


@dataclass
class Distributed(Benchmark):
    """Every process has one worker, and one thread; images are random and there already."""

    name: str = "distributed"
    title: ClassVar[str] = "a step of 4 and 8 processes / their passes alone, and DistributedDataParallel's step"

    def measure(self, effort: Effort) -> Findings:
        """All cases; every algorithm on the smallest model only."""
        rows: list[dict[str, Any]] = []
        targets: list[Target] = []
        for case in (QUICK,) if effort.quick else CASES:
            for size in case.sizes:
                found = case_rows(case, size, effort)
                rows += found
                if case.judged and size == max(case.sizes):
                    targets += targets_of(case, size, found)
        notes = [
            "All methods do plain SGD. Rows go through shared memory unless gloo is named; DistributedDataParallel "
            "(as it comes) is gloo's. The passes alone are those of plain modules on batches that are there already, "
            "by the same processes at the same time; their gradients are dropped.",
        ]
        return Findings([Table("A step of all processes", _COLUMNS, rows)], targets, notes)


def case_rows(case: Case, size: int, effort: Effort) -> list[dict[str, Any]]:
    """A row for each method, measured in turn with the passes; the first set with DistributedDataParallel, too."""
    rounds, rows = min(effort.rounds, case.most_rounds), []
    configs = [[configured(case, method, size) for method in methods] for methods in case.sets]
    turns = []
    for number, (methods, each) in enumerate(zip(case.sets, configs, strict=True)):
        setups: dict[str, Setup] = {_PASSES: Passes(each[0])}
        setups |= {_DDP: DataParallel(each[0])} if number == 0 else {}
        setups |= {method.label: Training(config) for method, config in zip(methods, each, strict=True)}
        turns.append(Turns(setups, rounds, warm_up=1))
    parameters = num_parameters(configs[0][0])
    for number, found in enumerate(in_group(size, turns)):
        for label in found.cpu.seconds:
            if number == 0 or label != _PASSES:
                rows.append(_row(found, label) | {"model": case.label, "parameters": parameters, "processes": size})
    return rows


def _row(found: Together, label: str) -> dict[str, Any]:
    return {
        "step": label,
        "cpu_ms": 1e3 * found.cpu.median(label),
        "wall_ms": 1e3 * found.wall.least(label),
        "cpu": found.cpu.ratio(label, _PASSES),
        "wall": found.wall.least(label) / found.wall.least(_PASSES),
        "ddp": found.cpu.ratio(_DDP, label) if _DDP in found.cpu.seconds else None,
    }


def targets_of(case: Case, size: int, rows: Sequence[dict[str, Any]]) -> list[Target]:
    """D-PSGD's step over its passes, and against DistributedDataParallel's, in CPU time."""
    ring, ddp = (next(row for row in rows if row["step"] == label) for label in (_RING.label, _DDP))
    where = f"{case.label}, {size} processes (CPU)"
    return [
        Target(f"D-PSGD ring step / passes alone, {where}", ring["cpu"][0], at_most=1.20),
        Target(
            f"DistributedDataParallel's step / D-PSGD's, {where}",
            ring["ddp"][0],
            at_least=1.25,
            floor=f"DistributedDataParallel's own step takes {ddp['cpu'][0]:.2f} times the passes alone: a step "
            "that was nothing but passes would reach that much, and no more.",
        ),
    ]


def configured(case: Case, method: Method, size: int) -> Config:
    """The run of a method with one worker in each process."""
    from decentral.benchmarks.baselines.narrow_vgg import NarrowVGG
    from decentral.config.composition import compose

    places = (f"num_workers={size}", f"processes={size}", f"batch_size={case.batch_size}")
    model = () if case.model == "narrow" else (f"model={case.model}",)
    config = compose([*_COMMON, *places, *model, *method.settings])
    return replace(config, model=NarrowVGG()) if case.model == "narrow" else config


def num_parameters(config: Config) -> int:
    """P."""
    info = config.data.inspect()
    return sum(parameter.numel() for parameter in config.model.build(info).parameters())
