"""How far simulated time can be trusted: real runs observed, replayed and predicted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, check_at_least
from decentral.measurements.computation import check_losses
from decentral.measurements.gradient_times import cluster_of
from decentral.measurements.validation.agreement import Compared, kendall, sizes
from decentral.measurements.validation.calibration import Calibration, Case, calibrate
from decentral.measurements.validation.observed import Method, ObservedTimes
from decentral.measurements.validation.reaching import ObservedTargets, Target, simulated_s
from decentral.measurements.validation.recording import Recording
from decentral.measurements.validation.replay import Simulated
from decentral.measurements.values import NOT_REACHED, Labels, Meaning, Value, title_of
from decentral.scheduling.job import Job
from decentral.store import RunStore, Status
from decentral.study.rows import Row
from decentral.study.study import Cell, Study

ERROR, REPLAY_ERROR = "error of the predicted time per step (%)", "error of the replayed time per step (%)"
OBSERVED, REPLAYED, PREDICTED = (f"{what} time per step (ms)" for what in ("observed", "replayed", "predicted"))
STALE, STALE_ERROR = "observed stale contributions (%)", "error of the predicted stale contributions (points)"
MEDIAN, P95 = "median error of predicted times (%)", "95th percentile of errors of predicted times (%)"
REPLAY_MEDIAN, REPLAY_P95 = "median error of replayed times (%)", "95th percentile of errors of replayed times (%)"
STALE_MEDIAN = "median error of predicted stale contributions (points)"
TAU, TAU_TO_TARGET = (f"Kendall's tau of the methods by time {what}" for what in ("per step", "to the target"))
OBSERVED_TO_TARGET, PREDICTED_TO_TARGET = (f"{what} time to the target (s)" for what in ("observed", "predicted"))
ALL, HELD_OUT, SLEEP = "all methods", "held out", "sleep"
_MEANINGS = {
    **dict.fromkeys((ERROR, REPLAY_ERROR, STALE_ERROR), Meaning(None, "%")),
    **dict.fromkeys((OBSERVED, REPLAYED, PREDICTED), Meaning(None, "ms")),
    STALE: Meaning(None, "%"),
    **dict.fromkeys((MEDIAN, P95, REPLAY_MEDIAN, REPLAY_P95, STALE_MEDIAN), Meaning(False, "%")),
    **dict.fromkeys((TAU, TAU_TO_TARGET), Meaning(True, "")),
    **dict.fromkeys((OBSERVED_TO_TARGET, PREDICTED_TO_TARGET), Meaning(None, "s")),
}


@dataclass
class Setting:
    """Machines on which all methods are observed.

    stragglers  as tables call them
    compute     what a gradient is: 'sleep', of rows of zeros, or a name for real passes
    base        overrides
    processes   if they are not the study's
    """

    stragglers: str = ""
    compute: str = "sleep"
    base: list[str] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)


class Place(NamedTuple):
    """Where methods are observed side by side."""

    compute: str
    processes: int
    stragglers: str

    @property
    def words(self) -> str:
        """For example '8 processes, two delayed'."""
        passes = "" if self.compute == SLEEP else f", {self.compute}"
        return f"{self.processes} processes, {self.stragglers}{passes}"


@dataclass
class TimeValidation(Study):
    """`rows` on every setting, with 4 and 8 processes, say; each is observed, replayed and predicted.

    rows            the methods
    processes       numbers of them, with a worker each
    settings        the machines
    calibrated      the stragglers and the number of processes that costs come from, for each compute; every other
                    place is held out
    num_parameters  of the rows of those who sleep
    steps, warm_up, rounds  of each observed run, see `ObservedTimes`
    seed            of round 0
    target          what is trained for where gradients are computed and costs do not come from
    """

    name: str = "time_validation"
    rows: list[Row] = field(default_factory=list)
    processes: list[int] = field(default_factory=lambda: [4, 8])
    settings: list[Setting] = field(default_factory=list)
    calibrated: Setting = field(default_factory=lambda: Setting("even", processes=[4]))
    num_parameters: int = 250_000
    steps: int = 40
    warm_up: int = 30
    rounds: int = 1
    seed: int = 1
    target: Target = field(default_factory=Target)

    timed: ClassVar[frozenset[str]] = frozenset({"network.transport"})

    def __post_init__(self) -> None:
        for key in ("steps", "rounds", "num_parameters"):
            check_at_least(key, getattr(self, key))
        if len(self.calibrated.processes) != 1:
            raise ConfigError(
                f"calibrated.processes={self.calibrated.processes} has to be one number: costs come from one size, "
                "such as [4]."
            )
        places = self.places()
        for compute in dict.fromkeys(place.compute for place in places):
            if self.calibration_of(compute) not in places:
                raise ConfigError(
                    f"settings: compute={compute} has no setting with stragglers={self.calibrated.stragglers} and "
                    f"processes={self.calibrated.processes}, from which its costs would come: add one."
                )

    @property
    def methods(self) -> list[str]:
        """The names of the rows."""
        return [title_of({"method": row.method, "topology": row.topology}) for row in self.rows]

    def places(self) -> list[Place]:
        """All of them."""
        return [Place(one.compute, n, one.stragglers) for one in self.settings for n in one.processes or self.processes]

    def calibration_of(self, compute: str) -> Place:
        """Where the costs of it come from."""
        return Place(compute, self.calibrated.processes[0], self.calibrated.stragglers)

    def decided_keys(self) -> set[str]:
        """Also the numbers of workers and steps, and the rate: nothing is trained."""
        return super().decided_keys() | {"lr", "num_workers", "processes", "steps", "record_operations"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Place by place, method by method; then what all of them say together."""
        jobs: dict[Place, ObservedTimes] = {}
        for setting in self.settings:
            for n in setting.processes or self.processes:
                place = Place(setting.compute, n, setting.stragglers)
                jobs[place] = self._job(place, setting, overrides, config_dir)
        targets = {
            place: ObservedTargets(job.config, job.labels | {"to": "the target"}, job.methods, self.rounds, self.target)
            for place, job in jobs.items()
            if place.compute != SLEEP and place != self.calibration_of(place.compute)
        }
        found = _Validation(self, jobs, targets)
        cells: list[Cell] = [
            ObservedCell(self._labels(row, place), found, place) for place in jobs for row in self.rows
        ]
        cells += [SummaryCell(self._labels(row, None), found) for row in self.rows]
        all_methods = Row(method=ALL)
        cells += [RankCell(self._labels(all_methods, place), found, place) for place in jobs if found.held_out(place)]
        return [*cells, SummaryCell(self._labels(all_methods, None), found)]

    def _job(self, place: Place, setting: Setting, overrides: Sequence[str], config_dir: str | None) -> ObservedTimes:
        own = [f"num_workers={place.processes}", f"processes={place.processes}", "restarts=0", "device=cpu"]
        commands = [[*self.base, *setting.base, *row.base, *overrides, *own, f"seed={self.seed}"] for row in self.rows]
        configs = compose_all(commands, config_dir)
        for config in configs:
            check_losses(config)
            cluster_of(config)
        methods = tuple(Method(name, config) for name, config in zip(self.methods, configs, strict=True))
        size = self.num_parameters if place.compute == SLEEP else None
        return ObservedTimes(configs[0], {"method": place.words}, methods, self.rounds, self.steps, self.warm_up, size)

    @staticmethod
    def _labels(row: Row, place: Place | None) -> Labels:
        known: dict[str, Any] = place._asdict() if place else dict.fromkeys(Place._fields, HELD_OUT)
        case = place.words if place else HELD_OUT
        return {"method": row.method, "topology": row.topology, "case": case, **known}


