"""Random quadratics: steps of a method with its best learning rate, and its curves at given rates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from decentral.config.parsing import build
from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest
from decentral.measurements.measurement import Computation, Measurement, Show, Stop, check_losses
from decentral.measurements.values import NOT_REACHED, Labels, Meaning, Row, Value, curve
from decentral.plugins.papers.quadratics.rules import RULES, Member, Outcome, Rated, Rule, Trial, Tuning
from decentral.scheduling.job import Job
from decentral.store.metrics import LineFile
from decentral.tasks.convex import Quadratics

SUBOPTIMALITY = "suboptimality"
_USUAL_TRIALS = 21  # of one member, to show how far the search is


class Tuned(NamedTuple):
    """The result of a search for one member."""

    lr: float
    step: int
    """Steps to the target (fastest), or until the plateau is seen (plateau)."""
    at_edge: bool
    """True if it is the largest rate tried."""


@dataclass
class Search(Measurement):
    """Steps to a target with the best constant learning rate of each problem; all problems are searched simultaneously.

    Every trial is written as a line when it ends.

    seeds   seeds of the random problems; each is tuned separately
    zeta2   heterogeneity 1/n sum_i ||grad f_i(x*)||^2
    search  rule for the learning rate: {rule: fastest, start_lr: 10, target: 1e-6, max_steps: 20000}
    """

    name: str = "search"
    seeds: list[int] = field(default_factory=list)
    zeta2: list[float] = field(default_factory=list)
    search: dict[str, Any] = field(default_factory=dict)

    folder: ClassVar[str] = "searches"
    decides: ClassVar[frozenset[str]] = frozenset({"lr", "task.zeta2", "task.problem", "task.problem_seed"})

    def __post_init__(self) -> None:
        name = self.search.get("rule", "fastest")
        if name not in RULES:
            raise ConfigError(f"search.rule={name} does not exist.{suggest(str(name), RULES)}")
        settings = {key: value for key, value in self.search.items() if key != "rule"}
        self.rule: Rule = build(RULES[name], settings, "search")
        self._answers: dict[Member, Tuned] | None = None

    def check(self) -> None:
        """Check that the configuration is an ensemble."""
        check_ensemble(self.config)

    @property
    def members(self) -> list[Member]:
        """Return the problems."""
        return [Member(seed, zeta2) for zeta2 in self.zeta2 for seed in self.seeds]

    def parameters(self) -> dict[str, Any]:
        """Return members and rule."""
        return {"members": [list(member) for member in self.members], **self.rule.parameters()}

    def work(self, lines: LineFile, stop: Stop, show: Show) -> bool:
        """Continue the search after the known trials."""
        from decentral.plugins.papers.quadratics.ensemble import draw, tune

        members, tunings = self.members, self._tunings(lines.known)

        def record(member: Member, trial: Trial) -> None:
            lines.append(member._asdict() | trial._asdict())
            tried = sum(len(tuning.known) for tuning in tunings)
            show(min(0.99, tried / (_USUAL_TRIALS * len(members))), f"{tried} trials")

        return tune(self.config, draw(self.config, members), members, tunings, record, stop)

    def _tunings(self, lines: Iterable[dict[str, Any]]) -> list[Tuning]:
        """Return the search of each member after the known trials."""
        known: dict[Member, dict[float, Trial]] = {member: {} for member in self.members}
        for line in lines:
            trial = Trial(line["lr"], Outcome(line["outcome"]), line["step"], line["error"])
            known[Member(line["seed"], line["zeta2"])][trial.lr] = trial
        return [Tuning(self.rule, known[member]) for member in self.members]

    def tuned(self) -> dict[Member, Tuned]:
        """Return the results of a finished search; a member is missing if no rate reached its target. Raises
        ConfigError if trials are missing."""
        if self._answers is not None:
            return self._answers
        tuned = {}
        for member, tuning in zip(self.members, self._tunings(self.found()), strict=True):
            if tuning.proposal is not None:
                raise ConfigError(
                    f"{self.directory / self.lines} has lost trials: delete the folder {self.directory} and rerun the "
                    "command."
                )
            if tuning.best is not None:
                lr = tuning.best.lr
                tuned[member] = Tuned(lr, tuning.best.step, lr >= max(tuning.known))
        self._answers = tuned
        return tuned

    def cells(self) -> list[Labels]:
        """Return a cell for each zeta2."""
        return [self.labels | {"zeta2": zeta2} for zeta2 in self.zeta2]

    @property
    def metric(self) -> str:
        """Return the metric of its values."""
        return f"steps to {self.rule.target:g}"

    @property
    def meanings(self) -> dict[str, Meaning]:  # type: ignore[override]
        """Return the meanings: fewer steps are better."""
        return {self.metric: Meaning(larger_is_better=False)}

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return the steps with the best rate for each seed; nan if no rate reaches the target."""
        tuned = self.tuned()
        for member in self.members:
            if member.zeta2 != labels["zeta2"]:
                continue
            if member in tuned:
                lr, step, at_edge = tuned[member]
                yield Value(labels, step, self.metric, member.seed, lr, at_edge=at_edge)
            else:
                yield Value(labels, math.nan, self.metric, member.seed, status=NOT_REACHED)


