"""Where the time of a run of some epochs goes, from a run of one; and what of it nothing could spare."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decentral.benchmarks.harness.benchmark import Effort, Table
from decentral.jobs.timing.times import in_turn
from decentral.tasks.evaluation import EvaluationSettings, Scope

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.training.assemble import Run

_CALLS = 10
_ROUNDS = 2  # of evaluations, for each that is asked for
_EXAMPLES = 2000  # of the test examples, of which an evaluation is timed: short rounds, and many
_DIFFERENT = 1e-3  # standard deviation of what makes models different, which would be evaluated once
_COLUMNS = {"part": "part", "seconds": "seconds in all epochs", "share": "/ passes alone"}


class RunTimes(NamedTuple):
    """Seconds (wall) of all epochs, by part: passes, exchange, data, the curve's evaluations, the last one, ...

    `alone_s` are those of the passes of plain modules, `last_over_forward` the time of the last evaluation over that of
    its forward passes alone.
    """

    seconds: dict[str, float]
    alone_s: float
    last_over_forward: float

    @property
    def all_s(self) -> float:
        """Of the whole run."""
        return sum(self.seconds.values())

    @property
    def steps_s(self) -> float:
        """Of the steps: passes, exchange and data."""
        return sum(self.seconds[part] for part in ("passes", "exchange", "data"))

    def table(self) -> Table:
        """A row for each part, and for all."""
        parts = self.seconds | {"all": self.all_s, "the last evaluation's forward passes alone": self.forward_s}
        rows = [{"part": part, "seconds": s, "share": s / self.alone_s} for part, s in parts.items()]
        return Table("Where the time goes (wall)", _COLUMNS, rows)

    @property
    def forward_s(self) -> float:
        """Of the last evaluation's forward passes alone."""
        return self.seconds["the last evaluation"] / self.last_over_forward


def whole_run(settings: Sequence[str], epochs: int, every: float, effort: Effort) -> RunTimes:
    """A run of RelaySGD with 16 `cnn` and these settings on data like CIFAR-10's, evaluated every so many epochs.

    One epoch is trained, in one process with one thread, with as many evaluations, on as many test examples, as all
    epochs have, so that only the time of the steps is multiplied. How their time is shared by the curve's and the last
    one is measured apart, in turn with the last one's forward passes alone. A quick measurement has little data.
    """
    import torch

    from decentral.runtime.launch import launch
    from decentral.store import RunStore

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = one_epoch(settings, epochs, every, f"{folder}/run", effort)
        calls = 1 if effort.quick else _CALLS
        step_s = [passes_s(config, calls)]
        began = time.perf_counter()
        launch(config)
        took = time.perf_counter() - began
        facts = RunStore.peek(Path(folder) / "run")
        step_s.append(passes_s(config, calls))
    assert facts is not None
    times: dict[str, float] = facts["times_s"]
    curve, last_over_forward = evaluations(config, epochs, every, effort)
    seconds = {part: epochs * times[part] for part in ("passes", "exchange", "data")}
    seconds |= {"the curve's evaluations": curve * times["evaluation"]}
    seconds |= {"the last evaluation": (1 - curve) * times["evaluation"], "checkpoints": times["checkpoints"]}
    seconds |= {"start and end": took - sum(times.values())}
    return RunTimes(seconds, epochs * facts["step"] * sum(step_s) / len(step_s), last_over_forward)


def one_epoch(settings: Sequence[str], epochs: int, every: float, directory: str, effort: Effort) -> Config:
    """An epoch with the evaluations of so many."""
    from decentral.benchmarks.baselines.cifar_like import CifarLike
    from decentral.config.composition import compose

    data = CifarLike(num_train=1024, num_test=64) if effort.quick else CifarLike()
    examples = EvaluationSettings(every).on_the_way(data.num_train, data.num_test, 16, epochs)
    run = ["algo=relaysgd", "topology=dbt", "model=cnn", "num_workers=16", "lr=0.01", "epochs=1"]
    evaluation = [f"evaluation.every_epochs={every / epochs}", f"evaluation.examples={examples or 'all'}"]
    where = ["processes=1", "device=cpu", "progress=false", f"run_dir={directory}"]
    return compose([*settings, *run, *evaluation, *where], made={"data": data})


def assembled(config: Config) -> Run:
    """In this process."""
    import torch

    from decentral.network.world import World
    from decentral.training.assemble import assemble

    return assemble(config, World(0, 1, torch.device("cpu")))


def passes_s(config: Config, calls: int) -> float:
    """The passes of a step (wall), alone: the mean of so many, after one to warm up."""
    from decentral.benchmarks.harness.cpu_steps import passes

    run = assembled(config)
    compute = passes(run)
    run.close()
    compute()
    began = time.perf_counter()
    for _ in range(calls):
        compute()
    return (time.perf_counter() - began) / calls


def evaluations(config: Config, epochs: int, every: float, effort: Effort) -> tuple[float, float]:
    """The curve's share of the time of all evaluations; and the last one's over that of its forward passes alone.

    The last one is timed on a part of the test examples, as are its forward passes: both grow with their number. The
    curve has ceil(T / E) - 1 evaluations of n workers and their average, and before the first step one of the model
    that all begin with.
    """
    import torch

    from decentral.training.evaluation import evaluate

    run = assembled(config)
    x = run.stepper.models
    x = x + _DIFFERENT * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    losses = run.oracle.take_losses()

    def evaluation(scope: Scope) -> Callable[[], object]:
        return lambda: evaluate(run.problem, x, run.net, losses, 0, 1, scope)

    num_test = config.data.inspect().num_test
    timed = min(_EXAMPLES, num_test)
    few = run.examples_on_the_way or num_test
    works = {
        "few": evaluation(Scope(min(few, timed))),
        "many": evaluation(Scope(timed)),
        "forward": forward(run, timed),
    }
    times = in_turn(works, _ROUNDS * effort.rounds)
    run.close()
    curve = math.ceil(epochs / every) - 1 + 1 / (len(x) + 1)
    few_over_many = times.ratio("few", "many").median * max(1, few / timed)
    curve_over_last = curve * few_over_many * timed / num_test
    return curve_over_last / (1 + curve_over_last), times.ratio("many", "forward").median


def forward(run: Run, examples: int) -> Callable[[], None]:
    """The forward passes of an evaluation on so many, of n + 1 plain modules, on batches that are there already.

    They have the size and the layout in memory that are fastest.
    """
    import torch

    config, problem = run.config, run.problem
    template = config.model.build(config.data.inspect()).eval()
    modules = [deepcopy(template) for _ in range(run.net.n + 1)]
    size = problem.forward_examples  # type: ignore[attr-defined]
    batches = [
        problem.memory_format(images.clone())  # type: ignore[attr-defined]
        for images, _ in problem.data.test_batches(size, torch.arange(examples))  # type: ignore[attr-defined]
    ]

    def compute() -> None:
        with config.evaluation.precision.testing(run.world.device):
            for module in modules:
                for images in batches:
                    module(images)

    return compute
