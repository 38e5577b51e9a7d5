"""The rows of metrics.jsonl as series, whatever the task measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from decentral.config.parsing import read_yaml
from decentral.config.schema import GROUPS
from decentral.errors import ConfigError
from decentral.registry import components
from decentral.store import Metric, RunStore, read_metadata, read_metrics

CONSENSUS = "consensus_distance"

Worker = int | str
Rows = list[dict[str, Any]]
"""Of metrics.jsonl, by step."""


@dataclass
class Curves:
    """Everything a run measured: (split, metric) -> worker -> rows, what it is judged by first."""

    series: dict[tuple[str, str], dict[Worker, Rows]]
    metrics: dict[tuple[str, str], Metric]
    rows: Rows

    @cached_property
    def places(self) -> Rows:
        """A row of each step: where it is on the axes."""
        return list({row["step"]: row for row in self.rows}.values())

    def workers(self, split: str, metric: str) -> list[int]:
        """The numbers of the workers that were measured one by one."""
        return sorted(worker for worker in self.series[split, metric] if isinstance(worker, int))

    def last(self, metric: tuple[str, str], worker: Worker) -> float:
        """The final value."""
        return float(self.series[metric][worker][-1]["value"])


def read_curves(run_dir: Path) -> Curves:
    """The metrics of a run, by step."""
    rows = sorted(read_metrics(run_dir), key=lambda row: row["step"])
    series: dict[tuple[str, str], dict[Worker, Rows]] = {}
    for row in rows:
        series.setdefault((row["split"], row["metric"]), {}).setdefault(row["worker"], []).append(row)
    metrics = read_metadata(run_dir, series)
    return Curves({key: series[key] for key in metrics if key in series}, metrics, rows)


def describe(run_dir: Path) -> str:
    """One line, for example 'relaysgd on dbt, vgg11 on cifar10, alpha=0.1, 16 workers, seed 1: done'."""
    config = read_config(run_dir)
    name = {key: _name(choice) for key, choice in config.items()}
    task = components("tasks").get(name.get("task", ""))
    used: tuple[str, ...] = getattr(task, "uses", ())
    parts = []
    if {"algo", "topology"} <= config.keys():
        algo = components("algorithms").get(name["algo"])
        parts.append(f"{name['algo']} on {name['topology']}" if getattr(algo, "uses_topology", True) else name["algo"])
    for group in ("compress", "attack", "robust"):
        if words := choice_words(group, config.get(group)):
            parts.append(words)
    where = next((group for group in ("data", "env") if group in used), None)
    shown = config[where].get("id", name[where]) if where else ""
    parts += [f"{name['model']} on {shown}" if where else name["task"]] if task else []
    if "partition" in used:
        alpha = config["partition"].get("alpha")
        parts.append(name["partition"] if alpha is None else f"alpha={alpha:g}")
    if config.get("num_workers") is not None:
        parts.append(f"{config['num_workers']} workers")
    if (precision := config.get("precision", "fp32")) != "fp32":
        parts.append(str(precision))
    if cluster := cluster_words(config.get("cluster")):
        parts.append(cluster)
    if words := choice_words("availability", config.get("availability")):
        parts.append(words)
    if config.get("seed") is not None:
        parts.append(f"seed {config['seed']}")
    status = (RunStore.peek(run_dir) or {}).get("status", "unknown")
    return f"{', '.join(parts) or run_dir.name}: {status}"


def choice_words(group: str, choice: Any) -> str:
    """What is chosen, with the settings that are not as usual: 'compress=topk keep=0.01'; '' for none."""
    if not _name(choice):
        return ""
    cls: Any = components(GROUPS[group]).get(_name(choice))
    usual = vars(cls()) if cls is not None else {}
    words = [f"{group}={_name(choice)}"]
    for key, value in choice.items():
        own = usual.get(key)
        if key != "name" and value != (own.name if isinstance(own, Enum) else own):
            shown = (
                str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value
            )
            words.append(f"{key}={shown}")
    return " ".join(words)


def cluster_words(cluster: Any) -> str:
    """The virtual cluster of a configuration: 'cluster: constant 0.16 s, exactly 2 stragglers'; '' if there is none."""
    if not _name(cluster):
        return ""
    compute, stragglers = cluster.get("compute") or {}, cluster.get("stragglers") or {}
    usual = str(compute.get("distribution", _name(cluster))).replace("_", " ")
    if compute.get("mean_s") is not None:
        usual += f" {compute['mean_s']:g} s"
    mode = stragglers.get("mode", "none")
    if mode == "none":
        return f"cluster: {usual}"
    count = stragglers.get("count") or len(stragglers.get("workers") or ()) or ""
    return f"cluster: {usual}, {' '.join(filter(None, (mode, str(count))))} straggler{'' if count == 1 else 's'}"


def read_config(run_dir: Path) -> dict[str, Any]:
    """The frozen configuration; empty if there is none."""
    try:
        config = read_yaml(run_dir / "config.yaml")
    except ConfigError:
        return {}
    return config if isinstance(config, dict) else {}


def _name(choice: Any) -> str:
    name = choice.get("name") if isinstance(choice, dict) else choice
    return name if isinstance(name, str) and name != "none" else ""
