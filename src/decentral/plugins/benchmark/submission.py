"""A method's results as a folder that others can check: `decentral-benchmark --submit` and `--verify`."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from decentral.errors import ConfigError
from decentral.measurements.values import Value
from decentral.plugins.benchmark.kinds.benchmark import (
    END,
    HELD,
    HELD_OUT,
    METRICS,
    VERSION,
    Benchmark,
    BenchmarkCell,
    Course,
    Entry,
    Ran,
)
from decentral.plugins.benchmark.stored import StoredCell
from decentral.registry import plugins
from decentral.scheduling.job import Job
from decentral.store.files import load_json, read_json, write_json, write_text
from decentral.study.collect import collect
from decentral.study.study import Cell

FACTS, VERIFIED, OWN = "submission.json", "verification.json", "mine"
"""File names: the hashes of a submission; the result of a verification, which is not part of it; the user's
components."""
EXACT = 1e-6
"""Relative tolerance: time and bytes follow from the step, and are stored with nine digits."""
EVALUATIONS, SHARE = 4, 0.03
"""Number of evaluations, or share of all evaluations, added at both ends of the range in which a run may reach the
target on another processor, where rounding differs. See docs/benchmark.md for the experiments."""
NEAR, POINTS, RELATIVE = 1.0, 5.0, 0.03
"""Tolerances: percentage points near the target and at the end of a trial, and a relative one for other metrics."""
_ALIKE = 1e-8  # scores of trials: values are kept with nine digits
_MOST_BYTES = 10_000_000
_README = """\
# {titles}, as submitted to decentral-benchmark

scale={scale}, version {rules} of the rules, decentral {version}; {cells} cells, {runs} runs ({machines}).

With that version of decentral{packages}

    decentral-benchmark --verify FOLDER

checks the hashes, computes times and bytes anew from the steps, repeats the cheapest runs, and says cell by cell
whether they agree (`repeat=20` repeats more). It carries out the code in `{own}/`, if there is some: read it first.

| file | |
|---|---|
| `submission.json` | methods and what they search, and the SHA-256 of every other file |
| `values.csv` (or `.csv.gz`) | each trial and each run that counts: settings, ids, and where they reach the target |
| `study.json` | scenarios, versions, processors |
| `curves.csv` (or `.csv.gz`) | the metric over time of a run in each cell |
| `{own}/` | code and configuration of one's own |
"""


def is_whole(cell: Cell) -> bool:
    """Return whether all jobs of the cell are finished here."""
    if not isinstance(cell, BenchmarkCell) or cell.choice() is None:
        return False
    return all(job.finished() is not None for job in cell.jobs())


def write(
    folder: Path, study: Benchmark, cells: Sequence[BenchmarkCell], facts: dict[str, Any], own: Path | None
) -> str:
    """Write the folder of a submission of these finished cells, and return its hash. `own` is the folder of the user's
    components; their code and configuration are copied. Raises ConfigError if these are too many."""
    study.methods = list({cell.entry.method.name: cell.entry.method for cell in cells}.values())
    files = sorted(_code(own)) if own is not None else []
    size = sum(path.stat().st_size for path in files)
    if size > _MOST_BYTES:
        raise ConfigError(
            f"{own} has {size:,} bytes of *.py and *.yaml, all of which would be submitted: put the method's files "
            f"into a folder with at most {_MOST_BYTES:,} bytes."
        )
    collect(study, cells, folder, facts)
    for path in files:
        assert own is not None
        target = folder / OWN / path.relative_to(own)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    known = read_json(folder / "study.json") or {}
    machines = " and ".join(
        f"{one['runs']} on {one.get('gpu') or '{cores} cores of {cpu}'.format(**one)}"
        for one in known.get("machines", [])
    )
    modules = {type(config.algo).__module__ for cell in cells for config in cell.entry.configs}
    tops = {module.partition(".")[0] for module in modules if plugins.is_installed(module)}
    packages = {name: metadata.version(name) for top in tops for name in metadata.packages_distributions()[top]}
    installed = "".join(f" and {name} {version}" for name, version in packages.items())
    words = {"scale": facts["scale"], "rules": VERSION, "version": facts.get("version"), "own": OWN}
    titles = ", ".join(method.title for method in study.methods)
    text = _README.format(
        titles=titles, cells=len(cells), runs=known["jobs"], machines=machines, packages=installed, **words
    )
    write_text(folder / "README.md", text)
    told = {key: words[key] for key in ("scale", "rules", "version")}
    methods, labels = [asdict(method) for method in study.methods], [cell.labels for cell in cells]
    return seal(folder, {**told, "packages": packages, "methods": methods, "cells": labels})


def seal(folder: Path, told: dict[str, Any]) -> str:
    """Write submission.json with the hashes of all existing files, and return its own hash, the submission's name."""
    files = {path.relative_to(folder).as_posix(): _sha256(path.read_bytes()) for path in _files(folder)}
    known = {**told, "files": files}
    known["hash"] = hash_of(known)
    write_json(folder / FACTS, known)
    return str(known["hash"])


