"""The methods and the scenarios of the benchmark: conf/benchmark/, and benchmark/ in a folder of one's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decentral.config.composition import conf_directory
from decentral.config.parsing import build
from decentral.errors import ConfigError, suggest
from decentral.registry import components, own
from decentral.settings import Settings, setting
from decentral.study.catalogue import read_mapping
from decentral.study.measure import Measure


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
    if own.folder() is None or not mine:
        theirs = []
    algorithms = components("algorithms")
    found = []
    for name in dict.fromkeys([*(known if names is None else names), *theirs]):
        if name not in known and name not in algorithms:
            raise ConfigError(f"methods=[{name}] does not exist.{suggest(name, {*known, *algorithms})}")
        values = known.get(name) or {"title": name, "base": [f"algo={name}"]}
        found.append(_built(Method, name, values))
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
        found.append(_built(Scenario, name, read_mapping(files[name])))
    return found


def _files() -> dict[str, Path]:
    return {path.stem: path for folder in _folders() for path in sorted((folder / "scenario").glob("*.yaml"))}


def _built(cls: type, name: str, values: Any) -> Any:
    return build(
        cls, {"name": name, **values} if isinstance(values, dict) else values, f"{cls.__name__.lower()} {name}"
    )


def _folders() -> list[Path]:
    mine = own.folder()
    return [conf_directory() / "benchmark", *([mine / "benchmark"] if mine is not None else [])]
