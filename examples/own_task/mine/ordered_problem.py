"""Loss and metrics of ordered.py, in a file of their own, since this one imports torch."""

from __future__ import annotations

import torch
from torch import Tensor

from decentral.store.metrics import Metric
from decentral.tasks.problems.supervised import Supervised


def squared_distance(outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
    """(sum_c c p_c - y)^2 for p = softmax(outputs) [B, C] and labels y [B]: the mean, the sum, or all of them."""
    each = (guess(outputs) - targets).square()
    return {"mean": each.mean, "sum": each.sum, "none": lambda: each}[reduction]()


def guess(outputs: Tensor) -> Tensor:
    """sum_c c p_c [B]."""
    return outputs.softmax(-1) @ torch.arange(outputs.shape[-1], device=outputs.device, dtype=outputs.dtype)


class OrderedProblem(Supervised):
    """Minimizes the squared distance to the label, and accumulates sums for the metrics."""

    loss = staticmethod(squared_distance)
    loss_unit = ""
    usual_metrics = (Metric("test", "distance"), Metric("test", "root_mean_square"))
    num_statistics = 3

    def add_statistics(self, total: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Sums of the distances and of their squares, and how many there are: processes add them up."""
        total[0] += (guess(outputs) - targets).abs().sum()
        total[1] += squared_distance(outputs, targets, reduction="sum")
        total[2] += len(targets)

    def usual_values(self, statistics: Tensor) -> Tensor:
        """From sums over all test examples to metrics: a root cannot be taken before they are complete."""
        distance, square, count = statistics.unbind(-1)
        return torch.stack([distance / count, (square / count).sqrt()], dim=-1)
