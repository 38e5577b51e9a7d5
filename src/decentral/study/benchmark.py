"""The methods and the scenarios of the benchmark: conf/benchmark/, and benchmark/ in a folder of one's own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from decentral.config.composition import conf_directory
from decentral.config.own_files import read_yaml
from decentral.config.parsing import build
from decentral.errors import ConfigError, suggest
from decentral.registry import components, own
from decentral.study.measure import Measure


@dataclass
class Method:
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
    times: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.times < float("inf"):
            raise ConfigError(f"method {self.name}: times={self.times:g} has to be above 0.")


@dataclass
class Scenario:
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
        return _scenario(self.name, {**_values(self), **self.smoke, "base": [*self.base, *self.smoke.get("base", [])]})


def methods(names: list[str] | None = None, mine: bool = True) -> list[Method]:
    """The methods with these names (None: all that have a line), then, unless `mine` is false, those that have a line
    in one's own folder.

    An algorithm without a line, such as one of one's own, is a method with its defaults and its usual topology. Raises
    ConfigError for a name that is neither, and for a line that is not right.
    """
    known: dict[str, dict[str, Any]] = {}
    theirs: list[str] = []
    for folder in _folders():
        file = folder / "methods.yaml"
        theirs = []
        for name, values in _read(file).items():
            if name in known:
                raise ConfigError(f"{file}: {name} is the name of one of ours: give it another one.")
            known[name] = _mapping(values, f"{file}: {name}")
            theirs.append(name)
    if own.folder() is None or not mine:
        theirs = []
    algorithms = components("algorithms")
    found = []
    for name in dict.fromkeys([*(known if names is None else names), *theirs]):
        if name not in known and name not in algorithms:
            raise ConfigError(f"methods=[{name}] does not exist.{suggest(name, {*known, *algorithms})}")
        values = known.get(name) or {"title": name, "base": [f"algo={name}"]}
        found.append(build(Method, {"name": name, **values}, f"method {name}"))
    return found


def scenario_names() -> list[str]:
    """The scenarios that there are, ours and one's own."""
    return sorted(_files())


def scenarios(names: list[str]) -> list[Scenario]:
    """The scenarios with these names, then those in one's own folder. Raises ConfigError for one that does not exist,
    or whose file is wrong."""
    files, mine = _files(), own.folder()
    theirs = [name for name, path in files.items() if mine is not None and mine in path.parents]
    found = []
    for name in dict.fromkeys([*names, *theirs]):
        if name not in files:
            raise ConfigError(f"scenarios=[{name}] does not exist.{suggest(name, files)}")
        found.append(_scenario(name, _read(files[name])))
    return found


def _files() -> dict[str, Path]:
    return {path.stem: path for folder in _folders() for path in sorted((folder / "scenario").glob("*.yaml"))}


def _scenario(name: str, values: dict[str, Any]) -> Scenario:
    scenario: Scenario = build(Scenario, {"name": name, **values}, f"scenario {name}")
    return scenario


def _values(scenario: Scenario) -> dict[str, Any]:
    return {key: value for key, value in asdict(scenario).items() if key != "smoke"}


def _folders() -> list[Path]:
    mine = own.folder()
    return [conf_directory() / "benchmark", *([mine / "benchmark"] if mine is not None else [])]


def _read(file: Path) -> dict[str, Any]:
    return _parsed(file, file.stat().st_mtime_ns) if file.exists() else {}


@cache
def _parsed(file: Path, changed: int) -> dict[str, Any]:
    return _mapping(read_yaml(file), str(file))


def _mapping(values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(f"{where} has to hold keys and values.")
    return values
