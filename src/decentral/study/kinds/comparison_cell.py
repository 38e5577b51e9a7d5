"""A cell of a comparison: the search for its learning rate, then its seeds."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from decentral.config.schema import Config
from decentral.jobs.training_run import TrainingRun, run_command
from decentral.scheduling.job import Job
from decentral.store import Status
from decentral.study.measure import DAMAGED, NOT_REACHED, Measure, Measured
from decentral.study.study import Cell, Curve, Labels, Meaning, Value, title_of
from decentral.study.tuning.rule import Choice, Rule

if TYPE_CHECKING:
    from decentral.study.kinds.comparison import Comparison


class ComposedRun(NamedTuple):
    """A run less its learning rate and seed: as overrides of decentral-run, and as a configuration."""

    overrides: list[str]
    config: Config
    config_dir: str | None
    """The user's folder of configurations."""


@dataclass
class TunedCell(Cell):
    """Tries rates as its rule wants on the seeds for tuning, then runs all seeds with the best one.

    If a seed diverges with it, that rate does not count and the search goes on (`retreat: false`: it counts). A search
    that comes upon a damaged run waits until that has been deleted and computed anew.
    """

    labels: Labels
    final: ComposedRun
    """The runs that count."""
    tuning: ComposedRun
    """The same with what is different in the runs for tuning."""
    rule: Rule
    study: Comparison
    measure: Measure
    published: str
    _measured: dict[str, Measured] = field(default_factory=dict)
    _made: dict[tuple[bool, float, int], TrainingRun] = field(default_factory=dict)

    def jobs(self) -> list[Job]:
        """Those of the search so far, then those of the seeds."""
        jobs, choice, _ = self._search()
        if choice is not None:
            jobs += self._counting(choice.lr)
        return list({job.id: job for job in jobs}.values())

    def to_come(self) -> list[Job]:
        """The seeds, while the search goes on: with the rate that it began with."""
        _, choice, _ = self._search()
        return list(self._counting(self.final.config.lr)) if choice is None else []

    def may_come(self) -> list[Job]:
        """Those of further rates, while the search goes on."""
        jobs, choice, _ = self._search()
        rates = {job.config.lr for job in jobs}
        if choice is not None or not rates:
            return []
        return [job for lr in self.rule.beyond(rates) for job in self._runs(True, lr, self.study.tune_seeds)]

    def values(self) -> list[Value]:
        """One for each finished run, and those of `also`; only the seeds with the chosen rate count."""
        jobs, choice, _ = self._search()
        final = {job.id for job in self._counting(choice.lr)} if choice is not None else set()
        found: dict[str, Value] = {}
        for job in [*jobs, *(self._counting(choice.lr) if choice is not None else [])]:
            measured = self._result(job)
            if measured is not None:
                at_edge = choice is not None and choice.at_edge and job.id in final
                found[job.id] = self._value(job, measured, job.id in final, at_edge)
        return [*found.values(), *self._also(final)]

    def _also(self, final: set[str]) -> list[Value]:
        """What else the runs that count are looked at for."""
        jobs = [job for job in self._made.values() if job.id in final and self._result(job) is not None]
        jobs = list({job.id: job for job in jobs}.values())
        found = [self._value(job, own.of(job.directory), True, False) for own in self.study.also for job in jobs]
        return [value._replace(published="") for value in found]

    def meanings(self) -> dict[str, Meaning]:
        """As the runs say."""
        done = [job for job in self._made.values() if self._result(job) is not None][:1]
        found = [own.of(job.directory) for own in (self.measure, *self.study.also) for job in done]
        return {one.label: one.meaning for one in found}

    def remarks(self) -> list[str]:
        """Why runs have no numbers."""
        return [found.remark for found in self._measured.values() if found.remark]

    def wanted(self) -> int:
        """The seeds."""
        return len(self.study.seeds)

    def curves(self) -> list[Curve]:
        """Of the chosen runs."""
        _, choice, _ = self._search()
        if choice is None or not self.study.curves:
            return []
        done = [job for job in self._counting(choice.lr) if self._status(job) in (Status.done, NOT_REACHED)]
        return [
            curve
            for job in done
            for own in self._drawn()
            for curve in own.curves(job.directory, self.study.curves, self.labels, job.config.seed)
        ]

    def _drawn(self) -> list[Measure]:
        """What has curves: what counts, and other metrics."""
        known = {(own.split, own.metric): own for own in (*self.study.also, self.measure) if own.to_reach is None}
        key = self.measure.split, self.measure.metric
        return [self.measure, *(own for other, own in known.items() if other != key)]

    def _search(self) -> tuple[list[TrainingRun], Choice | None, dict[float, float]]:
        """The jobs that led to what is known, the choice if the search is over, and the scores so far.

        Among the jobs are the runs that counted until their rate was given up.
        """
        tried: dict[float, float] = {}
        jobs: list[TrainingRun] = []
        searches = True
        while True:
            rates = self.rule.wanted(tried, self.final.config.lr)
            if rates:
                searches = len(rates) > 1 or bool(tried)  # a single given rate needs no runs of its own
                tuning = {lr: self._runs(True, lr, self.study.tune_seeds) for lr in rates} if searches else {}
                jobs += [job for runs in tuning.values() for job in runs]
                scores = {lr: self._score(tuning.get(lr, [])) if searches else 0.0 for lr in rates}
                if any(score is None for score in scores.values()):
                    return jobs, None, tried
                tried |= {lr: score for lr, score in scores.items() if score is not None}
                continue
            choice = self.rule.chosen(tried)
            if choice is None:
                return jobs, self._smallest(tried), tried
            if not searches or not self.study.retreat or not self._some_seed_diverged(choice.lr):
                return jobs, choice, tried
            jobs += [job for job in self._counting(choice.lr) if self._result(job) is not None]
            tried[choice.lr] = math.nan

    def _smallest(self, tried: dict[float, float]) -> Choice:
        """Where every rate diverged, the smallest stands for the cell."""
        return Choice(min(tried), at_edge=True)

    def _runs(self, tuning: bool, lr: float, seeds: list[int]) -> list[TrainingRun]:
        return [self._run(tuning, lr, seed) for seed in seeds]

    def _run(self, tuning: bool, lr: float, seed: int) -> TrainingRun:
        key = tuning, lr, seed
        if key not in self._made:
            composed = self.tuning if tuning else self.final
            config = dataclasses.replace(composed.config, lr=lr, seed=seed)
            command = run_command([*composed.overrides, f"lr={lr!r}", f"seed={seed}"], composed.config_dir)
            self._made[key] = TrainingRun(config, f"{self.title}, lr {lr:g}, seed {seed}", command=command)
        return self._made[key]

    def _counting(self, lr: float) -> list[TrainingRun]:
        return self._runs(False, lr, self.study.seeds)

    @property
    def title(self) -> str:
        """What its jobs' titles begin with."""
        return title_of(self.labels)

    def _result(self, job: TrainingRun) -> Measured | None:
        if job.id not in self._measured and job.finished() is not None:
            self._measured[job.id] = self.measure.of(job.directory)
        return self._measured.get(job.id)

    def _score(self, jobs: list[TrainingRun]) -> float | None:
        """Mean over the seeds; nan if one diverged; None if one is not finished or damaged: the search has to wait."""
        results = [self._result(job) for job in jobs]
        known = [result for result in results if result is not None and result.status != DAMAGED]
        if len(known) < len(results):
            return None
        if any(result.status == Status.diverged for result in known):
            return math.nan
        return sum(result.score for result in known) / len(known)

    def _some_seed_diverged(self, lr: float) -> bool:
        return any(self._status(job) == Status.diverged for job in self._counting(lr))

    def _status(self, job: TrainingRun) -> str | None:
        found = self._result(job)
        return found.status if found is not None else None

    def _value(self, job: TrainingRun, found: Measured, chosen: bool, at_edge: bool) -> Value:
        return Value(
            labels=self.labels,
            value=found.value,
            metric=found.label,
            seed=job.config.seed,
            lr=job.config.lr,
            chosen=chosen,
            at_edge=at_edge,
            status=found.status,
            worst=found.worst,
            mean=found.mean,
            averaged=found.averaged,
            published=self.published if chosen else "",
            run=job.id,
            wall_s=found.wall_s,
        )
