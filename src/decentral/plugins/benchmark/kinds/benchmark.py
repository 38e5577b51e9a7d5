"""Methods in fixed scenarios with one tuning budget, and the cost of each to a target set by a tuned baseline.

docs/benchmark.md has the rules. A synchronous method is trained once for all clusters: the times of its steps follow
without training. Other methods are trained in each cluster, since the cluster affects what they compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from decentral.algorithms.asynchronous import AsynchronousAlgorithm
from decentral.config.composition import compose_all
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.measurements.training_run import TrainingRun, run_command
from decentral.measurements.values import NOT_REACHED, Labels, Meaning, Value
from decentral.measurements.values import Row as Line
from decentral.plugins.benchmark.entries import Method, Scenario, Trial, methods, scenarios, trials
from decentral.plugins.benchmark.step_times import StepTimes
from decentral.scheduling.job import Job
from decentral.settings import setting
from decentral.store import RunStore, Status
from decentral.study.study import Cell, Study
from decentral.study.tuning.rule import best_of

VERSION = 2
"""Version of the rules: numbers of different versions are not compared."""
METRICS = {
    "simulated_s": "simulated seconds to the target",
    "bytes_sent": "MB sent by a worker to the target",
    "step": "steps to the target",
}
"""Axis -> compared quantity: the position on this axis where the target is reached."""
HELD_OUT = " (held out)"
_EARLIER = Meaning(larger_is_better=False)
END = "value at the end of a trial"
HELD = 3
"""Number of consecutive evaluations required at the target."""
_LAST = 3  # evaluations averaged for the final value
_POINTS = 60  # per stored curve
_DECIDED = frozenset({"seed", "run_dir", "steps", "lr", "cluster", "evaluation.part"})
_NOT_OF_METHODS = _DECIDED | {"results_dir", "task", "data", "model", "num_workers", "launcher", "logger", "init"}


class Course(NamedTuple):
    """The course of a run: the value and axis positions of each evaluation."""

    values: list[float]
    places: dict[str, list[float]]
    """Positions by axis; `bytes_sent` is the mean over workers, in 10^6 bytes."""
    status: str
    wall_s: float

    @property
    def end(self) -> float:
        """Return the mean of the last evaluations; nan if the run diverged."""
        return math.nan if self.status == Status.diverged else fmean(self.values[-_LAST:])

    def reached(self, target: float, sign: int) -> dict[str, float]:
        """Return the position of the first of `HELD` consecutive evaluations at the target; nan if there is none or the
        run diverged."""
        good = [sign * (value - target) >= 0 for value in self.values if self.status != Status.diverged]
        first = next((i for i in range(len(good) - HELD + 1) if all(good[i : i + HELD])), None)
        return {axis: math.nan if first is None else self.places[axis][first] for axis in METRICS}


@dataclass
class Entry:
    """A method in a scenario: the runs of its trials, shared by its clocks."""

    scenario: Scenario
    method: Method
    trials: list[Trial]
    commands: list[list[str]]
    """The command of each trial, without learning rate, seed, cluster and evaluation settings."""
    configs: list[Config]
    """Configurations of these commands, composed without a cluster."""
    clusters: dict[str, Any]
    """Name -> cluster."""
    config_dir: str | None
    _courses: dict[tuple[str, str], Course] = field(default_factory=dict)
    _jobs: dict[tuple[Any, ...], list[Job]] = field(default_factory=dict)
    _together: dict[tuple[Any, ...], StepTimes] = field(default_factory=dict)
    """Times of runs that are computed together: of all trials, of all seeds, or of a variant."""
    _rows: dict[str, list[Line]] = field(default_factory=dict)
    """Recorded course of each run, shared by its clocks."""
    _clocked: dict[str, dict[tuple[str, str], dict[str, Any]]] = field(default_factory=dict)
    """Lines of each StepTimes, by run and clock."""

    @property
    def sign(self) -> int:
        """Return 1 if larger values are better, otherwise -1."""
        return -1 if self.scenario.target.larger_is_better is False else 1

    @cached_property
    def in_rounds(self) -> list[bool]:
        """Return, for each trial, whether its times are known without training."""
        return [_is_in_rounds(config) for config in self.configs]

    def jobs(self, trial: int, seed: int, clock: str, varied: Config | None = None) -> list[Job]:
        """Return the run, and, if it has no times, the job that computes them in this cluster. `varied` replaces the
        trial's configuration."""
        key = trial, seed, clock, id(varied)
        if key not in self._jobs:
            self._jobs[key] = [self._run(trial, seed, clock, varied)]
            if self.in_rounds[trial]:
                self._jobs[key].append(self._times(trial, seed, varied))
        return self._jobs[key]

    def _run(self, trial: int, seed: int, clock: str, varied: Config | None) -> TrainingRun:
        config, own = self._config(trial, seed, varied), [f"lr={self.trials[trial].lr!r}", f"seed={seed}"]
        if self.scenario.is_tested:
            own.append(f"evaluation.part={config.evaluation.part}")
        if not self.in_rounds[trial]:
            config = replace(config, cluster=self.clusters[clock])
            own += [f"cluster={clock}", f"cluster.num_parameters={self.scenario.messages}"]
        where = self.scenario.name if varied is None else f"{self.scenario.name} (held out)"
        title = f"{self.method.title}, {where}, {self.trials[trial].setting}, seed {seed}"
        return TrainingRun(config, title, command=run_command([*self.commands[trial], *own], self.config_dir))

    def _times(self, trial: int, seed: int, varied: Config | None) -> StepTimes:
        """Return the times of all trials, or of all seeds with this one, as one job: each alone would take less time
        than its start."""
        scenario = self.scenario
        together = [(trial, each) for each in scenario.seeds]
        if varied is not None:
            together = [(trial, seed)]
        elif seed == scenario.tune_seed:
            together = [(k, seed) for k, in_rounds in enumerate(self.in_rounds) if in_rounds]
        key = *together, id(varied)
        if key not in self._together:
            runs = {self._run(*each, "", varied).id: replace(self._config(*each, varied), lr=0.0) for each in together}
            title = f"{self.method.title}, {scenario.name}, runs: {len(runs)}"
            self._together[key] = StepTimes(next(iter(runs.values())), {"times of": title}, runs, self.clusters)
        return self._together[key]

    def _config(self, trial: int, seed: int, varied: Config | None) -> Config:
        config = replace(varied or self.configs[trial], lr=self.trials[trial].lr, seed=seed)
        if not self.scenario.is_tested:
            return config
        part = "validation" if seed == self.scenario.tune_seed else "test"
        return replace(config, evaluation=replace(config.evaluation, part=part))

    def course(self, jobs: Sequence[Job], clock: str) -> Course | None:
        """Return the course of a run in this cluster; None if the run or its times are not finished."""
        key = jobs[0].id, clock
        if key not in self._courses and all(job.finished() is not None for job in jobs):
            self._courses[key] = self._read(jobs, clock)
        return self._courses.get(key)

    def _read(self, jobs: Sequence[Job], clock: str) -> Course:
        run, *times = jobs
        assert isinstance(run, TrainingRun)
        facts, target, period = RunStore.peek(run.directory) or {}, self.scenario.target, _period(run.config)
        if run.id not in self._rows:
            every = target.curves(run.directory, [target.worker], {}, 0)
            self._rows[run.id] = [row for row in every if row["step"] % period == 0]
        rows = self._rows[run.id]
        places = {axis: [float(row[axis]) for row in rows] for axis in METRICS if axis in (rows or [{}])[0]}
        if times:
            places |= self.clocked(jobs, clock, [int(row["step"]) for row in rows])
        else:
            number = self.configs[0].num_workers or 1
            places["bytes_sent"] = [1e-6 * sent / number for sent in places.get("bytes_sent", [])]
        values = [float(row["value"]) for row in rows]
        return Course(values, places, str(facts.get("status")), float(facts.get("wall_s", 0.0)))

    def clocked(self, jobs: Sequence[Job], clock: str, steps: Sequence[int]) -> dict[str, list[float]]:
        """Return the mean simulated time and 10^6 bytes per worker after these steps of a synchronous run, from its
        time model, without running it."""
        run, times = jobs
        assert isinstance(times, StepTimes)
        if times.id not in self._clocked:
            self._clocked[times.id] = {(line["of"], line["clock"]): line for line in times.found()}
        line, number = self._clocked[times.id][run.id, clock], self.configs[0].num_workers
        sent = [1e-6 * line["bytes_sent"][step] / (number or 1) for step in steps]
        return {"simulated_s": [line["simulated_s"][step] for step in steps], "bytes_sent": sent}


