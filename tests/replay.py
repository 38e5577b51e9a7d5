"""The recorded operations of a run between processes, carried out again in one process: they give its iterates."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decentral.algorithms.asynchronous import Team
from decentral.cluster.groups import Groups
from decentral.cluster.operations import Average, Gradient, Local, Operation
from decentral.cluster.server import Outer
from decentral.config.schema import Config
from decentral.network.asynchronous.protocol import Server
from decentral.training.method import learning_rate, local_network, with_rate
from decentral.training.oracle import GradientOracle

Recorded = list[dict[str, Any]]


class _NotYet(Exception):
    """An operation needs something that has not been carried out."""


class Replay:
    """All workers of a run, with the very functions on rows that the run has used."""

    def __init__(self, config: Config, operations: Recorded) -> None:
        n, steps = config.num_workers, config.steps
        assert n is not None and steps is not None
        self.n, self.operations = n, operations
        self.net = local_network(config)
        problem = config.task.open(config, range(n), torch.device("cpu"))
        self.oracle = GradientOracle(problem, range(n), torch.device("cpu"))
        start = problem.init()
        self.algorithm = with_rate(
            config, learning_rate(config, problem.steps_per_epoch, config.steps), problem.layout(start)
        )
        self.start = start
        self.state = self.algorithm.init(self.start.repeat(n, 1), self.net)
        self.team = Team(config.rounds(), steps, config.seed, 1.0)
        self.g: list[Tensor] = [torch.empty(0)] * n
        self.drawn = [0] * n
        self.moved = torch.zeros_like(self.start)
        """By how far updates have moved all models together."""

    @property
    def x(self) -> Tensor:
        return self.algorithm.models(self.state)

    def gradient(self, i: int, copied: bool = False) -> None:
        self.g[i] = self.oracle(self.x[i : i + 1].clone(), [i])[0]
        self.drawn[i] += 1

    def local(self, i: int, what: Callable[..., object], timed: bool = False) -> None:
        before = self.x[i].clone()
        what(self.state, i, self.g[i], self.drawn[i] - 1)
        self.moved += self.x[i] - before

    def by_worker(self, *kinds: str) -> list[deque[dict[str, Any]]]:
        """The operations of these kinds of each worker, in order."""
        found = [
            deque(one for one in self.operations if one["worker"] == i and one["what"] in kinds) for i in range(self.n)
        ]
        assert any(found), f"nothing of {kinds} was recorded"
        return found


def carry_out_all(todo: list[deque[Any]], carry_out: Callable[[int, Any], None]) -> None:
    """What each worker has to do, in its order, as soon as it can be done."""
    while any(todo):
        moved = False
        for i, waiting in enumerate(todo):
            while waiting:
                try:
                    carry_out(i, waiting[0])
                except _NotYet:
                    break
                waiting.popleft()
                moved = True
        assert moved, "everybody waits for something that was not recorded"


class OuterReplay(Replay):
    """Programs, one worker's up to its next delivery at a time, in the order in which they have arrived."""

    def run(self) -> Tensor:
        programs = [self.algorithm.program(i, self.team) for i in range(self.n)]
        arrivals = sorted(
            (one["number"], one["worker"], one["takes"]) for one in self.operations if one["what"] == "arrive"
        )
        assert [number for number, *_ in arrivals] == list(range(len(arrivals)))
        waiting: list[int] = []
        for number, i, takes in arrivals:
            for operation in programs[i]:
                operation.carry_out(self, i)
                if isinstance(operation, Outer):
                    break
            waiting.append(i)
            if number + 1 == takes:
                for each in waiting:
                    self.server.collect(self.state, each)
                waiting = []
        for i, gradients in enumerate(self.by_worker("gradient")):
            for operation in programs[i]:
                if isinstance(operation, Gradient) and self.drawn[i] == len(gradients):
                    break
                operation.carry_out(self, i)
        return self.x

    def outer(self, i: int, server: Server) -> None:
        self.server = server
        server.deliver(self.state, i)


