"""Methods side by side over a few settings, each with its own tuned learning rate, and several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from decentral.config.composition import compose_all
from decentral.config.identity import run_directory
from decentral.config.parsing import build
from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest
from decentral.measurements.training_run import TrainingRun, run_command
from decentral.measurements.values import NOT_REACHED, Labels, Value, title_of
from decentral.measurements.values import Row as Line
from decentral.published import key as published_key
from decentral.registry import components
from decentral.scheduling.job import Job
from decentral.store import RunStore, Status
from decentral.study.measure import Measure
from decentral.study.study import SWEEPS, Cell, Row, Study, overrides_of, points
from decentral.study.tuning.rule import Choice, Fixed, Rule


class ComposedRun(NamedTuple):
    """A run less its learning rate and seed: as overrides of decentral-run, and as a configuration."""

    overrides: list[str]
    config: Config
    config_dir: str | None
    """The user's folder of configurations."""


def value_of(config: Any, key: str) -> Any:
    """Return a setting such as `lr` or `algo.gamma`; None if the configuration does not have it."""
    head, _, rest = key.partition(".")
    return value_of(getattr(config, head, None), rest) if rest else getattr(config, head, None)


def with_value(config: Any, key: str, value: float) -> Any:
    """Return the configuration with another value of a number, rounded if it is an integer. Raises ConfigError if it is
    out of range."""
    head, _, rest = key.partition(".")
    if rest:
        return replace(config, **{head: with_value(getattr(config, head), rest, value)})
    return replace(config, **{head: round(value) if isinstance(getattr(config, head), int) else value})


