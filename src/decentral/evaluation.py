"""Evaluation: every worker's own model, the worst of them, their mean, the averaged model, and the consensus
distance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decentral.network.kernels import blocks
from decentral.network.network import Network
from decentral.tasks.task import Metric, Problem

CONSENSUS = Metric("model", "consensus_distance")
TRAIN_LOSS = Metric("train", "loss")


@dataclass(frozen=True)
class Evaluation:
    """What is known of the models of all workers at one step."""

    metrics: tuple[Metric, ...]
    workers: Tensor  # [n, M], float64
    averaged: Tensor  # [M]
    train_loss: Tensor  # [n], mean over the steps since the last evaluation; nan before the first
    consensus: float  # 1/n sum_i ||x_i - mean x||^2

    @property
    def diverged(self) -> bool:
        """Whether something is infinite or not a number (a step-0 evaluation has no training loss)."""
        seen = self.train_loss[~self.train_loss.isnan()] if self.train_loss.isnan().all() else self.train_loss
        return not bool(self.workers.isfinite().all() and seen.isfinite().all() and math.isfinite(self.consensus))

    def worst(self, m: int) -> float:
        """Of metric m: the least favourable worker's. Not a number if any worker's is."""
        column = self.workers[:, m]
        return (column.min() if self.metrics[m].larger_is_better else column.max()).item()

    def rows(self, **place: Any) -> list[dict[str, Any]]:
        """Long rows for the store: split, metric, worker, value, with `place` (step, epoch, ...) in each."""
        found: list[dict[str, Any]] = []

        def add(metric: Metric, worker: int | str, value: float) -> None:
            found.append(place | {"worker": worker, "split": metric.split, "metric": metric.name, "value": value})

        for m, metric in enumerate(self.metrics):
            for worker, value in enumerate(self.workers[:, m].tolist()):
                add(metric, worker, value)
            add(metric, "worst", self.worst(m))
            add(metric, "mean", self.workers[:, m].mean().item())
            add(metric, "averaged", self.averaged[m].item())
        if not self.train_loss.isnan().all() or self.diverged:
            add(TRAIN_LOSS, "mean", self.train_loss.mean().item())
            add(TRAIN_LOSS, "worst", self.train_loss.max().item())
        add(CONSENSUS, "mean", self.consensus)
        return found

    def summary(self) -> dict[str, float]:
        """One number for each (split, metric, aggregate), for loggers and the status file."""
        keyed = {f"{row['split']}/{row['metric']}/{row['worker']}": row["value"] for row in self.rows()}
        return {key: value for key, value in keyed.items() if not key.rsplit("/", 1)[1].isdigit()}


def evaluate(problem: Problem, x: Tensor, net: Network, train_loss: Tensor, part: int, parts: int) -> Evaluation:
    """Evaluate the models x [k, P] of the local workers, together with the other processes: this is `part` of `parts`.

    train_loss is [k]. The averaged model is tested by all processes, each on its share, so that none waits long for
    another.
    """
    mean = net.average(x)
    share = torch.zeros(len(x), len(problem.metrics), dtype=torch.float64)
    share[0] = problem.evaluate_average(mean, part, parts)
    columns = [
        problem.evaluate_workers(x).double(),
        share,
        train_loss.double().cpu()[:, None],
        squared_distances(x, mean).cpu()[:, None],
    ]
    workers, shares, losses, distances = net.gather(torch.cat(columns, dim=1)).split(
        [column.shape[1] for column in columns], dim=1
    )
    return Evaluation(problem.metrics, workers, shares.sum(0), losses[:, 0], distances.mean().item())


def squared_distances(x: Tensor, mean: Tensor) -> Tensor:
    """||x_i - mean||^2 [k], summed in float64 over blocks: no temporary as large as a model."""
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for columns in blocks(x.shape[1], len(x), x):
        total += (x[:, columns] - mean[columns]).square().sum(1, dtype=torch.float64)
    return total