def _period(config: Config) -> int:
    """Return the number of steps after which all workers have communicated: models in between are not compared."""
    asynchronous = isinstance(config.algo, AsynchronousAlgorithm)  # Eager-SGD's is of something else
    own = 1 if asynchronous else getattr(config.algo, "period_steps", 1)
    return int(own * config.communication.every)


def _is_in_rounds(config: Config) -> bool:
    """Return whether the messages and their times are independent of the cluster and of gradients."""
    from decentral.training.clock import known_without_training

    return not isinstance(config.algo, AsynchronousAlgorithm) and known_without_training(config)


@dataclass
class Target:
    """The target of a scenario: the final value of the baseline's best trial, minus a margin.

    The best trial has the best final value, regardless of its time.
    """

    baseline: Entry

    @property
    def _clock(self) -> str:
        return next(iter(self.baseline.clusters))

    def jobs(self, varied: VariedRun | None = None) -> list[Job]:
        """Return the jobs of the trials, followed by those of the seeds or of a held-out run."""
        one, scenario = self.baseline, self.baseline.scenario
        if scenario.target.to_reach is not None:
            return []
        tuning = [job for k in range(len(one.trials)) for job in one.jobs(k, scenario.tune_seed, self._clock)]
        best = self._best()
        if best is None:
            return tuning
        if varied is not None:
            return [*tuning, *varied.jobs(one, best, self._clock)]
        return [*tuning, *(job for seed in scenario.seeds for job in one.jobs(best, seed, self._clock))]

    def value(self, seeds: Sequence[int] = (), varied: VariedRun | None = None) -> float | None:
        """Return the target from the trials, from these seeds, or from a held-out run; None if its runs are not
        finished."""
        one, scenario = self.baseline, self.baseline.scenario
        if scenario.target.to_reach is not None:
            return scenario.target.to_reach
        best = self._best()
        if best is None:
            return None
        if varied is not None:
            jobs = [varied.jobs(one, best, self._clock)]
        else:
            jobs = [one.jobs(best, seed, self._clock) for seed in seeds or [scenario.tune_seed]]
        courses = [one.course(each, self._clock) for each in jobs]
        known = [course.end for course in courses if course is not None]
        return fmean(known) - one.sign * scenario.margin if len(known) == len(courses) else None

    def _best(self) -> int | None:
        one = self.baseline
        ends = dict[float, float]()
        for k in range(len(one.trials)):
            course = one.course(one.jobs(k, one.scenario.tune_seed, self._clock), self._clock)
            if course is None:
                return None
            ends[k] = one.sign * course.end
        best = best_of(ends)
        return int(best.lr) if best is not None else 0


