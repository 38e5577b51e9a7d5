"""What whole commands and whole runs take: until something happens, in which processes, and beside their passes."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

import decentral
from bench.baselines import CifarLike
from bench.harness import Effort, Findings, Table, Target, alone, benchmark, in_turn, passes
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.host.machine import num_cores
from decentral.report.run_figures import save_learning_curves
from decentral.report.series import read_curves
from decentral.runtime.devices import num_processes
from decentral.runtime.launch import launch
from decentral.script.loading import runs
from decentral.store import RunStore
from decentral.tasks.supervised import Images
from decentral.tasks.task import EvaluationSettings, Scope
from decentral.training.assemble import FEWEST_EVALUATIONS, Run, assemble
from decentral.training.evaluation import evaluate


def run_command(arguments: Sequence[str], status: int = 0, fresh: Path | None = None) -> None:
    """Run a Python command. `fresh` is where it gets a new results_dir each time.

    Raises RuntimeError if its exit status is another one than `status`.
    """
    command = [sys.executable, *arguments]
    if fresh is not None:
        command.append(f"results_dir={tempfile.mkdtemp(dir=fresh)}")
    ended = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True)
    if ended.returncode != status:
        told = " ".join(ended.stderr.split())[-300:]
        raise RuntimeError(f"{' '.join(command[1:])} ended with status {ended.returncode}: {told}")


@benchmark("the CPU time of decentral.train of a given module / of the same built-in one")
def given(effort: Effort) -> Findings:
    """Train an MLP on the digits on as many cores as it is worth, as a module and by its name."""
    layers = [layer for a, b in pairwise((64, 64, 64, 10)) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())][:-1]
    models = {"mlp": "mlp", "given": torch.nn.Sequential(torch.nn.Flatten(), *layers)}
    words: dict[str, Any] = {"algo": "dpsgd", "topology": "ring", "num_workers": 8, "batch_size": 16, "progress": False}
    steps = 20 if effort.quick else 1000
    with tempfile.TemporaryDirectory() as folder:

        def train(model: Any) -> None:
            decentral.train(model, "digits", steps=steps, rerun=True, results_dir=folder, **words)

        times = in_turn({name: partial(train, model) for name, model in models.items()}, effort.rounds)
    rows = [{"model": name, "cpu_s": times.least(name), "to_mlp": times.ratio(name, "mlp")} for name in models]
    columns = {"model": "model", "cpu_s": "CPU (s, least)", "to_mlp": "/ model=mlp"}
    target = Target("a given MLP / model=mlp (CPU)", times.ratio("given", "mlp").median, at_most=1.3)
    return Findings([Table(f"{steps} steps of 8 workers", columns, rows)], [target])


_RUN, _REFUSED = ("-m", "decentral"), "a refused configuration"


@benchmark("the wall time of commands that do little / of Python, and of importing torch")
def start(effort: Effort) -> Findings:
    """Start a command, refuse, bring processes up, see that all is done: each anew in every round, in turn."""
    workers = 2 if effort.quick else 16
    with tempfile.TemporaryDirectory() as folder:
        study = ("-m", "decentral.cli.study", "relaysum_fig2", "scale=smoke", f"results_dir={folder}/study")
        up = (*_RUN, "task=quadratics", "steps=1", f"num_workers={workers}", f"processes={workers}")
        commands = {
            "python": partial(run_command, ("-c", "pass")),
            "torch": partial(run_command, ("-c", "import torch")),
            "decentral-run --help": partial(run_command, (*_RUN, "--help")),
            _REFUSED: partial(run_command, (*_RUN, "topology=rnig"), 2),
            "the second run of a finished study (smoke)": partial(run_command, study),
            f"{workers} workers in {workers} processes: up, one step, down": partial(run_command, up, 0, Path(folder)),
        }
        times = in_turn(commands, effort.at_most(5), clock=time.perf_counter)
    rows = [
        {
            "command": label,
            "wall_s": times.least(label),
            "to_python": times.ratio(label, "python"),
            "to_torch": times.ratio(label, "torch"),
        }
        for label in list(commands)[2:]
    ]
    columns = {
        "command": "command",
        "wall_s": "wall (s, least)",
        "to_python": "/ python -c pass",
        "to_torch": "/ python -c 'import torch'",
    }
    target = Target(f"{_REFUSED} / import torch (wall)", times.ratio(_REFUSED, "torch").median, at_most=0.5)
    note = f"python -c pass: {times.least('python'):.3f} s, import torch: {times.least('torch'):.2f} s (least)."
    return Findings([Table("Starting", columns, rows)], [target], [note])


# -- processes=auto ----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A run: its settings, how many of its steps are timed, and how many it has."""

    name: str
    settings: tuple[str, ...]
    timed: int
    steps: int


