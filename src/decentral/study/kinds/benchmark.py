"""Methods in fixed scenarios, and what each of them takes to the target: conf/benchmark/, and benchmark/ in a folder of
one's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decentral.config.composition import compose_all
from decentral.config.parsing import build, conf_directory, read_mapping
from decentral.errors import ConfigError, suggest
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import Meaning, Value
from decentral.registry import components, plugins
from decentral.settings import Settings, setting
from decentral.study.kinds.comparison import Comparison, ComposedRun, TunedCell
from decentral.study.measure import Measure, Measured
from decentral.study.study import Cell, Study
from decentral.study.tuning.rule import Grid

METRICS = {
    "simulated_s": "simulated seconds to the target",
    "bytes_sent": "MB sent by a worker to the target",
    "step": "steps to the target",
}
"""Axis -> what is compared: where on it the target is reached."""


@dataclass
class Method(Settings):
    """A line of methods.yaml: an algorithm with its topology and the settings that are not its defaults.

    title      as tables and figures show it
    base       overrides of its runs, behind those of the scenario
    with_sgd   further ones where the scenario's local rule is plain SGD (`optim=sgd`), such as optim.momentum=0.9
    times      its learning rates are those of the scenario times this: 0.1 where momentum makes ten steps of one
    """

    name: str
    title: str
    base: list[str]
    with_sgd: list[str] = field(default_factory=list)
    times: float = setting(1.0, above=0)


@dataclass
class Scenario(Settings):
    """A file of scenario/: a task on a cluster, what has to be reached, and what may be spent for it.

    title        what it is, in one line
    base         overrides of its runs: task, data, model, cluster, number of workers
    steps        the budget: gradients that a worker takes (on average, where nobody waits for anybody)
    target       what has to be reached: {metric: ..., worker: ..., to_reach: ...}
    because      why this target
    rates        the learning rates that are tried: the budget for tuning
    tune_seeds   the seeds with which they are tried
    seeds        the seeds that count, with the best rate
    needs        what it takes that is not bundled; '' if nothing
    smoke        what is different at scale=smoke
    """

    name: str
    title: str
    base: list[str]
    steps: int
    target: Measure
    because: str
    rates: list[float]
    tune_seeds: list[int] = field(default_factory=lambda: [1])
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    needs: str = ""
    smoke: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"scenario {self.name}"
        if self.target.to_reach is None:
            raise ConfigError(f"{where}: target has no to_reach: say which value has to be reached.")
        if not self.rates or min(self.rates) <= 0:
            raise ConfigError(f"{where}: rates={self.rates} has to be a list of learning rates above 0.")
        if self.steps < 1 or not self.seeds or not self.tune_seeds:
            raise ConfigError(f"{where}: it takes at least one step, one of seeds and one of tune_seeds.")

    @property
    def reduced(self) -> Scenario:
        """As at scale=smoke: `base` is appended to, all else is replaced."""
        changes = {**self.smoke, "base": [*self.base, *self.smoke.get("base", [])], "smoke": {}}
        reduced: Scenario = _built(Scenario, self.name, {**vars(self), **changes})
        return reduced


def methods(names: list[str] | None = None, mine: bool = True) -> list[Method]:
    """The methods with these names (None: all that have a line), then, unless `mine` is false, those that have a line
    in one's own folder.

    An algorithm without a line, such as one of one's own, is a method with its defaults and its usual topology. Raises
    ConfigError for a name that is neither, and for a line that is not right.
    """
    known: dict[str, Any] = {}
    theirs: list[str] = []
    for folder in _folders():
        file = folder / "methods.yaml"
        theirs = list(read_mapping(file)) if file.exists() else []
        if twice := known.keys() & set(theirs):
            raise ConfigError(f"{file}: {min(twice)} is the name of one of ours: give it another one.")
        known |= read_mapping(file) if theirs else {}
    if plugins.folder() is None or not mine:
        theirs = []
    algorithms = components("algorithms")
    found = []
    for name in dict.fromkeys([*(known if names is None else names), *theirs]):
        if name not in known and name not in algorithms:
            raise ConfigError(f"methods=[{name}] does not exist.{suggest(name, {*known, *algorithms})}")
        values = known.get(name) or {"title": name, "base": [f"algo={name}"]}
        found.append(_built(Method, name, values))
    return found


def scenarios(names: list[str]) -> list[Scenario]:
    """The scenarios with these names, then those in one's own folder. Raises ConfigError for one that does not exist,
    or whose file is wrong."""
    files, mine = scenario_files(), plugins.folder()
    theirs = [name for name, path in files.items() if mine is not None and mine in path.parents]
    found = []
    for name in dict.fromkeys([*names, *theirs]):
        if name not in files:
            raise ConfigError(f"scenarios=[{name}] does not exist.{suggest(name, files)}")
        found.append(_built(Scenario, name, read_mapping(files[name])))
    return found


def scenario_files() -> dict[str, Path]:
    """The scenarios that there are, ours and one's own."""
    return {path.stem: path for folder in _folders() for path in sorted((folder / "scenario").glob("*.yaml"))}


def _built(cls: type, name: str, values: Any) -> Any:
    known = {"name": name, **values} if isinstance(values, dict) else values
    return build(cls, known, f"{cls.__name__.lower()} {name}")


def _folders() -> list[Path]:
    mine = plugins.folder()
    return [conf_directory() / "benchmark", *([mine / "benchmark"] if mine is not None else [])]