def read(folder: Path) -> dict[str, Any]:
    """Read submission.json. Raises ConfigError if the folder is not a submission."""
    try:
        facts = load_json(folder / FACTS)
    except ConfigError as error:
        raise ConfigError(f"{folder} is not a submission: its {FACTS} is missing or damaged ({error})") from None
    keys, labels = {"scale", "rules", "version", "methods", "cells", "files", "hash"}, {"scenario", "method"}
    if not keys <= facts.keys() or not all(one.keys() >= labels for one in facts["cells"]):
        raise ConfigError(f"{folder} is not a submission: its {FACTS} is missing or damaged.")
    return facts


def damage(folder: Path, facts: dict[str, Any]) -> list[str]:
    """Return a sentence for each file that differs from the submitted one."""
    wrong = []
    if hash_of(facts) != facts["hash"]:
        wrong.append(f"{FACTS} was changed: its hash does not match.")
    there = {path.relative_to(folder).as_posix(): _sha256(path.read_bytes()) for path in _files(folder)}
    for name in sorted({*there, *facts["files"]}):
        if name not in there or name not in facts["files"]:
            wrong.append(f"{name} was {'removed' if name not in there else 'added'} since it was submitted.")
        elif there[name] != facts["files"][name]:
            wrong.append(f"{name} was changed since it was submitted.")
    return wrong