class _Validation:
    """What the jobs of a study say together."""

    def __init__(
        self,
        study: TimeValidation,
        jobs: Mapping[Place, ObservedTimes],
        targets: Mapping[Place, ObservedTargets],
    ) -> None:
        self.study, self.jobs, self.targets = study, jobs, targets
        self._calibrations: dict[str, Calibration] = {}
        self._compared: dict[tuple[Place, str], list[Compared]] = {}
        self._to_target: dict[tuple[Place, str], list[tuple[float, float]]] = {}
        self._recordings: dict[Place, dict[str, list[Recording]]] = {}

    def held_out(self, place: Place) -> bool:
        """Whether no cost comes from there."""
        return place != self.study.calibration_of(place.compute)

    def needed(self, place: Place) -> list[Job]:
        """The jobs of a place, and the one that its costs come from."""
        jobs: list[Job] = [self.jobs[place], self.jobs[self.study.calibration_of(place.compute)]]
        jobs += [self.targets[place]] if place in self.targets else []
        return list({job.id: job for job in jobs}.values())

    def compared(self, place: Place, method: str) -> list[Compared]:
        """Each run of a method there; nothing before both jobs are done."""
        if any(job.finished() is not Status.done for job in self.needed(place)):
            return []
        if (place, method) not in self._compared:
            calibration, case = self._calibration(place.compute), Case.of(self.jobs[place], method)
            self._compared[place, method] = [
                Compared(
                    one.round,
                    Simulated(one.step_s(case.free_running), one.stale_share),
                    calibration.replay(case, one),
                    calibration.predict(case, method, one.round, one.cores),
                )
                for one in self._recorded(place)[method]
            ]
        return self._compared[place, method]

    def to_target(self, place: Place, method: str) -> list[tuple[float, float]]:
        """For each round: observed and predicted seconds to the target, nan for never; nothing where none is trained
        for, or before all jobs of the place are done."""
        if place not in self.targets or any(job.finished() is not Status.done for job in self.needed(place)):
            return []
        if (place, method) not in self._to_target:
            calibration, target = self._calibration(place.compute), self.study.target
            case, cores = Case.of(self.jobs[place], method), self._recorded(place)[method][0].cores
            self._to_target[place, method] = [
                (
                    observed,
                    simulated_s(
                        case.config,
                        number,
                        calibration.cluster(case, method, number, cores, 0, target.at_most_steps),
                        target,
                    ),
                )
                for number, observed in enumerate(self.targets[place].seconds(method))
            ]
        return self._to_target[place, method]

    def all_jobs(self) -> list[Job]:
        """Of all places."""
        return [*self.jobs.values(), *self.targets.values()]

    def ready(self) -> bool:
        """Whether all jobs are done."""
        return all(job.finished() is Status.done for job in self.all_jobs())

    def _calibration(self, compute: str) -> Calibration:
        if compute not in self._calibrations:
            place = self.study.calibration_of(compute)
            cases = {name: Case.of(self.jobs[place], name) for name in self.study.methods}
            recordings = [one for of_method in self._recorded(place).values() for one in of_method]
            self._calibrations[compute] = calibrate(cases, recordings)
        return self._calibrations[compute]

    def _recorded(self, place: Place) -> dict[str, list[Recording]]:
        if place not in self._recordings:
            found: dict[str, list[Recording]] = {name: [] for name in self.study.methods}
            for one in self.jobs[place].recordings():
                found[one.method].append(one)
            self._recordings[place] = found
        return self._recordings[place]