def check_ensemble(config: Config) -> None:
    """Raise ConfigError, with what works, for a configuration that cannot be run as an ensemble."""
    if not isinstance(config.task, Quadratics):
        raise ConfigError(
            f"task={config.task.name} cannot be used, because this study solves many problems in one run: use "
            f"task={Quadratics.name}."
        )
    check_losses(config)
    pieces = config.rounds().num_pieces
    if pieces > 1:
        raise ConfigError(
            f"topology={config.topology.name} splits each model into {pieces} pieces, which an ensemble does not "
            "support: use a topology of one graph, such as bt or chain."
        )


class Trajectory(NamedTuple):
    """f(mean_i x_i) - f(x*) of one member on one graph over time."""

    member: Rated
    root: int | None
    """Root of the spanning tree, if there are several."""
    steps: list[int]
    errors: list[float]


@dataclass
class Simulation(Computation):
    """Trajectories of every member over `steps` steps, evaluated before the first step, after every `every` steps, and
    after the last step.

    With `roots` > 0, this is repeated for each of the spanning trees with the roots 0 ... roots - 1
    (topology=spanning_tree). The lines are written when an ensemble is finished.
    """

    members: Sequence[Rated] = ()
    steps: int = 500
    every: int = 5
    roots: int = 0

    folder: ClassVar[str] = "simulations"

    def parameters(self) -> dict[str, Any]:
        """Return members, steps and roots."""
        settings = {"steps_wanted": self.steps, "every": self.every, "roots": self.roots}
        return {"members": [list(member) for member in self.members], **settings}

    def work(self, lines: LineFile, stop: Stop, show: Show) -> bool:
        """Run one ensemble after the other."""
        known = {(line["root"], Rated(*line["member"])) for line in lines.known}
        roots: list[Any] = list(range(self.roots)) or [None]
        for number, root in enumerate(roots, start=1):
            if all((root, member) in known for member in self.members):
                continue
            trajectories = self._run(root, stop)
            if trajectories is None:
                return False
            lines.append(*({**trajectory._asdict(), "member": list(trajectory.member)} for trajectory in trajectories))
            show(number / len(roots), f"graph {number} of {len(roots)}")
        return True

    def trajectories(self) -> list[Trajectory]:
        """Return the trajectories computed so far, one for every member and tree."""
        known = {}  # a line that was written twice counts once
        for line in self.found():
            member = Rated(*line["member"])
            known[member, line["root"]] = Trajectory(member, line["root"], line["steps"], line["errors"])
        return list(known.values())

    def _run(self, root: int | None, stop: Stop) -> list[Trajectory] | None:
        """Return the trajectories on one graph; None if stopped."""
        from decentral.plugins.papers.quadratics.ensemble import Ensemble, draw
        from decentral.training.method import local_network

        config = self.config
        if root is not None:
            config = replace(config, topology=replace(config.topology, root=root))
        stack = draw(config, [Member(member.seed, member.zeta2) for member in self.members])
        seeds, rates = [member.seed for member in self.members], [member.lr for member in self.members]
        ensemble = Ensemble(config, local_network(config), stack, seeds, rates)
        steps = sorted({*range(0, self.steps, self.every), self.steps})
        errors: list[list[float]] = []
        for step in steps:
            ensemble.advance(step)
            errors.append(ensemble.suboptimality())
            if stop():
                return None
        return [Trajectory(member, root, steps, [row[i] for row in errors]) for i, member in enumerate(self.members)]


