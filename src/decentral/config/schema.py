"""The schema of a run's configuration.

The dataclasses of the components are the schema: types, defaults and ranges live there and nowhere else. `conf/` names
the choices. Nothing here imports torch: a bad configuration is refused within a second.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from decentral.errors import ConfigError, check_at_least, suggest
from decentral.gradients.precision import Precision
from decentral.network.settings import NetworkSettings
from decentral.registry import components
from decentral.tasks.evaluation import EvaluationSettings
from decentral.topology.communication import Communication

if TYPE_CHECKING:
    from decentral.topology.rounds import Rounds

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
    "cluster": "cluster",
    "logger": "training.loggers",
    "launcher": "scheduling.launchers",
}
"""Group of the configuration -> package with its components."""

NODES: dict[str, type] = {
    "network": NetworkSettings,
    "communication": Communication,
    "evaluation": EvaluationSettings,
}
"""Settings that belong together and are no choice -> their dataclass, whose docstring describes them."""


_MOST_EPOCHS = 1e12


def _key(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help} | more)


class Save(Enum):
    """Which models of a run are kept."""

    final = "final"
    best = "best"
    none = "none"


class Simulate(Enum):
    """What is computed."""

    training = "training"
    timeline = "timeline"


@dataclass
class Config:
    """Everything that `decentral-run` can be told."""

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
    cluster: Any = None
    logger: Any = None
    launcher: Any = None
    network: NetworkSettings = field(default_factory=NetworkSettings)
    communication: Communication = field(default_factory=Communication)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    alpha: float = _key(0.1, "heterogeneity of the workers' data: Dirichlet concentration, smaller is more different")
    lr: float = _key(0.1, "learning rate gamma")
    batch_size: int = _key(32, "images, texts, frames, ... per worker and gradient", group="model")
    accumulate: int = _key(1, "gradients per worker and step, of which the mean is taken", older=1)
    seed: int = _key(0, "everything random follows from it")
    num_workers: int | None = _key(None, "n, whatever the number of processes (null: the task's, usually 16)")
    epochs: float = _key(200.0, "passes over the data (tasks without data: steps)")
    steps: int | None = _key(None, "steps, instead of epochs")
    init: str | None = _key(
        None, "start from the averaged model of another run: its directory, or its id in results_dir", older=None
    )
    save: Save = field(
        default=Save.final,
        metadata={"help": "which models to keep in models.safetensors: final, best (by the worst worker), none"},
    )
    stop_after_simulated_s: float | None = _key(
        None, "in a virtual cluster: stop after the step in which so many seconds are over", older=None
    )
    simulate: Simulate = field(
        default=Simulate.training,
        metadata={
            "help": "timeline: only what so many steps= would take in a virtual cluster, without training",
            "older": Simulate.training,
        },
    )
    trace: bool = _key(False, "write every step's models to trace.npz: iterates [steps + 1, n, P]")
    record_operations: bool = _key(
        False,
        "write what each worker did and when to operations.jsonl",
        older=False,
    )
    device: str = _key("auto", "auto, cpu, cuda, or cuda:1 ...")
    processes: str = _key("auto", "how many processes share the workers: 1 to num_workers, or auto")
    execution: str = _key(
        "auto", "how the workers of a process get their gradients: loop, batched (small plain models), auto"
    )
    precision: Precision = field(
        default=Precision.fp32,
        metadata={
            "help": "of training: fp32, tf32 (on GPUs), bf16, or fp64 for checks; of tests: evaluation.precision",
            "group": "model",
            "older": Precision.fp32,
        },
    )
    checkpoint_every_s: float = _key(60.0, "seconds between checkpoints (0: one after each evaluation)")
    restarts: int = _key(3, "how often a run of several processes goes on by itself when one is killed or hangs")
    max_combinations: int = _key(10_000, "how many combinations of values a sweep (-m) may have")
    results_dir: str = _key("results", "where runs are kept, as runs/<id>")
    run_dir: str | None = _key(None, "the directory of this run, instead")
    rerun: bool = _key(False, "carry a finished run out again, in place of what it had stored")
    progress: bool = _key(True, "show progress")

    def __post_init__(self) -> None:
        _positive("alpha", self.alpha, "a Dirichlet concentration such as 1, 0.1 or 0.01")
        _positive("epochs", self.epochs, "a number of passes over the data")
        if self.epochs > _MOST_EPOCHS:
            raise ConfigError(f"epochs={self.epochs:g} never ends: {_MOST_EPOCHS:g} is the most.")
        for key in ("num_workers", "steps", "batch_size", "accumulate", "max_combinations"):
            check_at_least(key, getattr(self, key))
        if not 0 <= self.seed < 2**62:
            raise ConfigError(f"seed={self.seed} makes no sense: it has to be from 0 to 2^62 - 1.")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise ConfigError(f"lr={self.lr:g} makes no sense: a learning rate is a number from 0 upwards.")
        if not (math.isfinite(self.checkpoint_every_s) and self.checkpoint_every_s >= 0):
            raise ConfigError(
                f"checkpoint_every_s={self.checkpoint_every_s:g} has to be a number of seconds from 0 upwards."
            )
        if self.stop_after_simulated_s is not None:
            _positive("stop_after_simulated_s", self.stop_after_simulated_s, "a number of seconds")
        if self.restarts < 0:
            raise ConfigError(f"restarts={self.restarts} makes no sense: it has to be at least 0.")
        if self.processes != "auto" and not (self.processes.isdigit() and int(self.processes) >= 1):
            raise ConfigError(
                f"processes={self.processes} makes no sense: give a number from 1 to num_workers, or auto."
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device={self.device} is unknown: use auto, cpu, cuda, or one of several: cuda:1.")
        if self.execution not in components("gradients"):
            raise ConfigError(
                f"execution={self.execution} does not exist.{suggest(self.execution, components('gradients'))}"
            )
        empty = next((key for key in ("results_dir", "run_dir", "init") if getattr(self, key) == ""), None)
        if empty:
            raise ConfigError(f"{empty}= is empty: give a folder, for example {empty}=results.")

    def rounds(self) -> Rounds:
        """Who talks to whom in every step: the topology, and what `communication` does to its rounds.

        A worker that is alone with a method that has no use for the topology needs none. Raises ConfigError where there
        is no such thing for so many workers.
        """
        assert self.num_workers is not None
        if self.num_workers == 1 and not self.algo.uses_topology:
            from decentral.topology.chain import Chain

            return self.communication.schedule(Chain(), 1)
        return self.communication.schedule(self.topology, self.num_workers)


def _positive(key: str, value: float, meaning: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{key}={value:g} makes no sense: it has to be above 0, {meaning}.")
