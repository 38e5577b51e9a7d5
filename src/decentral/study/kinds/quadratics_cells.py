"""The cells of studies on random quadratics."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.config.schema import Config
from decentral.jobs.ensembles.members import Member, Rated
from decentral.jobs.ensembles.search import Search
from decentral.jobs.ensembles.simulation import Simulation, Trajectory
from decentral.scheduling.job import Job
from decentral.study.measure import NOT_REACHED
from decentral.study.study import Cell, Curve, Labels, Value, in_steps

if TYPE_CHECKING:
    from decentral.study.kinds.quadratics import CourseRow, CourseStudy

_SUBOPTIMALITY = "suboptimality"


def steps_of(search: Search, zeta2: float, labels: Labels, published: str) -> list[Value]:
    """A value for each member with this zeta2: the steps that its best rate takes; nan where no rate is good enough."""
    if search.finished() is None:
        return []
    tuned, wall_s = search.tuned(), search.wall_s() / len(search.members)
    values = []
    for member in search.members:
        if member.zeta2 == zeta2:
            found = tuned.get(member)
            values.append(
                Value(
                    labels=labels,
                    value=found.step if found else math.nan,
                    metric=f"steps to {search.rule.target:g}",
                    seed=member.seed,
                    lr=found.lr if found else None,
                    at_edge=bool(found and found.at_edge),
                    status="done" if found else NOT_REACHED,
                    published=published,
                    run=search.id,
                    wall_s=wall_s,
                )
            )
    return values


@dataclass
class StepsCell(Cell):
    """The members of a search with one zeta2."""

    labels: Labels
    search: Search
    zeta2: float
    published: str

    def jobs(self) -> list[Job]:
        """The search."""
        return [self.search]

    def values(self) -> list[Value]:
        """One for each seed."""
        return steps_of(self.search, self.zeta2, self.labels, self.published)


@dataclass
class CourseCell(Cell):
    """The curves of one method at one zeta2; first the search for their rates, where they are not given."""

    labels: Labels
    config: Config
    search: Search | None
    row: CourseRow
    study: CourseStudy
    place: int
    """Which zeta2 of the study."""

    @property
    def zeta2(self) -> float:
        """Heterogeneity."""
        return self.study.zeta2[self.place]

    def jobs(self) -> list[Job]:
        """The search, and the simulation as soon as its rates are known."""
        simulation = self.simulation()
        return [job for job in (self.search, simulation) if job is not None]

    def to_come(self) -> list[Job]:
        """The simulation, while the search goes on."""
        searching = self.search is not None and self.search.finished() is None
        return [self._simulation(dict.fromkeys(self.study.seeds, self.config.lr))] if searching else []

    def simulation(self) -> Simulation | None:
        """The job that draws the curves; None as long as no rate is known."""
        rates = self._rates()
        return self._simulation(rates) if rates else None

    def _simulation(self, rates: dict[int, float]) -> Simulation:
        members = tuple(Rated(seed, self.zeta2, lr) for seed, lr in rates.items())
        name = f"{self.row.method}, {self.row.topology}, zeta2 {self.zeta2:g}"
        steps, every = self.study.steps[self.place], self.study.every[self.place]
        return Simulation(self.config, name, members, steps, every, self.row.roots)

    def values(self) -> list[Value]:
        """The suboptimality after the wanted steps (median over the trees), or the tuned steps.

        Not a number for a seed for which no rate was good enough.
        """
        n, last = self.config.num_workers or 0, self.study.steps[self.place]
        if self.study.tuned_steps:
            published = self.study.published(self.row, n, self.zeta2, last)
            return steps_of(self.search, self.zeta2, self.labels, published) if self.search else []
        steps, simulation = self.study.at or [last], self.simulation()
        computed = simulation or self.search  # the search, if it has found no rate for any seed
        if computed is None or any(job.finished() is None for job in self.jobs()):
            return []
        found = simulation.trajectories() if simulation is not None else []
        values = []

        def add(step: int, seed: int, lr: float | None, value: float, status: str) -> None:
            values.append(
                Value(
                    labels=self.labels | ({"after_steps": step} if self.study.at else {}),
                    value=value if math.isfinite(value) else math.nan,
                    metric=_SUBOPTIMALITY,
                    seed=seed,
                    lr=lr,
                    status=status,
                    published=self.study.published(self.row, n, self.zeta2, step),
                    run=computed.id,
                    wall_s=computed.wall_s() / len(self.study.seeds) / len(steps),
                )
            )

        members = {member.seed: member for member in simulation.members} if simulation is not None else {}
        for seed in self.study.seeds:
            member = members.get(seed)
            own = [dict(zip(c.steps, c.errors, strict=True)) for c in found if c.member == member]
            for step in steps:
                if member is None:
                    add(step, seed, None, math.nan, NOT_REACHED)
                else:
                    value = statistics.median(errors[step] for errors in own)
                    add(step, seed, member.lr, value, "done" if math.isfinite(value) else "diverged")
        return values

    def curves(self) -> list[Curve]:
        """The suboptimality of the averaged model; a curve for each tree."""
        simulation = self.simulation()
        if simulation is None or simulation.finished() is None:
            return []
        kept = self.study.seeds[: self.study.curve_seeds or None]
        return [self._curve(one) for one in simulation.trajectories() if one.member.seed in kept]

    def _curve(self, one: Trajectory) -> Curve:
        labels = self.labels if one.root is None else self.labels | {"root": one.root}
        points = in_steps(zip(one.steps, one.errors, strict=True))
        return Curve(labels, _SUBOPTIMALITY, "averaged", one.member.seed, points)

    def _rates(self) -> dict[int, float]:
        """Seed -> rate of the curve."""
        if self.search is None:
            assert self.row.lr is not None
            return {seed: self.row.lr for seed in self.study.seeds}
        if self.search.finished() is None:
            return {}
        limit = math.inf if self.row.rate_limit is None else self.row.rate_limit
        tuned = self.search.tuned()
        searched = self.study.searched(self.config)
        own = {seed: seed if seed in searched else searched[0] for seed in self.study.seeds}
        found = {seed: tuned.get(Member(other, self.zeta2)) for seed, other in own.items()}
        return {seed: min(each.lr * self.row.rate_factor, limit) for seed, each in found.items() if each}