def _case(name: str, model: str, size: int, channels: int, timed: int) -> Case:
    images = ("data=synthetic", "data.num_train=50000", f"data.image_size={size}", f"data.num_channels={channels}")
    epochs = 10 * (50_000 // 16 // 32)
    return Case(f"{name}, 10 epochs", (f"model={model}", *images, "data.num_classes=10"), timed, epochs)


CASES = (
    Case("mlp, digits, 200 epochs", ("model=mlp",), 200, 400),
    Case("cnn, digits, 200 epochs", ("model=cnn",), 100, 400),
    _case("mlp, 28 x 28", "mlp", 28, 1, 50),
    _case("cnn, 28 x 28", "cnn", 28, 1, 20),
    _case("cnn, 3 x 32 x 32", "cnn", 32, 3, 10),
    _case("vgg11, 3 x 32 x 32", "vgg11", 32, 3, 2),
)
_SHARED = ("algo=dpsgd", "topology=ring", "device=cpu", "progress=false", "evaluation.initial=false", "save=none")


@benchmark("what comes beside a short run: a figure, help, a list of 3,000 runs")
def beside(effort: Effort) -> Findings:
    """CPU time of the learning curves of a run, the wall time of `--help` over that of importing numpy, and the wall
    time of `decentral.runs` with an index of the runs and without one, which is its first call."""
    count = 60 if effort.quick else 3000
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        run_command((*_RUN, "task=quadratics", "steps=30", "progress=false", f"results_dir={results}"))
        (run,) = (results / "runs").iterdir()
        curves, seconds = read_curves(run), []
        for _ in range(effort.rounds + 1):
            began = time.process_time()
            save_learning_curves(run, curves)
            seconds.append(time.process_time() - began)
        names = ("status.json", "config.yaml", "metrics.json", "metrics.jsonl")
        texts = {name: (run / name).read_text() for name in names}
        for number in range(count - 1):
            (copy := run.with_name(f"{number:012x}")).mkdir()
            for name, text in texts.items():
                (copy / name).write_text(text.replace(run.name, copy.name))
        time.sleep(1.5)  # a file that is younger than a second is read again
        listed = []
        for _ in range(2):
            began = time.perf_counter()
            runs(results)
            listed.append(time.perf_counter() - began)
    commands = {"numpy": ("-c", "import numpy"), "help": (*_RUN, "--help", "algo=relaysgd")}
    works = {name: partial(run_command, words) for name, words in commands.items()}
    took = in_turn(works, effort.rounds, clock=time.perf_counter)
    rows = [
        {"what": "learning curves, CPU", "seconds": min(seconds[1:])},
        {"what": f"decentral.runs of {count:,} runs, first call", "seconds": listed[0]},
        {"what": f"decentral.runs of {count:,} runs, later calls", "seconds": listed[1]},
        *({"what": f"wall time of {name}", "seconds": took.least(name)} for name in commands),
    ]
    targets = [
        Target("seconds of CPU for a figure", min(seconds[1:]), 0.5),
        Target("seconds to list 3,000 runs", listed[1], 2.0),
    ]
    return Findings([Table("Beside a run", {"what": "what", "seconds": "seconds"}, rows)], targets)


@benchmark(
    "a run with processes=auto / with the better of one and two processes",
    missing=lambda: "" if num_cores() >= 2 else "this machine has one core: there is nothing to choose",
)
def defaults(effort: Effort) -> Findings:
    """Whole commands of a few steps, in one and in two processes, in turn (wall time).

    A run of T steps takes what a command of t steps takes beside them, and T / t times its steps.
    """
    rows = [defaults_row(case, effort) for case in effort.of(CASES)]
    targets = [Target(f"{row['run']}: auto / the best", row["ratio"], 1.10) for row in rows]
    columns = {
        "run": "run, 16 workers, batch 32",
        "one_s": "processes=1 (s)",
        "two_s": "processes=2 (s)",
        "chosen": "processes=auto",
        "ratio": "auto / the best",
    }
    note = "Seconds of the whole command, from what a few of its steps take; auto is what this machine gets"
    limit = f", with two of its {num_cores()} cores." if num_cores() > 2 else "."
    return Findings([Table("Whole runs, D-PSGD on a ring (wall, least)", columns, rows)], targets, [note + limit])


def defaults_row(case: Case, effort: Effort) -> dict[str, Any]:
    """The time of the whole run in one and in two processes, and which of them it takes by itself."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(effort.at_most(2)):
        for processes in seconds:
            seconds[processes].append(command_s(case, processes))
    one, two = min(seconds[1]), min(seconds[2])
    chosen = choice((*case.settings, f"steps={case.steps}"))
    ratio = (one, two)[chosen - 1] / min(one, two)
    return {"run": case.name, "one_s": one, "two_s": two, "chosen": chosen, "ratio": ratio}


def choice(settings: Sequence[str]) -> int:
    """How many processes a configuration gets where there are two cores."""
    return min(2, num_processes(prepare(compose([*_SHARED, *settings]))))


def command_s(case: Case, processes: int) -> float:
    """What `case.steps` steps would take, with all that is beside them, by a run of `case.timed` steps."""
    with tempfile.TemporaryDirectory() as folder:
        places = (f"steps={case.timed}", f"processes={processes}", f"run_dir={folder}/run")
        began = time.perf_counter()
        run_command((*_RUN, *_SHARED, *case.settings, *places))
        took = time.perf_counter() - began
        facts = RunStore.peek(Path(folder) / "run")
    assert facts is not None
    return took + facts["wall_s"] * (case.steps / case.timed - 1)


# -- where the time of a run goes --------------------------------------------------------------------------------------

_EXAMPLES = 2000  # of the test examples, of which an evaluation is timed: short rounds, and many
_DIFFERENT = 1e-3  # standard deviation of what makes models different, which would be evaluated once


class RunTimes(NamedTuple):
    """Seconds (wall) of all epochs, by part: passes, exchange, data, the curve's evaluations, the last one, ...

    `alone_s` are those of the passes of plain modules, `last_over_forward` the time of the last evaluation over that of
    its forward passes alone.
    """

    seconds: dict[str, float]
    alone_s: float
    last_over_forward: float

    def table(self) -> Table:
        """A row for each part, and for all."""
        parts = self.seconds | {"all": sum(self.seconds.values())}
        parts["the last evaluation's forward passes alone"] = (
            self.seconds["the last evaluation"] / self.last_over_forward
        )
        rows = [{"part": part, "seconds": s, "share": s / self.alone_s} for part, s in parts.items()]
        columns = {"part": "part", "seconds": "seconds in all epochs", "share": "/ passes alone"}
        return Table("Where the time goes (wall)", columns, rows)


@benchmark("a default run of ten epochs on data like CIFAR-10 / its passes alone")
def whole_run(effort: Effort) -> Findings:
    """With the settings that a run has by default; see `run_times`."""
    assert Images.eval_every_epochs is not None
    found = run_times((), 10, min(Images.eval_every_epochs, 10 / FEWEST_EVALUATIONS), effort)
    curve_s, last_s = found.seconds["the curve's evaluations"], found.seconds["the last evaluation"]
    targets = [
        Target("the whole run / its passes alone", sum(found.seconds.values()) / found.alone_s, 1.20),
        Target("all its evaluations / its passes alone", (curve_s + last_s) / found.alone_s, 0.10),
        Target("its curve's evaluations / its passes", curve_s / found.seconds["passes"], 0.10),
        Target("its last evaluation / the forward passes of that alone", found.last_over_forward, 1.10),
    ]
    notes = [
        f"The passes alone take {found.alone_s:.0f} s. Checkpoints are those of the one epoch that is timed.",
        "The last evaluation is always of 16 workers and their average on all 10,000 test examples. With a forward "
        "pass a third of the operations of forward and backward, that would be 17 x 10,000 / 3 / (10 x 50,000) = "
        "0.113 of the passes of ten epochs; so it is held against its own forward passes, too.",
        "The run's own passes, side by side, take less time than those alone, which are of plain modules.",
    ]
    return Findings([found.table()], targets, notes)


def run_times(settings: Sequence[str], epochs: int, every: float, effort: Effort) -> RunTimes:
    """A run of RelaySGD with 16 `cnn` and these settings on data like CIFAR-10's, evaluated every so many epochs.

    One epoch is trained, in one process with one thread, with as many evaluations, on as many test examples, as all
    epochs have, so that only the time of the steps is multiplied. How their time is shared by the curve's and the last
    one is measured apart, in turn with the last one's forward passes alone. A quick measurement has little data.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = one_epoch(settings, epochs, every, f"{folder}/run", effort)
        calls = effort.repeats(10)
        before_s = passes_s(config, calls)
        began = time.perf_counter()
        launch(prepare(config))
        took = time.perf_counter() - began
        facts = RunStore.peek(Path(folder) / "run")
        step_s = (before_s + passes_s(config, calls)) / 2
    assert facts is not None
    times: dict[str, float] = facts["times_s"]
    curve, last_over_forward = evaluations(config, epochs, every, effort)
    seconds = {part: epochs * times[part] for part in ("passes", "exchange", "data")}
    seconds |= {"the curve's evaluations": curve * times["evaluation"]}
    seconds |= {"the last evaluation": (1 - curve) * times["evaluation"], "checkpoints": times["checkpoints"]}
    seconds |= {"start and end": took - sum(times.values())}
    return RunTimes(seconds, epochs * facts["step"] * step_s, last_over_forward)


def one_epoch(settings: Sequence[str], epochs: int, every: float, directory: str, effort: Effort) -> Config:
    """An epoch with the evaluations of so many."""
    data = CifarLike(num_train=1024, num_test=64) if effort.quick else CifarLike()
    examples = EvaluationSettings().on_the_way(data.num_train, data.num_test, 16, epochs, every)
    run = ["algo=relaysgd", "topology=dbt", "model=cnn", "num_workers=16", "lr=0.01", "epochs=1"]
    evaluation = [f"evaluation.every_epochs={every / epochs}", f"evaluation.examples={examples or 'all'}"]
    where = ["processes=1", "device=cpu", "progress=false", f"run_dir={directory}"]
    return compose([*settings, *run, *evaluation, *where], made={"data": data})


def passes_s(config: Config, calls: int) -> float:
    """The passes of a step (wall), alone: the mean of so many, after one to warm up."""
    run = assemble(prepare(config), alone())
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
    run = assemble(prepare(config), alone())
    x = run.stepper.models
    x = x + _DIFFERENT * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    evaluation = partial(evaluate, run.problem, x, run.net, run.oracle.take_losses(), 0, 1)
    num_test = config.data.inspect().num_test
    timed = min(_EXAMPLES, num_test)
    few = run.examples_on_the_way or num_test
    works: dict[str, Callable[[], object]] = {
        "few": partial(evaluation, Scope(min(few, timed))),
        "many": partial(evaluation, Scope(timed)),
        "forward": forward(run, timed),
    }
    times = in_turn(works, 2 * effort.rounds)
    run.close()
    curve = math.ceil(epochs / every) - 1 + 1 / (len(x) + 1)
    few_over_many = times.ratio("few", "many").median * max(1, few / timed)
    curve_over_last = curve * few_over_many * timed / num_test
    return curve_over_last / (1 + curve_over_last), times.ratio("many", "forward").median


def forward(run: Run, examples: int) -> Callable[[], None]:
    """The forward passes of an evaluation on so many, of n + 1 plain modules, on batches that are there already.

    They have the size and the layout in memory that are fastest.
    """
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
