"""Random quadratics: how many steps a tuned method takes, and its curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from decentral.config.composition import compose_all
from decentral.config.parsing import build
from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest
from decentral.jobs.computation import without_seed_and_rate
from decentral.jobs.ensembles.members import Member, check
from decentral.jobs.ensembles.rules import RULES, Rule
from decentral.jobs.ensembles.search import Search
from decentral.published import key as published_key
from decentral.study.kinds.quadratics_cells import CourseCell, StepsCell
from decentral.study.rows import Row
from decentral.study.study import Cell, Labels, Study

_DECIDED = {"lr", "task.zeta2", "task.problem", "task.problem_seed"}


@dataclass
class QuadraticsRow(Row):
    """A method.

    search              settings of its search that differ from the study's: {rule: plateau, start_lr: 100}
    setting             how the setting of its published numbers is written, where it is not as in the study
    num_workers         if they are not the study's
    """

    search: dict[str, Any] = field(default_factory=dict)
    setting: str = ""
    num_workers: list[int] = field(default_factory=list)


@dataclass
class CourseRow(QuadraticsRow):
    """A method whose curve is drawn.

    lr                  its rate; null: what its search finds, times rate_factor, but at most rate_limit
    run                 overrides of the curve's run that its search does not have: noise, other weights
    roots               so many spanning trees, one curve each; the value is their median (topology=spanning_tree)
    """

    lr: float | None = None
    rate_factor: float = 1.0
    rate_limit: float | None = None
    run: list[str] = field(default_factory=list)
    roots: int = 0


@dataclass
class SearchStudy(Study):
    """Steps to a target with the best constant learning rate of each problem, over numbers of workers and zeta2.

    search      the rule for the learning rate: {rule: fastest, start_lr: 10, target: 1e-6, max_steps: 20000}
    seeds       of the random problems; each is tuned on its own
    setting     how the published table writes a cell: 'workers={n} zeta2={zeta2:g}'
    """

    name: str = "search"
    rows: list[QuadraticsRow] = field(default_factory=list)
    num_workers: list[int] = field(default_factory=list)
    zeta2: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    search: dict[str, Any] = field(default_factory=dict)
    setting: str = ""

    def decided_keys(self) -> set[str]:
        """Also what tells the members of a search apart, their rates, and the numbers of workers."""
        return super().decided_keys() | _DECIDED | {"num_workers"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row; the cells of a row with the same number of workers share their search."""
        points = [(row, n) for row in self.rows for n in row.num_workers or self.num_workers]
        commands = [[*self.base, *row.base, f"num_workers={n}", *overrides] for row, n in points]
        members = tuple(Member(seed, zeta2) for zeta2 in self.zeta2 for seed in self.seeds)
        cells: list[Cell] = []
        for (row, n), config in zip(points, _checked(commands, config_dir), strict=True):
            name = f"{row.method}, {row.topology}, n {n}"
            search = Search(config, name, members, rule({**self.search, **row.search}))
            for zeta2 in self.zeta2:
                labels: Labels = {"method": row.method, "topology": row.topology, "num_workers": n, "zeta2": zeta2}
                cells.append(StepsCell(labels, search, zeta2, _key(row, self.setting, n=n, zeta2=zeta2)))
        return cells


@dataclass
class CourseStudy(Study):
    """Curves of f(mean x) - f(x*) with given or tuned learning rates, for a few zeta2.

    search      the rule for the rates; without noise unless the base has it
    steps       of the curves, for each zeta2
    every       how often to look, for each zeta2
    at          the steps whose suboptimality is a value; empty: the last one
    tuned_steps the values are the steps that the search found, not the curve's suboptimality
    vectors     add a label vectors_per_step: how many vectors all workers together send in a step
    setting     how the published table writes a value: with {n}, {zeta2} and {step}
    seeds       of problem and noise; with task.problem_seed of the noise only, and the first seed's search is for all
    curve_seeds whose curves are kept: those of the first so many seeds (0: all)
    """

    name: str = "courses"
    rows: list[CourseRow] = field(default_factory=list)
    zeta2: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    search: dict[str, Any] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    every: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    tuned_steps: bool = False
    vectors: bool = False
    setting: str = ""
    curve_seeds: int = 0

    def decided_keys(self) -> set[str]:
        """Also what tells the members of a search apart, and their rates."""
        return super().decided_keys() | _DECIDED

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row; the cells of a row share their search."""
        if not len(self.zeta2) == len(self.steps) == len(self.every):
            raise ConfigError("zeta2, steps and every need the same number of values, one for each panel.")
        commands = [[*self.base, *row.base, *run, *overrides] for row in self.rows for run in ([], row.run)]
        configs = _checked(commands, config_dir)
        cells: list[Cell] = []
        for row, before, config in zip(self.rows, configs[::2], configs[1::2], strict=True):
            title = f"{row.method}, {row.topology}"
            search = None
            if row.lr is None:
                members = tuple(Member(seed, zeta2) for zeta2 in self.zeta2 for seed in self.searched(before))
                search = Search(before, f"{title}, tuning", members, rule({**self.search, **row.search}))
            for place in range(len(self.zeta2)):
                cells.append(CourseCell(self._labels(row, config, place), config, search, row, self, place))
        return cells

    def searched(self, config: Config) -> list[int]:
        """The seeds whose rates are searched: those with problems of their own."""
        return self.seeds if config.task.problem_seed is None else self.seeds[:1]

    def published(self, row: CourseRow, n: int, zeta2: float, step: int) -> str:
        """The key of a value's published number."""
        return _key(row, self.setting, n=n, zeta2=zeta2, step=step)

    def _labels(self, row: CourseRow, config: Config, place: int) -> Labels:
        labels: Labels = {"method": row.method, "topology": row.topology, "zeta2": self.zeta2[place]}
        if self.at:
            labels["after_steps"] = ""
        if any(other.roots for other in self.rows):
            labels["root"] = ""
        if self.vectors:
            assert config.num_workers is not None
            labels["vectors_per_step"] = len(config.rounds().mixing(0)[0]) - config.num_workers
        return labels


def rule(settings: dict[str, Any]) -> Rule:
    """The rule for learning rates that a study's `search` describes. Raises ConfigError."""
    name = settings.get("rule", "fastest")
    if name not in RULES:
        raise ConfigError(f"search.rule={name} does not exist.{suggest(str(name), RULES)}")
    return build(RULES[name], {key: value for key, value in settings.items() if key != "rule"}, "search")


def _checked(commands: list[list[str]], config_dir: str | None) -> list[Config]:
    configs = compose_all(commands, config_dir)
    for config in configs:
        check(config)
    return [without_seed_and_rate(config) for config in configs]


def _key(row: QuadraticsRow, setting: str, **values: Any) -> str:
    return published_key(row.published, row.setting or setting, **values)
