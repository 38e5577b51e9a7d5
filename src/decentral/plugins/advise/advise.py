"""Ranking of methods for a model and a network: `decentral-advise`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from decentral.cluster.cluster import VirtualCluster
from decentral.config.composition import compose, compose_each
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.host.machine import num_cores
from decentral.measurements.timing import host
from decentral.plugins.advise.machine import Machine, check_passes, layout_of, measure
from decentral.plugins.advise.methods import METHODS, Case, Method, Prediction, coding_s
from decentral.terminal.console import aligned, duration, in_bytes
from decentral.training.gradient_times import mean_seconds, uneven

Tell = Callable[[str], None]

CLOSE = 1.1
"""All-reduce is advised unless another method is faster by more than this factor."""
CAUTION = (
    "Time per step is not time to accuracy: methods that average less, later, or less exactly may need more steps, "
    "which only training shows: decentral-run -m algo=... target='test accuracy:90' tune=lr (docs/recipes.md)."
)
_ASSUMED_BACKWARD = 2 / 3
"""Assumed share of the backward pass in a gradient if it is not measured: it has twice the products of the forward
pass."""
_STEPS, _LEAST_STEPS, _GRADIENTS = 200, 40, 20_000


def advise(
    words: Sequence[str], processes: int | None, config_dir: str | None, tell: Tell, measures: bool = False
) -> dict[str, Any]:
    """Return, for overrides of a model, data and optionally a cluster, the methods by predicted time, the impossible
    ones with reasons, and the inputs of the prediction, for JSON; in seconds and bytes.

    Without a cluster this machine is measured, with `processes` processes (None: one per core, at least two). With one,
    nothing is measured, so equal questions have equal answers, except for encoding and decoding if it `measures` them.
    Raises ConfigError for an invalid setup.
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
        raise ConfigError(f"num_workers={n} leaves a worker without neighbors: use at least 2.")
    layout, backward = layout_of(config), machine.backward if machine else _ASSUMED_BACKWARD
    num_steps = max(_LEAST_STEPS, min(_STEPS, _GRADIENTS // n)) // 8 * 8
    rows, impossible = list[tuple[Method, Prediction]](), dict[str, str]()
    found = compose_each([[*timeline, *method.words] for method in METHODS], config_dir)
    measures = measures or machine is not None
    if measures:
        tell(f"timing encoding and decoding on this machine: about {duration(coding_s(layout))}")
    for method, each in zip(METHODS, found, strict=True):
        try:
            if isinstance(each, ConfigError):
                raise each
            if method.needs_shapes and len(layout.shapes) == 1:
                raise ConfigError("it needs the shapes of the parameters, and only their number is known.")
            rows.append((method, method.predict(Case(each, layout, backward, num_steps, measures))))
        except ConfigError as error:
            impossible[method.title] = str(error)
    rows.sort(key=lambda row: row[1].step_s)
    (best, fastest), (ddp, its) = rows[0], next(row for row in rows if row[0].is_ddp)
    use_ddp = its.step_s <= CLOSE * fastest.step_s
    how = "" if "compress=bf16" not in ddp.words else " with a bf16 gradient hook"
    advised = f"Use DistributedDataParallel{how}: no method here is predicted to be more than 10 % faster."
    share = f"{100 * fastest.step_s / its.step_s:.0f} % of the time of the best all-reduce ('{ddp.title}')"
    cluster = None if machine else next((word.partition("=")[2] for word in words if word.startswith("cluster=")), None)
    return {
        "model": config.model.name if "model" in config.task.uses else config.task.name,
        "num_workers": n,
        "num_parameters": layout.num_coordinates,
        "cluster": cluster,  # as the user calls it; null: this machine
        "gradient_s": mean_seconds(
            uneven(virtual.gradient_times(n, config.seed), prepare(config))
        ),  # stragglers included, by its first ones
        "backward_share": backward,
        "coding": "measured" if measures else "table",
        "measured": {"processes": machine.num_processes, **machine.links._asdict()} if machine else None,
        "methods": [
            {"method": method.title, "settings": list(method.words), **prediction._asdict()}
            for method, prediction in rows
        ],
        "impossible": impossible,
        "use_ddp": use_ddp,
        "verdict": advised if use_ddp else f"A step of '{best.title}' is predicted to take {share}.",
        "caution": CAUTION,
    }


def has_cluster(words: Sequence[str]) -> bool:
    """Return whether these overrides describe a cluster. Raises ConfigError if they set keys of a cluster without
    choosing one."""
    chosen = any(word.startswith("cluster=") and word != "cluster=none" for word in words)
    about = [word for word in words if word.startswith("cluster.")]
    if about and not chosen:
        raise ConfigError(f"{about[0]} needs a cluster: also give cluster=machines, or leave it out.")
    return chosen


def _measured_machine(
    words: Sequence[str], network: Sequence[str], processes: int | None, config_dir: str | None, tell: Tell
) -> Machine:
    base = compose([*words, "algo=allreduce", "cluster=free"], config_dir)
    check_passes(base)
    size = processes or max(2, num_cores())
    ring = compose([*host("dpsgd", "ring"), *network, f"num_workers={size}", f"processes={size}"], config_dir)
    layout_of(base)
    tell(f"measuring a pass of model={base.model.name} with batch_size={base.batch_size}")
    return measure(base, ring, size, tell)


# -- as a person reads it ----------------------------------------------------------------------------------------------


def text(facts: dict[str, Any]) -> str:
    """Return the advice as text: setup, ranked table, impossible methods, verdict and caution."""
    links = facts["measured"]
    gradient = (
        f"A gradient takes {_seconds(facts['gradient_s'])}, {100 * facts['backward_share']:.0f} % of it backwards"
    )
    lines = [f"{facts['model']}: {facts['num_parameters']:,} parameters, {facts['num_workers']} workers"]
    if links is None:
        lines.append(f"{gradient} (from cluster={facts['cluster']}; the share is assumed).")
        how = {"measured": "measured on this machine", "table": "those of one CPU core; --measure times this machine"}
        lines.append(f"Links from the cluster; encoding and decoding {how[facts['coding']]}.")
    else:
        lines.append(f"{gradient} (measured, {links['processes']} processes).")
        lines.append(
            f"Links measured between {links['processes']} processes: latency {_seconds(links['latency_s'])}, "
            f"{links['bandwidth_gbps']:.3g} Gbit/s; their all-reduce is closest to '{links['collective']}'."
        )
    table = [["", "method", "time per step", "encoding in it", "sent per worker and step"]]
    for place, one in enumerate(facts["methods"], start=1):
        coding = _seconds(one["coding_s"]) if one["coding_s"] else "-"
        table.append([str(place), one["method"], _seconds(one["step_s"]), coding, in_bytes(one["bytes_per_step"])])
    impossible = [f"not possible: {title}: {why}" for title, why in facts["impossible"].items()]
    return "\n".join([*lines, "", aligned(table, left=2), "", *impossible, facts["verdict"], CAUTION])


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.3g} s"
    return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"