@dataclass
class _PlaceCell(Cell):
    """What was observed in one place."""

    labels: Labels
    found: _Validation
    place: Place

    def jobs(self) -> list[Job]:
        """Its own, and the one from which costs come."""
        return self.found.needed(self.place)

    def wanted(self) -> int:
        """A value for each round."""
        return self.found.study.rounds

    def meanings(self) -> dict[str, Meaning]:
        """See above."""
        return _MEANINGS


@dataclass
class ObservedCell(_PlaceCell):
    """One method in one place, for all rounds."""

    def values(self) -> list[Value]:
        """For each round: the error, then the times."""
        job, study = self.found.jobs[self.place], self.found.study
        values = []
        for one in self.found.compared(self.place, _title(self.labels)):
            numbers = {
                ERROR: one.error,
                REPLAY_ERROR: one.replay_error,
                OBSERVED: 1e3 * one.observed.step_s,
                REPLAYED: 1e3 * one.replayed.step_s,
                PREDICTED: 1e3 * one.predicted.step_s,
            }
            if one.observed.stale_share is not None and one.stale_error is not None:
                numbers |= {STALE: 100 * one.observed.stale_share, STALE_ERROR: one.stale_error}
            values += [Value(self.labels, number, metric, one.round, run=job.id) for metric, number in numbers.items()]
        for number, (observed, predicted) in enumerate(self.found.to_target(self.place, _title(self.labels))):
            run = self.found.targets[self.place].id
            for metric, number_of in ((OBSERVED_TO_TARGET, observed), (PREDICTED_TO_TARGET, predicted)):
                status = Status.done if math.isfinite(number_of) else NOT_REACHED
                values.append(Value(self.labels, number_of, metric, number, run=run, status=status))
        spent = float((RunStore.peek(job.directory) or {}).get("wall_s", 0.0)) / len(study.rows)
        return [value._replace(wall_s=spent / len(values)) for value in values]


