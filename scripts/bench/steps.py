"""What a step of n workers in one process costs: beside its passes, by each way, in simulated time, on quadratics."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from bench.baselines import PlainLoop
from bench.harness import Effort, Findings, Steps, Table, Target, benchmark, in_turn, passes
from bench.processes import over_processes
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.gradients.execution import Workload
from decentral.registry import components
from decentral.tasks.problems.classification import Classification
from decentral.training.assemble import Run
from decentral.training.timing import timed


class Model(NamedTuple):
    """What is trained: its name in the tables, its settings, and how many steps are timed together.

    `wanted` is what the benchmark asks of it, if anything: a figure, or whether there is a limit.
    """

    name: str
    settings: tuple[str, ...]
    repeats: int
    wanted: float | None = None

    def rounds(self, effort: Effort, most: int) -> int:
        """A step that is timed alone takes a second: fewer rounds of it."""
        return effort.at_most(most) if self.repeats == 1 else effort.rounds


VGG11 = ("model=vgg11", "data=synthetic", "data.image_size=32", "data.num_classes=10", "num_workers=4")
MLP, CNN = "mlp [64, 64], digits", "cnn, digits"
STEP_COLUMNS = {
    "algorithm": "algorithm",
    "num_workers": "n",
    "parameters": "P",
    "passes_ms": "n passes (ms CPU)",
    "step_ms": "step (ms CPU)",
}


@benchmark("a step of n workers in one process / their n forward and backward passes alone")
def simulated(effort: Effort) -> Findings:
    """The step of each algorithm and the passes alone take turns; `execution=auto`, one thread."""
    algorithms = [
        ("dpsgd", "ring"),
        ("relaysgd", "dbt"),
        ("gradient_tracking", "ring"),
        ("sgp", "one_peer_exponential"),
    ]
    models = (
        Model(CNN, ("model=cnn", "num_workers=16"), 5, 1.1),
        Model(f"{MLP}, batch 16", ("model=mlp", "num_workers=64", "batch_size=16"), 5),
        Model("vgg11, batch 32", VGG11, 1, 1.1),
    )
    rows: list[dict[str, Any]] = []
    targets = []
    for model in effort.of(models):
        found = overhead(model, algorithms, effort)
        rows += found
        for row in found[:2] if model.wanted else ():
            what = f"step / passes, {row['model']}, n = {row['num_workers']}, {row['algorithm']}"
            targets.append(Target(what, row["ratio"].median, model.wanted))
    spread, target = over_processes(effort)
    choices = {row["model"]: row["execution"] for row in rows}
    title = "; ".join(f"{model}: {choice}" for model, choice in choices.items())
    notes = [
        "The passes are the strictest baseline of workers one by one: plain modules with parameters of their own, "
        "on batches that are there already, with gradients that are computed and dropped. A step also draws the "
        "batches, keeps the gradients, and does the optimizer and the exchange. Where `auto` computes workers side "
        "by side, all of it can take less than the passes."
    ]
    columns = {"model": "model", **STEP_COLUMNS, "ratio": "step / passes"}
    steps = Table(f"CPU time of a step and of its passes (execution=auto: {title})", columns, rows)
    return Findings([steps, spread], [*targets, target], notes)


def overhead(model: Model, algorithms: Sequence[tuple[str, str]], effort: Effort) -> list[dict[str, Any]]:
    """A row for each algorithm: the time of its step, and of the passes alone, in turn."""
    runs = {
        f"{algo}, {topology}": Steps(f"algo={algo}", f"topology={topology}", "execution=auto", *model.settings)
        for algo, topology in algorithms
    }
    first = next(iter(runs.values())).run
    times = in_turn({"passes": passes(first), **runs}, model.rounds(effort, 5), effort.repeats(model.repeats))
    rows = []
    for label, steps in runs.items():
        rows.append(
            {
                "model": model.name,
                "algorithm": label,
                "num_workers": steps.run.net.n,
                "parameters": steps.num_parameters,
                "passes_ms": 1e3 * times.median("passes"),
                "step_ms": 1e3 * times.median(label),
                "ratio": times.ratio(label, "passes"),
                "execution": steps.run.problem.facts["execution"],
            }
        )
        steps.run.close()
    return rows


# -- ways of execution -------------------------------------------------------------------------------------------------

Gradients = Callable[[], tuple[Tensor, Tensor]]
"""Losses [n] and gradients [n, P]."""

_PLAIN = "plain loop"
_WIDE = ("model=mlp", "model.hidden=[256,256,256]", "num_workers=16")
_WAYS = (
    Model(MLP, ("model=mlp", "num_workers=16"), 50, 2.5),
    Model(MLP, ("model=mlp", "num_workers=64", "batch_size=16"), 18),
    Model("mlp [64], digits", ("model=mlp", "model.hidden=[64]", "num_workers=16"), 70),
    Model("mlp [256, 256, 256], digits", _WIDE, 4),
    Model(CNN, ("model=cnn", "num_workers=16"), 3, 1.3),
    Model("vgg11 without dropout, 32 x 32 images", (*VGG11, "model.dropout=0"), 1),
)


@benchmark("time of the gradients of n workers: each way of `execution` / a plain loop")
def ways(effort: Effort) -> Findings:
    """All ways take turns on the same models and the same batch; one thread."""
    rows = [ways_row(model, effort) for model in effort.of(_WAYS)]
    targets = [
        Target(f"plain loop / execution=auto, {_place(row)}", row["speedup"].median, at_least=model.wanted)
        for model, row in zip(_WAYS, rows, strict=False)
        if model.wanted
    ]
    worst = max(rows, key=lambda row: row["to_best"].median)
    what = f"execution=auto / best way, worst of {len(rows)} models: {_place(worst)}"
    targets.append(Target(what, worst["to_best"].median, at_most=1.10))
    columns = {
        "model": "model",
        "num_workers": "n",
        "batch_size": "batch",
        "parameters": "P",
        "plain_ms": "plain loop (ms CPU)",
        "loop_ms": "loop (ms CPU)",
        "batched_ms": "batched (ms CPU)",
        "auto_ms": "auto (ms CPU)",
        "choice": "auto is",
        "speedup": "plain loop / auto",
        "to_best": "auto / best",
    }
    notes = [
        "The plain loop is the usual way: a module for each worker, parameters and gradients in rows, zeroed, then "
        "`backward()` for each worker in turn. All ways get the same batch, which is there already.",
        "VGG-11 has no dropout here because `batched` refuses it; with dropout, `auto` is `loop`.",
    ]
    return Findings([Table("CPU time of the gradients of n workers", columns, rows)], targets, notes)


def _place(row: dict[str, Any]) -> str:
    return f"{row['model']}, n = {row['num_workers']}"


def ways_row(model: Model, effort: Effort) -> dict[str, Any]:
    """The time of each way. The best is that of the least median; ratios are taken within each round."""
    steps = Steps("algo=dpsgd", "topology=ring", "execution=auto", *model.settings)
    run = steps.run
    works = gradients_by_way(run, run.stepper.models)
    long = model.repeats == 1  # then each way is first once; else a median that little disturbs
    times = in_turn(works, effort.at_most(4) if long else 3 * effort.rounds, effort.repeats(model.repeats))
    best = min((name for name in works if name != "auto"), key=times.median)
    row = {
        "model": model.name,
        "num_workers": run.net.n,
        "batch_size": run.config.batch_size,
        "parameters": steps.num_parameters,
        "plain_ms": 1e3 * times.median(_PLAIN),
        "loop_ms": 1e3 * times.median("loop"),
        "batched_ms": 1e3 * times.median("batched") if "batched" in works else None,
        "auto_ms": 1e3 * times.median("auto"),
        "choice": run.problem.facts["execution"],
        "speedup": times.ratio(_PLAIN, "auto"),
        "best": best,
        "to_best": times.ratio("auto", best),
    }
    run.close()
    return row


def gradients_by_way(run: Run, x: Tensor) -> dict[str, Gradients]:
    """The plain loop and each way that does not refuse the model, on the run's first batch, at the models x [n, P]."""
    problem, config = run.problem, run.config
    assert isinstance(problem, Classification)
    images, labels = problem.batch_of(None, 0)
    batch_shape = config.data.inspect().batch_shape(config.batch_size)
    work = Workload(problem.models, batch_shape, config.precision, problem.loss)
    found: dict[str, Gradients] = {_PLAIN: partial(PlainLoop(problem.models.modules[0], x), images, labels)}
    for name, execution in components("gradients").items():
        try:
            passes = execution().passes(work)
        except ConfigError:
            continue
        found[name] = partial(passes, x, images, labels, range(len(x)), lambda j: None)
    return found


