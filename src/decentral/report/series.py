"""The rows of metrics.jsonl as series, whatever the task measured."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral import __version__
from decentral.algorithms.features import USUAL, Feature
from decentral.config.parsing import run_settings, stored_config
from decentral.config.schema import GROUPS
from decentral.errors import ConfigError
from decentral.host.machine import without_garbage_collection
from decentral.registry import component, components
from decentral.store import FoundRun, Metric, RunStore, Status, find_runs, read_metadata, read_metrics
from decentral.store.files import write_bytes

if TYPE_CHECKING:
    import numpy as np

CONSENSUS = "consensus_distance"
_ROUNDING, _FAR = 1e-10, 1e-6
_MOST_NAMED = 5
_INDEX, _INDEXED_FROM = ".runs.json", 50

Worker = int | str
Rows = list[dict[str, Any]]
"""Rows of metrics.jsonl, by step."""


@dataclass
class Curves:
    """Measured series of a run: (split, metric) -> worker -> rows; the metric that judges the run comes first."""

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


def without_rounding(distances: Sequence[float]) -> np.ndarray:
    """Return the consensus distances of a run, at least one, with zeros for rounding: in a whole run, and where models
    are equal by construction, as at the start and after an exact average, so that the next value is far larger."""
    import numpy as np

    size = np.abs(np.asarray(distances, dtype=float))
    largest, beside = np.fmax.reduce(size), np.append(size[1:], size[-2:][:1])
    exact = (size < _FAR * beside) & (beside > _FAR * largest)
    return np.where(exact | (largest < _ROUNDING), 0.0, distances)


class StoredRun(NamedTuple):
    """A run as tables show it."""

    run: FoundRun
    settings: dict[str, Any]
    """As on the command line."""
    metrics: dict[tuple[str, str], Metric]
    last: dict[str, Any]
    """Its place on the axes at the last evaluation, and the aggregates there: 'test accuracy (worst)'."""


def read_run(run: FoundRun) -> StoredRun:
    """Read a run for tables; it is `unreadable`, without anything else, if a file of it is damaged."""
    try:
        if run.reason:
            raise ConfigError(run.reason)
        settings, rows = run_settings(run.path), read_metrics(run.path)
    except ConfigError as error:
        return StoredRun(run._replace(status=Status.unreadable, facts={}, reason=str(error)), {}, {}, {})
    step = max((row["step"] for row in rows), default=0)
    last = [row for row in rows if row["step"] == step and isinstance(row["worker"], str)]
    axes = ("step", "epoch", "wall_s", "simulated_s", "bytes_sent")
    place = {key: last[0][key] for key in axes if last and key in last[0]}
    place |= {f"{row['split']} {row['metric']} ({row['worker']})": row["value"] for row in last}
    return StoredRun(run, settings, read_metadata(run.path, [(row["split"], row["metric"]) for row in rows]), place)


@without_garbage_collection()
def stored_runs(results_dir: Path) -> tuple[list[StoredRun], str]:
    """Read the runs in a folder for tables; and a sentence on what was left out, see `find_runs`.

    A large folder has an index of its ended runs, from which a run is taken while its files have the same sizes and
    times.
    """
    names = list[str]()
    runs, index = find_runs(results_dir, names), results_dir / _INDEX
    known, entries, found = dict[str, Any](), dict[str, Any](), list[StoredRun]()
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(index.read_bytes())[__version__]
    for run in runs:
        key, stamps = os.path.relpath(run.path, results_dir), _stamps(run.path)
        if key not in known or known[key]["stamps"] != stamps:
            one = read_run(run)
        else:
            settings, metrics, last = (known[key][name] for name in StoredRun._fields[1:])
            one = StoredRun(run, settings, {(m["split"], m["name"]): Metric(**m) for m in metrics}, last)
        found.append(one)
        if one.run.status in (Status.done, Status.diverged):
            entries[key] = one._asdict() | {"metrics": [asdict(m) for m in one.metrics.values()], "stamps": stamps}
            del entries[key]["run"]
    if entries != known and len(runs) >= _INDEXED_FROM:
        with suppress(OSError, TypeError):  # a read-only folder; a setting that JSON does not know
            write_bytes(index, json.dumps({__version__: entries}).encode())
    named = ", ".join([*names[:_MOST_NAMED], *["..."] * (len(names) > _MOST_NAMED)])
    left_out = f"links, copies, or not named by the ID of the run: {named}"
    return found, f"{len(names)} folder{'s' * (len(names) > 1)} left out ({left_out})" if names else ""


def _stamps(path: Path) -> list[list[Any]]:
    """Return what changes with the files of a folder: times, sizes and numbers; empty if it cannot be read."""
    with suppress(OSError):
        found = sorted((one.name, one.stat(follow_symlinks=False)) for one in os.scandir(path))
        return [[name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino] for name, stat in found]
    return []


def describe(run_dir: Path) -> str:
    """One line, for example 'relaysgd on dbt, vgg11 on cifar10, alpha=0.1, 16 workers, seed 1: done'."""
    config = read_config(run_dir)
    name = {key: _name(choice) for key, choice in config.items()}
    task = component("tasks", name.get("task", ""), trust=False)
    used: tuple[str, ...] = getattr(task, "uses", ())
    parts = []
    if {"algo", "topology"} <= config.keys():
        algo = component("algorithms", name["algo"], trust=False)
        parts.append(
            f"{name['algo']} on {name['topology']}"
            if Feature.topology in getattr(algo, "supports", USUAL)
            else name["algo"]
        )
    for group in ("compress", "attack", "robust", "privacy", "availability"):
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
    if config.get("seed") is not None:
        parts.append(f"seed {config['seed']}")
    status = (RunStore.peek(run_dir) or {}).get("status", "unknown")
    return f"{', '.join(parts) or run_dir.name}: {status}"


def choice_words(group: str, choice: Any) -> str:
    """Format a choice with its unusual settings: 'compress=topk keep=0.01'; '' for none."""
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
    """The frozen configuration; empty if there is none that can be read."""
    with suppress(ConfigError):
        return stored_config(run_dir)
    return {}


def _name(choice: Any) -> str:
    name = choice.get("name") if isinstance(choice, dict) else choice
    return name if isinstance(name, str) and name != "none" else ""