def hash_of(facts: dict[str, Any]) -> str:
    """Return the SHA-256 of submission.json, which contains the hashes of all files: the name of a submission."""
    return _sha256(json.dumps({k: v for k, v in facts.items() if k != "hash"}, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _files(folder: Path) -> Iterable[Path]:
    """Yield all files of a submission, except Python's caches."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in (FACTS, VERIFIED) and "__pycache__" not in path.parts:
            yield path


def _code(own: Path) -> Iterable[Path]:
    for path in (*own.rglob("*.py"), *own.rglob("*.yaml")):
        if path.is_file() and not any(part[0] == "." for part in path.relative_to(own).parts):
            yield path


# -- what is checked ---------------------------------------------------------------------------------------------------


@dataclass
class Check(Cell):
    """A run of a submitted cell: repeated, with the runs that set its target; or only its times, which need no
    training."""

    cell: BenchmarkCell
    run: Ran
    submitted: dict[str, Value]
    """Metric -> submitted value."""
    repeated: bool = False

    @property
    def labels(self) -> dict[str, str | float | int]:  # type: ignore[override]
        """Return the labels of the cell."""
        return self.cell.labels

    @property
    def wall_s(self) -> float:
        """Return the wall-clock time that the submission states, in seconds."""
        return next(iter(self.submitted.values())).wall_s

    def jobs(self) -> list[Job]:
        """Return the jobs that are left."""
        return [*self.cell.target.jobs(self.cell.varied), *self.run.jobs] if self.repeated else self.run.jobs[1:]

    def values(self) -> list[Value]:
        """Return the values if the run was repeated."""
        return self.cell.told(self.run) if self.repeated else []

    def differences(self) -> list[str]:
        """Return the differences, as text."""
        held_out = HELD_OUT if self.cell.varied is not None else ""
        told = {axis: self.submitted[metric + held_out].value for axis, metric in METRICS.items()}
        differences = [*self._of_places(told), *(self._of_repetition(told) if self.repeated else [])]
        setting = f"{self.cell.entry.trials[self.run.trial].setting}, seed {self.run.seed}"
        name = f"{self.labels['scenario']}, {self.labels['method']}, {setting}"
        return [f"{name}: {words}" for words in differences]

    def _of_places(self, told: dict[str, float]) -> list[str]:
        """Check time and bytes, which are exact functions of the step."""
        course, step = self.cell.entry.course(self.run.jobs, self.cell.clock), told["step"]
        if math.isnan(step):
            wrong = [METRICS[axis] for axis, value in told.items() if not math.isnan(value)]
            return [f"it has {wrong[0]}, and no steps"] if wrong else []
        if course is not None:
            if step not in course.places["step"]:
                return [f"nothing is evaluated at step {step:g}"]
            place = course.places["step"].index(step)
            exact = {axis: at[place] for axis, at in course.places.items()}
        elif len(self.run.jobs) > 1 and 0 <= step <= self.cell.entry.scenario.steps and step == int(step):
            exact = {
                key: own for key, (own,) in self.cell.entry.clocked(self.run.jobs, self.cell.clock, [int(step)]).items()
            }
        else:
            return [f"there is no step {step:g}"] if len(self.run.jobs) > 1 else []
        return [
            f"{METRICS[axis]} {told[axis]:.9g}, and step {step:g} is at {exact[axis]:.9g}"
            for axis in exact
            if not math.isclose(told[axis], exact[axis], rel_tol=EXACT, abs_tol=1e-12)
        ]

    def _of_repetition(self, told: dict[str, float]) -> list[str]:
        """Check the step and the final value, within the tolerance."""
        course, target = self.cell.entry.course(self.run.jobs, self.cell.clock), self.cell.aim(self.run)
        assert course is not None and target is not None
        again = {value.metric: value for value in self.cell.told(self.run)}
        metric = METRICS["step"] + (HELD_OUT if self.cell.varied is not None else "")
        found = []
        first, second = (one.status == "diverged" for one in (self.submitted[metric], again[metric]))
        if first != second:
            found.append(f"{self.submitted[metric].status}, and {again[metric].status} when it was repeated")
        elif not is_near(told["step"], course, target, self.cell.entry):
            words = ["never" if math.isnan(one) else f"{one:g}" for one in (told["step"], again[metric].value)]
            found.append(f"{metric}: {words[0]}, and {words[1]} when it was repeated")
        if END in again and not _close(self.submitted[END].value, again[END].value, self.cell.entry):
            found.append(f"{END}: {self.submitted[END].value:.6g}, and {again[END].value:.6g} when it was repeated")
        return found


def is_near(step: float, course: Course, target: float, entry: Entry) -> bool:
    """Return whether rounding explains the difference between a run that reaches the target at `step` (nan: never) and
    this course of its repetition.

    The step must lie between those at which the repetition reaches a slightly easier and a slightly harder target, with
    a slack of a few evaluations: a run that hovers around the target may cross it anywhere in between."""
    steps, margin = course.places["step"], _tolerance(NEAR, target, entry)

    def place(step: float) -> int:
        never = len(steps) - HELD + 1
        return never if math.isnan(step) else min(range(len(steps)), key=lambda k: abs(steps[k] - step))

    easier, harder = (course.reached(target + way * entry.sign * margin, entry.sign)["step"] for way in (-1, 1))
    slack = max(EVALUATIONS, SHARE * len(steps))
    return place(easier) - slack <= place(step) <= place(harder) + slack


def _close(one: float, other: float, entry: Entry) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return abs(one - other) <= max(_tolerance(POINTS, max(abs(one), abs(other)), entry), 1e-9)


def _tolerance(points: float, value: float, entry: Entry) -> float:
    target = entry.scenario.target
    is_percentage = target.percent or (target.percent is None and target.metric == "accuracy")
    return points if is_percentage else RELATIVE * abs(value)


def checks(cells: Sequence[BenchmarkCell], submitted: Sequence[StoredCell]) -> tuple[list[Check], list[str]]:
    """Return the runs of these cells, and a sentence for each cell whose rows are not those of its configuration here,
    or whose chosen trial is not the best one."""
    rows = {tuple(cell.labels.values()): cell.values() for cell in submitted}
    found, wrong = [], []
    for cell in cells:
        own: dict[tuple[str, int, bool], dict[str, Value]] = {}
        for value in rows.get(tuple(map(str, cell.labels.values())), []):
            own.setdefault((value.run, value.seed, value.chosen), {})[value.metric] = value
        counting = {(value.setting, value.lr) for by in own.values() for value in by.values() if value.chosen}
        trials = [k for k, trial in enumerate(cell.entry.trials) if {(trial.setting, trial.lr)} == counting]
        runs = cell.runs(trials[0]) if trials else []
        expected = {(run.jobs[0].id, run.seed, run.counts): run for run in runs}
        suffix = HELD_OUT if cell.varied is not None else ""
        metrics = {metric + suffix for metric in METRICS.values()}
        whole = all(by.keys() == (metrics if counts else {*metrics, END}) for (*_, counts), by in own.items())
        name = f"{cell.labels['scenario']}, {cell.labels['method']}"
        if not own or not whole or expected.keys() != own.keys():
            wrong.append(f"{name}: the rows do not belong to the runs of its configuration.")
            continue
        tried = [by for (*_, counts), by in own.items() if not counts]
        scores = {
            (by[END].setting, by[END].lr): cell.score(by[METRICS["simulated_s"]].value, by[END].value) for by in tried
        }
        if scores and scores[next(iter(counting))] < max(scores.values()) - _ALIKE:
            wrong.append(f"{name}: another trial is better than the submitted one.")
        found += [Check(cell, run, own[key]) for key, run in expected.items()]
    return found, wrong


class Repeated(NamedTuple):
    """The repeated runs."""

    runs: int
    baseline: int
    """Number of additional runs that set targets."""
    about_s: float


def choose(found: Sequence[Check], number: int) -> Repeated:
    """Mark the cheapest runs as repeated: one that counts for each family of scenarios, preferring those whose target
    needs no runs, then further ones. All cells of a run are marked together."""
    by_run: dict[str, list[Check]] = {}
    for check in sorted(found, key=lambda one: (not one.run.counts, one.cell.varied is not None, one.wall_s)):
        by_run.setdefault(check.run.jobs[0].id, []).append(check)
    places: Counter[str] = Counter()
    order: list[tuple[int, bool, float, int, list[Check]]] = []
    for those in by_run.values():
        scenario = those[0].cell.entry.scenario
        order.append((places[scenario.name], scenario.target.to_reach is None, those[0].wall_s, len(order), those))
        places[scenario.name] += 1
    chosen, baseline, about_s = sorted(order, key=lambda one: one[:4])[:number], {}, 0.0
    for _, needs_baseline, wall_s, _, those in chosen:
        about_s += wall_s
        for check in those:
            check.repeated = True
            if needs_baseline:
                scenario = check.cell.entry.scenario
                varied = check.cell.varied.name if check.cell.varied is not None else ""
                own = len(check.cell.target.baseline.trials), len(scenario.seeds) if not varied else 1
                baseline[scenario.name] = own[0], wall_s
                baseline[f"{scenario.name}.{varied}"] = own[1], wall_s
    more = list(baseline.values())
    return Repeated(len(chosen), sum(k for k, _ in more), about_s + sum(k * each for k, each in more))
