"""An ensemble: the problems of its members side by side, and the one run that solves all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.compression.rows import RowLayout
from decentral.config.schema import Config
from decentral.network.local import LocalNetwork
from decentral.plugins.papers.quadratics.rules import Member, Outcome, Proposal, Rule, Trial, Tuning
from decentral.randomness import normal
from decentral.tasks.convex import Quadratics
from decentral.tasks.problems.convex import LeastSquares, random_problem
from decentral.training.method import local_network, with_rate
from decentral.training.stepper import Stepper

Stop = Callable[[], bool]
"""A function that returns whether to stop early."""


class Stack(NamedTuple):
    """The quadratic forms of B least-squares problems, side by side."""

    H: Tensor  # [n, B, d, d]: A_i^T A_i
    h: Tensor  # [n, B, d]: A_i^T b_i
    x0: Tensor  # [B, d]
    optimum: Tensor  # [B, d]
    mean_H: Tensor  # [B, d, d]: 1/n sum_i H_i

    @classmethod
    def of(cls, problems: Sequence[LeastSquares]) -> Stack:
        """Put problems of equal n and d side by side."""
        H = torch.stack([p.A.transpose(1, 2) @ p.A for p in problems], dim=1)
        h = torch.stack([torch.einsum("nij,ni->nj", p.A, p.b) for p in problems], dim=1)
        x0, optimum = (torch.stack(list(rows)) for rows in ([p.x0 for p in problems], [p.optimum() for p in problems]))
        return cls(H, h, x0, optimum, H.mean(0))

    def select(self, members: Tensor) -> Stack:
        """Return some of the problems, by their numbers."""
        n_first = (self.H.index_select(1, members), self.h.index_select(1, members))
        return Stack(*n_first, *(part.index_select(0, members) for part in self[2:]))

    def gradient(self, x: Tensor) -> Tensor:
        """Return A_i^T (A_i x_i - b_i) = H_i x_i - h_i of every member: [n, B d] -> the same shape, new."""
        n, B, d = self.h.shape
        product = torch.baddbmm(self.h.view(n * B, d, 1), self.H.view(n * B, d, d), x.reshape(n * B, d, 1), beta=-1)
        return product.view(n, B * d)

    def suboptimality(self, x: Tensor) -> Tensor:
        """Return f(mean_i x_i) - f(x*) of every member, as (xbar - x*)^T mean_H (xbar - x*): [n, B d] -> [B].

        It equals the difference of the two values, without cancellation.
        """
        e = x.mean(0).view_as(self.optimum) - self.optimum
        return (e * torch.bmm(self.mean_H, e[..., None])[..., 0]).sum(1)


def draw(config: Config, members: Sequence[Member]) -> Stack:
    """Draw the members' problems as task=quadratics does, with their seeds and zeta2."""
    task = config.task
    assert isinstance(task, Quadratics) and config.num_workers is not None
    sizes = config.num_workers, task.dimension, task.singular_min, task.singular_max
    seeds = [member.seed if task.problem_seed is None else task.problem_seed for member in members]
    drawn: dict[tuple[int, float], LeastSquares] = {}
    for seed, member in zip(seeds, members, strict=True):
        if (seed, member.zeta2) not in drawn:
            drawn[seed, member.zeta2] = random_problem(*sizes, member.zeta2, task.initial_distance, seed)
    return Stack.of([drawn[seed, member.zeta2] for seed, member in zip(seeds, members, strict=True)])


class Ensemble:
    """One run of all members, each with its own learning rate, from step 0. Members are independent.

    Every operation of an algorithm is coordinate-wise, so a divergent member affects only its own columns.
    """

    def __init__(self, config: Config, net: LocalNetwork, stack: Stack, seeds: Sequence[int], lr: Sequence[float]):
        assert net.rounds.num_pieces == 1, "a topology that cuts models in pieces would cut the ensemble"
        self.config, self.net, self.stack = config, net, stack
        self.seeds = list(seeds)
        self.lr = torch.tensor(lr, dtype=torch.float64)
        self.draws = 0
        """Number of drawn gradients."""
        self._rates = self._of_coordinates(self.lr)
        rate, changes = config.schedule.rates(1.0, None), config.schedule.group_settings(config.optim, 1.0, None)
        gamma: Callable[[int], Any] = lambda t: self._rates * rate(t)  # noqa: E731
        x = stack.x0.reshape(1, -1).repeat(net.n, 1)
        self.stepper = Stepper(
            with_rate(config, gamma, RowLayout.flat(x.shape[1]), 1.0, changes), net, self.gradient, x
        )

    def _of_coordinates(self, lr: Tensor) -> Tensor:
        """Return the members' learning rates [B] for all coordinates: [1, B d]."""
        return lr.repeat_interleave(self.stack.x0.shape[1])[None]

    def advance(self, step: int) -> None:
        """Continue until `step` steps are done."""
        while self.stepper.t < step:
            self.stepper.step()

    def gradient(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """Draw the next stochastic gradients of all workers: [n, B d] -> the same shape, new."""
        assert workers is None, "the workers of an ensemble go together"
        g = self.stack.gradient(x)
        noise = self.config.task.noise
        if noise:  # that of task=quadratics for the members' seeds
            d = self.stack.x0.shape[1]
            where = self.draws, np.arange(self.net.n)[:, None], np.arange(d)
            drawn = {seed: normal(seed, "gradient noise", *where) for seed in set(self.seeds)}
            normals = torch.from_numpy(np.concatenate([drawn[seed] for seed in self.seeds], axis=1))
            g += normals * (noise / math.sqrt(d))
        self.draws += 1
        return g

    def models(self) -> Tensor:
        """Return the models x_i of all members: [n, B d]."""
        return self.stepper.models

    def suboptimality(self) -> list[float]:
        """Return f(mean_i x_i) - f(x*) of every member."""
        return self.stack.suboptimality(self.models()).tolist()

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some of the members only, by their numbers."""
        index, d = torch.tensor(members), self.stack.x0.shape[1]
        columns = (index[:, None] * d + torch.arange(d)).flatten()
        width = self.stack.x0.numel()
        state = self.stepper.state
        self.stepper.state = type(state)(*(_columns(part, columns, width) for part in state))
        self.stack, self.lr = self.stack.select(index), self.lr[index]
        self._rates = self._of_coordinates(self.lr)
        self.seeds = [self.seeds[i] for i in members]


def _columns(part: Any, columns: Tensor, width: int) -> Any:
    """Return some columns of a part of a state; numbers that belong to no column are returned unchanged."""
    if isinstance(part, tuple):
        return tuple(_columns(each, columns, width) for each in part)
    if part.dim() < 2 or part.shape[-1] != width:
        return part
    return part.index_select(-1, columns)


def tune(
    config: Config,
    stack: Stack,
    members: Sequence[Member],
    tunings: Sequence[Tuning],
    record: Callable[[Member, Trial], None],
    stop: Stop,
) -> bool:
    """Run the searches to completion, and record every trial when it ends.

    All members with an ongoing search try a rate simultaneously. `stop` is called at every evaluation; returns whether
    all searches are complete.
    """
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


def try_rates(ensemble: Ensemble, rule: Rule, proposals: Sequence[Proposal], stop: Stop) -> Iterable[tuple[int, Trial]]:
    """Yield (member's number, trial) when the member's trial ends. Members that have ended are dropped from time to
    time."""
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
