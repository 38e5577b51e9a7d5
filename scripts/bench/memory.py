"""How cost and memory grow with the workers and their models, and where the workers stop fitting."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.harness import Effort, Findings, Steps, Table, Target, benchmark, environment
from bench.steps import VGG11

_STATUS = Path("/proc/self/status")  # getrusage would count the parent's memory, too


def _no_status() -> str:
    return "" if _STATUS.exists() else f"it reads {_STATUS}, which only Linux has"


@benchmark("peak memory beyond the rows of state and gradient, n workers / one worker", missing=_no_status)
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


class Adapted(nn.Module):
    """Three frozen matrices of 1,826 x 1,826 numbers, 10 million in all, each with a trained product of rank 4."""

    def __init__(self, in_features: int, num_classes: int, width: int = 1826, rank: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(in_features, width), nn.Linear(width, num_classes)
        self.frozen = nn.ModuleList(nn.Linear(width, width, bias=False).requires_grad_(False) for _ in range(3))
        self.A = nn.ParameterList(0.01 * torch.randn(rank, width) for _ in self.frozen)
        self.B = nn.ParameterList(torch.zeros(width, rank) for _ in self.frozen)

    def forward(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, num_classes]."""
        x = self.first(x.flatten(1))
        for layer, A, B in zip(self.frozen, self.A, self.B, strict=True):
            x = torch.relu(layer(x) + x @ A.T @ B.T)
        return self.last(x)  # type: ignore[no-any-return]


@benchmark("peak memory of adapters on 10 million frozen numbers, n workers / one worker", missing=_no_status)
def frozen(effort: Effort) -> Findings:
    """Every run in a process of its own, as in `memory`."""
    settings = ["model=bench.memory:Adapted", "batch_size=16"]
    rows = [
        peak_row("3 x 1826^2 frozen, rank 4", "loop", n, settings) for n in ((1, 4) if effort.quick else (1, 4, 16))
    ]
    for row in rows:
        row["ratio"] = row["peak_mb"] / rows[0]["peak_mb"]
    columns = {"num_workers": "n", "parameters": "P", "rows_mb": "rows (MB)", "peak_mb": "peak (MB)"}
    table = Table("Peak memory with frozen weights", columns | {"ratio": "over that of n = 1"}, rows)
    what = f"peak memory with 10 million frozen numbers, n = {rows[-1]['num_workers']} / n = 1"
    notes = [
        "Only trained parameters are rows. Frozen ones are stored once per process, until a forward pass writes them."
    ]
    return Findings([table], [Target(what, rows[-1]["ratio"], at_most=2.0)], notes)


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


def state_bytes(state: Any) -> int:
    """Of all tensors of an algorithm's state; what shares its memory counts once."""
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in _tensors(state)}
    return sum(storages.values())


def _tensors(state: Any) -> Iterator[Tensor]:
    for part in state:
        yield from _tensors(part) if isinstance(part, tuple) else [part]


if __name__ == "__main__":
    _print_peak(sys.argv[1:])
