"""What each way of `execution` takes for the gradients of n workers, next to a plain loop over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.benchmarks.cases.simulated import VGG11
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.cpu_steps import Steps
from decentral.errors import ConfigError
from decentral.jobs.timing.times import in_turn

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.training.assemble import Run

    Gradients = Callable[[], tuple[Tensor, Tensor]]
    """Losses [n] and gradients [n, P]."""

_PLAIN = "plain loop"
_MORE_ROUNDS = 3  # times the usual number, of calls that take milliseconds: a median that little disturbs
_LONG_ROUNDS = 4  # of calls that take a second: each way is first once
_COLUMNS = {
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


class Case(NamedTuple):
    """What is trained, how many calls (50 ms or more) are timed together, the least plain loop / auto wanted."""

    name: str
    settings: tuple[str, ...]
    repeats: int
    speedup: float | None = None


_CASES = (
    Case("mlp [64, 64], digits", ("model=mlp", "num_workers=16"), 50, speedup=2.5),
    Case("mlp [64, 64], digits", ("model=mlp", "num_workers=64", "batch_size=16"), 18),
    Case("mlp [64], digits", ("model=mlp", "model.hidden=[64]", "num_workers=16"), 70),
    Case("mlp [256, 256, 256], digits", ("model=mlp", "model.hidden=[256,256,256]", "num_workers=16"), 4),
    Case("cnn, digits", ("model=cnn", "num_workers=16"), 3, speedup=1.3),
    Case("vgg11 without dropout, 32 x 32 images", (*VGG11, "model.dropout=0"), 1),
)


@dataclass
class Ways(Benchmark):
    """All ways take turns on the same models and the same batch; one thread."""

    name: str = "ways"
    title: ClassVar[str] = "time of the gradients of n workers: each way of `execution` / a plain loop"

    def measure(self, effort: Effort) -> Findings:
        """All models; only the first in a quick run."""
        rows = [compared(case, effort) for case in (_CASES[:1] if effort.quick else _CASES)]
        notes = [
            "The plain loop is the usual way: a module for each worker, parameters and gradients in rows, zeroed, then "
            "`backward()` for each worker in turn. All ways get the same batch, which is there already.",
            "VGG-11 has no dropout here because `batched` refuses it; with dropout, `auto` is `loop`.",
        ]
        return Findings([Table("CPU time of the gradients of n workers", _COLUMNS, rows)], _targets(rows), notes)


def _targets(rows: Sequence[dict[str, Any]]) -> list[Target]:
    """How much faster than the plain loop `auto` is, and that no other way is much better anywhere."""
    faster = [
        Target(f"plain loop / execution=auto, {_place(row)}", row["speedup"][0], at_least=row["wanted"])
        for row in rows
        if row["wanted"] is not None
    ]
    worst = max(rows, key=lambda row: row["to_best"][0])
    what = f"execution=auto / best way, worst of {len(rows)} models: {_place(worst)}"
    return [*faster, Target(what, worst["to_best"][0], at_most=1.10)]


def _place(row: dict[str, Any]) -> str:
    return f"{row['model']}, n = {row['num_workers']}"


def compared(case: Case, effort: Effort) -> dict[str, Any]:
    """The time of each way. The best is that of the least median; ratios are taken within each round."""
    steps = Steps("algo=dpsgd", "topology=ring", "execution=auto", *case.settings)
    run = steps.run
    rounds = min(effort.rounds, _LONG_ROUNDS) if case.repeats == 1 else _MORE_ROUNDS * effort.rounds
    works = ways(run, run.stepper.models)
    times = in_turn(works, rounds, 1 if effort.quick else case.repeats)
    best = min((name for name in works if name != "auto"), key=times.median)
    row = {
        "model": case.name,
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
        "wanted": case.speedup,
    }
    run.close()
    return row


def ways(run: Run, x: Tensor) -> dict[str, Gradients]:
    """The plain loop and each way that does not refuse the model, on the run's first batch, at the models x [n, P]."""
    from decentral.benchmarks.baselines.plain_loop import PlainLoop
    from decentral.gradients.execution import Workload
    from decentral.registry import components
    from decentral.tasks.problems.classification import Classification

    problem, config = run.problem, run.config
    assert isinstance(problem, Classification)
    images, labels = problem.next_batch(0)
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
