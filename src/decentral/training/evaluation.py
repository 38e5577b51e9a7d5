"""Evaluation: every worker's own model, the worst of them, their mean, the averaged model, and the consensus
distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentral.gradients.passes.worker_models import same
from decentral.network.kernels import blocks
from decentral.network.network import Network
from decentral.store.metrics import Metric
from decentral.tasks.task import WHOLE, Problem, Scope
from decentral.training.oracle import TrainLosses

CONSENSUS = Metric("model", "consensus_distance", larger_is_better=None)
TRAIN_LOSS = Metric("train", "loss")
MESSAGES = (
    Metric("message", "gain", larger_is_better=None),
    Metric("message", "gain_of_norms", larger_is_better=None),
    Metric("message", "compression_error", larger_is_better=None),
    Metric("message", "density", larger_is_better=None, unit="%"),
)
"""Of compressed messages C(e): ||C(e)||^2 / ||e||^2, its root, ||e - C(e)||^2 / ||e||^2, and the share of coordinates
that are sent."""
_LOOKED_AT = 16  # coordinates, before all of them


def scores_of(problem: Problem) -> tuple[Metric, ...]:
    """Return the metrics of an evaluation: on the whole test set, then on each worker's own."""
    local = tuple(replace(metric, split="local") for metric in problem.metrics)
    return {"global": problem.metrics, "local": local, "both": (*problem.metrics, *local)}[problem.split]


def recorded(problem: Problem, compressed: bool) -> list[Metric]:
    """Return the metrics that an evaluation of this problem records, the target metric first."""
    messages = MESSAGES if compressed else ()
    return [*scores_of(problem), replace(TRAIN_LOSS, unit=problem.loss_unit), CONSENSUS, *messages]


@dataclass(frozen=True)
class Group:
    """The evaluation of a subset of workers, such as 'present'."""

    members: Tensor  # [n], bool
    averaged: Tensor  # [M], of the mean of their models
    consensus: float  # 1/m sum_i ||x_i - their mean||^2


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of the models of all workers at one step."""

    metrics: tuple[Metric, ...]
    workers: Tensor  # [n, M], float64
    averaged: Tensor  # [M]
    train_loss: TrainLosses  # of all n workers, since the last evaluation
    consensus: float  # 1/n sum_i ||x_i - mean x||^2
    compression_stats: Tensor | None = None  # [n, 3], of compressed messages: see `Compressor.compression_stats`
    groups: dict[str, Group] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        """Return whether a value is non-finite (a worker without draws has no training loss)."""
        losses = self.train_losses
        certain = self.workers[:, [not (metric.may_lack or metric.own) for metric in self.metrics]]
        return not bool(certain.isfinite().all() and losses.isfinite().all() and math.isfinite(self.consensus))

    @property
    def train_losses(self) -> Tensor:
        """The training losses of workers with draws since the last evaluation."""
        return self.train_loss.mean[self.train_loss.drawn]

    def worst(self, m: int, members: Tensor | slice = slice(None)) -> float:
        """Return metric m of the worst worker; NaN if any worker's is."""
        column = self._told(m, members)
        return (column.min() if self.metrics[m].larger_is_better else column.max()).item()

    def _told(self, m: int, members: Tensor | slice = slice(None)) -> Tensor:
        """Return metric m of the workers (among these members) that have it."""
        column = self.workers[members, m]
        told = column[~column.isnan()] if self.metrics[m].may_lack else column
        return told if len(told) else column

    @property
    def worst_worker(self) -> int:
        """The worst worker by the first metric."""
        column = self.workers[:, 0]
        return int(column.argmin() if self.metrics[0].larger_is_better else column.argmax())

    def rows(self, **place: Any) -> list[dict[str, Any]]:
        """Return long-format rows for the store: split, metric, worker, value, and `place` (step, epoch, ...). Metrics
        without a direction have no worst worker."""
        found: list[dict[str, Any]] = []

        def add(metric: Metric, worker: int | str, value: float) -> None:
            if not (metric.may_lack and math.isnan(value)):
                found.append(place | {"worker": worker, "split": metric.split, "metric": metric.name, "value": value})

        for m, metric in enumerate(self.metrics):
            for worker, value in enumerate(self.workers[:, m].tolist()):
                add(metric, worker, value)
            if metric.larger_is_better is not None:
                add(metric, "worst", self.worst(m))
            add(metric, "mean", self._told(m).mean().item())
            add(metric, "averaged", self.averaged[m].item())
            for name, group in self.groups.items():
                if metric.larger_is_better is not None:
                    add(metric, f"{name} worst", self.worst(m, group.members))
                add(metric, f"{name} mean", self._told(m, group.members).mean().item())
                add(metric, f"{name} averaged", group.averaged[m].item())
        if len(self.train_losses):
            add(TRAIN_LOSS, "mean", self.train_losses.mean().item())
            add(TRAIN_LOSS, "worst", self.train_losses.max().item())
        add(CONSENSUS, "mean", self.consensus)
        for name, group in self.groups.items():
            add(CONSENSUS, f"{name} mean", group.consensus)
        for metric, values in self._messages():
            for worker, value in enumerate(values.tolist()):
                add(metric, worker, value)
            add(metric, "mean", values.mean().item())
        return found

    def _messages(self) -> list[tuple[Metric, Tensor]]:
        """Return the statistics of compressed messages [n], once measured."""
        if self.compression_stats is None or not self.compression_stats.any():
            return []
        gain, error, density = self.compression_stats.unbind(1)
        return list(zip(MESSAGES, (gain, gain.sqrt(), error, density), strict=True))


