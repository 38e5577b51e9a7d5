"""Random quadratics: curves of tuned methods."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from decentral.config.composition import compose_all
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.measurements.measurement import without_seed_and_rate
from decentral.measurements.quadratics.rules import Member, Rated
from decentral.measurements.search import Search, Simulation, check_ensemble
from decentral.measurements.values import NOT_REACHED, Curve, Labels, Meaning, Value, in_steps
from decentral.published import key as published_key
from decentral.scheduling.job import Job
from decentral.study.study import Cell, Row, Study

_SUBOPTIMALITY = "suboptimality"


@dataclass
class CourseRow(Row):
    """A method whose curve is drawn.

    search              settings of its search that differ from the study's: {rule: plateau, start_lr: 100}
    setting             how the setting of its published numbers is written, where it is not as in the study
    lr                  its rate; null: what its search finds, times rate_factor, but at most rate_limit
    run                 overrides of the curve's run that its search does not have: noise, other weights
    roots               so many spanning trees, one curve each; the value is their median (topology=spanning_tree)
    """

    search: dict[str, Any] = field(default_factory=dict)
    setting: str = ""
    lr: float | None = None
    rate_factor: float = 1.0
    rate_limit: float | None = None
    run: list[str] = field(default_factory=list)
    roots: int = 0


@dataclass
class Courses(Study):
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
        return super().decided_keys() | Search.decides

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row; the cells of a row share their search."""
        if not len(self.zeta2) == len(self.steps) == len(self.every):
            raise ConfigError("zeta2, steps and every need the same number of values, one for each panel.")
        commands = [[*self.base, *row.base, *run, *overrides] for row in self.rows for run in ([], row.run)]
        configs = [without_seed_and_rate(config) for config in compose_all(commands, config_dir)]
        cells: list[Cell] = []
        for row, before, config in zip(self.rows, configs[::2], configs[1::2], strict=True):
            check_ensemble(before)
            check_ensemble(config)
            seeds = self.seeds if config.task.problem_seed is None else self.seeds[:1]  # with problems of their own
            search = None
            if row.lr is None:
                labels: Labels = {"method": row.method, "topology": row.topology, "tuning": ""}
                search = Search(before, labels, seeds=seeds, zeta2=self.zeta2, search=self.search | row.search)
            cells += [
                CourseCell(self._labels(row, config, at), config, search, row, self, at)
                for at in range(len(self.zeta2))
            ]
        return cells

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


@dataclass
class CourseCell(Cell):
    """The curves of one method at one zeta2; first the search for their rates, where they are not given."""

    labels: Labels
    config: Config
    search: Search | None
    row: CourseRow
    study: Courses
    place: int
    """Which zeta2 of the study."""

    def jobs(self) -> list[Job]:
        """The search, and the simulation as soon as its rates are known."""
        simulation = self.simulation()
        return [job for job in (self.search, simulation) if job is not None]

    def simulation(self) -> Simulation | None:
        """The job that draws the curves; None as long as no rate is known."""
        members = [Rated(seed, self.study.zeta2[self.place], lr) for seed, lr in self._rates().items()]
        if not members:
            return None
        steps, every = self.study.steps[self.place], self.study.every[self.place]
        return Simulation(self.config, self.labels, members, steps, every, self.row.roots)

    def _rates(self) -> dict[int, float]:
        """Seed -> rate of the curve."""
        if self.search is None:
            assert self.row.lr is not None
            return {seed: self.row.lr for seed in self.study.seeds}
        if self.search.finished() is None:
            return {}
        limit = math.inf if self.row.rate_limit is None else self.row.rate_limit
        tuned, searched = self.search.tuned(), self.search.seeds
        own = {seed: seed if seed in searched else searched[0] for seed in self.study.seeds}
        found = {seed: tuned.get(Member(other, self.study.zeta2[self.place])) for seed, other in own.items()}
        return {seed: min(each.lr * self.row.rate_factor, limit) for seed, each in found.items() if each}

    def values(self) -> list[Value]:
        """The suboptimality after the wanted steps (median over the trees), or the tuned steps.

        Not a number for a seed for which no rate was good enough.
        """
        computed: Search | Simulation | None = self.search
        if not self.study.tuned_steps:
            computed = self.simulation() or self.search  # the search, if no rate is known for any seed
        if computed is None or computed.finished() is None:
            return []
        if isinstance(computed, Search) and self.study.tuned_steps:
            found, shares = list(computed.values(self.labels)), len(computed.members)
        else:
            found = list(self._found(computed if isinstance(computed, Simulation) else None))
            shares = len(found)
        values = []
        for value in found:
            step = value.labels.get("after_steps") or self.study.steps[self.place]
            known = {"n": self.config.num_workers, "zeta2": self.study.zeta2[self.place], "step": step}
            published = published_key(self.row.published, self.row.setting or self.study.setting, **known)
            values.append(value._replace(published=published, run=computed.id, wall_s=computed.wall_s() / shares))
        return values

    def meanings(self) -> dict[str, Meaning]:
        """Those of the search."""
        return {} if self.search is None else self.search.meanings

    def _found(self, simulation: Simulation | None) -> Iterator[Value]:
        steps = self.study.at or [self.study.steps[self.place]]
        members = {member.seed: member for member in simulation.members} if simulation is not None else {}
        courses = simulation.trajectories() if simulation is not None else []
        for seed in self.study.seeds:
            own = [dict(zip(one.steps, one.errors, strict=True)) for one in courses if one.member.seed == seed]
            for step in steps:
                labels = self.labels | ({"after_steps": step} if self.study.at else {})
                if seed not in members:
                    yield Value(labels, math.nan, _SUBOPTIMALITY, seed, status=NOT_REACHED)
                    continue
                value = statistics.median(errors[step] for errors in own)
                finite = math.isfinite(value)
                status = "done" if finite else "diverged"
                yield Value(
                    labels, value if finite else math.nan, _SUBOPTIMALITY, seed, members[seed].lr, status=status
                )

    def curves(self) -> list[Curve]:
        """The suboptimality of the averaged model; a curve for each tree."""
        simulation = self.simulation()
        if simulation is None or simulation.finished() is None:
            return []
        kept = self.study.seeds[: self.study.curve_seeds or None]
        curves = []
        for one in simulation.trajectories():
            if one.member.seed in kept:
                labels = self.labels if one.root is None else self.labels | {"root": one.root}
                points = in_steps(zip(one.steps, one.errors, strict=True))
                curves.append(Curve(labels, _SUBOPTIMALITY, "averaged", one.member.seed, points))
        return curves