@dataclass
class VariedRun:
    """A held-out variant of a scenario: one run of the chosen trial on another setting."""

    name: str
    overrides: list[str]
    config_dir: str | None
    _configs: dict[tuple[str, int], Config] = field(default_factory=dict)

    def jobs(self, entry: Entry, trial: int, clock: str) -> list[Job]:
        """Return the jobs with the first seed."""
        key = entry.method.name, trial
        if key not in self._configs:
            command = [*entry.commands[trial], "cluster=none", *self.overrides]
            (self._configs[key],) = compose_all([command], self.config_dir)
        return entry.jobs(trial, entry.scenario.seeds[0], clock, self._configs[key])


class Ran(NamedTuple):
    """A run of a cell."""

    jobs: list[Job]
    """The run, and, if it has no times, the job that computes them."""
    trial: int
    seed: int
    counts: bool


@dataclass
class BenchmarkCell(Cell):
    """A method in a scenario with a clock: the trials, and then the seeds with the best trial.

    The best trial reaches the target first in simulated time, on the validation half and with the tuning seed. If no
    trial reaches it, the best trial has the best final value.
    """

    labels: Labels
    entry: Entry
    clock: str
    target: Target
    varied: VariedRun | None = None
    """None for the scenario itself."""

    def jobs(self) -> list[Job]:
        """Return the jobs of the target, of the trials, and of the counted runs."""
        scenario, choice = self.entry.scenario, self.choice()
        tuning = [job for k in self._all for job in self._jobs(k, scenario.tune_seed)]
        counting = [] if choice is None else [job for jobs in self._counting(choice) for job in jobs]
        return list({job.id: job for job in [*self.target.jobs(self.varied), *tuning, *counting]}.values())

    def sources(self) -> list[Job]:
        """Return the runs of its own trials, which a held-out variant shares with its scenario."""
        return [self._jobs(k, self.entry.scenario.tune_seed)[0] for k in self._all]

    def to_come(self) -> list[Job]:
        """Return the runs that count while no trial is chosen, with the first trial."""
        return [] if self.choice() is not None else [job for jobs in self._counting(0) for job in jobs]

    def choice(self) -> int | None:
        """Return the number of the best trial; None while the trials or the target are not finished."""
        target = self.target.value()
        scores = dict[float, float]()
        for k in self._all:
            course = self.entry.course(self._jobs(k, self.entry.scenario.tune_seed), self.clock)
            if course is None or target is None:
                return None
            seconds = course.reached(target, self.entry.sign)["simulated_s"]
            scores[k] = self.score(seconds, course.end)
        best = best_of(scores)
        return int(best.lr) if best is not None else 0

    def values(self) -> list[Value]:
        """Return where each trial and each counted run reaches the target; for trials also the final value."""
        choice = self.choice()
        return [] if choice is None else [value for run in self.runs(choice) for value in self.told(run)]

    def runs(self, choice: int) -> list[Ran]:
        """Return the runs of the trials, and the counted ones with the best trial."""
        tuned = self.entry.scenario.tune_seed
        trials = self._all if self.varied is None else ()
        counting = zip(self._counting(choice), self._seeds(), strict=True)
        found = [Ran(self._jobs(k, tuned), k, tuned, False) for k in trials]
        return [*found, *(Ran(jobs, choice, seed, True) for jobs, seed in counting)]

    def aim(self, run: Ran) -> float | None:
        """Return the target of one run; None if the baseline is not finished."""
        return self.target.value(self.entry.scenario.seeds, self.varied) if run.counts else self.target.value()

    def told(self, run: Ran) -> list[Value]:
        """Return the values of one run; [] if it or the target's baseline is not finished."""
        jobs, trial, seed, counts = run
        course = self.entry.course(jobs, self.clock)
        target = self.aim(run)
        if course is None or target is None:
            return []
        reached = course.reached(target, self.entry.sign)
        status = course.status
        if status != Status.diverged and math.isnan(reached["step"]):
            status = NOT_REACHED
        own = self.entry.trials[trial]
        found = [
            Value(
                self.labels, reached[axis], metric + (HELD_OUT if self.varied is not None else ""), seed, own.lr,
                counts, status=status, run=jobs[0].id, wall_s=course.wall_s, setting=own.setting, meaning=_EARLIER,
            )
            for axis, metric in METRICS.items()
        ]  # fmt: skip
        end = found[0]._replace(value=course.end, metric=END, status=course.status, meaning=Meaning())
        return found if counts else [*found, end]

    def wanted(self) -> int:
        """Return the number of runs that count."""
        return len(self._seeds())

    def curves(self) -> list[Line]:
        """Return the metric of the first seed over steps, simulated time and bytes, thinned out."""
        choice = self.choice()
        if choice is None or self.varied is not None:
            return []
        course = self.entry.course(self._counting(choice)[0], self.clock)
        if course is None:
            return []
        number, target = len(course.values), self.entry.scenario.target
        kept = (
            sorted({round(i * (number - 1) / (_POINTS - 1)) for i in range(_POINTS)}) if number > 1 else range(number)
        )
        head = {**self.labels, "metric": f"{target.split} {target.metric}", "worker": target.worker}
        return [
            {**head, "seed": self._seeds()[0], **{axis: at[i] for axis, at in course.places.items()}, "value": value}
            for i in kept
            for value in [course.values[i]]
        ]

    @property
    def _all(self) -> range:
        return range(len(self.entry.trials))

    def _seeds(self) -> list[int]:
        return self.entry.scenario.seeds[:1] if self.varied is not None else self.entry.scenario.seeds

    def _jobs(self, trial: int, seed: int) -> list[Job]:
        return self.entry.jobs(trial, seed, self.clock)

    def _counting(self, trial: int) -> list[list[Job]]:
        if self.varied is not None:
            return [self.varied.jobs(self.entry, trial, self.clock)]
        return [self._jobs(trial, seed) for seed in self._seeds()]

    def score(self, seconds: float, end: float) -> float:
        """Return the score of a trial: above 1 if the target is reached, larger for an earlier time; otherwise below 1,
        larger for a better final value."""
        if math.isfinite(seconds):
            return 1 + 1 / (1 + seconds)
        return -math.inf if math.isnan(end) else 0.5 + math.atan(self.entry.sign * end) / math.pi


