"""Curves of an ensemble at given learning rates: a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from decentral.config.schema import Config
from decentral.jobs.computation import Computation
from decentral.jobs.ensembles.members import Member, Rated
from decentral.store.lines import LineFile


class Trajectory(NamedTuple):
    """f(mean_i x_i) - f(x*) of one member on one graph over time."""

    member: Rated
    root: int | None
    """The root of the spanning tree, where there are several."""
    steps: list[int]
    errors: list[float]


@dataclass(frozen=True)
class Simulation(Computation):
    """Run every member for `steps` steps and look at it after every `every` steps, before the first and after the last.

    With `roots` > 0, once for each of the spanning trees with the roots 0 ... roots - 1 (topology=spanning_tree). The
    lines of courses.jsonl are written as soon as an ensemble is through.
    """

    members: tuple[Rated, ...] = ()
    steps: int = 500
    every: int = 5
    roots: int = 0

    folder: ClassVar[str] = "simulations"
    lines: ClassVar[str] = "courses.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Members, steps and roots."""
        own = {"steps_wanted": self.steps, "every": self.every, "roots": self.roots}
        return {"members": [list(member) for member in self.members], **own}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """One ensemble after the other."""
        known = {(line["root"], Rated(*line["member"])) for line in lines.known}
        for number, (root, config) in enumerate(self._ensembles()):
            if all((root, member) in known for member in self.members):
                continue
            found = self._run(root, config, stop)
            if found is None:
                return False
            lines.append(*({**one._asdict(), "member": list(one.member)} for one in found))
            show((number + 1) / max(1, self.roots), f"graph {number + 1} of {max(1, self.roots)}")
        return True

    def trajectories(self) -> list[Trajectory]:
        """Those computed so far, for every member and tree one."""
        found = {}  # a line that was written twice counts once
        for line in self.found():
            member = Rated(*line["member"])
            found[member, line["root"]] = Trajectory(member, line["root"], line["steps"], line["errors"])
        return list(found.values())

    def _ensembles(self) -> Iterator[tuple[int | None, Config]]:
        if not self.roots:
            yield None, self.config
        for root in range(self.roots):
            yield root, replace(self.config, topology=replace(self.config.topology, root=root))

    def _run(self, root: int | None, config: Config, stop: Callable[[], bool]) -> list[Trajectory] | None:
        """The trajectories on one graph; None if it was stopped."""
        from decentral.jobs.ensembles.ensemble import Ensemble, draw
        from decentral.training.assemble import local_network

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