# -- simulated time ----------------------------------------------------------------------------------------------------

_ROUNDS = {"dpsgd": "ring", "allreduce": "ring", "relaysgd": "dbt"}
_ASYNCHRONOUS = {
    "wagma": "allreduce",
    "eager_sgd": "allreduce",
    "adpsgd": "dpsgd",
    "a2cid2": "dpsgd",
    "async_push_sum": "dpsgd",
    "async_diloco": "allreduce",
}
"""Each with the lockstep method that it is held against: one with the same pattern of averaging, where there is one."""
_CLUSTER, _WORKERS = "cluster=two_delayed", 16


@benchmark("seconds of CPU for the timeline of 400 steps of 1,024 and of 4,096 workers")
def timeline(effort: Effort) -> Findings:
    """400 steps of every method in a cluster where every gradient takes another time; nothing is trained."""
    methods = [*_ROUNDS, "local_sgd", "sgp", "gradient_tracking", *_ASYNCHRONOUS]
    rows: list[dict[str, Any]] = []
    targets = []
    for n, at_most in ((16, 2.0),) if effort.quick else ((1024, 2.0), (4096, 15.0)):
        found = [timeline_row(method, n, effort.rounds if n < 2048 else 1) for method in methods]
        rows += found
        slowest = max(found, key=lambda row: row["cpu_s"])
        what = f"timeline of 400 steps of {n:,} workers, slowest method: {slowest['method']} (s CPU)"
        targets.append(Target(what, slowest["cpu_s"], at_most))
    columns = {
        "method": "method",
        "num_workers": "n",
        "cpu_s": "timeline (s CPU)",
        "per_gradient_us": "per gradient (us CPU)",
        "simulated_s": "simulated (s)",
    }
    return Findings([Table("Time alone, without training", columns, rows)], targets)