class GroupsReplay(Replay):
    """Programs, in which `join` takes the sum of what members have contributed, by the record, and nothing else."""

    def __init__(self, config: Config, operations: Recorded) -> None:
        super().__init__(config, operations)
        self.joined = {(one["worker"], one["number"]): one for one in operations if one["what"] == "join"}
        self.contributed: list[dict[int, int]] = [
            {one["number"]: one["contributed"] for one in log} for log in self.by_worker("exchange")
        ]
        self.published: list[dict[int, Tensor]] = [{-1: row.clone()} for row in self.state.send]
        self.arrived: set[int] = set()
        self.left: set[int] = set()

    def run(self) -> Tensor:
        todo: list[deque[Operation]] = [deque(self.algorithm.program(i, self.team)) for i in range(self.n)]
        carry_out_all(todo, lambda i, operation: operation.carry_out(self, i))
        return self.x

    def publish(self, i: int, groups: Groups, version: int) -> None:
        if version not in self.published[i]:
            if groups.empties:
                self.state.send[i].zero_()
            groups.publish(self.state, i, self.g[i], version)
            self.published[i][version] = self.state.send[i].clone()

    def join(self, i: int, groups: Groups, version: int) -> None:
        self.publish(i, groups, version)
        used = self.joined[i, version]["used"]
        partners, of = groups.schedule.groups(used)
        total = sum((self._part(j, groups, used) for j in partners[of[i]]), torch.zeros_like(self.start))
        contributed = self.contributed[i][used]
        assert contributed == self.joined[i, version]["contributed"]
        fresh = used == version == contributed
        groups.receive(self.state, i, version, fresh, groups.schedule.group_size, total)

    def _part(self, j: int, groups: Groups, version: int) -> Tensor:
        """What worker j had in its buffer when it took part in this version."""
        last = self.contributed[j][version]
        if last not in self.published[j]:
            raise _NotYet
        if not groups.empties:
            return self.published[j][last]
        before = max((each for each in self.contributed[j] if each < version), default=None)
        taken = -1 if before is None else self.contributed[j][before]
        since = [row for each, row in self.published[j].items() if taken < each <= last]
        return sum(since, torch.zeros_like(self.start))

    def mean(self, i: int) -> None:
        if i in self.left:
            self.left.remove(i)
            return
        self.arrived.add(i)
        if len(self.arrived) < self.n or self.left:
            raise _NotYet
        self.x.copy_(self.x.mean(0).expand_as(self.x))
        self.arrived, self.left = set(), set(range(self.n)) - {i}


class PairsReplay(Replay):
    """What happened to each row, in order: gradients at copies, updates, and averagings with what was sent."""

    def run(self) -> Tensor:
        self.programs = [self.algorithm.program(i, self.team) for i in range(self.n)]
        self.sent: dict[tuple[int, int], Tensor] = {}
        self.answers: dict[tuple[int, int], Tensor] = {}
        carry_out_all(self.by_worker("update", "ask", "answer", "average"), self._event)
        return self.x

    def _event(self, i: int, one: dict[str, Any]) -> None:
        KINDS[one["what"]](self, i, one["number"], one["partner"])

    def _update(self, i: int, number: int, partner: int) -> None:
        operation = next(each for each in self.programs[i] if not isinstance(each, Average))
        assert isinstance(operation, Gradient | Local)
        operation.carry_out(self, i)
        assert number == self.drawn[i] - 1

    def _ask(self, i: int, number: int, partner: int) -> None:
        self.sent[i, number] = self.x[i].clone()

    def _answer(self, i: int, number: int, partner: int) -> None:
        if (partner, number) not in self.sent:
            raise _NotYet
        own = self.answers[partner, number] = self.x[i].clone()
        self.algorithm.exchange(self.state, i, own, self.sent[partner, number], 0.0)

    def _average(self, i: int, number: int, partner: int) -> None:
        if (i, number) not in self.answers:
            raise _NotYet
        self.algorithm.exchange(self.state, i, self.sent[i, number], self.answers[i, number], 0.0)


KINDS: dict[str, Callable[[PairsReplay, int, int, int], None]] = {
    "update": PairsReplay._update,
    "ask": PairsReplay._ask,
    "answer": PairsReplay._answer,
    "average": PairsReplay._average,
}


class PushesReplay(Replay):
    """A gradient before each push; shares go to whom the record says, and are taken when it says."""

    def run(self) -> Tensor:
        self.shares: defaultdict[tuple[int, int], deque[Any]] = defaultdict(deque)
        carry_out_all(self.by_worker("push", "take"), self._event)
        assert not any(self.shares.values())
        return self.x

    def _event(self, i: int, one: dict[str, Any]) -> None:
        if one["what"] == "push":
            self._push(i, one["number"], one["others"])
            return
        if not all(self.shares[j, i] for j in one["others"]):
            raise _NotYet
        for j in one["others"]:
            self.algorithm.receive(self.state, i, *self.shares[j, i].popleft())

    def _push(self, i: int, t: int, others: list[int]) -> None:
        assert t == self.drawn[i]
        self.gradient(i)
        self.local(i, self.algorithm.update)
        given = {j: w for j, w in enumerate(self.team.rounds.matrices(t)[0][:, i].tolist()) if j in others}
        for j, weight in given.items():
            self.shares[i, j].append(self.algorithm.share(self.state, i, weight))
        self.algorithm.keep(self.state, i, 1 - sum(given.values()))
