"""Tune the learning rates of an ensemble: a job. All members try a rate at the same time, until each has its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.config.schema import Config
from decentral.jobs.computation import Computation
from decentral.jobs.ensembles.members import Member
from decentral.jobs.ensembles.rules import Fastest, Outcome, Proposal, Rule, Searching, Trial
from decentral.store import Status
from decentral.store.files import read_json, write_json
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    from decentral.jobs.ensembles.ensemble import Ensemble, Stack

_USUAL_TRIALS = 21  # of one member, to show how far the search is


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

    def parameters(self) -> dict[str, Any]:
        """Members and rule."""
        return {"members": [list(member) for member in self.members], **self.rule.parameters()}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """Go on with the search after the trials that are known."""
        from decentral.jobs.ensembles.ensemble import draw

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


def _answer(tuning: Tuning) -> Tuned:
    best = tuning.best
    assert best is not None
    return Tuned(best.lr, best.step, len(tuning.known), best.lr >= max(tuning.known))


@dataclass
class Tuning:
    """The search of one member: the rate that it proposes, the trials that are known already, and its answer."""

    rule: Rule
    known: dict[float, Trial]  # by learning rate
    proposal: Proposal | None = None
    best: Trial | None = None
    _search: Searching = field(init=False)

    def __post_init__(self) -> None:
        self._search = self.rule.search()
        self._proceed(None)

    def answer(self, trial: Trial) -> None:
        """Go on with what came of the rate that it proposed."""
        self.known[trial.lr] = trial
        self._proceed(trial)

    def _proceed(self, trial: Trial | None) -> None:
        """Go on to the next rate that is not known; at the end `proposal` is None."""
        try:
            self.proposal = next(self._search) if trial is None else self._search.send(trial)
            while self.proposal.lr in self.known:
                self.proposal = self._search.send(self.known[self.proposal.lr])
        except StopIteration as ended:
            self.proposal, self.best = None, ended.value


def tune(
    config: Config,
    stack: Stack,
    members: Sequence[Member],
    tunings: Sequence[Tuning],
    record: Callable[[Member, Trial], None],
    stop: Callable[[], bool],
) -> bool:
    """Carry the searches on to their answers, and record every trial as soon as it has ended.

    All members whose search goes on try a rate at the same time. `stop` is called at every evaluation; returns whether
    all searches have their answer.
    """
    import torch

    from decentral.jobs.ensembles.ensemble import Ensemble
    from decentral.training.assemble import local_network

    net = local_network(config)
    while open_ones := [i for i, tuning in enumerate(tunings) if tuning.proposal]:
        proposals = [tuning.proposal for tuning in tunings if tuning.proposal]
        chosen = stack.select(torch.tensor(open_ones))
        seeds = [members[i].seed for i in open_ones]
        ensemble = Ensemble(config, net, chosen, seeds, [one.lr for one in proposals])
        for number, trial in try_rates(ensemble, tunings[0].rule, proposals, stop):
            record(members[open_ones[number]], trial)
            tunings[open_ones[number]].answer(trial)
        if stop():
            return False
    return True


def try_rates(
    ensemble: Ensemble, rule: Rule, proposals: Sequence[Proposal], stop: Callable[[], bool]
) -> Iterable[tuple[int, Trial]]:
    """Yield (member's number, trial) when the member's trial ends; members that have ended are dropped now and then."""
    running = list(range(len(proposals)))  # the members that are not decided
    present = list(running)  # the members that are in the ensemble
    errors: list[list[float]] = [[] for _ in proposals]
    step = 0
    for step in rule.grid():
        ensemble.advance(step)
        current = dict(zip(present, ensemble.suboptimality(), strict=True))
        for number in list(running):
            errors[number].append(current[number])
            ended = rule.judge(step, errors[number], proposals[number].best_step)
            if ended:
                running.remove(number)
                yield number, ended._replace(lr=proposals[number].lr)
        if not running or stop():
            return
        if len(running) <= 0.75 * len(present):
            ensemble.keep([place for place, number in enumerate(present) if number in running])
            present = list(running)
    for number in running:
        yield number, Trial(proposals[number].lr, Outcome.unfinished, step, errors[number][-1])
