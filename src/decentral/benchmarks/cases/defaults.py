"""Whether a run that is told nothing about processes takes as many as are best for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from decentral.benchmarks.cases.start import Command
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target

_MOST_ROUNDS = 2  # of commands that take seconds
_SIZES = (1, 2)
_SHARED = ("-m", "decentral", "device=cpu", "progress=false", "evaluation.initial=false", "save=none")


class Case(NamedTuple):
    """A run: its settings, how many of its steps are timed, and how many it has."""

    name: str
    settings: tuple[str, ...]
    timed: int
    steps: int


def _images(size: int, channels: int) -> tuple[str, ...]:
    shape = (f"data.image_size={size}", f"data.num_channels={channels}", "data.num_classes=10")
    return ("data=synthetic", "data.num_train=50000", *shape)


_EPOCH = 50_000 // 16 // 32  # steps
CASES = (
    Case("mlp, digits, 200 epochs", ("model=mlp",), 200, 400),
    Case("cnn, digits, 200 epochs", ("model=cnn",), 100, 400),
    Case("mlp, 28 x 28, 10 epochs", ("model=mlp", *_images(28, 1)), 50, 10 * _EPOCH),
    Case("cnn, 28 x 28, 10 epochs", ("model=cnn", *_images(28, 1)), 20, 10 * _EPOCH),
    Case("cnn, 3 x 32 x 32, 10 epochs", ("model=cnn", *_images(32, 3)), 10, 10 * _EPOCH),
    Case("vgg11, 3 x 32 x 32, 10 epochs", ("model=vgg11", *_images(32, 3)), 2, 10 * _EPOCH),
)
_COLUMNS = {
    "run": "run, 16 workers, batch 32",
    "one_s": "processes=1 (s)",
    "two_s": "processes=2 (s)",
    "chosen": "processes=auto",
    "ratio": "auto / the best",
}


@dataclass
class Defaults(Benchmark):
    """Whole commands of a few steps, in one and in two processes, in turn (wall time).

    A run of T steps takes what a command of t steps takes beside them, and T / t times its steps.
    """

    name: str = "defaults"
    title: ClassVar[str] = "a run with processes=auto / with the better of one and two processes"

    def refusal(self) -> str | None:
        """Two processes need two cores."""
        from decentral.host.devices import num_cores

        return None if num_cores() >= max(_SIZES) else "this machine has one core: there is nothing to choose"

    def measure(self, effort: Effort) -> Findings:
        """Every run; the smallest only in a quick one."""
        from decentral.host.devices import num_cores

        rows = [measured(case, effort) for case in (CASES[:1] if effort.quick else CASES)]
        targets = [Target(f"{row['run']}: auto / the best", row["ratio"], 1.10) for row in rows]
        note = "Seconds of the whole command, from what a few of its steps take; auto is what this machine gets"
        limit = f", with two of its {num_cores()} cores." if num_cores() > max(_SIZES) else "."
        return Findings([Table("Whole runs, D-PSGD on a ring (wall, least)", _COLUMNS, rows)], targets, [note + limit])


def measured(case: Case, effort: Effort) -> dict[str, Any]:
    """The time of the whole run in one and in two processes, and which of them it takes by itself."""
    seconds: dict[int, list[float]] = {size: [] for size in _SIZES}
    for _ in range(min(effort.rounds, _MOST_ROUNDS)):
        for size in _SIZES:
            seconds[size].append(whole_run_s(case, size))
    one, two = (min(seconds[size]) for size in _SIZES)
    chosen = choice((*case.settings, f"steps={case.steps}"))
    return {
        "run": case.name,
        "one_s": one,
        "two_s": two,
        "chosen": chosen,
        "ratio": (one, two)[chosen - 1] / min(one, two),
    }


def choice(settings: Sequence[str]) -> int:
    """How many processes a configuration gets where there are two cores."""
    from decentral.config.composition import compose
    from decentral.runtime.devices import num_processes

    return min(max(_SIZES), num_processes(compose([*_run(), *settings])))


def whole_run_s(case: Case, processes: int) -> float:
    """What `case.steps` steps would take, with all that is beside them, by a run of `case.timed` steps."""
    from decentral.store import RunStore

    with tempfile.TemporaryDirectory() as folder:
        settings = (*_run(), *case.settings, f"steps={case.timed}", f"processes={processes}", f"run_dir={folder}/run")
        began = time.perf_counter()
        Command((*_SHARED[:2], *settings))()
        took = time.perf_counter() - began
        facts = RunStore.peek(Path(folder) / "run")
    assert facts is not None
    steps_s = float(facts["wall_s"])
    return took - steps_s + steps_s * case.steps / case.timed


def _run() -> tuple[str, ...]:
    return ("algo=dpsgd", "topology=ring", *_SHARED[2:])
