"""The identity of a run: everything its computation depends on, and the resulting ID and directory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from decentral.algorithms.algorithm import RevisionOf
from decentral.algorithms.features import Feature
from decentral.availability.availability import AlwaysPresent
from decentral.cluster.cluster import VirtualCluster
from decentral.compression.dense import NoCompression
from decentral.config.parsing import plain
from decentral.config.schema import Config
from decentral.host.torchrun import place, under_torchrun
from decentral.registry import component, sources
from decentral.registry.signature import function_source, functions
from decentral.store.digests import by_content, file_digest, files_below, folder_digest
from decentral.store.files import at_home
from decentral.store.models import stored_facts

IDENTITY_VERSION = 2
"""Part of every run id: raised when the same configuration begins to mean another computation."""
CLOCK_VERSION = 3
"""Part of the id of every run in a virtual cluster: raised when the clock begins to say other times."""

_ALWAYS = ("algo", "topology", "task", "optim", "schedule", "network")
_KEYS = (
    *("lr", "seed", "num_workers", "epochs", "steps", "stop_after_simulated_s", "trace"),
    *("lr_per_worker", "steps_per_worker", "metrics"),
    *("batch_size", "batch_size_per_worker", "accumulate", "precision"),  # where the task uses what they belong to
)


def identity(config: Config) -> dict[str, Any]:
    """Return everything the computation depends on, without paths, logger, device and number of processes.

    A user's component counts with its source, and its settings that name files by their content. Groups that the task
    or the algorithm does not use are omitted, with the keys that have metadata `group`.
    A field with metadata `content` is a path and counts by its content, which for a folder may be the component's
    `files_digest`; one with metadata `volatile` does not count. A field with metadata `older` was added after results
    existed: it counts unless it has this value, the behavior before the field, or one of the equivalent values
    `the_same`. An algorithm with a changed formula has a new `revision`.
    A field with metadata `when` counts as its default if that attribute of the same component is false or empty, as it
    is unused then. So do the rate and the optimizer for an algorithm that only averages samples.
    """
    if Feature.training not in config.algo.supports:
        defaults = {"optim": component("optim", "sgd"), "schedule": component("lr_schedules", "constant")}
        config = dataclasses.replace(config, lr=Config.lr, **{key: cls() for key, cls in defaults.items() if cls})
    connected = Feature.topology in config.algo.supports
    groups = [group for group in (*_ALWAYS, *config.task.uses) if group != "topology" or connected]
    known: dict[str, Any] = {"version": IDENTITY_VERSION}
    known |= {group: component_identity(getattr(config, group)) for group in groups}
    if connected and not config.communication.plain:
        known["communication"] = component_identity(config.communication)
    evaluation = component_identity(config.evaluation)
    every = evaluation.pop("every_epochs") or config.task.eval_every_epochs
    known["eval_every_epochs"] = 1.0 if every is None else every  # the original name in IDs, as for these
    if every == 1 and config.task.eval_every_epochs is None:  # null counts as this, since it used to mean every step
        evaluation["every_step"] = True
    batch_size = evaluation.pop("batch_size")
    if "data" in config.task.uses:
        known["task"]["test_batch_size"] = batch_size
    if "statistics_images" in known["task"]:
        known["task"]["statistics_pictures"] = known["task"].pop("statistics_images")
    if evaluation:
        known["evaluation"] = evaluation
    if config.early_stop.patience is not None:
        known["early_stop"] = component_identity(config.early_stop)
    if not isinstance(config.compress, NoCompression):
        known["compress"] = component_identity(config.compress)
    if not isinstance(config.availability, AlwaysPresent):
        known["availability"] = component_identity(config.availability)
    known |= {
        key: component_identity(own)
        for key in ("attack", "robust", "privacy")
        if (own := getattr(config, key)).name != "none"
    }
    if isinstance(config.cluster, VirtualCluster):
        known["cluster"] = component_identity(config.cluster) | {"clock": CLOCK_VERSION}
    if config.init is not None:
        facts = stored_facts(init_directory(config))
        known["init"] = {key: facts.get(key) for key in ("run_id", "step")}
    revision_of = RevisionOf(
        decays=config.optim.weight_decay > 0,
        warms_up=getattr(config.compress, "warmup_epochs", 0) > 0,
        between_processes=under_torchrun() or config.processes not in ("auto", "1"),
    )
    if (revision := config.algo.revision(revision_of)) > 1:
        known["revision"] = revision
    if Feature.synchrony not in config.algo.supports:  # results depend on the pace of the processes
        known["processes"] = f"torchrun {place().size}" if under_torchrun() else config.processes
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if f.name in _KEYS and f.metadata.get("group") in (None, *config.task.uses) and _counts(f, value):
            known[f.name] = plain(value)
    known |= {name: function_source(key, name)["sha256"] for key, name in functions(Config, vars(config))}
    if config.steps is not None:
        known.pop("epochs")
    if config.lr_per_worker is not None:
        known.pop("lr")
    return known


def run_id(config: Config) -> str:
    """Return the ID of the run: of its name if it has one, otherwise of its identity."""
    return id_of(config, identity(config))


def id_of(config: Config, known: dict[str, Any]) -> str:
    """Return the ID of the run with this identity: see `run_id`."""
    return hashed_id(known) if config.name is None else named_id(config.name)


def named_id(name: str) -> str:
    """Return the ID of the run of `decentral.train` with this name."""
    return hashed_id({"name": name})


def hashed_id(known: dict[str, Any]) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of the canonical JSON."""
    canonical = json.dumps(known, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def run_directory(config: Config, run: str | None = None) -> Path:
    """Return the directory of this run: `run_dir`, or `results_dir`/runs/<id>; `run` is its ID, if known."""
    return at_home(config.run_dir or Path(config.results_dir) / "runs" / (run or run_id(config)))


def init_directory(config: Config) -> Path:
    """Return the directory of the run in `init`: a directory, or the ID of a run in `results_dir`."""
    assert config.init is not None
    path = at_home(config.init)
    return path if os.path.isdir(path) else at_home(config.results_dir) / "runs" / config.init


def component_identity(component: Any) -> dict[str, Any]:
    """The fields of a component that a computation depends on, as JSON values; the source of one that is not ours."""
    known: dict[str, Any] = {}
    source = sources.source(type(component))
    if source is not None:
        known["own source"] = source["sha256"]
    if content := getattr(component, "files_digest", str)():
        known["content"] = content
    for f in dataclasses.fields(component):
        value = getattr(component, f.name)
        if (when := f.metadata.get("when")) and not getattr(component, when):
            value = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if not _counts(f, value) or (content and value and f.metadata.get("content") and at_home(value).is_dir()):
            continue
        identity = _value_identity(f, value)
        known[f.name] = identity if source is None else by_content(identity)
    known |= {name: function_source(key, name)["sha256"] for key, name in functions(type(component), vars(component))}
    return known


def _value_identity(f: dataclasses.Field[Any], value: Any) -> Any:
    """Return the identity of a field's value: for a path, the file's bytes, or names and bytes of all files below."""
    if dataclasses.is_dataclass(value):
        return component_identity(value)
    if not (f.metadata.get("content") and value):
        return plain(value)
    path = at_home(value)
    if path.is_dir():
        return folder_digest(path, files_below(path))
    return file_digest(path) if path.exists() else hashlib.sha256().hexdigest()[:16]


def _counts(f: dataclasses.Field[Any], value: Any) -> bool:
    """Return whether a computation depends on a field with this value."""
    if f.metadata.get("volatile"):
        return False
    return "older" not in f.metadata or value not in (f.metadata["older"], *f.metadata.get("the_same", ()))
