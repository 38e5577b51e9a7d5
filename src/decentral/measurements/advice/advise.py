"""From a model and a network to a ranked table of methods: `decentral-advise`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decentral.cluster.cluster import VirtualCluster
from decentral.compression.rows import RowLayout
from decentral.config.composition import compose, compose_each
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.host.machine import num_cores
from decentral.measurements.advice.machine import Machine, check_passes, layout_of, measure
from decentral.measurements.advice.methods import METHODS, Case, Method, Prediction
from decentral.measurements.timing import host
from decentral.terminal.console import aligned, in_bytes
from decentral.training.assemble import mean_seconds

Tell = Callable[[str], None]

CLOSE = 1.1
"""All-reduce is advised if nothing is faster by more than this."""
CAUTION = (
    "Time per step is not time to accuracy: methods that average less, later, or less exactly can need more steps, "
    "which only training shows."
)
_ASSUMED_BACKWARD = 2 / 3
"""Of a pass, the share that is backward where that is not measured: it has twice the products of the forward one."""
_STEPS, _LEAST_STEPS, _GRADIENTS = 200, 40, 20_000


class Row(NamedTuple):
    """A method, and what was predicted."""

    method: Method
    prediction: Prediction


class Advice(NamedTuple):
    """The methods by predicted time, those that are impossible with the reason, and what it was worked out from."""

    config: Config
    layout: RowLayout
    gradient_s: float
    """What a gradient takes in the cluster, stragglers included, by its first ones."""
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

    def facts(self) -> dict[str, Any]:
        """All of it, for JSON. Seconds and bytes."""
        machine, measured = self.machine, None
        if machine is not None:
            measured = {"processes": machine.num_processes, **machine.links._asdict()}
        return {
            "model": self.config.model.name if "model" in self.config.task.uses else self.config.task.name,
            "num_workers": self.config.num_workers,
            "num_parameters": self.layout.num_coordinates,
            "cluster": self.cluster,
            "gradient_s": self.gradient_s,
            "backward_share": self.backward,
            "measured": measured,
            "methods": [
                {"method": row.method.title, "settings": list(row.method.words), **row.prediction._asdict()}
                for row in self.rows
            ],
            "impossible": self.impossible,
            "use_ddp": self.use_ddp,
            "verdict": self.verdict,
            "caution": CAUTION,
        }


def advise(words: Sequence[str], processes: int | None, config_dir: str | None, tell: Tell) -> Advice:
    """Of the overrides of a model, data and perhaps a cluster; without one this machine is measured, with so many
    processes (None: one per core, at least two).

    Raises ConfigError for what cannot be.
    """
    timeline, machine = [*words, "simulate=timeline", f"steps={_STEPS}"], None
    if not has_cluster(words):
        timeline = [word for word in timeline if not word.startswith(("network.", "cluster="))]
        network = [word for word in words if word.startswith("network.")]
        machine = _measured_machine(timeline, network, processes, config_dir, tell)
        if not any(word.startswith("num_workers=") for word in timeline):
            timeline.append(f"num_workers={machine.num_processes}")
        timeline += machine.words
    config = compose([*timeline, "algo=allreduce"], config_dir)
    n, virtual = config.num_workers, config.cluster
    assert isinstance(virtual, VirtualCluster) and n is not None
    if n < 2:
        raise ConfigError(f"num_workers={n} has nobody to talk to: use at least 2.")
    layout, backward = layout_of(config), machine.backward if machine else _ASSUMED_BACKWARD
    num_steps = max(_LEAST_STEPS, min(_STEPS, _GRADIENTS // n)) // 8 * 8
    rows, impossible = list[Row](), dict[str, str]()
    found = compose_each([[*timeline, *method.words] for method in METHODS], config_dir)
    for method, each in zip(METHODS, found, strict=True):
        tell(f"predicting: {method.title}")
        try:
            if isinstance(each, ConfigError):
                raise each
            if method.needs_shapes and len(layout.shapes) == 1:
                raise ConfigError("it needs the shapes of the parameters, of which only the number is known.")
            rows.append(Row(method, method.predict(Case(each, layout, backward, num_steps))))
        except ConfigError as error:
            impossible[method.title] = str(error)
    rows.sort(key=lambda row: row.prediction.step_s)
    cluster = None if machine else next((word.partition("=")[2] for word in words if word.startswith("cluster=")), None)
    gradient_s = mean_seconds(virtual.gradient_times(n, config.seed))
    return Advice(config, layout, gradient_s, backward, cluster, rows, impossible, machine)


def has_cluster(words: Sequence[str]) -> bool:
    """Whether these overrides describe a cluster. Raises ConfigError if they speak of one that is not chosen."""
    chosen = any(word.startswith("cluster=") and word != "cluster=none" for word in words)
    about = [word for word in words if word.startswith("cluster.")]
    if about and not chosen:
        raise ConfigError(
            f"{about[0]} is about a cluster, and none is chosen: give cluster=machines, too, or leave it out."
        )
    return chosen


def _measured_machine(
    words: Sequence[str], network: Sequence[str], processes: int | None, config_dir: str | None, tell: Tell
) -> Machine:
    base = compose([*words, "algo=allreduce", "cluster=free"], config_dir)
    check_passes(base)
    size = processes or max(2, num_cores())
    ring = compose([*host("dpsgd", "ring"), *network, f"num_workers={size}", f"processes={size}"], config_dir)
    layout_of(base)
    tell(f"measuring passes of model={base.model.name} with batch_size={base.batch_size}, and exchanges")
    return measure(base, ring, size)


# -- as a person reads it ----------------------------------------------------------------------------------------------


def text(advice: Advice) -> str:
    """What it is about, the ranked table, what is impossible, the verdict and the caution."""
    config, machine, facts = advice.config, advice.machine, advice.facts()
    gradient = f"A gradient takes {_seconds(advice.gradient_s)}, {100 * advice.backward:.0f} % of it backwards"
    lines = [f"{facts['model']}: {facts['num_parameters']:,} parameters, {config.num_workers} workers"]
    if machine is None:
        lines.append(f"{gradient} (as cluster={advice.cluster} says; the share is assumed).")
        lines.append("Links as the cluster says; encoding and decoding measured on this machine.")
    else:
        links = machine.links
        lines.append(f"{gradient} (measured, {machine.num_processes} processes).")
        lines.append(
            f"Links measured between {machine.num_processes} processes: latency {_seconds(links.latency_s)}, "
            f"{links.bandwidth_gbps:.3g} Gbit/s; their all-reduce is most like '{links.collective}'."
        )
    table = [["", "method", "time per step", "encoding in it", "sent per worker and step"]]
    for place, (method, found) in enumerate(advice.rows, start=1):
        coding = _seconds(found.coding_s) if found.coding_s else "-"
        table.append([str(place), method.title, _seconds(found.step_s), coding, in_bytes(found.bytes_per_step)])
    impossible = [f"not possible: {title}: {why}" for title, why in advice.impossible.items()]
    return "\n".join([*lines, "", aligned(table, left=2), "", *impossible, advice.verdict, CAUTION])


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.3g} s"
    return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"