def evaluate(
    problem: Problem,
    x: Tensor,
    net: Network,
    train_loss: TrainLosses,
    part: int,
    parts: int,
    scope: Scope = WHOLE,
    compression_stats: Tensor | None = None,
    groups: Mapping[str, np.ndarray] | None = None,
) -> Evaluation:
    """Evaluate the models x [k, P] of the local workers, together with the other processes: this is `part` of `parts`.

    Workers with equal models (and states) are evaluated once. All processes test the averaged model, each on its share,
    to balance the load. Statistics are summed over processes before they become metrics, so a ratio of sums is that of
    the whole test set, for any split.

    groups   name -> members [n], bool: subsets of workers to evaluate separately, too
    """
    some = {name: torch.from_numpy(members) for name, members in (groups or {}).items() if members.any()}
    theirs = [_mean_of(x, members, net) for members in some.values()]
    mean = net.average(x)
    sets: list[tuple[Tensor, Callable[[Tensor], Tensor]]] = []  # statistics of workers' models, and of any other
    if problem.split != "local":
        sets.append(_on_all(problem, x, part, parts, scope))
    if problem.split != "global":
        local = scope._replace(local=True)
        own = problem.worker_statistics(x, None, local).double()
        sets.append((own, lambda one: problem.average_statistics(one, 0, 1, local)))
    averages = []
    for middle, members in zip((mean, *theirs), (None, *some.values()), strict=True):
        model = problem.averaged(middle, x, net, members)
        problem.average_states(net, None if members is None else members.nonzero().flatten().tolist())
        averages.append([_in_first_row(tested(model), own) for own, tested in sets])
    scores = []  # of each worker's model, of the averaged one, and of those of groups
    for (own, _), *found in zip(sets, *averages, strict=True):
        scores += [own, *found]
    measured = compression_stats is not None and compression_stats.numel() > 0
    columns = [
        *scores,
        train_loss.mean[:, None],
        train_loss.drawn.double()[:, None],
        *(_distances(x, one).cpu()[:, None] for one in (mean, *theirs)),
        compression_stats
        if measured and compression_stats is not None
        else torch.zeros(len(x), 0, dtype=torch.float64),
    ]
    found = net.gather(torch.cat(columns, dim=1)).split([column.shape[1] for column in columns], dim=1)
    losses, drawn, *apart, messages = found[len(scores) :]
    each = 2 + len(theirs)  # in a set of scores
    workers = torch.cat([problem.finish(statistics) for statistics in found[: len(scores) : each]], dim=1)
    averaged, *of_groups = (
        torch.cat([problem.finish(shares.sum(0)) for shares in found[1 + place : len(scores) : each]])
        for place in range(1 + len(theirs))
    )
    return Evaluation(
        scores_of(problem),
        workers,
        averaged,
        TrainLosses(losses[:, 0], drawn[:, 0] > 0),
        apart[0].mean().item(),
        messages if measured else None,
        {
            name: Group(members, values, distances[members].mean().item())
            for (name, members), values, distances in zip(some.items(), of_groups, apart[1:], strict=True)
        },
    )


def _mean_of(x: Tensor, members: Tensor, net: Network) -> Tensor:
    """Return the mean [P] of the models of these workers, members [n]."""
    own = members[net.workers.start : net.workers.stop].to(x.device)
    return net.average(x.masked_fill(~own[:, None], 0)) * (net.n / int(members.sum()))


def _distances(x: Tensor, mean: Tensor) -> Tensor:
    """Return ||x_i - mean||^2 [k], float64, without a temporary as large as a model."""
    found = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for block in blocks(x.shape[1], len(x), x):
        found += (x[:, block] - mean[block]).square().sum(1, dtype=torch.float64)
    return found


def _in_first_row(statistics: Tensor, like: Tensor) -> Tensor:
    found = torch.zeros_like(like)
    found[0] = statistics
    return found


def _on_all(
    problem: Problem, x: Tensor, part: int, parts: int, scope: Scope
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return test statistics of each worker's model [k, S], and a function for this part's of an averaged model."""
    states = problem.model_states()
    first = first_equal(x, states)
    place = {i: number for number, i in enumerate(sorted(set(first)))}
    own = problem.worker_statistics(x, list(place), scope).double()[[place[i] for i in first]]

    def tested(mean: Tensor) -> Tensor:
        if parts == 1 and not any(states) and torch.equal(mean, x[0]):
            return own[0]
        return problem.average_statistics(mean, part, parts, scope)

    return own, tested


def first_equal(x: Tensor, states: Sequence[dict[str, Any]]) -> list[int]:
    """Return, for each row of x [k, P], the first row that equals it, including its state."""
    few = x[:, :: max(1, x.shape[1] // _LOOKED_AT)]
    rows = list(map(tuple, few.tolist()))
    first, known = list[int](), dict[tuple[float, ...], list[int]]()
    for i, row in enumerate(rows):
        alike = known.setdefault(row, [])
        equal = (j for j in alike if torch.equal(x[i], x[j]) and (not states or same(states[i], states[j])))
        found = next(equal, i)
        if found == i:
            alike.append(i)
        first.append(found)
    return first
