"""Validation of simulated time: real runs observed, replayed and predicted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, suggest
from decentral.measurements.measurement import check_losses
from decentral.measurements.timeline import cluster_of
from decentral.measurements.values import NOT_REACHED, Labels, Meaning, Value, title_of
from decentral.plugins.papers.validation.clock import Case, Costs, Simulated, calibrated, pooled, without_messages
from decentral.plugins.papers.validation.observed import Method, ObservedTargets, ObservedTimes, Recording, Target
from decentral.scheduling.job import Job
from decentral.settings import setting
from decentral.store import Status
from decentral.study.study import Cell, Row, Study

ERROR, REPLAY_ERROR = "error of the predicted time per step (%)", "error of the replayed time per step (%)"
OBSERVED, REPLAYED, PREDICTED = (f"{what} time per step (ms)" for what in ("observed", "replayed", "predicted"))
STALE, STALE_ERROR = "observed stale contributions (%)", "error of the predicted stale contributions (points)"
MEDIAN, P95 = "median error of predicted times (%)", "95th percentile of errors of predicted times (%)"
FREE_ERROR = "error without messages (%)"
CONSTANT_ERROR = "error of a constant per method (%)"
OTHERS_ERROR = "error with other methods' costs (%)"
NULLS = (FREE_ERROR, CONSTANT_ERROR)
OVER_NULL = "median error over that of the best null model"
REPLAY_MEDIAN, REPLAY_P95 = "median error of replayed times (%)", "95th percentile of errors of replayed times (%)"
STALE_MEDIAN = "median error of predicted stale contributions (points)"
TAU, TAU_TO_TARGET = (f"Kendall's tau of the methods by time {what}" for what in ("per step", "to the target"))
OBSERVED_TO_TARGET, PREDICTED_TO_TARGET = (f"{what} time to the target (s)" for what in ("observed", "predicted"))
ALL, HELD_OUT, SLEEP = "all methods", "held out", "sleep"
LIMITED = "held out, limited links"
_QUANTILES = {"median": 0.5, "95th percentile": 0.95}
_MEANINGS = {
    **dict.fromkeys((ERROR, REPLAY_ERROR, STALE_ERROR, *NULLS, OTHERS_ERROR), Meaning(None, "%")),
    **dict.fromkeys((OBSERVED, REPLAYED, PREDICTED), Meaning(None, "ms")),
    STALE: Meaning(None, "%"),
    **dict.fromkeys((MEDIAN, P95, REPLAY_MEDIAN, REPLAY_P95, STALE_MEDIAN), Meaning(False, "%")),
    **{f"{quantile} of {each}": Meaning(False, "%") for each in (*NULLS, OTHERS_ERROR) for quantile in _QUANTILES},
    OVER_NULL: Meaning(False, ""),
    **dict.fromkeys((TAU, TAU_TO_TARGET), Meaning(True, "")),
    **dict.fromkeys((OBSERVED_TO_TARGET, PREDICTED_TO_TARGET), Meaning(None, "s")),
}


@dataclass
class Setting:
    """Machines on which all methods are observed.

    stragglers  name in tables
    compute     kind of gradient: 'sleep', with rows of zeros, or a name for real passes
    base        overrides
    processes   numbers of processes, if not the study's
    methods     rows to run, if not all, by name, such as "D-PSGD, ring"
    """

    stragglers: str = ""
    compute: str = SLEEP
    base: list[str] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)


class Place(NamedTuple):
    """A setting in which all methods are observed: gradient, number of processes, machines."""

    compute: str
    processes: int
    stragglers: str

    @property
    def words(self) -> str:
        """Return the place as text, for example '8 processes, two delayed'."""
        passes = "" if self.compute == SLEEP else f", {self.compute}"
        return f"{self.processes} processes, {self.stragglers}{passes}"


@dataclass
class TimeValidation(Study):
    """`rows` on every setting, for example with 4 and 8 processes; each run is observed, replayed and predicted.

    rows            the methods
    processes       numbers of processes, with one worker each
    settings        machines
    calibrated      stragglers and number of processes that provide the costs, for each compute; all other places are
                    held out
    num_parameters  parameters of the rows of sleeping workers
    steps, warm_up, rounds  of each observed run, see `ObservedTimes`
    seed            seed of round 0
    calibrated_by   rows, such as "D-PSGD, ring", whose mean costs predict the other rows
    target          training target, for places with computed gradients that do not calibrate costs
    """

    name: str = "time_validation"
    rows: list[Row] = field(default_factory=list)
    processes: list[int] = field(default_factory=lambda: [4, 8])
    settings: list[Setting] = field(default_factory=list)
    calibrated: Setting = field(default_factory=lambda: Setting("even", processes=[4]))
    num_parameters: int = setting(250_000, at_least=1)
    steps: int = setting(40, at_least=1)
    warm_up: int = 30
    rounds: int = setting(1, at_least=1)
    seed: int = 1
    target: Target = field(default_factory=Target)
    calibrated_by: list[str] = field(default_factory=list)

    timed: ClassVar[frozenset[str]] = frozenset({"network.transport"})

    def __post_init__(self) -> None:
        if len(self.calibrated.processes) != 1:
            raise ConfigError(
                f"calibrated.processes={self.calibrated.processes} must have one number, because costs come from one "
                "size, such as [4]."
            )
        named = [*self.calibrated_by, *(name for one in self.settings for name in one.methods)]
        if unknown := sorted({*named} - {*self.methods}):
            raise ConfigError(f"{unknown[0]} is not the name of a row.{suggest(unknown[0], self.methods)}")
        places = self.places()
        for compute in dict.fromkeys(place.compute for place in places):
            if self.calibration_of(compute) not in places:
                raise ConfigError(
                    f"settings: compute={compute} has no setting with stragglers={self.calibrated.stragglers} and "
                    f"processes={self.calibrated.processes}, which provides its costs: add one."
                )

    @property
    def methods(self) -> list[str]:
        """Return the names of the rows."""
        return [title_of({"method": row.method, "topology": row.topology}) for row in self.rows]

    def places(self) -> dict[Place, Setting]:
        """Return all places with their settings."""
        return {
            Place(setting.compute, n, setting.stragglers): setting
            for setting in self.settings
            for n in setting.processes or self.processes
        }

    def calibration_of(self, compute: str) -> Place:
        """Return the place whose observations calibrate its costs."""
        return Place(compute, self.calibrated.processes[0], self.calibrated.stragglers)

    def decided_keys(self) -> set[str]:
        """Return also the numbers of workers and steps, and the learning rate: nothing is trained."""
        return super().decided_keys() | {"lr", "num_workers", "processes", "steps", "record_operations"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Return a cell for each place and method; then the joint ones."""
        places = self.places()
        jobs = {place: self._job(place, setting, overrides, config_dir) for place, setting in places.items()}
        held_out = [place for place in places if place != self.calibration_of(place.compute)]
        targets = {}
        for place in (place for place in held_out if place.compute != SLEEP):
            labels: Labels = {"method": f"{place.words}, to the target"}
            targets[place] = ObservedTargets(jobs[place].config, labels, jobs[place].methods, self.rounds, self.target)
        found = _Validation(self, jobs, targets, held_out)
        named = list(zip(self.rows, self.methods, strict=True))
        cells: list[Cell] = []
        for place in places:
            here = [(row, name) for row, name in named if name in found.methods(place)]
            cells += [found.cell(row, place, partial(found.observed, place, name)) for row, name in here]
        cells += [found.cell(row, HELD_OUT, partial(found.summary, [name], held_out)) for row, name in named]
        together = Row(method=ALL)
        cells += [found.cell(together, place, partial(found.ranked, place)) for place in held_out]
        limited = [place for place in held_out if jobs[place].config.network.limited]
        for case, where in ((LIMITED, limited), (HELD_OUT, held_out)) if limited else ((HELD_OUT, held_out),):
            cells.append(found.cell(together, case, partial(found.summary, self.methods, where)))
        return cells

    def _job(self, place: Place, setting: Setting, overrides: Sequence[str], config_dir: str | None) -> ObservedTimes:
        own = [f"num_workers={place.processes}", f"processes={place.processes}", "restarts=0", "device=cpu"]
        rows = dict(zip(self.methods, self.rows, strict=True))
        rows = {name: row for name, row in rows.items() if name in (setting.methods or rows)}
        seed = f"seed={self.seed}"
        commands = [[*self.base, *setting.base, *row.base, *overrides, *own, seed] for row in rows.values()]
        configs = compose_all(commands, config_dir)
        for config in configs:
            check_losses(config)
            cluster_of(config)
        methods = [Method(name, config) for name, config in zip(rows, configs, strict=True)]
        size = self.num_parameters if place.compute == SLEEP else None
        return ObservedTimes(configs[0], {"method": place.words}, methods, self.rounds, self.steps, self.warm_up, size)