@dataclass
class TunedCell(Cell):
    """Tries rates as its rule wants on the seeds for tuning, then runs all seeds with the best one.

    If a seed diverges with it, that rate does not count and the search goes on (`retreat: false`: it counts).
    """

    labels: Labels
    final: ComposedRun
    """The runs that count."""
    tuning: ComposedRun
    """The same with what is different in the runs for tuning."""
    rule: Rule
    key: str
    """The setting that is tuned."""
    study: Comparison
    measure: Measure
    published: str
    _measured: dict[str, Value] = field(default_factory=dict)
    _made: dict[tuple[bool, float, int], TrainingRun] = field(default_factory=dict)

    def jobs(self) -> list[Job]:
        """Return the jobs of the search so far, then those of the seeds."""
        jobs, choice = self._search()
        counting = self._counting(choice.lr) if choice is not None else []
        return list({job.id: job for job in [*jobs, *counting]}.values())

    def to_come(self) -> list[Job]:
        """Return the jobs of the seeds during the search, with the initial rate."""
        _, choice = self._search()
        return list(self._counting(value_of(self.final.config, self.key))) if choice is None else []

    def values(self) -> list[Value]:
        """One for each finished run, and those of `also`; only the seeds with the chosen rate count."""
        jobs, choice = self._search()
        counting = self._counting(choice.lr) if choice is not None else []
        final = {job.id for job in counting}
        done = {job.id: job for job in [*jobs, *counting] if self._result(job) is not None}
        found = []
        for job in done.values():
            counts, key = job.id in final, self.published if job.id in final else ""
            at_edge = counts and choice is not None and choice.at_edge
            found.append(self._measured[job.id]._replace(chosen=counts, at_edge=at_edge, published=key))
        for own in self.study.also:
            found += [self._value(job, own) for job in done.values() if job.id in final]
        return found

    def wanted(self) -> int:
        """The seeds."""
        return len(self.study.seeds)

    def curves(self) -> list[Line]:
        """Return the curves of the chosen runs."""
        _, choice = self._search()
        if choice is None or not self.study.curves:
            return []
        drawn = {(own.split, own.metric): own for own in (*self.study.also, self.measure) if own.to_reach is None}
        drawn.pop((self.measure.split, self.measure.metric), None)
        found = []
        for job in self._counting(choice.lr):
            result = self._result(job)
            if result is not None and result.status in (Status.done, NOT_REACHED):
                for own in (self.measure, *drawn.values()):
                    found += own.curves(job.directory, self.study.curves, self.labels, job.config.seed)
        return found

    def _search(self) -> tuple[list[TrainingRun], Choice | None]:
        """Return the jobs behind the current knowledge, and the choice if the search is over.

        The jobs include runs that counted until their rate was rejected.
        """
        tried: dict[float, float] = {}
        jobs: list[TrainingRun] = []
        searches = True
        while True:
            rates = self.rule.wanted(tried, value_of(self.final.config, self.key))
            if rates:
                searches = len(rates) > 1 or bool(tried)  # a single given rate needs no tuning runs
                possible = [lr for lr in rates if not searches or self._possible(lr)]
                tried |= dict.fromkeys(rates, math.nan)
                tuning = {lr: self._runs(True, lr, self.study.tune_seeds) if searches else [] for lr in possible}
                jobs += [job for runs in tuning.values() for job in runs]
                scores = {lr: self._score(runs) if searches else 0.0 for lr, runs in tuning.items()}
                known = {lr: score for lr, score in scores.items() if score is not None}
                if len(known) < len(possible):
                    return jobs, None
                tried |= known
                continue
            choice = self.rule.chosen(tried)
            if choice is None:  # if every rate diverged, the smallest represents the cell
                return jobs, Choice(min(tried), at_edge=True)
            if not searches or not self.study.retreat:
                return jobs, choice
            counting = self._counting(choice.lr)
            ended = [job for job in counting if self._result(job) is not None]
            if all(self._measured[job.id].status != Status.diverged for job in ended):
                return jobs, choice
            jobs += ended
            tried[choice.lr] = math.nan

    def _runs(self, tuning: bool, lr: float, seeds: list[int]) -> list[TrainingRun]:
        composed = self.tuning if tuning else self.final
        for seed in seeds:
            if (tuning, lr, seed) not in self._made:
                config = with_value(replace(composed.config, seed=seed), self.key, lr)
                words = [f"{self.key}={value_of(config, self.key)!r}", f"seed={seed}"]
                command = run_command([*composed.overrides, *words], composed.config_dir)
                title = f"{title_of(self.labels)}, {self.key.rpartition('.')[2]} {lr:g}, seed {seed}"
                run = TrainingRun(config, title, command=command)
                there = run_directory(replace(config, results_dir=Config.results_dir), run.id)
                if self.study.paper == SWEEPS and RunStore.finished(there, run.id) is not None:
                    run = replace(run, config=replace(config, run_dir=str(there)))
                self._made[tuning, lr, seed] = run
        return [self._made[tuning, lr, seed] for seed in seeds]

    def _possible(self, value: float) -> bool:
        """Return whether the setting may have this value."""
        try:
            with_value(self.tuning.config, self.key, value)
        except ConfigError:
            return False
        return True

    def _counting(self, lr: float) -> list[TrainingRun]:
        return self._runs(False, lr, self.study.seeds)

    def _result(self, job: TrainingRun) -> Value | None:
        if job.id not in self._measured and job.finished() is not None:
            self._measured[job.id] = self._value(job, self.measure)
        return self._measured.get(job.id)

    def _score(self, jobs: list[TrainingRun]) -> float | None:
        """Mean over the seeds; nan if one diverged; None if one is not finished: the search has to wait."""
        results = [self._result(job) for job in jobs]
        known = [result for result in results if result is not None]
        if len(known) < len(results):
            return None
        if any(result.status == Status.diverged for result in known):
            return math.nan
        return sum(self._good(result, job) for result, job in zip(known, jobs, strict=True)) / len(known)

    def _good(self, result: Value, job: TrainingRun) -> float:
        """Return the score of a run; larger is better."""
        if not self.rule.nearest or result.status != NOT_REACHED or self.measure.to_reach is None:
            return result.score
        gap = abs(replace(self.measure, to_reach=None).of(job.directory).value - self.measure.to_reach)
        return -_MISSED * (1 + gap)

    def _value(self, job: TrainingRun, measure: Measure) -> Value:
        value = measure.of(job.directory, self.labels, job.config.seed)
        return value._replace(lr=value_of(job.config, self.key), run=job.id)


@dataclass
class ComparisonRow(Row):
    """A method of the comparison.

    lr                  learning rate at which its search begins (or its rate, without tuning)
    lrs                 the same for each value of the first column, if they differ
    only                columns of this row, if not all: {alpha: [0.01]}; {keep: ['']}: none of them
    worker              worker whose model counts in this row, if not `measure.worker`: another view of the same runs
    """

    lr: float | None = None
    lrs: list[float] = field(default_factory=list)
    only: dict[str, list[Any]] = field(default_factory=dict)
    worker: str = ""


_MISSED = 1e9
"""The score of a run that misses the target by 0: worse than any that reaches it within 30 years."""
_CURVES = ("worst", "mean", "averaged", "each", "counted")


