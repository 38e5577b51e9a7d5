"""What memory a run takes beyond the rows of its algorithm."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from decentral.benchmarks.cases.simulated import VGG11
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target

_MB = 1e6
_STATUS = Path("/proc/self/status")  # getrusage would count the parent's memory, too
_VGG11 = tuple(setting for setting in VGG11 if not setting.startswith("num_workers="))
_CNN = ("model=cnn", "batch_size=16")
_WORKERS, _QUICK, _SMALL_WORKERS = (1, 4, 8, 16), (1, 4), (4, 16, 64)
_STEPS = 2
_COLUMNS = {
    "model": "model",
    "execution": "execution",
    "num_workers": "n",
    "parameters": "P",
    "rows_mb": "rows (MB)",
    "peak_mb": "peak (MB)",
    "beyond_mb": "peak - rows (MB)",
    "ratio": "over that of n = 1",
}


@dataclass
class Memory(Benchmark):
    """Every run in a process of its own: the largest resident set while it trains, less that before it began."""

    name: str = "memory"
    title: ClassVar[str] = "peak memory beyond the rows of state and gradient, n workers / one worker"

    def refusal(self) -> str | None:
        """Only Linux tells."""
        return None if _STATUS.exists() else f"it reads {_STATUS}, which only Linux has."

    def measure(self, effort: Effort) -> Findings:
        """VGG-11 for each n, and each way of execution for the small network."""
        sizes = _QUICK if effort.quick else _WORKERS
        vgg11 = [_row("vgg11, batch 32", "loop", n, _VGG11) for n in sizes]
        small = [_row("cnn, digits, batch 16", way, n, _CNN) for way in ("loop", "batched") for n in _SMALL_WORKERS]
        for row in vgg11:
            row["ratio"] = row["beyond_mb"] / vgg11[0]["beyond_mb"]
        last = vgg11[-1]
        target = Target(
            f"peak memory beyond the rows, vgg11, n = {last['num_workers']} / n = 1", last["ratio"], at_most=1.5
        )
        notes = [
            "Rows are the algorithm's own state (D-PSGD: the models) and the gradients. What comes on top is the "
            "activations and the gradient of the worker whose turn it is (of a few workers, where they are batched), "
            "the data and the libraries' workspace: it does not grow with n."
        ]
        tables = [Table("Peak memory of a run in one process", _COLUMNS, [*vgg11, *small])]
        return Findings(tables, [target], notes)


def _row(model: str, execution: str, num_workers: int, settings: tuple[str, ...]) -> dict[str, Any]:
    topology = "complete" if num_workers == 1 else "ring"
    command = (f"num_workers={num_workers}", f"topology={topology}", f"execution={execution}", *settings)
    found = peak("algo=dpsgd", *command)
    return {
        "model": model,
        "execution": execution,
        "num_workers": num_workers,
        "parameters": found["parameters"],
        "rows_mb": found["rows"] / _MB,
        "peak_mb": found["peak"] / _MB,
        "beyond_mb": (found["peak"] - found["rows"]) / _MB,
    }


def peak(*overrides: str, steps: int = _STEPS) -> dict[str, int]:
    """Bytes that a run of a few steps takes in a new process (`peak`), and those of its state and gradients (`rows`).

    Raises subprocess.CalledProcessError if the run fails.
    """
    command = [sys.executable, "-m", "decentral.benchmarks.cases.memory", str(steps), *overrides]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed.splitlines()[-1])


def _measure(steps: int, overrides: list[str]) -> None:
    """In the new process: print what `peak` returns."""
    import torch

    from decentral.benchmarks.harness.cpu_steps import Steps
    from decentral.benchmarks.harness.memory_model import state_bytes

    Steps("task=images", "model=mlp", "num_workers=1", "topology=complete", "algo=dpsgd")()  # what torch itself needs
    torch.nn.Conv2d(1, 1, 3)(torch.zeros(1, 1, 8, 8)).sum().backward()
    before = _largest_bytes()
    run = Steps(*overrides)
    for _ in range(steps):
        run()
    stepper = run.run.stepper
    models = stepper.models
    rows = models.numel() * models.element_size() + state_bytes(stepper.state)
    print(json.dumps({"peak": _largest_bytes() - before, "rows": rows, "parameters": run.num_parameters}))


def _largest_bytes() -> int:
    """The largest resident set of this process so far."""
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    _measure(int(sys.argv[1]), sys.argv[2:])
