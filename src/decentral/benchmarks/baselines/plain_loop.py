"""The gradients of several workers as one would write it first."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


class PlainLoop:
    """A module for each worker, and `backward()` for each in turn.

    The parameters of worker i are views of row i of x [k, P], and their `grad` views of row i of g [k, P], which is
    set to zero before and added to by autograd.
    """

    def __init__(self, template: nn.Module, x: Tensor) -> None:
        import torch

        self.modules, self.g = [deepcopy(template) for _ in x], torch.zeros_like(x)
        for module, row, gradient in zip(self.modules, x, self.g, strict=True):
            start = 0
            for parameter in module.parameters():
                part = slice(start, start + parameter.numel())
                parameter.data = row[part].view(parameter.shape)
                parameter.grad = gradient[part].view(parameter.shape)
                start = part.stop

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropies [k] and their gradients g, for images [k, B, C, H, W] and labels [k, B]."""
        import torch
        import torch.nn.functional as F

        self.g.zero_()
        losses = []
        with torch.enable_grad():
            for module, batch, classes in zip(self.modules, images, labels, strict=True):
                loss = F.cross_entropy(module(batch), classes)
                loss.backward()
                losses.append(loss.detach())
        return torch.stack(losses), self.g
