"""Tune the learning rates of an ensemble: a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from decentral.ensembles.job import Computation
from decentral.ensembles.rules import Fastest, Outcome, Rule, Trial
from decentral.store import Status
from decentral.store.files import read_json, write_json
from decentral.store.lines import LineFile

_USUAL_TRIALS = 21  # of one member, to show how far the search is


class Member(NamedTuple):
    """What tells one problem of an ensemble from the others."""

    seed: int
    """Draws the problem (unless task.problem_seed does) and the noise of its gradients."""
    zeta2: float
    """Heterogeneity 1/n sum_i ||grad f_i(x*)||^2."""


class Tuned(NamedTuple):
    """The answer for one member."""

    lr: float
    step: int
    """Steps to the target (fastest), or until the plateau is seen (plateau)."""
    trials: int
    at_edge: bool
    """Whether it is the largest rate that was tried."""


@dataclass(frozen=True)
class Search(Computation):
    """Find the best learning rate of every member by the rule; the members are tried at the same time.

    Every trial is a line of trials.jsonl as soon as it has ended; tuned.json has the answers.
    """

    members: tuple[Member, ...] = ()
    rule: Rule = Fastest()  # noqa: RUF009 (it is frozen)

    folder: ClassVar[str] = "searches"
    lines: ClassVar[str] = "trials.jsonl"

    def asked(self) -> dict[str, Any]:
        """Members and rule."""
        return {"members": [list(member) for member in self.members], **self.rule.asked()}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """Go on with the search after the trials that are known."""
        from decentral.ensembles.ensemble import draw
        from decentral.ensembles.trials import Tuning, tune

        known: dict[Member, dict[float, Trial]] = {member: {} for member in self.members}
        for line in lines.known:
            trial = Trial(line["lr"], Outcome(line["outcome"]), line["step"], line["error"])
            known[Member(line["seed"], line["zeta2"])][trial.lr] = trial
        tunings = [Tuning(self.rule, known[member]) for member in self.members]

        def record(member: Member, trial: Trial) -> None:
            lines.append(member._asdict() | trial._asdict())
            tried = sum(len(tuning.known) for tuning in tunings)
            show(min(0.99, tried / (_USUAL_TRIALS * len(self.members))), f"{tried} trials")

        stack = draw(self.config, self.members)
        if not tune(self.config, stack, self.members, tunings, record, stop):
            return False
        answers = [
            {**member._asdict(), **_answer(tuning)._asdict()} if tuning.best else member._asdict()
            for member, tuning in zip(self.members, tunings, strict=True)
        ]
        write_json(self.directory / "tuned.json", {"tuned": answers})
        return True

    def finished(self) -> Status | None:
        """Not without its answers: they are made again from the trials."""
        return super().finished() if read_json(self.directory / "tuned.json") else None

    def tuned(self) -> dict[Member, Tuned]:
        """The answers of a finished search; a member is missing if no rate did it."""
        answers = (read_json(self.directory / "tuned.json") or {"tuned": []})["tuned"]
        return {
            Member(answer["seed"], answer["zeta2"]): Tuned(*(answer[key] for key in Tuned._fields))
            for answer in answers
            if "lr" in answer
        }


def _answer(tuning: Any) -> Tuned:
    best = tuning.best
    return Tuned(best.lr, best.step, len(tuning.known), best.lr >= max(tuning.known))