@dataclass
class ValidationCell(Cell):
    """A cell computed from all its jobs, once they are done."""

    labels: Labels
    needed: list[Job]
    read: Callable[[], Iterable[Value]]
    rounds: int

    def jobs(self) -> list[Job]:
        """Return all jobs that it reads."""
        return self.needed

    def values(self) -> list[Value]:
        """Return the values with the cell's labels."""
        if any(job.finished() is not Status.done for job in self.needed):
            return []
        found = (value._replace(labels=self.labels) for value in self.read())
        return [value._replace(meaning=_MEANINGS.get(value.metric, Meaning())) for value in found]

    def wanted(self) -> int:
        """Return the number of values: one for each round if there is one place."""
        return self.rounds


class Compared(NamedTuple):
    """A run as observed, as replayed by the clock, and as predicted; also the times per step of null models, and of the
    clock with the costs of other methods."""

    observed: Simulated
    replayed: Simulated
    predicted: Simulated
    others: dict[str, float]

    @property
    def errors(self) -> dict[str, float]:
        """Return the error of each time per step, in percent of the observed one; above 0 if the clock is too slow."""
        times = {ERROR: self.predicted.step_s, REPLAY_ERROR: self.replayed.step_s, **self.others}
        return {metric: 100 * (seconds / self.observed.step_s - 1) for metric, seconds in times.items()}

    @property
    def stale_error(self) -> float | None:
        """Return the predicted minus the observed share of stale contributions, in percentage points; None if there are
        none."""
        if self.predicted.stale_share is None or self.observed.stale_share is None:
            return None
        return 100 * (self.predicted.stale_share - self.observed.stale_share)


