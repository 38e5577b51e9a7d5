"""How cost and memory grow with the workers and their models, and where the workers stop fitting."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.harness import Effort, Findings, Steps, Table, Target, benchmark, environment
from bench.steps import STEP_COLUMNS, VGG11, Model, overhead
from decentral.data.description import ImageData
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.optim.optimizer import LocalRule
from decentral.optim.sgd import SGD
from decentral.registry import components
from decentral.topology.delivery import Losses
from decentral.topology.requirements import check
from decentral.topology.rounds import Rounds

_STATUS = Path("/proc/self/status")  # getrusage would count the parent's memory, too


@benchmark(
    "peak memory beyond the rows of state and gradient, n workers / one worker",
    missing=lambda: "" if _STATUS.exists() else f"it reads {_STATUS}, which only Linux has",
)
def memory(effort: Effort) -> Findings:
    """Every run in a process of its own: the largest resident set while it trains, less that before it began."""
    vgg11 = [setting for setting in VGG11 if not setting.startswith("num_workers=")]
    large = [peak_row("vgg11, batch 32", "loop", n, vgg11) for n in ((1, 4) if effort.quick else (1, 4, 8, 16))]
    for row in large:
        row["ratio"] = row["beyond_mb"] / large[0]["beyond_mb"]
    small = [
        peak_row("cnn, digits, batch 16", execution, n, ["model=cnn", "batch_size=16"])
        for execution in ("loop", "batched")
        for n in (4, 16, 64)
    ]
    last = large[-1]
    what = f"peak memory beyond the rows, vgg11, n = {last['num_workers']} / n = 1"
    columns = {
        "model": "model",
        "execution": "execution",
        "num_workers": "n",
        "parameters": "P",
        "rows_mb": "rows (MB)",
        "peak_mb": "peak (MB)",
        "beyond_mb": "peak - rows (MB)",
        "ratio": "over that of n = 1",
    }
    notes = [
        "Rows are the algorithm's own state (D-PSGD: the models) and the gradients. What comes on top is the "
        "activations and the gradient of the worker whose turn it is (of a few workers, where they are batched), "
        "the data and the libraries' workspace: it does not grow with n."
    ]
    table = Table("Peak memory of a run in one process", columns, [*large, *small])
    return Findings([table], [Target(what, last["ratio"], at_most=1.5)], notes)


def peak_row(model: str, execution: str, num_workers: int, settings: list[str]) -> dict[str, Any]:
    """What a run needs at most, and its rows."""
    topology = "complete" if num_workers == 1 else "ring"
    workers = (f"num_workers={num_workers}", f"topology={topology}", f"execution={execution}")
    found = peak("algo=dpsgd", *workers, *settings)
    return {
        "model": model,
        "execution": execution,
        "num_workers": num_workers,
        "parameters": found["parameters"],
        "rows_mb": found["rows"] / 1e6,
        "peak_mb": found["peak"] / 1e6,
        "beyond_mb": (found["peak"] - found["rows"]) / 1e6,
    }


def peak(*overrides: str) -> dict[str, int]:
    """Bytes that a run of two steps takes in a new process (`peak`), and those of its state and gradients (`rows`).

    Raises subprocess.CalledProcessError if the run fails.
    """
    command = [sys.executable, "-m", "bench.memory", *overrides]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment()).stdout
    return json.loads(printed.splitlines()[-1])


def _print_peak(overrides: list[str]) -> None:
    """In the new process: print what `peak` returns."""
    Steps("task=images", "model=mlp", "num_workers=1", "topology=complete", "algo=dpsgd")()  # what torch itself needs
    torch.nn.Conv2d(1, 1, 3)(torch.zeros(1, 1, 8, 8)).sum().backward()
    before = _largest_bytes()
    steps = Steps(*overrides)
    for _ in range(2):
        steps()
    models = steps.run.stepper.models
    rows = models.numel() * models.element_size() + state_bytes(steps.run.stepper.state)
    print(json.dumps({"peak": _largest_bytes() - before, "rows": rows, "parameters": steps.num_parameters}))


def _largest_bytes() -> int:
    """The largest resident set of this process so far."""
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


# -- over n and P: measured where time counts, computed where only memory does -----------------------------------------

OVER_N, OVER_P = "Measured: the step over the number of workers", "Measured: the step over the size of the model"
MEMORY = "Computed: memory of all workers in one process (GB)"
SIZES = (16, 64, 1024)
_GB, _FLOAT_BYTES, _BATCH = 1e9, 4, 32
_PLACES = (
    ("a laptop, 16 GB", 16, 1),
    ("a GPU, 80 GB", 80, 1),
    ("a GPU, 141 GB", 141, 1),
    ("eight GPUs, 80 GB", 80, 8),
    ("eight GPUs, 141 GB", 141, 8),
)
_NOTES = [
    "Rows are counted in the states that the algorithms themselves make for n workers, on `ring`, or on `dbt` where a "
    "tree is needed: the growth of all tensors of the state with P, and one row for the gradient. Momentum adds a row.",
    "Memory is rows x n x P x 4 bytes and what autograd keeps between the forward and the backward pass of one worker: "
    "workers of one process take turns. VGG-11 has 32 x 32 images, ResNet-50 224 x 224. The sizes are all of a "
    "machine's memory: the program, the data and the libraries' workspace, and with several processes the rows that "
    "come from others, take their part of it.",
]


class ModelMemory(NamedTuple):
    """One model: its parameters, and the bytes that its forward pass keeps for the backward pass."""

    parameters: int
    activations: int

    def total_bytes(self, rows: float, num_workers: int) -> float:
        """Of `num_workers` workers in one process: their rows, and the activations of the one whose turn it is."""
        return rows * num_workers * self.parameters * _FLOAT_BYTES + self.activations

    def largest_num_workers(self, rows: float, capacity: float, devices: int) -> int:
        """How many workers fit on so many devices, each with `capacity` bytes and its share of the workers."""
        room = (capacity - self.activations) / (rows * self.parameters * _FLOAT_BYTES)
        return devices * max(0, int(room))


@benchmark("a step over n and P / its passes; memory over n, against what machines have")
def scale(effort: Effort) -> Findings:
    """Two sweeps that are timed, three tables that are computed."""
    algorithms = (("dpsgd", "ring"), ("relaysgd", "dbt"))
    images = ("data=synthetic", "data.image_size=8", "data.num_channels=1", "data.num_classes=10")
    over_n: list[dict[str, Any]] = []
    for n in [4, 16] if effort.quick else [4, 16, 64, 256]:
        cnn = Model(f"cnn, n = {n}", ("model=cnn", f"num_workers={n}", *images), 1 if n >= 64 else 5)
        over_n += overhead(cnn, algorithms, effort)
    over_p: list[dict[str, Any]] = []
    for width in [16, 64] if effort.quick else [16, 64, 256, 1024]:
        sizes = ("model=mlp", f"model.hidden=[{width},{width}]", "num_workers=16")
        mlp = Model(f"mlp, width {width}", (*sizes, *images), 1 if width > 256 else 5)
        over_p += overhead(mlp, algorithms, effort)
    for row in over_n + over_p:
        row["per_worker_ms"] = row["step_ms"] / row["num_workers"]
    columns = {**STEP_COLUMNS, "per_worker_ms": "step / n (ms CPU)", "ratio": "step / passes"}
    measured = [
        Table(f"{OVER_N}, cnn on 8 x 8 images", columns, over_n),
        Table(f"{OVER_P}, mlp of two layers, 16 workers", columns, over_p),
    ]
    models = {
        "VGG-11": memory_of_model("vgg11", ImageData(shape=(3, 32, 32), num_classes=10)),
        "ResNet-50": memory_of_model("resnet50", ImageData(shape=(3, 224, 224), num_classes=1000)),
    }
    dominating = [_dominates(label, model) for label, model in models.items()]
    return Findings([*measured, *computed(models)], notes=[*_NOTES, *dominating])


def computed(models: dict[str, ModelMemory]) -> list[Table]:
    """Rows of every algorithm, memory for each size, and the largest n on each machine."""
    algorithms: dict[str, Any] = components("algorithms")
    rows = [rows_of(name) for name, cls in algorithms.items() if not cls.needs_samples]
    by_memory, by_fit = [], []
    for label, model in models.items():
        for row in rows:
            sizes = {str(n): model.total_bytes(row[str(n)], n) / _GB for n in SIZES}
            facts = {"model": label, "algorithm": row["algorithm"], "activations_gb": model.activations / _GB}
            by_memory.append(facts | sizes | {"parameters": model.parameters, "rows": row[str(SIZES[-1])]})
        kept = {row["algorithm"]: round(row[str(SIZES[-1])], 1) for row in rows}
        for count in sorted(set(kept.values())):
            names = ", ".join(name for name, own in kept.items() if own == count)
            fits = {place: model.largest_num_workers(count, size * _GB, devices) for place, size, devices in _PLACES}
            by_fit.append({"model": label, "rows": count, "algorithms": names} | fits)
    heads = {"algorithm": "algorithm", "topology": "topology"} | {str(n): f"rows, n = {n:,}" for n in SIZES}
    heads["momentum"] = f"with momentum, n = {SIZES[-1]:,}"
    sizes_heads = {str(n): f"n = {n:,}" for n in SIZES}
    memory_heads = {"model": "model", "algorithm": "algorithm", "activations_gb": "activations of one worker"}
    fits_heads = {"model": "model", "rows": "rows per worker", "algorithms": "algorithms"}
    return [
        Table("Computed: rows per worker (of P numbers, 4 bytes each; the gradient's is one of them)", heads, rows),
        Table(f"{MEMORY}, without momentum", memory_heads | sizes_heads, by_memory),
        Table(
            "Computed: how many workers fit, without momentum",
            fits_heads | {label: label for label, _, _ in _PLACES},
            by_fit,
        ),
    ]


def rows_of(name: str) -> dict[str, Any]:
    """What an algorithm keeps for each worker in rows of P numbers, by the number of workers; the gradient's is one.

    Its state's bytes grow so much with P, over 4 n; on the first topology that it accepts.
    """
    algorithm = components("algorithms")[name]
    row: dict[str, Any] = {"algorithm": name}
    for key, n, momentum in [*((str(n), n, 0.0) for n in SIZES), ("momentum", SIZES[-1], 0.9)]:
        row["topology"], rounds = _accepted(algorithm, name, n)
        small, large = (_initial_bytes(algorithm(), rounds, momentum, size) for size in (1 << 10, 1 << 11))
        row[key] = (large - small) / (1 << 10) / (_FLOAT_BYTES * n) + 1
    return row


def _accepted(algorithm: Any, name: str, num_workers: int) -> tuple[str, Rounds]:
    for topology in ("ring", "dbt"):
        rounds = components("topology")[topology]().schedule(num_workers)
        try:
            check(rounds, algorithm.needs, name, topology)
        except ConfigError:
            continue
        return topology, rounds
    raise ConfigError(f"algo={name} takes neither ring nor dbt.")


def _initial_bytes(algorithm: Any, rounds: Rounds, momentum: float, size: int) -> int:
    """Of the state of all workers, for models of `size` parameters."""
    net = LocalNetwork(rounds, Losses(0.0, 0))
    rule = LocalRule(SGD(momentum=momentum), lambda t: 0.1)
    return state_bytes(algorithm.bind(rule).init(torch.zeros(rounds.num_workers, size), net))


def state_bytes(state: Any) -> int:
    """Of all tensors of an algorithm's state; what shares its memory counts once."""
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in _tensors(state)}
    return sum(storages.values())


