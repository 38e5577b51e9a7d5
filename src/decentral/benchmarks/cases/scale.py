"""How the cost of a step grows with the workers and their models, and where the workers stop fitting."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

from decentral.benchmarks.cases.simulated import Model, overhead
from decentral.benchmarks.harness import memory_model
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table
from decentral.benchmarks.harness.memory_model import ARCHITECTURES, ModelMemory, Rows

OVER_N, OVER_P = "Measured: the step over the number of workers", "Measured: the step over the size of the model"
MEMORY = "Computed: memory of all workers in one process (GB)"
ROWS, FITS = "Computed: rows per worker", "Computed: how many workers fit"
SIZES = (16, 64, 1024)
GB = 1e9
PLACES = (
    ("a laptop, 16 GB", 16, 1),
    ("a GPU, 80 GB", 80, 1),
    ("a GPU, 141 GB", 141, 1),
    ("eight GPUs, 80 GB", 80, 8),
    ("eight GPUs, 141 GB", 141, 8),
)
_ALGORITHMS = (("dpsgd", "ring"), ("relaysgd", "dbt"))
_IMAGES = ("data=synthetic", "data.image_size=8", "data.num_channels=1", "data.num_classes=10")
_WORKERS, _WIDTHS = (4, 16, 64, 256), (16, 64, 256, 1024)
_LONG = 64  # workers from which on a single step is long enough to be timed
_MEASURED = {
    "algorithm": "algorithm",
    "num_workers": "n",
    "parameters": "P",
    "passes_ms": "n passes (ms CPU)",
    "step_ms": "step (ms CPU)",
    "per_worker_ms": "step / n (ms CPU)",
    "ratio": "step / passes",
}


@dataclass
class Scale(Benchmark):
    """Measured where time counts, computed where only memory does."""

    name: str = "scale"
    title: ClassVar[str] = "a step over n and P / its passes; memory over n, against what machines have"

    def measure(self, effort: Effort) -> Findings:
        """Two sweeps that are timed, three tables that are computed."""
        over_n: list[dict[str, Any]] = []
        for n in _WORKERS[:2] if effort.quick else _WORKERS:
            cnn = Model(f"cnn, n = {n}", ("model=cnn", f"num_workers={n}", *_IMAGES), 1 if n >= _LONG else 5)
            over_n += overhead(cnn, _ALGORITHMS, effort)
        over_p: list[dict[str, Any]] = []
        for width in _WIDTHS[:2] if effort.quick else _WIDTHS:
            settings = ("model=mlp", f"model.hidden=[{width},{width}]", "num_workers=16", *_IMAGES)
            over_p += overhead(Model(f"mlp, width {width}", settings, 1 if width > 256 else 5), _ALGORITHMS, effort)
        for row in over_n + over_p:
            row["per_worker_ms"] = row["step_ms"] / row["num_workers"]
        tables = [
            Table(f"{OVER_N}, cnn on 8 x 8 images", _MEASURED, over_n),
            Table(f"{OVER_P}, mlp of two layers, 16 workers", _MEASURED, over_p),
        ]
        dominating = [_dominates(one.label, memory_model.memory_of_model(one)) for one in ARCHITECTURES]
        return Findings([*tables, *computed()], notes=[*_NOTES, *dominating])


def computed() -> list[Table]:
    """Rows of every algorithm, memory for each size, and the largest n on each machine."""
    models = {architecture.label: memory_model.memory_of_model(architecture) for architecture in ARCHITECTURES}
    rows = {n: memory_model.rows_per_worker(n) for n in SIZES}
    with_momentum = memory_model.rows_per_worker(SIZES[-1], momentum=0.9)
    return [_rows_table(rows, with_momentum), _memory_table(rows, models), _fits_table(rows[SIZES[-1]], models)]


def _rows_table(rows: dict[int, list[Rows]], with_momentum: list[Rows]) -> Table:
    heads = {"algorithm": "algorithm", "topology": "topology"}
    heads |= {str(n): f"rows, n = {n:,}" for n in rows} | {"momentum": f"with momentum, n = {SIZES[-1]:,}"}
    found = []
    for number, (name, topology, _) in enumerate(with_momentum):
        sizes = {str(n): rows[n][number].rows for n in rows}
        found.append({"algorithm": name, "topology": topology, **sizes, "momentum": with_momentum[number].rows})
    return Table(f"{ROWS} (of P numbers, 4 bytes each; the gradient's is one of them)", heads, found)


def _memory_table(rows: dict[int, list[Rows]], models: dict[str, ModelMemory]) -> Table:
    heads = {"model": "model", "algorithm": "algorithm", "activations_gb": "activations of one worker"}
    heads |= {str(n): f"n = {n:,}" for n in rows}
    found = []
    for label, model in models.items():
        for number, (name, _, _) in enumerate(rows[SIZES[0]]):
            sizes = {str(n): memory_model.total_bytes(rows[n][number].rows, model, n) / GB for n in rows}
            facts = {"model": label, "algorithm": name, "activations_gb": model.activations / GB}
            found.append(facts | sizes | {"parameters": model.parameters, "rows": rows[SIZES[-1]][number].rows})
    return Table(f"{MEMORY}, without momentum", heads, found)


def _fits_table(rows: list[Rows], models: dict[str, ModelMemory]) -> Table:
    heads = {"model": "model", "rows": "rows per worker", "algorithms": "algorithms"}
    heads |= {label: label for label, _, _ in PLACES}
    found = []
    for label, model in models.items():
        for count in sorted({round(row.rows, 1) for row in rows}):
            names = [row.algorithm for row in rows if round(row.rows, 1) == count]
            fits = {
                place: memory_model.largest_num_workers(count, model, size * GB, devices)
                for place, size, devices in PLACES
            }
            found.append({"model": label, "rows": count, "algorithms": ", ".join(names)} | fits)
    return Table(f"{FITS}, without momentum", heads, found)


def _dominates(label: str, model: ModelMemory) -> str:
    """Which of rows and activations is larger, and from how many workers on."""
    row_gb, activations_gb = model.parameters * memory_model.FLOAT_BYTES / GB, model.activations / GB
    equal = activations_gb / (2 * row_gb)
    share = 100 * (1 - model.activations / memory_model.total_bytes(2, model, SIZES[0]))
    return (
        f"{label}: a row is {row_gb:.3g} GB, the activations of a batch of {memory_model.BATCH_SIZE} are "
        f"{activations_gb:.3g} GB. With two rows per worker, rows dominate from {max(1, ceil(equal))} workers on; at "
        f"n = {SIZES[0]} they are {share:.0f} % of the memory."
    )


_NOTES = [
    "Rows are counted in the states that the algorithms themselves make for n workers, on `ring`, or on `dbt` where a "
    "tree is needed: the growth of all tensors of the state with P, and one row for the gradient. Momentum adds a row.",
    "Memory is rows x n x P x 4 bytes and what autograd keeps between the forward and the backward pass of one worker: "
    "workers of one process take turns. VGG-11 has 32 x 32 images, ResNet-50 224 x 224. The sizes are all of a "
    "machine's memory: the program, the data and the libraries' workspace, and with several processes the rows that "
    "come from others, take their part of it.",
]
