"""One round after the other: all members of a search try a rate at the same time, until every search has its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from decentral.config import Config
from decentral.ensembles.ensemble import Ensemble, Stack, network
from decentral.ensembles.rules import Asked, Outcome, Rule, Searching, Trial
from decentral.ensembles.search import Member


@dataclass
class Tuning:
    """The search of one member: what it asks, what is known already, and its answer."""

    rule: Rule
    known: dict[float, Trial]  # by learning rate
    asked: Asked | None = None
    best: Trial | None = None
    _search: Searching = field(init=False)

    def __post_init__(self) -> None:
        self._search = self.rule.search()
        self._proceed(None)

    def answer(self, trial: Trial) -> None:
        """What came of the rate that it asked for."""
        self.known[trial.lr] = trial
        self._proceed(trial)

    def _proceed(self, trial: Trial | None) -> None:
        """Go on to the next rate that is not known; at the end `asked` is None."""
        try:
            self.asked = next(self._search) if trial is None else self._search.send(trial)
            while self.asked.lr in self.known:
                self.asked = self._search.send(self.known[self.asked.lr])
        except StopIteration as ended:
            self.asked, self.best = None, ended.value


def tune(
    config: Config,
    stack: Stack,
    members: Sequence[Member],
    tunings: Sequence[Tuning],
    record: Callable[[Member, Trial], None],
    stop: Callable[[], bool],
) -> bool:
    """Carry the searches on to their answers, and record every trial as soon as it has ended.

    `stop` is asked at every evaluation; returns whether all searches have their answer.
    """
    import torch

    net = network(config)
    while open_ones := [i for i, tuning in enumerate(tunings) if tuning.asked]:
        asked = [tuning.asked for tuning in tunings if tuning.asked]
        chosen = stack.select(torch.tensor(open_ones))
        seeds = [members[i].seed for i in open_ones]
        ensemble = Ensemble(config, net, chosen, seeds, [each.lr for each in asked])
        for number, trial in _round(ensemble, tunings[0].rule, asked, stop):
            record(members[open_ones[number]], trial)
            tunings[open_ones[number]].answer(trial)
        if stop():
            return False
    return True


def _round(
    ensemble: Ensemble, rule: Rule, asked: Sequence[Asked], stop: Callable[[], bool]
) -> Iterable[tuple[int, Trial]]:
    """Yield (number, trial) of every member when its trial ends; those that have ended are dropped now and then."""
    running = list(range(len(asked)))  # the members that are not decided
    present = list(running)  # the members that are in the ensemble
    errors: list[list[float]] = [[] for _ in asked]
    step = 0
    for step in rule.grid():
        ensemble.advance(step)
        current = dict(zip(present, ensemble.suboptimality(), strict=True))
        for number in list(running):
            errors[number].append(current[number])
            ended = rule.judge(step, errors[number], asked[number].best_step)
            if ended:
                running.remove(number)
                yield number, ended._replace(lr=asked[number].lr)
        if not running or stop():
            return
        if len(running) <= 0.75 * len(present):
            ensemble.keep([place for place, number in enumerate(present) if number in running])
            present = list(running)
    for number in running:
        yield number, Trial(asked[number].lr, Outcome.unfinished, step, errors[number][-1])
