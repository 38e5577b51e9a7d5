"""Workers in groups: a forward and a backward pass for each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decentral.executions.passes.layers import forward
from decentral.executions.passes.passes import Passes
from decentral.executions.passes.worker_models import WorkerModels
from decentral.precision import Precision

_PLACES = 2  # how many places of x are remembered, for algorithms in which two of them take turns


class SideBySide(Passes):
    """The parameters of a group of workers are views [c, *shape] of their rows of x.

    The gradients are copied into the rows of g. What lives beside the rows is one group's activations and gradients.
    """

    execution: ClassVar[str] = "batched"

    def __init__(self, models: WorkerModels, layers: Sequence[nn.Module], together: int, precision: Precision) -> None:
        self.models, self.layers, self.precision = models, layers, precision
        k = len(models.modules)
        bounds = torch.arange(k).tensor_split(-(-k // together))
        self.groups = [slice(int(group[0]), int(group[-1]) + 1) for group in bounds]
        self.g = torch.empty(0)
        self._gradients: list[list[Tensor]] = []
        self._leaves: dict[tuple[int, tuple[int, ...]], list[list[Tensor]]] = {}

    def __call__(self, x: Tensor, images: Tensor, labels: Tensor, seed: Callable[[int], None]) -> tuple[Tensor, Tensor]:
        """See `Passes`."""
        device = self.models.device
        if not self._gradients:
            self.g = torch.empty_like(x)
            self._gradients = [self.models.views(self.g[group]) for group in self.groups]
        losses = []
        precise = self.precision.forward(device)
        with torch.enable_grad(), self.precision.training(device):
            for group, leaves, views in zip(self.groups, self._bound(x), self._gradients, strict=True):
                with precise:
                    logits = forward(self.layers, images[group], leaves)
                each = F.cross_entropy(logits.to(x.dtype).flatten(0, 1), labels[group].flatten(), reduction="none")
                loss = each.unflatten(0, labels[group].shape).mean(1)
                torch._foreach_copy_(views, torch.autograd.grad(loss.sum(), leaves))
                losses.append(loss.detach())
        return torch.cat(losses), self.g

    def _bound(self, x: Tensor) -> list[list[Tensor]]:
        """The parameters of each group, as leaves of autograd."""
        place = x.data_ptr(), x.stride()
        if place not in self._leaves:
            if len(self._leaves) >= _PLACES:
                del self._leaves[next(iter(self._leaves))]
            views = [self.models.views(x[group]) for group in self.groups]
            self._leaves[place] = [[view.detach().requires_grad_() for view in group] for group in views]
        return self._leaves[place]
