"""The schema of a run's configuration.

The dataclasses of the components are the schema: types, defaults and ranges live there and nowhere else. `conf/` names
the choices. Nothing here imports torch: a bad configuration is refused within a second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.algorithms.features import Feature
from decentral.config.per_worker import SPELLINGS, per_worker
from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.network.settings import NetworkSettings
from decentral.registry import components
from decentral.settings import Settings, setting
from decentral.tasks.counted import COUNTED
from decentral.tasks.task import EvaluationSettings
from decentral.topology.communication import Communication, LocalSteps
from decentral.topology.trees import Chain

if TYPE_CHECKING:
    from decentral.topology.rounds import Rounds


@dataclass
class EarlyStop(Settings, where="early_stop"):
    """Early stopping of a run that no longer improves. Schedules still refer to all its steps.

    patience     stop after this many consecutive evaluations (evaluation.every_epochs) without improvement (null:
                 never). The run then ends with a last evaluation on all test examples
    metric       metric to watch, such as loss; by default the first, which judges the run
    worker       worker to watch: worst, mean (over the workers), averaged (the averaged model)
    min_change   smallest change that counts as an improvement, in the metric's unit (accuracies: fractions of 1)
    """

    patience: int | None = setting(None, at_least=1, hint="evaluations")
    metric: str = ""
    worker: str = setting("worst", choices=("worst", "mean", "averaged"))
    min_change: float = setting(0.0, at_least=0)


GROUPS = {
    "algo": "algorithms",
    "topology": "topology",
    "task": "tasks",
    "data": "data",
    "env": "environments",
    "partition": "partition",
    "model": "models",
    "optim": "optim",
    "schedule": "lr_schedules",
    "compress": "compression",
    "attack": "network.attacks",
    "robust": "network.robust",
    "privacy": "network.privacy",
    "cluster": "cluster",
    "availability": "availability",
    "logger": "training.loggers",
    "launcher": "scheduling.launchers",
}
"""Group of the configuration -> package with its components."""

NODES: dict[str, type] = {
    "network": NetworkSettings,
    "communication": Communication,
    "evaluation": EvaluationSettings,
    "early_stop": EarlyStop,
}
"""Settings that belong together and are no choice -> their dataclass, whose docstring describes them."""


_PER_WORKER = f"a list with one number per worker, or {SPELLINGS}"

OWN = "lr", "batch_size", "steps"
"""Quantities that may differ per worker, with the keys `lr_per_worker` and so on."""


class Save(Enum):
    """Models of a run that are kept."""

    final = "final"
    best = "best"
    none = "none"


class Simulate(Enum):
    """The extent of the simulation."""

    training = "training"
    timeline = "timeline"


@dataclass
class Config(Settings):
    """The complete configuration of `decentral-run`."""

    algo: Any = None
    topology: Any = None
    task: Any = None
    data: Any = None
    env: Any = None
    partition: Any = None
    model: Any = None
    optim: Any = None
    schedule: Any = None
    compress: Any = None
    attack: Any = None
    robust: Any = None
    privacy: Any = None
    cluster: Any = None
    availability: Any = None
    logger: Any = None
    launcher: Any = None
    network: NetworkSettings = field(default_factory=NetworkSettings)
    communication: Communication = field(default_factory=Communication)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    early_stop: EarlyStop = field(default_factory=EarlyStop)
    alpha: float = setting(
        0.1,
        help="Dirichlet concentration of the workers' class distributions: smaller is more heterogeneous",
        group="partition",
        above=0,
        hint="such as 1, 0.1 or 0.01",
    )
    lr: float = setting(0.1, help="learning rate", at_least=0)
    batch_size: int = setting(
        32, help="examples (images, texts, frames, ...) per worker and gradient", group="model", at_least=1
    )
    accumulate: int = setting(
        1,
        help="gradients averaged per worker and step; the simulated time of a step is that of all of them",
        older=1,
        at_least=1,
    )
    lr_per_worker: list[Any] | None = setting(
        None,
        wanted=_PER_WORKER,
        help="learning rate of each worker, instead of lr: one number per worker, or drawn from the seed: "
        "[uniform,LOW,HIGH], [lognormal,MEDIAN,SIGMA], [choice,A,B,...]",
        older=None,
    )
    batch_size_per_worker: list[Any] | None = setting(
        None,
        wanted=_PER_WORKER,
        help="batch size of each worker, written like lr_per_worker; the simulated time of a gradient scales with its "
        "batch size relative to batch_size",
        group="model",
        older=None,
    )
    steps_per_worker: list[Any] | None = setting(
        None,
        wanted=_PER_WORKER,
        help="local steps of each worker between two communications, written like lr_per_worker, at most "
        "communication.every (or algo.period_steps)",
        older=None,
    )
    seed: int = setting(0, help="seed of everything random", at_least=0, below=2**62)
    num_workers: int | None = setting(
        None,
        help="number of workers n, independent of the number of processes (null: the task's default, usually 16)",
        at_least=1,
    )
    epochs: float = setting(
        200.0,
        help="passes over the data (tasks without data: steps)",
        above=0,
        at_most=1e12,
        hint="passes over the data",
    )
    steps: int | None = setting(None, help="number of steps, instead of epochs", at_least=1)
    tokens: int | None = setting(
        None, help="number of training tokens of all workers, instead of epochs: 100k, 100M (task=language)", at_least=1
    )
    metrics: list[str] = setting(
        [],
        help=f"metrics to record before the task's own: {', '.join(COUNTED)}, or module:function, prefixed with + or - "
        "if larger or smaller is better; the first one ranks workers, and decides save=best and early_stop",
        older=[],
        group="data",
        code="metrics",
    )
    init: str | None = setting(
        None, help="start from the averaged model of another run: its directory, or its ID in results_dir", older=None
    )
    save: Save = setting(
        Save.final,
        help="models to keep in models.safetensors: final, best (evaluation with the best worst worker), none",
    )
    stop_after_simulated_s: float | None = setting(
        None,
        help="in a virtual cluster: stop after the step that reaches this simulated time, in seconds",
        older=None,
        above=0,
        hint="seconds",
    )
    simulate: Simulate = setting(
        Simulate.training,
        help="timeline: only compute the time of steps= in a virtual cluster, without training",
        older=Simulate.training,
    )
    trace: Any = setting(
        False,
        help="write every step's models to trace.npz: iterates [steps + 1, n, P]; state: also every field of the "
        "algorithm's state",
    )
    record_operations: bool = setting(
        False, help="write a timeline of each worker's operations to operations.jsonl", older=False
    )
    device: str = setting("auto", help="auto, cpu, cuda, or one GPU: cuda:1")
    processes: str = setting("auto", help="number of processes that share the workers: 1 to num_workers, or auto")
    execution: str = setting(
        "auto",
        help="how a process computes its workers' gradients: batched suits small plain models",
        choices=partial(components, "gradients"),
    )
    precision: Precision = setting(
        Precision.fp32,
        help="precision of training: fp32, tf32 (on GPUs), bf16, or fp64 for checks; of evaluation: "
        "evaluation.precision",
        group="model",
        older=Precision.fp32,
    )
    checkpoint_every_s: float = setting(
        60.0, help="seconds between checkpoints (0: one after each evaluation)", at_least=0
    )
    restarts: int = setting(
        3,
        help="maximum number of automatic restarts when a process of a multi-process run is killed or hangs",
        at_least=0,
    )
    max_combinations: int = setting(10_000, help="maximum number of combinations in a sweep (-m)", at_least=1)
    sweeper: str = setting(
        "grid",
        help="kind of sweep (-m): grid, every combination; optuna, trials with values from lists and intervals: "
        "lr=log(1e-3,1), interval(LOW,HIGH) or int(LOW,HIGH)",
        choices=lambda: ("grid", "optuna"),
        older="grid",
    )
    trials: int = setting(20, help="number of runs of a search (sweeper=optuna)", older=20, at_least=1)
    results_dir: str = setting("results", help="folder of the runs, stored as runs/<id>")
    run_dir: str | None = setting(None, help="directory of this run, instead of results_dir/runs/<id>")
    rerun: bool = setting(False, help="repeat a finished run and replace its results")
    progress: bool = setting(True, help="show progress")
    name: str | None = None
    """The name of a run of `decentral.train`, from which its ID follows."""

    def __post_init__(self) -> None:
        if self.processes != "auto" and not (self.processes.isdigit() and int(self.processes) >= 1):
            raise ConfigError(
                f"processes={self.processes} is not a valid number of processes: use a number from 1 to num_workers, "
                "or auto."
            )
        if self.trace not in (False, True, "state"):
            raise ConfigError(f"trace={self.trace} does not exist: use true, false or state.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device={self.device} is unknown: use auto, cpu, cuda, or one GPU such as cuda:1.")
        empty = next((key for key in ("results_dir", "run_dir", "init") if getattr(self, key) == ""), None)
        if empty:
            raise ConfigError(f"{empty}= is empty: give a folder, for example {empty}=results.")

    def own(self, key: str) -> np.ndarray | None:
        """Return the values of `key`_per_worker [n]; None if not set."""
        key += "_per_worker"
        given = getattr(self, key)
        assert self.num_workers is not None
        if given is None:
            return None
        return per_worker(key, given, self.num_workers, self.seed, whole=key != "lr_per_worker")

    def batch_sizes(self) -> np.ndarray:
        """Return the batch size of each worker: int64 [n]."""
        found = self.own("batch_size")
        return np.full(self.num_workers or 1, self.batch_size) if found is None else found

    def tokens_of(self, steps: int) -> int | None:
        """Return the number of tokens that all workers train on in these steps; None if the task has no tokens."""
        if not self.task.has_tokens:
            return None
        local = self.local_steps()
        windows = (self.batch_sizes() * (1 if local is None else local.steps / local.every)).sum() * self.accumulate
        return int(steps * windows * self.data.longest)

    def local_steps(self) -> LocalSteps | None:
        """Return each worker's number of steps between two communications; None if all take every step."""
        steps = self.own("steps")
        every = getattr(self.algo, "period_steps", self.communication.every)
        return None if steps is None else LocalSteps(every, steps)

    def rounds(self) -> Rounds:
        """Return the rounds of every step: those of the topology, modified by `communication`.

        A single worker with a method that does not use the topology needs none. Raises ConfigError if they do not exist
        for the number of workers.
        """
        assert self.num_workers is not None
        if self.num_workers == 1 and Feature.topology not in self.algo.supports:
            return self.communication.schedule(Chain(), 1)
        return self.communication.schedule(self.topology.on(self), self.num_workers)
