"""What a step costs where gradients cost nothing: how many steps per second, for up to 1,024 workers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.cpu_steps import Steps
from decentral.jobs.timing.times import in_turn

_ALGORITHMS = (("dpsgd", "ring"), ("relaysgd", "bt"), ("relaysgd", "chain"))
_WORKERS = (16, 64, 256, 1024)
_REPEATS = 50
_STUDY = "relaysum_fig2"
_COLUMNS = {
    "algorithm": "algorithm",
    "num_workers": "n",
    "gradient_us": "gradients alone (us CPU)",
    "step_us": "step (us CPU)",
    "steps_per_s": "steps per second of CPU",
    "ratio": "step / gradients",
}


@dataclass
class QuadraticSteps(Benchmark):
    """Random quadratics in 10 dimensions; the wall time of RelaySum's Figure 2, whole."""

    name: str = "quadratics"
    title: ClassVar[str] = "a step of n workers on quadratics / the n gradients alone; RelaySum's Figure 2, whole"

    def measure(self, effort: Effort) -> Findings:
        """Steps for each n, then the study once, in a new folder."""
        rows = [row for n in (_WORKERS[:1] if effort.quick else _WORKERS) for row in steps(n, effort)]
        scale = "smoke" if effort.quick else "paper"
        wall_s = figure2(scale)
        study = {"study": _STUDY, "scale": scale, "wall_s": wall_s}
        heads = {"study": "study", "scale": "scale", "wall_s": "wall (s)"}
        tables = [Table("Steps on quadratics, d = 10", _COLUMNS, rows), Table("A whole study", heads, [study])]
        target = Target(f"RelaySum's Figure 2, {scale} scale, from nothing (s wall)", wall_s, at_most=600)
        return Findings(tables, [target])


def steps(n: int, effort: Effort) -> list[dict[str, Any]]:
    """A row for each algorithm with n workers: its step, and the gradients alone, in turn."""
    settings = ("task=quadratics", "task.dimension=10", f"num_workers={n}")
    runs = {
        f"{algo}, {topology}": Steps(f"algo={algo}", f"topology={topology}", *settings)
        for algo, topology in _ALGORITHMS
    }
    first = next(iter(runs.values()))
    for run in runs.values():
        for _ in range(n):  # until every message has been everywhere: only then is a step of RelaySGD what it stays
            run()
    x, draws = first.run.problem.init().repeat(n, 1), first.run.oracle.draws
    repeats = 2 if effort.quick else _REPEATS
    times = in_turn({"gradient": lambda: first.run.problem.gradient(x, draws), **runs}, effort.rounds, repeats)
    return [
        {
            "algorithm": label,
            "num_workers": n,
            "gradient_us": 1e6 * times.median("gradient"),
            "step_us": 1e6 * times.median(label),
            "steps_per_s": 1 / times.median(label),
            "ratio": times.ratio(label, "gradient"),
        }
        for label in runs
    ]


def figure2(scale: str) -> float:
    """Seconds that the study takes as a user would start it, with nothing stored before."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "decentral.cli.study", _STUDY, f"scale={scale}", f"results_dir={folder}"]
        began = time.perf_counter()
        subprocess.run([*command, "progress=false"], check=True, capture_output=True, stdin=subprocess.DEVNULL)
        return time.perf_counter() - began
