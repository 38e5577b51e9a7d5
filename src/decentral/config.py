"""The configuration of a run: its schema, its validation, its file.

The dataclasses of the components are the schema: types, defaults and ranges live there and nowhere else. `conf/` names
the choices. Nothing here imports torch: a bad configuration is refused within a second.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, get_type_hints

from decentral.errors import ConfigError, suggest
from decentral.network.settings import NetworkSettings
from decentral.precision import Precision
from decentral.registry import components
from decentral.topology.communication import Communication

if TYPE_CHECKING:
    from decentral.topology.schedule import Schedule

GROUPS = {
    "algo": "algorithms",
    "topology": "topology",
    "task": "tasks",
    "data": "data",
    "partition": "partition",
    "model": "models",
    "optim": "optim",
    "schedule": "schedules",
    "logger": "loggers",
    "launcher": "launchers",
}
"""Group of the configuration -> package with its components."""

NODES: dict[str, type] = {"network": NetworkSettings, "communication": Communication}
"""Settings that belong together and are no choice -> their dataclass, whose docstring describes them."""


def _key(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help} | more)


@dataclass
class Config:
    """Everything that `decentral-run` can be told."""

    algo: Any = None
    topology: Any = None
    task: Any = None
    data: Any = None
    partition: Any = None
    model: Any = None
    optim: Any = None
    schedule: Any = None
    logger: Any = None
    launcher: Any = None
    network: NetworkSettings = field(default_factory=NetworkSettings)
    communication: Communication = field(default_factory=Communication)
    alpha: float = _key(0.1, "heterogeneity of the workers' data: Dirichlet concentration, smaller is more different")
    lr: float = _key(0.1, "learning rate gamma")
    batch_size: int = _key(32, "pictures per worker and step", group="data")
    seed: int = _key(0, "everything random follows from it")
    num_workers: int | None = _key(None, "n, whatever the number of processes (null: the task's, usually 16)")
    epochs: float = _key(200.0, "passes over the data (tasks without data: steps)")
    steps: int | None = _key(None, "steps, instead of epochs")
    eval_every_epochs: float | None = _key(None, "how often to evaluate (null: the task's habit)")
    trace: bool = _key(False, "write every step's models to trace.npz: iterates [steps + 1, n, P]")
    device: str = _key("auto", "auto, cpu, cuda, or cuda:1 ...")
    processes: str = _key("auto", "how many processes share the workers: 1 to num_workers, or auto")
    execution: str = _key(
        "auto", "how the workers of a process get their gradients: loop, batched (small plain models), auto"
    )
    precision: Precision = field(
        default=Precision.fp32,
        metadata={
            "help": "of training: fp32, tf32 (on GPUs), bf16, or fp64 for checks; evaluation is fp32 or fp64",
            "group": "model",
            "older": Precision.fp32,
        },
    )
    checkpoint_every_s: float = _key(60.0, "seconds between checkpoints (0: one after each evaluation)")
    restarts: int = _key(3, "how often a run of several processes goes on by itself when one is killed or hangs")
    results_dir: str = _key("results", "where runs are kept, as runs/<id>")
    run_dir: str | None = _key(None, "the directory of this run, instead")
    progress: bool = _key(True, "show progress")

    def __post_init__(self) -> None:
        _positive("alpha", self.alpha, "a Dirichlet concentration such as 1, 0.1 or 0.01")
        _positive("epochs", self.epochs, "a number of passes over the data")
        if self.eval_every_epochs is not None:
            _positive("eval_every_epochs", self.eval_every_epochs, "a number of epochs")
        for key in ("num_workers", "steps", "batch_size"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"{key}={value} makes no sense: it has to be at least 1.")
        if not 0 <= self.seed < 2**62:
            raise ConfigError(f"seed={self.seed} makes no sense: it has to be from 0 to 2^62 - 1.")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise ConfigError(f"lr={self.lr:g} makes no sense: a learning rate is a number from 0 upwards.")
        if not (math.isfinite(self.checkpoint_every_s) and self.checkpoint_every_s >= 0):
            raise ConfigError(
                f"checkpoint_every_s={self.checkpoint_every_s:g} has to be a number of seconds from 0 upwards."
            )
        if self.restarts < 0:
            raise ConfigError(f"restarts={self.restarts} makes no sense: it has to be at least 0.")
        if self.processes != "auto" and not (self.processes.isdigit() and int(self.processes) >= 1):
            raise ConfigError(
                f"processes={self.processes} makes no sense: give a number from 1 to num_workers, or auto."
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device={self.device} is unknown: use auto, cpu, cuda, or one of several: cuda:1.")
        if self.execution not in components("executions"):
            raise ConfigError(
                f"execution={self.execution} does not exist.{suggest(self.execution, components('executions'))}"
            )
        if not self.results_dir:
            raise ConfigError("results_dir= is empty: give a folder, for example results_dir=results.")

    def rounds(self) -> Schedule:
        """Who talks to whom in every step: the topology, and what `communication` does to its rounds.

        Raises ConfigError where there is no such thing for so many workers.
        """
        assert self.num_workers is not None
        return self.communication.schedule(self.topology, self.num_workers)


def _positive(key: str, value: float, meaning: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{key}={value:g} makes no sense: it has to be above 0, {meaning}.")


def resolve(config: Config) -> Config:
    """The same run with nothing left open that the task decides. Checks what needs no torch.

    Raises ConfigError for anything that cannot work: a topology that does not exist for so many workers or does not
    suit the algorithm, data that is missing or cannot be split over the workers, a model that is too large for the
    pictures, ...
    """
    from decentral.topology.requirements import check

    config = dataclasses.replace(
        config,
        num_workers=config.task.resolve_num_workers(config),
        eval_every_epochs=config.eval_every_epochs or config.task.eval_every_epochs,
    )
    assert config.num_workers is not None
    if config.processes != "auto" and int(config.processes) > config.num_workers:
        raise ConfigError(
            f"processes={config.processes} is more than num_workers={config.num_workers}: every process hosts at "
            "least one worker."
        )
    if config.algo.needs_samples and not config.task.has_samples:
        raise ConfigError(
            f"algo={config.algo.name} averages samples and trains nothing: use it with task=mean_estimation, "
            f"not with task={config.task.name}."
        )
    if config.precision not in (Precision.fp32, Precision.fp64) and "model" not in config.task.uses:
        raise ConfigError(
            f"precision={config.precision.name} is for networks: task={config.task.name} always computes in float64, "
            "leave precision= out."
        )
    config.network.check_workers(config.num_workers)
    config.task.check(config)
    _check_communication(config)
    check(config.rounds(), config.algo.needs, config.algo.name, config.topology.name)
    if config.network.drop_probability and not config.algo.survives_loss:
        raise ConfigError(
            f"network.drop_probability={config.network.drop_probability:g} cannot be used with "
            f"algo={config.algo.name}: "
            "an all-reduce is reliable; message loss is for algorithms that talk to neighbours, such as relaysgd "
            "or dpsgd."
        )
    config.logger.check()
    return config


def _check_communication(config: Config) -> None:
    from decentral.topology.requirements import Need

    if config.communication.plain:
        return
    if not config.algo.uses_topology:
        raise ConfigError(
            f"algo={config.algo.name} does not use the topology, so that communication.{_first_key(config)} has no "
            "meaning for it: leave it out."
        )
    changes = config.communication.every > 1 or config.communication.global_every is not None
    if Need.tree in config.algo.needs or (changes and Need.static in config.algo.needs):
        kind = "relays over the same trees" if Need.tree in config.algo.needs else "needs the same graph"
        raise ConfigError(
            f"algo={config.algo.name} {kind} in every step, so that communication.{_first_key(config)} cannot be "
            "used: leave it out, or use an algorithm that mixes, such as dpsgd."
        )
    if config.network.drop_probability and config.communication != Communication(every=config.communication.every):
        raise ConfigError(
            f"network.drop_probability={config.network.drop_probability:g} cannot be used with "
            f"communication.{_first_key(config)}: what machines and all workers do together is reliable."
        )


def _first_key(config: Config) -> str:
    """The first key of `communication` that is not as usual, with its value."""
    own, usual = config.communication, Communication()
    key = next(f.name for f in dataclasses.fields(own) if getattr(own, f.name) != getattr(usual, f.name))
    return f"{key}={getattr(own, key)}"


def plain(value: Any) -> Any:
    """Dataclasses, enums and containers as what JSON and YAML know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def dump(config: Config) -> str:
    """The configuration as YAML; `load` is its inverse."""
    import yaml

    return yaml.safe_dump(plain(config), sort_keys=False)


def as_dict(config: Config) -> dict[str, Any]:
    """The configuration as plain dictionaries, lists, numbers and strings."""
    return plain(config)


def load(text: str) -> Config:
    """The configuration that `dump` wrote."""
    import yaml

    return from_dict(yaml.safe_load(text))


def from_dict(values: dict[str, Any]) -> Config:
    """A configuration from plain values, each group by its `name`; the types are those of the dataclasses."""
    values = dict(values)
    values.setdefault("launcher", {"name": "local"})  # as in files that are older than launchers
    for group, package in GROUPS.items():
        choices = components(package)
        name = values[group]["name"]
        if name not in choices:
            raise ConfigError(f"{group}={name} does not exist.{suggest(str(name), choices)}")
        values[group] = _build(choices[name], values[group])
    for node, cls in NODES.items():
        values[node] = _build(cls, values.get(node, {}))
    return _build(Config, values)


def _build(cls: type, values: dict[str, Any]) -> Any:
    hints = get_type_hints(cls)
    return cls(**{key: _typed(hints[key], value) for key, value in values.items()})


def _typed(hint: Any, value: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        return hint[value]
    return value
