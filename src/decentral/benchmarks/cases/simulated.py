"""What a step of n workers in one process costs beyond their passes, and what it costs in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from decentral.benchmarks.baselines.training import Training
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.cpu_steps import Steps, passes
from decentral.jobs.timing.group import Together, Turns, in_group
from decentral.jobs.timing.times import Times, in_turn

_ALGORITHMS = (
    ("dpsgd", "ring"),
    ("relaysgd", "dbt"),
    ("gradient_tracking", "ring"),
    ("sgp", "one_peer_exponential"),
)
_LONG_ROUNDS = 5  # of steps that take a second
_JUDGED = ("dpsgd", "relaysgd")
_COLUMNS = {
    "model": "model",
    "algorithm": "algorithm",
    "num_workers": "n",
    "parameters": "P",
    "passes_ms": "n passes (ms CPU)",
    "step_ms": "step (ms CPU)",
    "ratio": "step / passes",
}


class Model(NamedTuple):
    """What is trained: its name in the tables, its settings, and how many steps are timed together."""

    name: str
    settings: tuple[str, ...]
    repeats: int
    judged: bool = True


VGG11 = ("model=vgg11", "data=synthetic", "data.image_size=32", "data.num_classes=10", "num_workers=4")
_MODELS = (
    Model("cnn, digits", ("model=cnn", "num_workers=16"), 5),
    Model("mlp [64, 64], digits, batch 16", ("model=mlp", "num_workers=64", "batch_size=16"), 5, judged=False),
    Model("vgg11, batch 32", VGG11, 1),
)

OVER_K = "Measured: the step over the workers per process"
_FLOOR_OF_PROCESSES = (
    "the passes take the same time in any number of processes: what there is to win is the exchange, which the table "
    "shows for a model with little and for one with much to compute"
)
_IMAGES = ("data=synthetic", "data.num_channels=1", "data.num_classes=10", "num_workers=16")
_SPREAD_MODELS = {
    "cnn, 8 x 8": ("model=cnn", "data.image_size=8", *_IMAGES),
    "cnn, 28 x 28": ("model=cnn", "data.image_size=28", *_IMAGES),
}
_CARRIERS = {"gloo": "network.transport=torch", "shared memory": "network.transport=auto"}
_SPREAD_JUDGED = "cnn, 8 x 8, gloo"
_MOST_ROUNDS = 2  # every round starts all the processes
_SPREAD_COLUMNS = {
    "algorithm": "model, transport",
    "processes": "processes",
    "workers_per_process": "workers per process k",
    "wall_ms": "step (ms wall, least)",
    "cpu_ms": "step (ms CPU, all processes)",
    "ratio": "one process per worker / this (wall)",
    "cpu_ratio": "the same (CPU)",
}


@dataclass
class Simulated(Benchmark):
    """The step of each algorithm and the passes alone take turns; `execution=auto`, one thread."""

    name: str = "simulated"
    title: ClassVar[str] = "a step of n workers in one process / their n forward and backward passes alone"

    def measure(self, effort: Effort) -> Findings:
        """All models; only the smallest in a quick run."""
        rows: list[dict[str, Any]] = []
        for model in _MODELS[:1] if effort.quick else _MODELS:
            rows += overhead(model, _ALGORITHMS, effort)
        targets = [
            Target(
                f"step / passes, {row['model']}, n = {row['num_workers']}, {row['algorithm']}", row["ratio"][0], 1.10
            )
            for row in rows
            if row["judged"]
        ]
        spread, target = over_processes(effort)
        notes = [
            "The passes are the strictest baseline of workers one by one: plain modules with parameters of their own, "
            "on batches that are there already, with gradients that are computed and dropped. A step also draws the "
            "batches, keeps the gradients, and does the optimizer and the exchange. Where `auto` computes workers side "
            "by side, all of it can take less than the passes."
        ]
        tables = [Table(f"CPU time of a step and of its passes ({chosen(rows)})", _COLUMNS, rows), spread]
        return Findings(tables, [*targets, target], notes)


def chosen(rows: Sequence[dict[str, Any]]) -> str:
    """What `execution=auto` is for each model."""
    choices = {row["model"]: row["execution"] for row in rows}
    return "execution=auto: " + "; ".join(f"{model}: {choice}" for model, choice in choices.items())


def overhead(model: Model, algorithms: Sequence[tuple[str, str]], effort: Effort) -> list[dict[str, Any]]:
    """A row for each algorithm: the time of its step, and of the passes alone, in turn."""
    runs = {
        f"{algo} {topology}": Steps(f"algo={algo}", f"topology={topology}", "execution=auto", *model.settings)
        for algo, topology in algorithms
    }
    first = next(iter(runs.values()))
    repeats = 1 if effort.quick else model.repeats
    rounds = min(effort.rounds, _LONG_ROUNDS) if model.repeats == 1 else effort.rounds
    times = in_turn({"passes": passes(first.run), **runs}, rounds, repeats)
    rows = []
    for (algo, topology), (label, run) in zip(algorithms, runs.items(), strict=True):
        rows.append(
            {
                "model": model.name,
                "algorithm": f"{algo}, {topology}",
                "num_workers": run.run.net.n,
                "parameters": run.num_parameters,
                "passes_ms": 1e3 * times.median("passes"),
                "step_ms": 1e3 * times.median(label),
                "ratio": times.ratio(label, "passes"),
                "execution": run.run.problem.facts["execution"],
                "judged": model.judged and algo in _JUDGED,
            }
        )
        run.close()
    return rows


def over_processes(effort: Effort) -> tuple[Table, Target]:
    """Steps of D-PSGD of 16 workers in 1, 2, 4 and 16 processes, and as many as there are cores; rounds in turn."""
    from decentral.host.devices import num_cores

    sizes = [1, 2] if effort.quick else sorted({1, 2, 4, min(num_cores(), 16), 16})
    most, cores = sizes[-1], min(num_cores(), sizes[-1])
    found: dict[int, list[Together]] = {size: [] for size in sizes}
    for _ in range(min(effort.rounds, _MOST_ROUNDS)):
        for size in sizes:
            found[size] += in_group(size, [_turns(effort)])
    rows: list[dict[str, Any]] = []
    for label in _spread_settings():
        wall = Times({str(size): [one.wall.least(label) for one in found[size]] for size in sizes})
        cpu = Times({str(size): [one.cpu.median(label) for one in found[size]] for size in sizes})
        for size in sizes:
            times = {"wall_ms": 1e3 * wall.least(str(size)), "cpu_ms": 1e3 * cpu.median(str(size))}
            ratios = {"ratio": wall.ratio(str(most), str(size)), "cpu_ratio": cpu.ratio(str(most), str(size))}
            place = {"algorithm": label, "processes": size, "workers_per_process": 16 / size}
            rows.append(place | times | ratios)
    judged = {row["processes"]: row["wall_ms"] for row in rows if row["algorithm"] == _SPREAD_JUDGED}
    what = f"16 workers on {most} processes / on one per core, {_SPREAD_JUDGED}: step (wall)"
    target = Target(what, judged[most] / judged[cores], at_least=1.5, floor=_FLOOR_OF_PROCESSES)
    return Table(f"{OVER_K}, D-PSGD on a ring of 16 workers", _SPREAD_COLUMNS, rows), target


def _spread_settings() -> dict[str, tuple[str, ...]]:
    return {f"{m}, {c}": (*settings, key) for m, settings in _SPREAD_MODELS.items() for c, key in _CARRIERS.items()}


def _turns(effort: Effort) -> Turns:
    from decentral.config.composition import compose

    shared = ("algo=dpsgd", "topology=ring", "device=cpu", "progress=false")
    setups = {label: Training(compose([*shared, *settings])) for label, settings in _spread_settings().items()}
    return Turns(setups, rounds=1 if effort.quick else 3, repeats=1 if effort.quick else 5)