def timeline_row(method: str, num_workers: int, repeats: int) -> dict[str, Any]:
    """The least CPU time of so many attempts."""
    times = ("cluster=even", "cluster.compute.distribution=lognormal", "cluster.compute.sigma=0.3")
    run = prepare(compose([f"algo={method}", f"num_workers={num_workers}", "task=quadratics", *times]))
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        found = timed(run, 400, 1_000_000)
        seconds.append(time.process_time() - began)
    return {
        "method": method,
        "num_workers": num_workers,
        "cpu_s": min(seconds),
        "per_gradient_us": 1e6 * min(seconds) / found.gradients,
        "simulated_s": found.simulated_s,
    }


@benchmark("a step with half of the workers absent / a step with all of them present")
def absences(effort: Effort) -> Findings:
    """Other workers are absent in every step, rerouted; models, and quadratics of 1,024 workers, which cost nothing."""
    images = (
        Model(CNN, ("model=cnn", "num_workers=16"), 5),
        Model("vgg11, batch 32", VGG11, 1, 0.55),
    )
    nothing = Model("quadratics, d = 10", ("task=quadratics", "task.dimension=10", "num_workers=1024"), 20)
    rows = []
    for model in effort.of((*images, nothing)):
        for algo in ("dpsgd", "gradient_tracking"):
            usual = (f"algo={algo}", "topology=ring", *model.settings)
            runs = {"all": Steps(*usual)}
            half = ("availability=exactly", f"availability.count={runs['all'].run.net.n // 2}")
            runs["half"] = Steps(*usual, *half)
            times = in_turn(runs, effort.rounds, effort.repeats(model.repeats))
            row: dict[str, Any] = {"model": model.name, "algorithm": algo, "num_workers": runs["all"].run.net.n}
            row |= {f"{name}_ms": 1e3 * times.median(name) for name in runs}
            rows.append(row | {"ratio": times.ratio("half", "all"), "wanted": model.wanted})
    columns = {
        "model": "model",
        "algorithm": "algorithm",
        "num_workers": "n",
        "all_ms": "all present (ms CPU)",
        "half_ms": "half present (ms CPU)",
        "ratio": "half / all",
    }
    targets = [
        Target(f"half present / all present, {row['model']}, {row['algorithm']}", row["ratio"].median, row["wanted"])
        for row in rows
        if row["wanted"]
    ]
    return Findings([Table("CPU time of a step with absences", columns, rows)], targets)


# -- outer optimizers, and gradients that cost nothing -----------------------------------------------------------------


@benchmark("a step of n workers on quadratics / the n gradients alone; RelaySum's Figure 2, whole")
def quadratics(effort: Effort) -> Findings:
    """Steps where gradients cost nothing, for up to 1,024 workers; then a study once, in a new folder (wall)."""
    rows = [row for n in effort.of((16, 64, 256, 1024)) for row in quadratics_rows(n, effort)]
    scale = "smoke" if effort.quick else "paper"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "decentral.cli.study", "relaysum_fig2", f"scale={scale}"]
        command += [f"results_dir={folder}", "progress=false"]
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        wall_s = time.perf_counter() - began
    columns = {
        "algorithm": "algorithm",
        "num_workers": "n",
        "gradient_us": "gradients alone (us CPU)",
        "step_us": "step (us CPU)",
        "steps_per_s": "steps per second of CPU",
        "ratio": "step / gradients",
    }
    study = {"study": "relaysum_fig2", "scale": scale, "wall_s": wall_s}
    heads = {"study": "study", "scale": "scale", "wall_s": "wall (s)"}
    tables = [Table("Steps on quadratics, d = 10", columns, rows), Table("A whole study", heads, [study])]
    return Findings(tables, [Target(f"RelaySum's Figure 2, {scale} scale, from nothing (s wall)", wall_s, at_most=600)])


def quadratics_rows(n: int, effort: Effort) -> list[dict[str, Any]]:
    """A row for each algorithm with n workers: its step, and the gradients alone, in turn."""
    settings = ("task=quadratics", "task.dimension=10", f"num_workers={n}")
    runs = {
        f"{algo}, {topology}": Steps(f"algo={algo}", f"topology={topology}", *settings)
        for algo, topology in (("dpsgd", "ring"), ("relaysgd", "bt"), ("relaysgd", "chain"))
    }
    for steps in runs.values():
        for _ in range(n):  # until every message has been everywhere: only then is a step of RelaySGD what it stays
            steps()
    first = next(iter(runs.values())).run
    x, draws = first.problem.init().repeat(n, 1), first.oracle.draws
    gradient = partial(first.problem.gradient, x, draws)
    times = in_turn({"gradient": gradient, **runs}, effort.rounds, 2 if effort.quick else 50)
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