@dataclass
class Benchmark(Study):
    """Every method in every scenario with the same budget: `trials` runs on one seed, then several seeds with the best.

    methods      names in benchmark/methods.yaml, or of algorithms; null: all entries of that file
    scenarios    names in benchmark/scenario/; your own folder's are added
    trials       number of trials per method, beginning with the first choices of what it searches
    baseline     method whose final value sets the target
    reduced      whether to reduce scenarios to their `smoke` settings

    The definition of a study contains the entries and files themselves, so it changes when they change.
    """

    name: str = "benchmark"
    methods: Any = None
    scenarios: list[Any] = field(default_factory=list)
    trials: int = setting(5, at_least=1)
    baseline: Any = "allreduce"
    reduced: bool = False
    version: int = VERSION

    def __post_init__(self) -> None:
        self.methods = methods(self.methods)
        (self.baseline,) = methods([self.baseline], mine=False)
        found = scenarios(self.scenarios)
        self.scenarios = [one.reduced for one in found] if self.reduced else found
        if self.version != VERSION:
            raise ConfigError(f"version={self.version} uses other rules: this program implements version {VERSION}.")

    def decided_keys(self) -> set[str]:
        """Return also the budget, the clock, and the learning rate, which is tuned."""
        return {*_DECIDED}

    def for_runs(self, override: str) -> str:
        """Return the override without the prefix that names its scenario."""
        first, _, rest = override.partition(".")
        return rest if first in {scenario.name for scenario in self.scenarios} else override

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Return the cells, scenario by scenario. An override that begins with the name of a scenario applies to that
        one only: cifar10.data.path=FOLDER."""
        found: list[Cell] = []
        for scenario in self.scenarios:
            entries = self._entries(scenario, overrides, config_dir)
            target = Target(entries[-1])
            varied = [VariedRun(name, words, config_dir) for name, words in scenario.variants.items()]
            for entry in entries[:-1]:
                for clock in scenario.clocks:
                    labels: Labels = {"scenario": problem(scenario, clock), "method": entry.method.title}
                    found.append(BenchmarkCell(labels, entry, clock, target))
                for one in varied:
                    labels = {"scenario": problem(scenario, one.name), "method": entry.method.title}
                    found.append(BenchmarkCell(labels, entry, scenario.clocks[0], target, one))
        return found

    def further_facts(self) -> dict[str, Any]:
        """Return descriptions of problems and methods for the page."""
        return {
            "scenarios": [told for one in self.scenarios for told in problems(one)],
            "entries": [
                {"method": one.title, "base": " ".join(one.base), "searched": one.searched} for one in self.methods
            ],
            "rules": {"version": VERSION, "trials": self.trials, "baseline": self.baseline.title},
        }

    def _entries(self, scenario: Scenario, overrides: Sequence[str], config_dir: str | None) -> list[Entry]:
        """Return the entries of the methods and of the baseline."""
        names = {one.name for one in self.scenarios}
        general = [word for word in overrides if word.partition(".")[0] not in names]
        local = [word.partition(".")[2] for word in overrides if word.partition(".")[0] == scenario.name]
        shared = ["save=none", *self.base, *scenario.base, f"steps={scenario.steps}"]
        runs = [
            (method, trial, [*shared, *method.base, *trial.overrides, *general, *local])
            for method in [*self.methods, self.baseline]
            for trial in trials(method, scenario, self.trials)
        ]
        for method, trial, _ in runs:
            keys = [word.lstrip("+~").partition("=")[0] for word in [*method.base, *trial.overrides]]
            taken = next((key for key in keys if {key, key.partition(".")[0]} & _NOT_OF_METHODS), None)
            if taken:
                raise ConfigError(
                    f"method {method.name} sets {taken}, which the benchmark decides for all methods: leave it out of "
                    "base and search."
                )
        clocks = [f"cluster={name}" for name in scenario.clocks]
        first, size = runs[-1][2], f"cluster.num_parameters={scenario.messages}"
        commands = [*([*command, "cluster=none"] for *_, command in runs), *([*first, one, size] for one in clocks)]
        composed = compose_all(commands, config_dir)
        clusters = {name: one.cluster for name, one in zip(scenario.clocks, composed[len(runs) :], strict=True)}
        found: list[Entry] = []
        for (method, trial, command), config in zip(runs, composed, strict=False):
            if not found or found[-1].method is not method:
                found.append(Entry(scenario, method, [], [], [], clusters, config_dir))
            found[-1].trials.append(trial)
            found[-1].commands.append(command)
            found[-1].configs.append(config)
        return found


def problem(scenario: Scenario, clock: str) -> str:
    """Return the name of a scenario with a clock, or of a variant."""
    return f"{scenario.name}.{clock}"


def problems(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the problems of a scenario, one for each clock and variant, in the format of study.json."""
    target = scenario.target
    unit = " %" if target.percent or (target.percent is None and target.metric == "accuracy") else ""
    reach = f"{target.to_reach:g}{unit}" if target.to_reach is not None else (
        f"that of the tuned baseline at the end, {'plus' if target.larger_is_better is False else 'less'} "
        f"{scenario.margin:g}{unit}"
    )  # fmt: skip
    shared = {
        "family": scenario.name,
        "title": scenario.title,
        "target": f"{target.split} {target.metric.replace('_', ' ')}, {target.worker} of the workers: {reach}",
        "because": scenario.because,
        "steps": scenario.steps,
        "rates": scenario.rates,
        **({"sgd_rates": scenario.sgd_rates} if scenario.sgd_rates else {}),
        "tune_seed": scenario.tune_seed,
        "seeds": scenario.seeds,
        "needs": scenario.needs,
        "version": VERSION,
    }
    timed = [{"scenario": problem(scenario, clock), "clock": clock, **shared} for clock in scenario.clocks]
    varied = [
        {"scenario": problem(scenario, name), "held_out": " ".join(words), **shared}
        for name, words in scenario.variants.items()
    ]
    return [*timed, *varied]


def rules(told: dict[str, Any]) -> dict[str, Any]:
    """Return the part that determines the numbers: everything except texts."""
    return {key: value for key, value in told.items() if key not in ("title", "because", "needs")}