def _tensors(state: Any) -> Iterator[Tensor]:
    for part in state:
        yield from _tensors(part) if isinstance(part, tuple) else [part]


def memory_of_model(name: str, data: ImageData) -> ModelMemory:
    """Of one worker's model with a batch of 32, computed on torch's `meta` device: nothing takes memory or time."""
    with torch.device("meta"):
        module = components("models")[name]().build(data)
        images = torch.empty(data.batch_shape(_BATCH))
    parameters = {id(parameter) for parameter in module.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        base = tensor if tensor._base is None else tensor._base
        if id(base) not in parameters:
            kept[id(base)] = base
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(images)
    activations = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    return ModelMemory(sum(parameter.numel() for parameter in module.parameters()), activations)


def _dominates(label: str, model: ModelMemory) -> str:
    """Which of rows and activations is larger, and from how many workers on."""
    row_gb, activations_gb = model.parameters * _FLOAT_BYTES / _GB, model.activations / _GB
    share = 100 * (1 - model.activations / model.total_bytes(2, SIZES[0]))
    return (
        f"{label}: a row is {row_gb:.3g} GB, the activations of a batch of {_BATCH} are {activations_gb:.3g} GB. With "
        f"two rows per worker, rows dominate from {max(1, ceil(activations_gb / (2 * row_gb)))} workers on; at "
        f"n = {SIZES[0]} they are {share:.0f} % of the memory."
    )


if __name__ == "__main__":
    _print_peak(sys.argv[1:])
