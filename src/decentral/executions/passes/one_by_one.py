"""A forward and a backward pass for each worker in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decentral.executions.passes.passes import Passes
from decentral.executions.passes.pictures import Layout
from decentral.executions.passes.worker_models import WorkerModels, has_dropout
from decentral.precision import Precision


class OneByOne(Passes):
    """Modules whose parameters alias the rows of x; their gradients are copied into the rows of g.

    Each parameter's gradient is written twice and read once. Nothing as large as x is allocated: what lives beside the
    rows is one worker's activations and one worker's gradient.
    """

    execution: ClassVar[str] = "loop"

    def __init__(self, models: WorkerModels, precision: Precision) -> None:
        self.models, self.precision = models, precision
        self.layout = Layout(models.modules[0], models.device)
        self.draws = has_dropout(models.modules[0])
        self.g = torch.empty(0)
        self._gradients: list[list[Tensor]] = []

    def __call__(self, x: Tensor, images: Tensor, labels: Tensor, seed: Callable[[int], None]) -> tuple[Tensor, Tensor]:
        """See `Passes`."""
        models, device = self.models, self.models.device
        if not self._gradients:
            self.g = torch.empty_like(x)
            self._gradients = [models.views(row) for row in self.g]
        models.bind(x)
        losses = []
        precise = self.precision.forward(device)
        with torch.enable_grad(), self.precision.training(device):
            for i, module in enumerate(models.modules):
                if self.draws:
                    seed(i)
                with precise:
                    logits = module(self.layout(images[i]))
                loss = F.cross_entropy(logits.to(x.dtype), labels[i])
                gradients = torch.autograd.grad(loss, models.leaves[i], materialize_grads=True)
                torch._foreach_copy_(self._gradients[i], gradients)
                losses.append(loss.detach())
        return torch.stack(losses), self.g