class _Validation:
    """The results of a study's jobs; slow computations are cached."""

    def __init__(
        self,
        study: TimeValidation,
        jobs: Mapping[Place, ObservedTimes],
        targets: Mapping[Place, ObservedTargets],
        held_out: Sequence[Place],
    ) -> None:
        self.study, self.jobs, self.targets, self.held_out = study, jobs, targets, held_out
        self.compared = cache(self._compared)
        self.to_target = cache(self._to_target)
        self.costs = cache(self._costs)
        self.constant = cache(self._constant)

    def cell(self, row: Row, where: Place | str, read: Callable[[], Iterable[Value]]) -> ValidationCell:
        """Return a cell for one place, or for several places with a common name."""
        place = where if isinstance(where, Place) else None
        case = where.words if isinstance(where, Place) else where
        known: dict[str, Any] = place._asdict() if place else dict.fromkeys(Place._fields, case)
        labels: Labels = {"method": row.method, "topology": row.topology, "case": case, **known}
        jobs: list[Job] = [*self.jobs.values(), *self.targets.values()]
        if place:
            jobs = [self.jobs[place], self.jobs[self.study.calibration_of(place.compute)]]
            jobs += [self.targets[place]] if place in self.targets else []
        needed = list({job.id: job for job in jobs}.values())
        return ValidationCell(labels, needed, read, self.study.rounds if place else 0)

    def methods(self, place: Place) -> list[str]:
        """Return the methods observed there."""
        return [name for name, _ in self.jobs[place].methods]

    def _case(self, place: Place, method: str) -> tuple[Case, list[Recording]]:
        return Case.of(self.jobs[place], method), self.jobs[place].recordings(method)

    def _costs(self, compute: str, method: str) -> Costs:
        return calibrated(*self._case(self.study.calibration_of(compute), method))

    def _compared(self, place: Place, method: str) -> list[Compared]:
        """Return each run of a method there."""
        (case, recordings), costs = self._case(place, method), self.costs(place.compute, method)
        compared = []
        for recording in recordings:
            free_s = without_messages(case, recording.round).step_s
            others = {FREE_ERROR: free_s, CONSTANT_ERROR: free_s + self.constant(place.compute, method)}
            if self.study.calibrated_by and method not in self.study.calibrated_by:
                known = pooled([self.costs(place.compute, name) for name in self.study.calibrated_by])
                others[OTHERS_ERROR] = known.predict(case, recording.round, recording.cores).step_s
            observed = Simulated(recording.step_s(case.free_running), recording.stale_share)
            replayed = costs.clock(case, recording.durations(), recording.cores)
            compared.append(Compared(observed, replayed, costs.predict(case, recording.round, recording.cores), others))
        return compared

    def _constant(self, compute: str, method: str) -> float:
        """Return the extra time per step beyond gradients, from the place that calibrates the method's costs."""
        case, recordings = self._case(self.study.calibration_of(compute), method)
        longer = [
            recording.step_s(case.free_running) - without_messages(case, recording.round).step_s
            for recording in recordings
        ]
        return statistics.fmean(longer)

    def _to_target(self, place: Place, method: str) -> list[tuple[float, float]]:
        """Return for each round the observed and predicted seconds to the target, nan for never; [] if nothing is
        trained there."""
        if place not in self.targets:
            return []
        (case, recordings), target = self._case(place, method), self.study.target
        pairs = []
        for number, seconds in enumerate(self.targets[place].seconds(method)):
            steps, cores = target.at_most_steps, recordings[0].cores
            cluster = self.costs(place.compute, method).predicted_cluster(case, number, cores, 0, steps)
            config = self.targets[place].config_of(method, number)
            pairs.append((seconds, target.simulated_s(config, cluster)))
        return pairs

    def observed(self, place: Place, method: str) -> Iterator[Value]:
        """Yield for each round the error, then the times."""
        job = self.jobs[place]
        values = []
        for number, run in enumerate(self.compared(place, method)):
            numbers = {
                **run.errors,
                OBSERVED: 1e3 * run.observed.step_s,
                REPLAYED: 1e3 * run.replayed.step_s,
                PREDICTED: 1e3 * run.predicted.step_s,
            }
            if run.observed.stale_share is not None and run.stale_error is not None:
                numbers |= {STALE: 100 * run.observed.stale_share, STALE_ERROR: run.stale_error}
            values += [Value({}, value, metric, number, run=job.id) for metric, value in numbers.items()]
        for number, pair in enumerate(self.to_target(place, method)):
            for metric, value in zip((OBSERVED_TO_TARGET, PREDICTED_TO_TARGET), pair, strict=True):
                status = "done" if math.isfinite(value) else NOT_REACHED
                values.append(Value({}, value, metric, number, run=self.targets[place].id, status=status))
        spent_s = job.wall_s() / len(job.methods)
        yield from (value._replace(wall_s=spent_s / len(values)) for value in values)

    def summary(self, methods: Sequence[str], places: Sequence[Place]) -> Iterator[Value]:
        """Yield the median and 95th percentile of errors over these held-out places, rounds and methods; for several
        methods also the mean of Kendall's tau."""
        pairs = [(place, method) for place in places for method in methods if method in self.methods(place)]
        compared = [one for place, method in pairs for one in self.compared(place, method)]
        sizes: dict[str, list[float]] = {}
        for one in compared:
            for metric, error in one.errors.items():
                sizes.setdefault(metric, []).append(abs(error))
        stale = [one.stale_error for one in compared if one.stale_error is not None]
        numbers: dict[str, float] = {}
        called = {ERROR: (MEDIAN, P95), REPLAY_ERROR: (REPLAY_MEDIAN, REPLAY_P95)}
        for metric, found in sizes.items():
            names = called.get(metric, tuple(f"{quantile} of {metric}" for quantile in _QUANTILES))
            numbers |= dict(zip(names, np.quantile(found, list(_QUANTILES.values())).tolist(), strict=True))
        if sizes:
            numbers[OVER_NULL] = numbers[MEDIAN] / min(numbers[f"median of {null}"] for null in NULLS)
        if stale:
            numbers[STALE_MEDIAN] = float(np.median(np.abs(stale)))
        if methods == self.study.methods and places:
            taus: dict[str, list[float]] = {}
            for value in (value for place in places for value in self.ranked(place)):
                taus.setdefault(value.metric, []).append(value.value)
            numbers |= {metric: statistics.fmean(found) for metric, found in taus.items()}
        yield from (Value({}, number, metric, 0) for metric, number in numbers.items())

    def ranked(self, place: Place) -> Iterator[Value]:
        """Yield for each round how well the predicted order of methods agrees with the observed order: by time per
        step, and by time to the target for the methods that reach it both in reality and by the clock."""
        methods = self.methods(place)
        for number, of_round in enumerate(zip(*(self.compared(place, one) for one in methods), strict=True)):
            pairs = [(one.predicted.step_s, one.observed.step_s) for one in of_round]
            yield Value({}, kendall(pairs), TAU, number)
        rounds = zip(*(self.to_target(place, one) for one in methods), strict=True)
        reached = [[pair for pair in of_round if all(map(math.isfinite, pair))] for of_round in rounds]
        for number, pairs in enumerate(pairs for pairs in reached if len(pairs) > 1):
            yield Value({}, kendall(pairs), TAU_TO_TARGET, number)


def kendall(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Kendall's tau-b: 1 for equal orders, -1 for reversed ones; nan for fewer than two pairs, or if all values
    of one side are equal."""
    from scipy.stats import kendalltau

    return float(kendalltau(*zip(*pairs, strict=True)).statistic) if len(pairs) > 1 else math.nan