@dataclass
class BenchmarkCell(TunedCell):
    """The best rate is the one with which the target is reached first, in simulated time; of those with which it never
    is, the one with the best value at the end.

    All scenarios have the same metrics, whatever has to be reached in them.
    """

    method: str = ""
    """Its name in methods.yaml, or that of the algorithm."""

    def meanings(self) -> dict[str, Meaning]:
        """The earlier, the better."""
        return dict.fromkeys(METRICS.values(), Meaning(larger_is_better=False))

    def _good(self, result: Measured, job: TrainingRun) -> float:
        """From 0 to 2: above 1 if the target is reached, and the larger the earlier; below 1 if not, and the larger the
        better the last value is."""
        if math.isfinite(result.value):
            return 1 + 1 / (1 + result.value)
        last = replace(self.measure, to_reach=None, axis="step").of(job.directory).score
        return 0.5 + math.atan(last) / math.pi if math.isfinite(last) else 0.0

    def _value(self, job: TrainingRun, found: Measured, chosen: bool, at_edge: bool) -> Value:
        """With the name of the metric that all scenarios have; bytes in 10^6 of one worker, on average."""
        axis = found.label.partition(" ")[0]
        factor = 1e-6 / (job.config.num_workers or 1) if axis == "bytes_sent" else 1.0
        value = super()._value(job, found, chosen, at_edge)
        seen = {key: factor * getattr(value, key) for key in ("value", "worst", "mean", "averaged")}
        return value._replace(metric=METRICS[axis], **seen)


_MAIN = "simulated_s"
"""The axis by which rates are chosen, and what the study is about."""


@dataclass
class Benchmark(Study):
    """Every method in every scenario, with the same budget: so many rates on one seed, then several seeds.

    methods      names in conf/benchmark/methods.yaml, or of algorithms; null: all that have a line there
    scenarios    names in conf/benchmark/scenario/; those in one's own folder are added
    reduced      whether scenarios are cut to what they say under `smoke`

    The definition of a study holds the lines and files themselves, so that it is another one when they change.
    """

    name: str = "benchmark"
    methods: Any = None
    scenarios: list[Any] = field(default_factory=list)
    reduced: bool = False

    def __post_init__(self) -> None:
        self.methods = methods(self.methods)
        found = scenarios(self.scenarios)
        self.scenarios = [one.reduced for one in found] if self.reduced else found

    def decided_keys(self) -> set[str]:
        """Also the budget, and the learning rate, which is tuned."""
        return super().decided_keys() | {"steps", "lr"}

    def for_runs(self, override: str) -> str:
        """Without the name of the scenario that it is for."""
        first, _, rest = override.partition(".")
        return rest if first in {scenario.name for scenario in self.scenarios} else override

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Scenario by scenario. An override that begins with the name of a scenario is for that one only:
        cifar10.data.path=FOLDER."""
        pairs = [(scenario, method) for scenario in self.scenarios for method in self.methods]
        names = {scenario.name for scenario in self.scenarios}
        commands = [self._command(*pair, overrides, names) for pair in pairs]
        configs = compose_all(commands, config_dir)
        return [
            self._cell(*pair, ComposedRun(command, config, config_dir))
            for pair, command, config in zip(pairs, commands, configs, strict=True)
        ]

    def further_facts(self) -> dict[str, Any]:
        """What the scenarios are, for the page."""
        return {"scenarios": [told(one) for one in self.scenarios]}

    def _command(self, scenario: Scenario, method: Method, overrides: Sequence[str], names: set[str]) -> list[str]:
        base = [*self.base, *scenario.base]
        general = [word for word in overrides if word.partition(".")[0] not in names]
        local = [word.partition(".")[2] for word in overrides if word.partition(".")[0] == scenario.name]
        sgd = method.with_sgd if "optim=sgd" in base else []
        return ["save=none", *base, f"steps={scenario.steps}", *method.base, *sgd, *general, *local]

    def _cell(self, scenario: Scenario, method: Method, run: ComposedRun) -> BenchmarkCell:
        own = replace(scenario.target, axis=_MAIN)
        topology = str(run.config.topology.name) if run.config.algo.uses_topology else ""
        study = Comparison(
            tune_seeds=scenario.tune_seeds,
            seeds=scenario.seeds,
            retreat=False,
            measure=own,
            also=[replace(own, axis=axis) for axis in METRICS if axis != _MAIN],
        )
        return BenchmarkCell(
            labels={"scenario": scenario.name, "method": method.title, "topology": topology},
            final=run,
            tuning=run,
            rule=Grid(values=sorted(float(f"{rate * method.times:.6g}") for rate in scenario.rates)),
            study=study,
            measure=own,
            published="",
            method=method.name,
        )


def told(scenario: Scenario) -> dict[str, Any]:
    """What a scenario is, as study.json has it."""
    percent = scenario.target.percent
    unit = " %" if percent or (percent is None and scenario.target.metric == "accuracy") else ""
    metric = f"{scenario.target.split} {scenario.target.metric.replace('_', ' ')}"
    return {
        "scenario": scenario.name,
        "title": scenario.title,
        "target": f"{metric} {scenario.target.to_reach:g}{unit}, {scenario.target.worker} of the workers",
        "because": scenario.because,
        "steps": scenario.steps,
        "rates": scenario.rates,
        "tune_seeds": scenario.tune_seeds,
        "seeds": scenario.seeds,
        "needs": scenario.needs,
    }


def rules(scenario: dict[str, Any]) -> dict[str, Any]:
    """What of it decides the numbers: all but its words."""
    return {key: value for key, value in scenario.items() if key not in ("title", "because", "needs")}
