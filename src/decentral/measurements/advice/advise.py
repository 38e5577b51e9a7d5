"""From a model and a network to a ranked table of methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.cluster.cluster import VirtualCluster
from decentral.config.composition import compose, compose_each
from decentral.errors import ConfigError
from decentral.host.devices import num_cores
from decentral.measurements.advice.machine import Machine, measure
from decentral.measurements.advice.methods import METHODS, Case, Method, Prediction
from decentral.measurements.advice.workload import ASSUMED_BACKWARD, check_passes, layout_of, measured_alone
from decentral.measurements.timing import host

if TYPE_CHECKING:
    from decentral.compression.row_layout import RowLayout
    from decentral.config.schema import Config

    Tell = Callable[[str], None]

CLOSE = 1.1
"""All-reduce is advised if nothing is faster by more than this."""
CAUTION = (
    "Time per step is not time to accuracy: methods that average less, later, or less exactly can need more steps, "
    "which only training shows."
)
_STEPS, _LEAST_STEPS, _GRADIENTS = 200, 40, 20_000
_TOTAL_S = 30.0
_ALONE_S = _TOTAL_S / 6


class Row(NamedTuple):
    """A method, what was predicted, and the error of that, predicted / measured - 1; None: not checked."""

    method: Method
    prediction: Prediction
    error: float | None


class Advice(NamedTuple):
    """The methods by predicted time, those that are impossible with the reason, and what it was worked out from."""

    config: Config
    layout: RowLayout
    backward: float
    cluster: str | None
    """As the user calls it; None: this machine."""
    rows: list[Row]
    impossible: dict[str, str]
    machine: Machine | None

    @property
    def best_ddp(self) -> Row:
        """The faster one of the two."""
        return next(row for row in self.rows if row.method.is_ddp)

    @property
    def use_ddp(self) -> bool:
        """Whether nothing is faster by more than a tenth."""
        return self.best_ddp.prediction.step_s <= CLOSE * self.rows[0].prediction.step_s

    @property
    def verdict(self) -> str:
        """A sentence."""
        best, ddp = self.rows[0], self.best_ddp
        if self.use_ddp:
            how = "" if "compress=bf16" not in ddp.method.words else " with a bf16 gradient hook"
            return f"Use DistributedDataParallel{how}: no method here is predicted to be more than 10 % faster."
        share = best.prediction.step_s / ddp.prediction.step_s
        return (
            f"A step of '{best.method.title}' is predicted to take {100 * share:.0f} % of the time of the best "
            f"all-reduce ('{ddp.method.title}')."
        )

    @property
    def doubt(self) -> str:
        """A sentence where a prediction that was checked was wrong by more than a tenth; else ''."""
        worst = max((abs(row.error) for row in self.rows if row.error is not None), default=0.0)
        if worst <= CLOSE - 1:
            return ""
        return (
            f"Where it was checked, the prediction was wrong by up to {100 * worst:.0f} %: methods that are closer to "
            "each other than that are not told apart."
        )

    def facts(self) -> dict[str, Any]:
        """All of it, for JSON. Seconds and bytes."""
        return {
            "model": self.config.model.name if "model" in self.config.task.uses else self.config.task.name,
            "num_workers": self.config.num_workers,
            "num_parameters": self.layout.num_coordinates,
            "cluster": self.cluster,
            "gradient_s": mean_gradient_s(self.config),
            "backward_share": self.backward,
            "measured": _measured(self.machine),
            "methods": [_facts(row) for row in self.rows],
            "impossible": self.impossible,
            "use_ddp": self.use_ddp,
            "verdict": self.verdict,
            "doubt": self.doubt,
            "caution": CAUTION,
        }


def _measured(machine: Machine | None) -> dict[str, Any] | None:
    if machine is None:
        return None
    return {"processes": machine.num_processes, **machine.links._asdict(), "steps_s": machine.steps}


def _facts(row: Row) -> dict[str, Any]:
    return {
        "method": row.method.title,
        "settings": list(row.method.words),
        **row.prediction._asdict(),
        "error": row.error,
    }


def mean_gradient_s(config: Config) -> float:
    """What a gradient takes in the cluster of a configuration, stragglers included, by its first ones."""
    from decentral.training.assemble import mean_seconds

    cluster, n = config.cluster, config.num_workers
    assert isinstance(cluster, VirtualCluster) and n is not None
    return mean_seconds(cluster.gradient_times(n, config.seed))


def advise(words: Sequence[str], processes: int | None, config_dir: str | None, tell: Tell) -> Advice:
    """Of the overrides of a model, data and perhaps a cluster; without one this machine is measured, with so many
    processes (None: one per core, at least two).

    Raises ConfigError for what cannot be.
    """
    timeline, machine = [*words, "simulate=timeline", f"steps={_STEPS}"], None
    if not has_cluster(words):
        machine = _measured_machine(timeline, processes, config_dir, tell)
        timeline = _in_a_cluster(timeline, machine)
    config = compose([*timeline, "algo=allreduce"], config_dir)
    assert config.num_workers is not None
    if config.num_workers < 2:
        raise ConfigError(f"num_workers={config.num_workers} has nobody to talk to: use at least 2.")
    layout, backward = layout_of(config), machine.passes.backward if machine else ASSUMED_BACKWARD
    num_steps = max(_LEAST_STEPS, min(_STEPS, _GRADIENTS // config.num_workers)) // 8 * 8
    cluster = next((word.partition("=")[2] for word in words if word.startswith("cluster=")), None)
    rows, impossible = list[Row](), dict[str, str]()
    found = compose_each([[*timeline, *method.words] for method in METHODS], config_dir)
    for method, each in zip(METHODS, found, strict=True):
        tell(f"predicting: {method.title}")
        try:
            rows.append(_row(method, each, layout, backward, num_steps, machine))
        except ConfigError as error:
            impossible[method.title] = str(error)
    rows.sort(key=lambda row: row.prediction.step_s)
    return Advice(config, layout, backward, None if machine else cluster, rows, impossible, machine)


def _row(
    method: Method,
    config: Config | ConfigError,
    layout: RowLayout,
    backward: float,
    num_steps: int,
    machine: Machine | None,
) -> Row:
    """Raises ConfigError if the method is impossible here."""
    if isinstance(config, ConfigError):
        raise config
    if method.needs_shapes and len(layout.shapes) == 1:
        raise ConfigError("it needs the shapes of the parameters, of which only the number is known.")
    prediction = method.predict(Case(config, layout, backward, num_steps))
    return Row(method, prediction, _error(method, config, layout, backward, machine))


def has_cluster(words: Sequence[str]) -> bool:
    """Whether these overrides describe a cluster. Raises ConfigError if they speak of one that is not chosen."""
    chosen = any(word.startswith("cluster=") and word != "cluster=none" for word in words)
    about = [word for word in words if word.startswith("cluster.")]
    if about and not chosen:
        raise ConfigError(
            f"{about[0]} is about a cluster, and none is chosen: give cluster=machines, too, or leave it out."
        )
    return chosen


def _measured_machine(words: Sequence[str], processes: int | None, config_dir: str | None, tell: Tell) -> Machine:
    described = [word for word in words if not word.startswith(("network.", "cluster="))]
    base = compose([*described, "algo=allreduce", "cluster=free"], config_dir)
    check_passes(base)
    size = processes or max(2, num_cores())
    network = [word for word in words if word.startswith("network.")]
    ring = compose([*host("dpsgd", "ring"), *network, f"num_workers={size}", f"processes={size}"], config_dir)
    layout = layout_of(base)
    began = time.monotonic()
    tell(f"measuring passes of model={base.model.name} with batch_size={base.batch_size}")
    alone = measured_alone(base, _ALONE_S)
    tell(f"measuring exchanges and steps of {size} processes")
    return measure(base, ring, layout.num_coordinates, alone, began + _TOTAL_S)


def _in_a_cluster(timeline: Sequence[str], machine: Machine) -> list[str]:
    """The same words for the machine as a cluster."""
    kept = [word for word in timeline if not word.startswith(("network.", "cluster="))]
    if not any(word.startswith("num_workers=") for word in timeline):
        kept.append(f"num_workers={machine.num_processes}")
    compute = [f"cluster.compute.mean_s={machine.passes.gradient_s}"]
    return [*kept, "cluster=machines", *compute, *machine.links.words]


def _error(method: Method, config: Config, layout: RowLayout, backward: float, machine: Machine | None) -> float | None:
    """Of a step that was measured: between as many workers as there were processes."""
    if machine is None or method.check not in machine.steps:
        return None
    small = replace(config, num_workers=machine.num_processes)
    predicted = method.predict(Case(small, layout, backward, _LEAST_STEPS))
    return predicted.step_s / machine.steps[method.check] - 1
