"""What all benchmarks share: how one is declared, what it finds, where that is stored, and steps to be timed."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decentral.algorithms.algorithm import Oracle
from decentral.compression.rows import RowLayout
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.host.machine import num_gpus
from decentral.measurements import timing
from decentral.measurements.timing import Turns, Verb, turned
from decentral.network.world import World
from decentral.store.files import write_json
from decentral.store.provenance import collect
from decentral.training.assemble import Run, assemble
from decentral.training.method import with_rate
from decentral.training.stepper import Stepper

SCRIPTS = Path(__file__).resolve().parents[1]
RESULTS = SCRIPTS.parent / "results" / "bench"
_PRIVATE = ("directory", "host", "command_line")


@dataclass(frozen=True)
class Target:
    """What a figure should be, and what it is. One of `at_most` and `at_least` is set.

    `floor` says, where the target cannot be met, what stands in the way and which row of the findings shows it.
    """

    measure: str
    found: float
    at_most: float | None = None
    at_least: float | None = None
    floor: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure is what it should be; not a number never is."""
        if self.at_most is not None:
            return bool(self.found <= self.at_most)
        return self.at_least is not None and bool(self.found >= self.at_least)


@dataclass(frozen=True)
class Table:
    """Rows of one kind. `columns` maps the keys to show to their headings, with units; other keys are only stored."""

    title: str
    columns: dict[str, str]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Findings:
    """Everything that a benchmark has measured."""

    tables: list[Table]
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Effort(NamedTuple):
    """How long to measure: `rounds` in turn for each figure. `quick` asks for the smallest sizes, to try the code."""

    rounds: int = 7
    quick: bool = False

    def at_most(self, rounds: int) -> int:
        """The rounds of what takes long."""
        return min(self.rounds, rounds)

    def repeats(self, repeats: int) -> int:
        """How many calls are timed together."""
        return 1 if self.quick else repeats

    def of(self, cases: Sequence[Any]) -> Sequence[Any]:
        """All cases; the first only where it has to be quick."""
        return cases[:1] if self.quick else cases


class Benchmark(NamedTuple):
    """A function that measures. `title` says what is divided by what, `missing` what this machine lacks, or ''."""

    title: str
    measure: Callable[[Effort], Findings]
    missing: Callable[[], str]


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(
    title: str, missing: Callable[[], str] = str
) -> Callable[[Callable[[Effort], Findings]], Callable[[Effort], Findings]]:
    """Declare a function as a benchmark, by its name."""

    def declare(measure: Callable[[Effort], Findings]) -> Callable[[Effort], Findings]:
        BENCHMARKS[measure.__name__] = Benchmark(title, measure, missing)
        return measure

    return declare


def save(name: str, findings: Findings, effort: Effort, wall_s: float, folder: Path) -> Path:
    """Write `<folder>/<name>.json`, atomically, with where the findings come from; returns its path."""
    devices = [f"cuda:{number}" for number in range(num_gpus())] or ["cpu"]
    provenance = {key: value for key, value in collect(devices, 1).items() if key not in _PRIVATE}
    record = {
        "name": name,
        "title": BENCHMARKS[name].title,
        "targets": [asdict(target) | {"met": target.met} for target in findings.targets],
        "tables": [asdict(table) for table in findings.tables],
        "notes": findings.notes,
        "provenance": provenance | {"wall_s": round(wall_s, 1), **effort._asdict()},
    }
    path = folder / f"{name}.json"
    write_json(path, record)
    return path


def environment() -> dict[str, str]:
    """That of new processes: one thread each, and the benchmarks can be imported."""
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))
    return {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": path}


def alone(device: str = "cpu") -> World:
    """This process, without a group."""
    return World(0, 1, torch.device(device, 0) if device == "cuda" else torch.device(device))


class Steps:
    """A configuration, assembled for one process on the CPU; calling it takes a step of all workers."""

    def __init__(self, *overrides: str) -> None:
        torch.set_num_threads(1)
        config = compose([*overrides, "processes=1", "device=cpu", "progress=false"])
        config.task.prepare(config)
        with torch.no_grad():
            self.run: Run = assemble(prepare(config), alone())

    def __call__(self) -> None:
        """One step."""
        with torch.no_grad():
            self.run.stepper.step()

    @property
    def num_parameters(self) -> int:
        """P."""
        return self.run.stepper.models.shape[-1]


def passes(run: Run) -> Callable[[], None]:
    """n forward and backward passes of the run's model, and nothing else.

    Plain modules with parameters of their own, on batches that are there already; the gradients are computed, as
    exactly as the run's, and dropped. Nothing that trains n models one by one, in the usual layout of images, can take
    less.
    """
    config, problem = run.config, run.problem
    inputs, targets = problem.batch_of(None, 0)  # type: ignore[attr-defined]
    minimized = problem.loss  # type: ignore[attr-defined]
    template = config.model.build(config.data.inspect())
    models = [deepcopy(template) for _ in inputs]
    work = [(model, list(model.parameters()), inputs[i], targets[i]) for i, model in enumerate(models)]

    def compute() -> None:
        with torch.enable_grad():
            for model, parameters, x, y in work:
                with config.precision.forward(run.world.device):
                    loss = minimized(model(x), y)
                torch.autograd.grad(loss, parameters)

    return compute


class Ratio(NamedTuple):
    """One time divided by another, round by round."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class Times:
    """Seconds per call of each thing, one number per round."""

    def __init__(self, seconds: Mapping[str, list[float]]) -> None:
        self.seconds = dict(seconds)

    def median(self, name: str) -> float:
        """Of the rounds."""
        return statistics.median(self.seconds[name])

    def least(self, name: str) -> float:
        """Of the rounds: what the machine does when nobody disturbs it."""
        return min(self.seconds[name])

    def ratio(self, name: str, to: str) -> Ratio:
        """The one divided by the other within each round: median and extremes."""
        ratios = [a / b for a, b in zip(self.seconds[name], self.seconds[to], strict=True)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def in_turn(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    repeats: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> Times:
    """Call each of the works `repeats` times, one after the other, in every round; the order turns from round to round.

    `clock` is CPU time of this process unless told otherwise (`time.perf_counter` for wall time). Every work is called
    once before, untimed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for number in range(rounds):
        for name in turned(list(works), number):
            work, began = works[name], clock()
            for _ in range(repeats):
                work()
            seconds[name].append((clock() - began) / repeats)
    return Times(seconds)


class Step(Verb):
    """The algorithm's own step with a gradient that is there already."""

    def __init__(self, config: Config, num_coordinates: int, world: World) -> None:
        super().__init__(config, num_coordinates, "mix", world)
        algorithm = with_rate(config, lambda t: config.lr, RowLayout.flat(num_coordinates))
        self.stepper = Stepper(algorithm, self.net, ready(num_coordinates), torch.ones(1, num_coordinates))

    def __call__(self) -> None:
        """Once."""
        self.stepper.step()


class Together(NamedTuple):
    """What works took that several processes did together; see `decentral.measurements.timing.in_group`."""

    wall: Times
    cpu: Times
    sent: dict[str, tuple[float, float]]


def in_group(size: int, turns: Sequence[Turns]) -> list[Together]:
    """See `decentral.measurements.timing.in_group`."""
    return [Together(Times(one["wall"]), Times(one["cpu"]), one["sent"]) for one in timing.in_group(size, turns)]


def ready(num_coordinates: int) -> Oracle:
    """An oracle whose gradient is there already: normal numbers [1, P], no two of which are as large."""
    g = torch.randn(1, num_coordinates, generator=torch.Generator().manual_seed(0))

    def oracle(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        return g

    return oracle
