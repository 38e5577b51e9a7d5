"""The same workers, spread over more and more processes: the time of a step."""

from __future__ import annotations

from typing import Any

from decentral.benchmarks.baselines.training import Training
from decentral.benchmarks.benchmark import Effort, Table, Target
from decentral.benchmarks.group import Together, Turns, in_group
from decentral.benchmarks.times import Times

TITLE = "Measured: the step over the workers per process"
FLOOR = (
    "the passes take the same time in any number of processes: what there is to win is the exchange, which the table "
    "shows for a model with little and for one with much to compute"
)
_PICTURES = ("data=synthetic", "data.num_channels=1", "data.num_classes=10", "num_workers=16")
_MODELS = {
    "cnn, 8 x 8": ("model=cnn", "data.image_size=8", *_PICTURES),
    "cnn, 28 x 28": ("model=cnn", "data.image_size=28", *_PICTURES),
}
_CARRIERS = {"gloo": "network.transport=torch", "shared memory": "network.transport=auto"}
_JUDGED = "cnn, 8 x 8, gloo"
_MOST_ROUNDS = 2  # every round starts all the processes
_COLUMNS = {
    "algorithm": "model, transport",
    "processes": "processes",
    "workers_per_process": "workers per process k",
    "wall_ms": "step (ms wall, least)",
    "cpu_ms": "step (ms CPU, all processes)",
    "ratio": "one process per worker / this (wall)",
    "cpu_ratio": "the same (CPU)",
}


def measure(effort: Effort) -> tuple[Table, Target]:
    """Steps of D-PSGD of 16 workers in 1, 2, 4 and 16 processes, and as many as there are cores; rounds in turn."""
    from decentral.launch.devices import num_cores

    sizes = [1, 2] if effort.quick else sorted({1, 2, 4, min(num_cores(), 16), 16})
    most, cores = sizes[-1], min(num_cores(), sizes[-1])
    found: dict[int, list[Together]] = {size: [] for size in sizes}
    for _ in range(min(effort.rounds, _MOST_ROUNDS)):
        for size in sizes:
            found[size] += in_group(size, [_turns(effort)])
    rows: list[dict[str, Any]] = []
    for label in _labels():
        wall = Times({str(size): [one.wall.least(label) for one in found[size]] for size in sizes})
        cpu = Times({str(size): [one.cpu.median(label) for one in found[size]] for size in sizes})
        for size in sizes:
            times = {"wall_ms": 1e3 * wall.least(str(size)), "cpu_ms": 1e3 * cpu.median(str(size))}
            ratios = {"ratio": wall.ratio(str(most), str(size)), "cpu_ratio": cpu.ratio(str(most), str(size))}
            place = {"algorithm": label, "processes": size, "workers_per_process": 16 / size}
            rows.append(place | times | ratios)
    judged = {row["processes"]: row["wall_ms"] for row in rows if row["algorithm"] == _JUDGED}
    what = f"16 workers on {most} processes / on one per core, {_JUDGED}: step (wall)"
    target = Target(what, judged[most] / judged[cores], at_least=1.5, floor=FLOOR)
    return Table(f"{TITLE}, D-PSGD on a ring of 16 workers", _COLUMNS, rows), target


def _labels() -> dict[str, tuple[str, ...]]:
    return {f"{m}, {c}": (*settings, key) for m, settings in _MODELS.items() for c, key in _CARRIERS.items()}


def _turns(effort: Effort) -> Turns:
    from decentral.composition import compose

    shared = ("algo=dpsgd", "topology=ring", "device=cpu", "progress=false")
    setups = {label: Training(compose([*shared, *settings])) for label, settings in _labels().items()}
    return Turns(setups, rounds=1 if effort.quick else 3, repeats=1 if effort.quick else 5)