@dataclass
class Comparison(Study):
    """A row for every method, a column for every setting; the learning rate of each cell is tuned; several seeds.

    rows        methods
    columns     label -> values, for example {alpha: [1, 0.1, 0.01]}; every combination is a column
    keys        label -> key of decentral-run, where the label is not the key itself: {drop: network.drop_probability}
    tune        rule that finds a cell's learning rate: {rule: <name in tuning/>, and its settings}; with `key`, such as
                algo.gamma, another number, in methods that have it
    tune_base   overrides of the tuning runs only, such as [epochs=50]
    tune_seeds  seeds of the tuning runs
    retreat     whether to discard a learning rate with which a seed diverges, and continue the search
    seeds       seeds of the final runs
    measure     the number that judges a run
    also        further numbers of the final runs, each like `measure`: one metric each
    setting     format of a column in the published table: 'alpha={alpha:g}'
    curves      workers whose metrics over time are kept for figures, with the other metrics of `also`: worst, mean,
                averaged, each, a worker's number, or counted: the worker that counts in that row
    """

    name: str = "comparison"
    cell: ClassVar[type[TunedCell]] = TunedCell
    rows: list[ComparisonRow] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    tune: dict[str, Any] = field(default_factory=lambda: {"rule": "fixed"})
    tune_base: list[str] = field(default_factory=list)
    tune_seeds: list[int] = field(default_factory=lambda: [1])
    retreat: bool = True
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    measure: Measure = field(default_factory=Measure)
    also: list[Measure] = field(default_factory=list)
    setting: str = ""
    curves: list[str] = field(default_factory=list)

    def decided_keys(self) -> set[str]:
        """Add the keys of the columns, and the learning rate if it is tuned."""
        known = {self.keys.get(label, label) for label in self.columns}
        tuned = set() if self.tune.get("rule", "fixed") == "fixed" else {self.tune.get("key", "lr")}
        return super().decided_keys() | known | tuned

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, column by column."""
        values, rules = dict(self.tune), components("study.tuning")
        name, key = values.pop("rule", "fixed"), str(values.pop("key", "lr"))
        if name not in rules:
            raise ConfigError(f"tune.rule={name} does not exist.{suggest(str(name), rules)}")
        rule: Any = build(rules[name], values, f"tune.rule={name}")
        wrong = next((one for one in self.curves if one not in _CURVES and not str(one).isdigit()), None)
        if wrong is not None:
            raise ConfigError(
                f"curves={self.curves} has {wrong}.{suggest(str(wrong), _CURVES)} A worker's number also works."
            )
        settings = [(row, point) for row in self.rows for point in points(self.columns, row.only)]
        commands = []
        for row, point in settings:
            rate = self._rate(row, point)
            lr = [f"lr={rate}"] if rate is not None and "lr" not in point else []
            commands.append(["save=none", *self.base, *row.base, *lr, *overrides_of(point, self.keys), *overrides])
        final = self._composed(commands, config_dir)
        tuning = final
        if self.tune_base:
            tuning = self._composed([[*command, *self.tune_base] for command in commands], config_dir)
        return [
            self.cell(
                labels={"method": row.method, "topology": row.topology, **point},
                final=counting,
                tuning=searching,
                rule=rule if is_number(value_of(counting.config, key)) else Fixed(),
                key=key if is_number(value_of(counting.config, key)) else "lr",
                study=self,
                measure=replace(self.measure, worker=row.worker or self.measure.worker),
                published=published_key(row.published, self.setting, **point),
            )
            for (row, point), counting, searching in zip(settings, final, tuning, strict=True)
        ]

    def _composed(self, commands: list[list[str]], config_dir: str | None) -> list[ComposedRun]:
        configs = compose_all(commands, config_dir, self.paper == SWEEPS)
        return [ComposedRun(*pair, config_dir) for pair in zip(commands, configs, strict=True)]

    def _rate(self, row: ComparisonRow, point: dict[str, Any]) -> float | None:
        if not row.lrs:
            return row.lr
        first = next(iter(self.columns), "")
        if len(row.lrs) != len(self.columns.get(first, [])):
            raise ConfigError(f"rows: {row.method} needs one of lrs per value of {first or 'the first column'}.")
        return row.lrs[self.columns[first].index(point[first])]


def is_number(value: Any) -> bool:
    """Return whether a setting is a number, which can be tuned."""
    return isinstance(value, int | float) and not isinstance(value, bool)