@dataclass
class Courses(Measurement):
    """Curves of f(mean x) - f(x*) with given or tuned learning rates, for a few zeta2.

    zeta2       heterogeneity of each panel
    seeds       seeds of problem and noise; with task.problem_seed, of the noise only, and the search of the first seed
                applies to all
    search      rule for the learning rates; without noise unless the base has it
    steps       length of the curves, for each zeta2
    every       steps between two points, for each zeta2
    at          steps whose suboptimality is a value; empty: the last one
    tuned_steps the values are the steps that the search found, not the curve's suboptimality
    vectors     add a label vectors_per_step: number of vectors that all workers together send in a step
    curve_seeds whose curves are kept: those of the first curve_seeds seeds (0: all)
    lr          learning rate; null: that of the search, times rate_factor, but at most rate_limit
    run         overrides of the curve's run that its search does not have: noise, other weights
    roots       number of spanning trees, with one curve each; the value is their median (topology=spanning_tree)
    """

    name: str = "courses"
    zeta2: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    search: dict[str, Any] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    every: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    tuned_steps: bool = False
    vectors: bool = False
    curve_seeds: int = 0
    lr: float | None = None
    rate_factor: float = 1.0
    rate_limit: float | None = None
    run: list[str] = field(default_factory=list)
    roots: int = 0
    drawn: Config = field(default=None, metadata={"inner": True})  # type: ignore[assignment]
    """Configuration of the curve."""
    rooted: bool = field(default=False, metadata={"inner": True})
    """True if a row of the study has roots: then all rows have the label."""

    folder: ClassVar[str] = "courses"
    decides: ClassVar[frozenset[str]] = Search.decides

    @classmethod
    def variants(cls, base: list[str], settings: dict[str, Any]) -> dict[str, list[str]]:
        """Return the overrides of the curve's run."""
        return {"drawn": [*base, *settings["run"]]}

    def beside(self, column: Sequence[Self]) -> Self:
        """Return the measurement with the knowledge whether other rows have roots."""
        self.rooted = any(row.roots for row in column)
        return self

    def check(self) -> None:
        """Check that search and curve are ensembles, with a number of steps for each zeta2."""
        if not len(self.zeta2) == len(self.steps) == len(self.every):
            raise ConfigError("zeta2, steps and every need the same number of values, one for each panel.")
        check_ensemble(self.config)
        check_ensemble(self.drawn)

    @cached_property
    def searching(self) -> Search | None:
        """Return the search for the rates if they are not given. For several problems, each is searched."""
        if self.lr is not None:
            return None
        seeds = self.seeds if self.drawn.task.problem_seed is None else self.seeds[:1]
        labels = self.labels | {"tuning": ""}
        return Search(self.config, labels, seeds=seeds, zeta2=self.zeta2, search=self.search)

    @cached_property
    def simulations(self) -> list[Simulation]:
        """Return a simulation for each zeta2 with a known rate for some seed; [] before the search has ended."""
        if self.searching is not None and self.searching.finished() is None:
            return []
        simulations = []
        for zeta2, steps, every in zip(self.zeta2, self.steps, self.every, strict=True):
            members = [Rated(seed, zeta2, lr) for seed in self.seeds if (lr := self._rate(seed, zeta2)) is not None]
            labels = self.labels | {"zeta2": zeta2}
            simulations.append(Simulation(self.drawn, labels, members, steps, every, self.roots))
        return simulations

    def _rate(self, seed: int, zeta2: float) -> float | None:
        """Return the rate of a curve; None if the search has found none."""
        if self.searching is None:
            return self.lr
        searched = self.searching.seeds
        tuned = self.searching.tuned().get(Member(seed if seed in searched else searched[0], zeta2))
        if tuned is None:
            return None
        rate = tuned.lr * self.rate_factor
        return rate if self.rate_limit is None else min(rate, self.rate_limit)

    def jobs(self) -> list[Job]:
        """Return the search, and the simulations once their rates are known."""
        if not self.simulations:
            del self.simulations  # look again
        search = [] if self.searching is None else [self.searching]
        return [*search, *(simulation for simulation in self.simulations if simulation.members)]

    def cells(self) -> list[Labels]:
        """Return a cell for each zeta2."""
        more: Labels = {"after_steps": ""} if self.at else {}
        if self.rooted:
            more["root"] = ""
        if self.vectors:
            more["vectors_per_step"] = len(self.drawn.rounds().mixing(0)[0]) - self.n
        return [self.labels | {"zeta2": zeta2} | more for zeta2 in self.zeta2]

    @property
    def meanings(self) -> dict[str, Meaning]:  # type: ignore[override]
        """Return the meanings of the search."""
        return {} if self.searching is None else self.searching.meanings

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return the suboptimality after the requested steps (median over the trees), or the tuned steps.

        The value is nan for a seed for which no rate reached the target.
        """
        if self.tuned_steps and self.searching is not None:
            yield from self.searching.values(labels)
            return
        simulation = self._at(labels)
        rates = {member.seed: member.lr for member in simulation.members}
        courses = simulation.trajectories()
        for seed in self.seeds:
            by_step = [
                dict(zip(trajectory.steps, trajectory.errors, strict=True))
                for trajectory in courses
                if trajectory.member.seed == seed
            ]
            for step in self.at or [simulation.steps]:
                value = statistics.median(errors[step] for errors in by_step) if by_step else math.nan
                status = "done" if math.isfinite(value) else "diverged" if by_step else NOT_REACHED
                value = value if math.isfinite(value) else math.nan
                at_step = labels | ({"after_steps": step} if self.at else {})
                yield Value(at_step, value, SUBOPTIMALITY, seed, rates.get(seed), status=status, run=simulation.id)

    def curves(self, labels: Labels) -> Iterator[Row]:
        """Return the suboptimality of the averaged model; a curve for each tree."""
        for trajectory in self._at(labels).trajectories():
            if trajectory.member.seed in self.seeds[: self.curve_seeds or None]:
                tree_labels = labels if trajectory.root is None else labels | {"root": trajectory.root}
                points = zip(trajectory.steps, trajectory.errors, strict=True)
                yield from curve(tree_labels, SUBOPTIMALITY, trajectory.member.seed, points, "averaged")

    def _at(self, labels: Labels) -> Simulation:
        return next(one for one in self.simulations if one.labels["zeta2"] == labels["zeta2"])
