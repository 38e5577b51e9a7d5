"""What jobs take that are still to be done: as those did that are stored, or as a rehearsal of them says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from decentral.config.files import read
from decentral.config.identity import component_identity
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.host.devices import num_gpus
from decentral.jobs.computation import Computation
from decentral.jobs.rehearsal import FORK_S, Rehearsal, extent
from decentral.jobs.training_run import TrainingRun
from decentral.runtime.devices import kind_of
from decentral.scheduling.job import Job
from decentral.store import RunStore, Status, find_runs
from decentral.store.files import read_json, size_below
from decentral.store.provenance import processor
from decentral.study.rehearsals import Rehearsed, rehearsed

_MOST_READ = 100  # stored runs of other studies

STORED, MEASURED, ALIKE, UNKNOWN = "stored", "measured", "as others", ""


class Cost(NamedTuple):
    """Of one job; None is not known."""

    seconds: float | None = None
    """Of one core, or of one GPU."""
    memory: float | None = None
    """Bytes at its peak, less what PyTorch takes in every process."""
    disk: float | None = None
    """Bytes of its results."""
    checkpoint: float = 0.0
    """Bytes of a checkpoint, of which there are two while it runs."""
    source: str = UNKNOWN
    """Where the seconds come from."""


class Costs:
    """Of the jobs that are left, by their ids, and what is to be said about where they come from."""

    def __init__(self, found: dict[str, Cost], shared: float, notes: Sequence[str]) -> None:
        self.found = found
        self.shared = shared
        """Bytes that PyTorch takes, once for all processes."""
        self.notes = notes


def costs_of(
    left: Sequence[Job], done: Iterable[Job], results_dir: Path, measures: bool, tell: Callable[[str], None]
) -> Costs:
    """Of the jobs `left`: from those that are `done`, from other runs in `results_dir`, and from rehearsals if it
    `measures`; `tell` hears what is rehearsed. Nothing is downloaded, and no result is touched.

    What is stored of a job that has begun takes no time any more.
    """
    stored = _stored(left, done, results_dir)
    absent = {_key(job): word for job in left if (word := _missing(job))}
    waiting: dict[str, Job] = {}
    for job in sorted(left, key=lambda job: _best(job, stored) is not None):
        if _key(job) not in absent:
            waiting.setdefault(_key(job), job)
    seen = rehearsed(waiting, measures, tell)
    found = {job.id: _cost(job, stored, seen) for job in left}
    kin: dict[str, list[Cost]] = {}
    for job in left:
        if found[job.id].source and _key(job) not in absent:
            kin.setdefault(_kin(job), []).append(found[job.id])
    for job in left:
        if not found[job.id].source and _key(job) not in absent and (known := kin.get(_kin(job))):
            found[job.id] = _mean(known)
    shared = max((one.seen.shared_bytes for one in seen.values() if one.seen), default=0.0)
    notes = _notes(left, found, absent, seen, measures)
    held = {job.id: share for job in left if (share := job.held()) and found[job.id].seconds is not None}
    for id, share in held.items():
        found[id] = found[id]._replace(seconds=(found[id].seconds or 0.0) * (1 - share))
    if held:
        jobs = "1 job that has" if len(held) == 1 else f"{len(held)} jobs that have"
        notes.append(f"Begun:    what is stored of {jobs} begun is taken off the time.")
    return Costs(found, shared, notes)


def _notes(
    left: Sequence[Job], found: dict[str, Cost], absent: dict[str, str], seen: dict[str, Rehearsed], measures: bool
) -> list[str]:
    """Sentences on where the estimates come from."""

    def jobs(number: int) -> str:
        return "1 job" if number == 1 else f"{number} jobs"

    sources = [cost.source for cost in found.values()]
    words = {
        STORED: "by what finished runs of that kind took on this machine",
        MEASURED: "by a few steps and an evaluation (or the first part of it) on one core",
        ALIKE: "as the mean of others of their kind",
    }
    lines = [f"{jobs(sources.count(name))} {text}" for name, text in words.items() if name in sources]
    notes = [f"From:     {'; '.join(lines)}."] if lines else []
    for word in dict.fromkeys(absent.values()):
        number = sum(absent.get(_key(job)) == word and not found[job.id].source for job in left)
        if number:
            notes.append(f"Not known: {jobs(number)} cannot be measured here, for they need {word}.")
    others = [job for job in left if not found[job.id].source and _key(job) not in absent]
    whys = {_key(job): seen[_key(job)].why if _key(job) in seen else "" for job in others}
    for why in dict.fromkeys(whys.values()):
        number = sum(whys[_key(job)] == why for job in others)
        reason = why or ("there was no time for them" if measures else "--plan=quick measures nothing")
        notes.append(f"Not known: {jobs(number)} ({reason}).")
    return notes


def _cost(job: Job, stored: dict[str, list[Rehearsal]], seen: dict[str, Rehearsed]) -> Cost:
    config = _config(job)
    before = _best(job, stored)
    measured = seen[_key(job)].seen if _key(job) in seen else None
    if config is None or (before is None and measured is None):
        return Cost()
    memory = measured.memory_bytes if measured else None
    checkpoint = measured.checkpoint_bytes if measured else 0.0
    if before is not None:
        seconds, disk = (fmean(each(config) for each in which) for which in _ways(before))
        return Cost(seconds, memory, disk, checkpoint, STORED)
    assert measured is not None
    return Cost(measured.seconds(config), memory, measured.disk(config), checkpoint, MEASURED)


def _ways(known: list[Rehearsal]) -> Iterator[list[Callable[[Config], float]]]:
    yield [one.seconds for one in known]
    yield [one.disk for one in known]


def _mean(costs: Sequence[Cost]) -> Cost:
    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    memory = [cost.memory for cost in costs if cost.memory is not None]
    seconds, disk = mean(cost.seconds for cost in costs), mean(cost.disk for cost in costs)
    return Cost(seconds, max(memory, default=None), disk, max(cost.checkpoint for cost in costs), ALIKE)


# -- what is like what -------------------------------------------------------------------------------------------------


def _config(job: Job) -> Config | None:
    config = getattr(job, "config", None)
    return config if isinstance(config, Config) else None


def _key(job: Job) -> str:
    """Jobs with equal keys are rehearsed once: runs of one model on the same data, whatever their rates, seeds and
    algorithms, or a computation."""
    if isinstance(job, TrainingRun):
        return _likeness(job.config)
    return job.id


def _likeness(config: Config) -> str:
    groups = ["task", *(group for group in config.task.uses if group in ("data", "model"))]
    known: dict[str, Any] = {group: component_identity(getattr(config, group)) for group in groups}
    known |= {key: getattr(config, key) for key in ("num_workers", "batch_size", "execution")}
    precisions = [config.precision.name, config.evaluation.precision.name]
    return json.dumps(known | {"precision": precisions, "device": _device(config)}, sort_keys=True)


def _kin(job: Job) -> str:
    """Jobs of which one says something about another."""
    config = _config(job)
    return f"{type(job).__name__} {config.num_workers if config else ''}"


def _device(config: Config) -> str:
    try:
        return kind_of(config.device, num_gpus())
    except ConfigError:
        return config.device


def _missing(job: Job) -> str:
    """The data that are not on this machine, in words."""
    config = _config(job)
    return config.data.missing() if config is not None and "data" in config.task.uses else ""


# -- what is stored ----------------------------------------------------------------------------------------------------


def _best(job: Job, stored: dict[str, list[Rehearsal]]) -> list[Rehearsal] | None:
    """Of the same method first, then of any."""
    return next((stored[key] for key in _keys(job) if key in stored), None)


def _keys(job: Job) -> list[str]:
    config = _config(job)
    if config is None:
        return []
    key = _likeness(config)
    kind = "" if isinstance(job, TrainingRun) else f"{type(job).__name__} "
    method = f"{config.algo.name} {config.topology.name}" if config.algo is not None else ""
    return [f"{kind}{method} {key}", f"{kind}{key}"]


def _stored(left: Sequence[Job], done: Iterable[Job], results_dir: Path) -> dict[str, list[Rehearsal]]:
    """By all keys of the jobs that are done; where that is not enough, of other runs in the same folder."""
    found: dict[str, list[Rehearsal]] = {}
    seen_already = set()

    def add(job: Job) -> None:
        seen_already.add(job.directory)
        seen = _what_it_took(job)
        for key in _keys(job) if seen is not None else []:
            assert seen is not None
            found.setdefault(key, []).append(seen)

    for job in done:
        add(job)
    wanted = {_keys(job)[-1] for job in left if isinstance(job, TrainingRun)}
    if not wanted <= found.keys() and results_dir.is_dir():
        runs = [
            run.path for run in find_runs(results_dir) if run.status is Status.done and run.path not in seen_already
        ]
        for path in runs[-_MOST_READ:]:
            with contextlib.suppress(ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError):
                config = read(path / "config.yaml")
                config.run_dir = str(path)
                add(TrainingRun(config))
    return found


def _what_it_took(job: Job) -> Rehearsal | None:
    """As its status says; None if that was on another machine, or is not known."""
    facts, origin = RunStore.peek(job.directory) or {}, read_json(job.directory / "provenance.json") or {}
    config, wall_s = _config(job), float(facts.get("wall_s", 0.0))
    kinds = {str(device).partition(":")[0] for device in origin.get("devices", ["cpu"])}
    if config is None or not wall_s or kinds != {_device(config)} or origin.get("cpu") != processor():
        return None
    processes = max(1, int(origin.get("processes") or 1))
    cores = min(processes, int(origin.get("cores") or processes))
    disk = float(size_below(job.directory))
    if isinstance(job, Computation):
        return Rehearsal(total_s=cores * wall_s, disk_bytes=disk)
    steps, epochs = int(facts.get("step", 0)), float(facts.get("epoch", 0.0))
    if not steps or not epochs:
        return None
    times = facts.get("times_s", {})
    each_s = cores * float(times.get("evaluation", 0.0)) / max(1, extent(config, steps / epochs)[1])
    return Rehearsal(
        start_s=FORK_S,
        step_s=cores * wall_s / steps,
        evaluation_s=each_s,
        last_evaluation_s=each_s,
        steps_per_epoch=steps / epochs,
        disk_bytes=disk,
    )
