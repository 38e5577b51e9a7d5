"""Methods and scenarios of decentral-benchmark: conf/benchmark/, and benchmark/ in a user's folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from decentral.config.parsing import build, read_mapping
from decentral.errors import ConfigError, suggest
from decentral.registry import components, plugins
from decentral.settings import Settings, setting
from decentral.study.measure import Measure


@dataclass
class Method(Settings):
    """An entry of methods.yaml: an algorithm, its non-default settings, and the settings to search.

    title   name in tables and figures
    base    overrides of its runs, after those of the scenario
    search  key -> its choices as a list, the authors' own first, or {low: ..., high: ...} for a number on a logarithmic
            scale; a choice may set several keys: compress: [int8, topk compress.keep=0.01]. optim.* applies only where
            the scenario's local rule is plain SGD, and optim only where the scenario has sgd_rates. {}: only the
            learning rate is tuned
    times   factor of the scenario's learning rates: 0.1 where momentum accumulates ten steps
    """

    name: str
    title: str
    base: list[str]
    search: dict[str, Any] = field(default_factory=dict)
    times: float = setting(1.0, above=0)

    def __post_init__(self) -> None:
        for key, space in self.search.items():
            where = f"method {self.name}: search.{key}={space}"
            if isinstance(space, dict):
                if set(space) != {"low", "high"} or not 0 < space["low"] < space["high"]:
                    raise ConfigError(f"{where} must be a list, or {{low: ..., high: ...}} with 0 < low < high.")
            elif not isinstance(space, list) or not space:
                raise ConfigError(f"{where} must be a list of choices, or {{low: ..., high: ...}}.")

    @property
    def searched(self) -> str:
        """Return what is searched, as text: 'topology: ring, base_graph; algo.gamma: 0.1 to 1'; '' if nothing is."""
        return "; ".join(
            f"{key}: {' to '.join(map(str, space.values())) if isinstance(space, dict) else ', '.join(map(str, space))}"
            for key, space in self.search.items()
        )


@dataclass
class Scenario(Settings):
    """A file in scenario/: a task, the clusters that time it, the target, and the budget.

    title         description in one line
    base          overrides of its runs: task, data, model, number of workers
    clocks        clusters (`cluster=`); each makes a separate problem, and together they weigh as one
    messages      number of parameters of the model whose messages are timed (cluster.num_parameters)
    steps         budget: gradients per worker (on average for asynchronous methods)
    target        target: {metric: ..., worker: ...}, with to_reach where exactness is the target
    margin        distance of the target from the tuned baseline's value at the end, in the unit of the metric
    because       reason for this target
    rates         [low, high]: range of learning rates to search, for SGD without momentum or the scenario's own rule
    sgd_rates     if the local rule is not SGD: the range for trials with optim=sgd. Without it, `optim` is not
                  searched
    variants      name -> overrides: held-out variants, run once with the chosen settings
    tune_seed     seed of the trials, used for nothing else
    seeds         seeds of the final runs with the best trial
    needs         requirements that are not bundled; '' if none
    smoke         overrides at scale=smoke
    """

    name: str
    title: str
    base: list[str]
    clocks: list[str]
    steps: int
    target: Measure
    because: str
    rates: list[float]
    sgd_rates: list[float] = field(default_factory=list)
    messages: int = 25_559_081
    margin: float = setting(0.0, at_least=0)
    variants: dict[str, list[str]] = field(default_factory=dict)
    tune_seed: int = 1000
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 5])
    needs: str = ""
    smoke: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"scenario {self.name}"
        if (self.target.to_reach is None) == (self.margin == 0):
            raise ConfigError(f"{where}: give either margin > 0 or target.to_reach.")
        if self.target.larger_is_better is None and self.target.metric != "accuracy":
            raise ConfigError(f"{where}: give target.larger_is_better, true or false, for metric={self.target.metric}.")
        for key, rates in {"rates": self.rates, **({"sgd_rates": self.sgd_rates} if self.sgd_rates else {})}.items():
            if len(rates) != 2 or not 0 < rates[0] <= rates[1]:
                raise ConfigError(f"{where}: {key}={rates} must be [low, high] with 0 < low <= high.")
        if self.steps < 1 or not self.seeds or not self.clocks:
            raise ConfigError(f"{where}: give at least one step, one seed and one clock.")
        if self.tune_seed in self.seeds:
            raise ConfigError(f"{where}: tune_seed={self.tune_seed} is one of seeds={self.seeds}: use another seed.")

    @property
    def reduced(self) -> Scenario:
        """Return the scenario at scale=smoke: `base` is extended, all other values are replaced."""
        changes = {**self.smoke, "base": [*self.base, *self.smoke.get("base", [])], "smoke": {}}
        reduced: Scenario = _built(Scenario, self.name, {**vars(self), **changes})
        return reduced

    @property
    def is_tested(self) -> bool:
        """Return whether there are test examples: trials use one half, the runs that count use the other."""
        return self.target.split == "test"


class Trial(NamedTuple):
    """One choice of the searched settings."""

    overrides: list[str]
    lr: float

    @property
    def setting(self) -> str:
        """Return the choice as overrides of decentral-run."""
        return " ".join([*self.overrides, f"lr={self.lr:g}"])


def trials(method: Method, scenario: Scenario, count: int) -> list[Trial]:
    """Return the first `count` trials of a sequence that does not depend on results.

    It begins with the first choices and the middle of each range. The second and further points of a Halton sequence
    (Numerische Mathematik 2, 1960) in the unit cube of the searched settings follow. The first trial has the middle
    learning rate, too.

    The learning rate is the first coordinate, on a logarithmic scale; with heavy-ball momentum m it is scaled by 1 - m,
    since 1 / (1 - m) steps then act as one.
    """
    from scipy.stats import qmc

    sgd = "optim=sgd" in scenario.base
    left_out = [] if scenario.sgd_rates else ["optim"]
    left_out += [] if sgd else [key for key in method.search if key.startswith("optim.")]
    search = {key: space for key, space in method.search.items() if key not in left_out}
    first = [0.5, *(0.5 if isinstance(space, dict) else 0.0 for space in search.values())]
    points = [first, *qmc.Halton(len(first), scramble=False).random(count + 1)[2:].tolist()]
    chosen = []
    for u, *others in points:
        values = {key: _at(v, space) for v, (key, space) in zip(others, search.items(), strict=True)}
        low, high = scenario.sgd_rates if values.get("optim") == "sgd" else scenario.rates
        lr = low * (high / low) ** u * method.times * (1 - float(values.get("optim.momentum", 0)))
        words = " ".join(f"{key}={value}" for key, value in values.items())
        chosen.append(Trial(words.split(), float(f"{lr:.3g}")))
    return chosen


def _at(u: float, space: Any) -> Any:
    """Return the value at u in [0, 1)."""
    if isinstance(space, dict):
        return float(f"{space['low'] * (space['high'] / space['low']) ** u:.3g}")
    return space[math.floor(u * len(space))]


def methods(names: list[str] | None = None, mine: bool = True) -> list[Method]:
    """Return the methods with these names (None: all listed ones), then, unless `mine` is false, those listed in the
    user's folder.

    An unlisted algorithm, such as a user's, is a method with its defaults and its usual topology. Raises ConfigError
    for an unknown name and for an invalid line.
    """
    known: dict[str, Any] = {}
    theirs: list[str] = []
    for folder in _folders():
        file = folder / "methods.yaml"
        theirs = list(read_mapping(file)) if file.exists() else []
        if twice := known.keys() & set(theirs):
            raise ConfigError(f"{file}: {min(twice)} is the name of a built-in entry: rename it.")
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
    """Return the scenarios with these names, then those in the user's folder. Raises ConfigError for an unknown name or
    an invalid file."""
    files = {path.stem: path for folder in _folders() for path in sorted((folder / "scenario").glob("*.yaml"))}
    mine = plugins.folder()
    theirs = [name for name, path in files.items() if mine is not None and mine in path.parents]
    known = []
    for name in dict.fromkeys([*names, *theirs]):
        if name not in files:
            raise ConfigError(f"scenarios=[{name}] does not exist.{suggest(name, files)}")
        known.append(_built(Scenario, name, read_mapping(files[name])))
    return known


def _built(cls: type, name: str, values: Any) -> Any:
    known = {"name": name, **values} if isinstance(values, dict) else values
    return build(cls, known, f"{cls.__name__.lower()} {name}")


def _folders() -> list[Path]:
    mine = plugins.folder()
    return [Path(__file__).parent / "conf" / "benchmark", *([mine / "benchmark"] if mine is not None else [])]
