"""What a step of several processes costs: beyond their passes, beside others' ways, and where some are late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from bench.baselines import NarrowVGG, Setup, data_parallel, passes_alone, training
from bench.harness import Effort, Findings, Table, Target, Times, Together, benchmark, in_group
from decentral.config.composition import compose
from decentral.config.schema import Config
from decentral.host.machine import num_cores
from decentral.measurements.timing import Turns

Methods = dict[str, tuple[str, ...]]
"""An algorithm on a topology: its label and its settings."""

_PASSES, _DDP, _RING = "passes alone", "DistributedDataParallel", "dpsgd, ring"
_DPSGD, _ALLREDUCE = ("algo=dpsgd", "topology=ring"), ("algo=allreduce", "topology=ring")
_RELAY = ("algo=relaysgd", "topology=dbt", "topology.split=contiguous")
_GLOO, _TOPK = "network.transport=torch", ("topology=ring", "compress=topk", "compress.keep=0.01")
_FEW: Methods = {
    _RING: _DPSGD,
    "relaysgd, dbt": _RELAY,
    "allreduce": _ALLREDUCE,
    "sgp, one_peer_exponential": ("algo=sgp", "topology=one_peer_exponential"),
}
_OTHERS: Methods = {
    "dpsgd, ring (gloo)": (*_DPSGD, _GLOO),
    "relaysgd, dbt (gloo)": (*_RELAY, _GLOO),
    "allreduce (gloo)": (*_ALLREDUCE, _GLOO),
    "relaysgd_grad, dbt": ("algo=relaysgd_grad", "topology=dbt", "topology.split=contiguous"),
    "d2, ring": ("algo=d2", "topology=ring", "topology.weights=constant", "topology.edge_weight=0.25"),
    "exact_diffusion, ring": ("algo=exact_diffusion", "topology=ring"),
    "gradient_tracking, ring": ("algo=gradient_tracking", "topology=ring"),
    "qg_dpsgd, ring": ("algo=qg_dpsgd", "topology=ring"),
    "local_sgd": ("algo=local_sgd", "topology=ring"),
    "model_averaging": ("algo=model_averaging", "topology=ring"),
}
_BLUEFOG: Methods = {
    "dpsgd awc, ring": (*_DPSGD, "algo.mode=awc"),
    "dmsgd, ring": ("algo=dmsgd", "topology=ring"),
    "decentlam, ring": ("algo=decentlam", "topology=ring"),
    "extra, ring": ("algo=extra", "topology=ring"),
    "push_diging, one_peer_exponential": ("algo=push_diging", "topology=one_peer_exponential"),
    "async_push_sum, one_peer_exponential": ("algo=async_push_sum", "topology=one_peer_exponential"),
}
_COMPRESSED: Methods = {
    "allreduce, top-k 1 %": ("algo=allreduce", *_TOPK),
    "choco, ring, top-k 1 %": ("algo=choco", *_TOPK),
    "beer, ring, top-k 1 %": ("algo=beer", *_TOPK),
    "motef, ring, top-k 1 %": ("algo=motef", *_TOPK),
}


class Case(NamedTuple):
    """A model, by how many processes, with which batches; the sets of methods that fit into memory together."""

    label: str
    model: str
    sizes: tuple[int, ...]
    batch_size: int
    sets: tuple[Methods, ...]
    most_rounds: int
    judged: bool = True


CASES = (
    Case("narrow VGG-11, batch 32", "narrow", (8, 4), 32, (_FEW, _OTHERS, _BLUEFOG, _COMPRESSED), 5),
    Case("narrow VGG-11, batch 8", "narrow", (8,), 8, (_FEW,), 7),
    Case("VGG-11, batch 32", "vgg11", (8, 4), 32, (_FEW,), 2),
    Case("ResNet-50, batch 2", "resnet50", (8, 4), 2, tuple({name: _FEW[name]} for name in [*_FEW][:3]), 2, False),
)
QUICK = Case("narrow VGG-11, batch 2", "narrow", (2,), 2, ({_RING: _DPSGD, "allreduce": _ALLREDUCE},), 1)


@benchmark("a step of 4 and 8 processes / their passes alone, and DistributedDataParallel's step")
def distributed(effort: Effort) -> Findings:
    """Every process has one worker and one thread; images are random and there already. All methods on one model."""
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for case in (QUICK,) if effort.quick else CASES:
        for size in case.sizes:
            found = distributed_rows(case, size, effort)
            rows += found
            if case.judged and size == max(case.sizes):
                targets += distributed_targets(f"{case.label}, {size} processes (CPU)", found)
    columns = {
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
    notes = [
        "All methods do plain SGD. Rows go through shared memory unless gloo is named; DistributedDataParallel "
        "(as it comes) is gloo's. The passes alone are those of plain modules on batches that are there already, "
        "by the same processes at the same time; their gradients are dropped.",
    ]
    return Findings([Table("A step of all processes", columns, rows)], targets, notes)


def distributed_rows(case: Case, size: int, effort: Effort) -> list[dict[str, Any]]:
    """A row for each method, measured in turn with the passes; the first set with DistributedDataParallel, too."""
    turns = []
    for number, methods in enumerate(case.sets):
        configs = {label: configured(case, settings, size) for label, settings in methods.items()}
        first = next(iter(configs.values()))
        setups: dict[str, Setup] = {_PASSES: partial(passes_alone, first)}
        if number == 0:
            setups[_DDP] = partial(data_parallel, first)
        setups |= {label: partial(training, config) for label, config in configs.items()}
        turns.append(Turns(setups, effort.at_most(case.most_rounds), warm_up=1))
    facts = {"model": case.label, "parameters": num_parameters(first), "processes": size}
    rows = []
    for number, found in enumerate(in_group(size, turns)):
        for label in found.cpu.seconds:
            if number == 0 or label != _PASSES:
                rows.append(_distributed_row(found, label) | facts)
    return rows


def _distributed_row(found: Together, label: str) -> dict[str, Any]:
    return {
        "step": label,
        "cpu_ms": 1e3 * found.cpu.median(label),
        "wall_ms": 1e3 * found.wall.least(label),
        "cpu": found.cpu.ratio(label, _PASSES),
        "wall": found.wall.least(label) / found.wall.least(_PASSES),
        "ddp": found.cpu.ratio(_DDP, label) if _DDP in found.cpu.seconds else None,
    }


def distributed_targets(where: str, rows: Sequence[dict[str, Any]]) -> list[Target]:
    """D-PSGD's step over its passes, and against DistributedDataParallel's, in CPU time."""
    ring, ddp = (next(row for row in rows if row["step"] == label) for label in (_RING, _DDP))
    floor = (
        f"DistributedDataParallel's own step takes {ddp['cpu'][0]:.2f} times the passes alone: a step that was nothing "
        "but passes would reach that much, and no more."
    )
    return [
        Target(f"D-PSGD ring step / passes alone, {where}", ring["cpu"][0], at_most=1.20),
        Target(f"DistributedDataParallel's step / D-PSGD's, {where}", ring["ddp"][0], at_least=1.25, floor=floor),
    ]


def configured(case: Case, settings: Sequence[str], size: int) -> Config:
    """The run of a method with one worker in each process."""
    common = ("data=synthetic", "data.image_size=32", "data.num_classes=10", "partition=iid", "device=cpu", "optim=sgd")
    places = (f"num_workers={size}", f"processes={size}", f"batch_size={case.batch_size}")
    model = () if case.model == "narrow" else (f"model={case.model}",)
    config = compose([*common, *places, *model, *settings])
    return replace(config, model=NarrowVGG()) if case.model == "narrow" else config


def num_parameters(config: Config) -> int:
    """P."""
    return sum(parameter.numel() for parameter in config.model.build(config.data.inspect()).parameters())


# -- 16 workers in more and more processes -----------------------------------------------------------------------------

OVER_K = "Measured: the step over the workers per process"
_MODELS = {"cnn, 8 x 8": "data.image_size=8", "cnn, 28 x 28": "data.image_size=28"}
_CARRIERS = {"gloo": _GLOO, "shared memory": "network.transport=auto"}
_JUDGED = "cnn, 8 x 8, gloo"


def over_processes(effort: Effort) -> tuple[Table, Target]:
    """Steps of D-PSGD of 16 workers in 1, 2, 4 and 16 processes, and as many as there are cores; rounds in turn."""
    sizes = [1, 2] if effort.quick else sorted({1, 2, 4, min(num_cores(), 16), 16})
    most, cores = sizes[-1], min(num_cores(), sizes[-1])
    setups: dict[str, Setup] = {}
    for model, shape in _MODELS.items():
        for carrier, transport in _CARRIERS.items():
            images = ("model=cnn", shape, "data=synthetic", "data.num_channels=1", "data.num_classes=10")
            config = compose([*_DPSGD, "device=cpu", "progress=false", *images, "num_workers=16", transport])
            setups[f"{model}, {carrier}"] = partial(training, config)
    turns = Turns(setups, rounds=effort.repeats(3), repeats=effort.repeats(5))
    found: dict[int, list[Together]] = {size: [] for size in sizes}
    for _ in range(effort.at_most(2)):  # each starts all the processes
        for size in sizes:
            found[size] += in_group(size, [turns])
    rows: list[dict[str, Any]] = []
    for label in setups:
        wall = Times({str(size): [one.wall.least(label) for one in found[size]] for size in sizes})
        cpu = Times({str(size): [one.cpu.median(label) for one in found[size]] for size in sizes})
        for size in sizes:
            times = {"wall_ms": 1e3 * wall.least(str(size)), "cpu_ms": 1e3 * cpu.median(str(size))}
            ratios = {"ratio": wall.ratio(str(most), str(size)), "cpu_ratio": cpu.ratio(str(most), str(size))}
            rows.append({"algorithm": label, "processes": size, "workers_per_process": 16 / size} | times | ratios)
    judged = {row["processes"]: row["wall_ms"] for row in rows if row["algorithm"] == _JUDGED}
    floor = (
        "the passes take the same time in any number of processes: what there is to win is the exchange, which the "
        "table shows for a model with little and for one with much to compute"
    )
    what = f"16 workers on {most} processes / on one per core, {_JUDGED}: step (wall)"
    columns = {
        "algorithm": "model, transport",
        "processes": "processes",
        "workers_per_process": "workers per process k",
        "wall_ms": "step (ms wall, least)",
        "cpu_ms": "step (ms CPU, all processes)",
        "ratio": "one process per worker / this (wall)",
        "cpu_ratio": "the same (CPU)",
    }
    target = Target(what, judged[most] / judged[cores], at_least=1.5, floor=floor)
    return Table(f"{OVER_K}, D-PSGD on a ring of 16 workers", columns, rows), target


# -- who waits for whom ------------------------------------------------------------------------------------------------

_ALL, _WAGMA, _OVER_GLOO = "allreduce", "wagma, S = 4, tau = 10", " (gloo)"
_TAU = 10
_GROUPS = ("algo=wagma", "algo.tau=10", "algo.group_size=4")
_COMPARED: Methods = {_ALL: _ALLREDUCE, _RING: _DPSGD, _WAGMA: _GROUPS}
_WAITING: Methods = {
    **_COMPARED,
    **{label + _OVER_GLOO: (*settings, _GLOO) for label, settings in _COMPARED.items()},
    "wagma, groups that wait": (*_GROUPS, "algo.wait_avoiding=false"),
    "eager_sgd, solo": ("algo=eager_sgd",),
    "local_sgd, tau = 10": ("algo=local_sgd", "algo.period_steps=10"),
    "sgp, one_peer_exponential": ("algo=sgp", "topology=one_peer_exponential"),
    "adpsgd, ring": ("algo=adpsgd", "topology=ring"),
}