@dataclass
class SummaryCell(Cell):
    """One method, or all of them, in all places that are held out, once they are all there."""

    labels: Labels
    found: _Validation

    def jobs(self) -> list[Job]:
        """All."""
        return self.found.all_jobs()

    def meanings(self) -> dict[str, Meaning]:
        """See above."""
        return _MEANINGS

    def values(self) -> list[Value]:
        """Median and 95th percentile of errors, over places, rounds and methods; and the mean of Kendall's tau."""
        if not self.found.ready():
            return []
        own = _title(self.labels)
        methods = [name for name in self.found.study.methods if own in (name, ALL)]
        places = [place for place in self.found.jobs if self.found.held_out(place)]
        compared = [one for place in places for method in methods for one in self.found.compared(place, method)]
        stale = [one.stale_error for one in compared if one.stale_error is not None]
        numbers: dict[str, float] = {}
        for names, errors in (
            ((MEDIAN, P95), [one.error for one in compared]),
            ((REPLAY_MEDIAN, REPLAY_P95), [one.replay_error for one in compared]),
            ((STALE_MEDIAN,), stale),
        ):
            if found := sizes(errors):
                numbers |= dict(zip(names, found, strict=False))
        if self.labels["method"] == ALL and places:
            numbers[TAU] = statistics.fmean(tau for place in places for tau in ranks(self.found, place))
            to_target = [tau for place in places for tau in ranks_to_target(self.found, place)]
            numbers |= {TAU_TO_TARGET: statistics.fmean(to_target)} if to_target else {}
        return [Value(self.labels, number, metric, 0) for metric, number in numbers.items()]


@dataclass
class RankCell(_PlaceCell):
    """Whether methods are predicted to be as fast as each other in the order in which they are, in one place."""

    def values(self) -> list[Value]:
        """For each round."""
        found = {TAU: ranks(self.found, self.place), TAU_TO_TARGET: ranks_to_target(self.found, self.place)}
        return [
            Value(self.labels, tau, name, number) for name, taus in found.items() for number, tau in enumerate(taus)
        ]


def _title(labels: Labels) -> str:
    """The method of a cell."""
    return title_of({name: labels[name] for name in ("method", "topology")})


def ranks(found: _Validation, place: Place) -> list[float]:
    """Kendall's tau of all methods by predicted and observed time per step, for each round."""
    by_method = [found.compared(place, name) for name in found.study.methods]
    return [
        kendall([one.predicted.step_s for one in of_round], [one.observed.step_s for one in of_round])
        for of_round in zip(*by_method, strict=True)
    ]


def ranks_to_target(found: _Validation, place: Place) -> list[float]:
    """The same by time to the target, of the methods that reach it both for real and by the clock."""
    by_method = [found.to_target(place, name) for name in found.study.methods]
    rounds = [[pair for pair in of_round if all(map(math.isfinite, pair))] for of_round in zip(*by_method, strict=True)]
    return [kendall(*zip(*pairs, strict=True)) for pairs in rounds if len(pairs) > 1]
