"""Workers in groups: a forward and a backward pass for each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from decentral.gradients.passes.layers import forward, sequence
from decentral.gradients.passes.one_by_one import OneByOne
from decentral.gradients.passes.passes import Lanes, Passes, agree
from decentral.randomness import torch_generator

if TYPE_CHECKING:
    from decentral.gradients.execution import Workload

_NOISE = 0.01  # so that models of a first batch differ, which may all be the same
_PLACES = 2  # how many places of x are remembered, for algorithms in which two of them take turns


class SideBySide(Passes):
    """The parameters of a group of workers are views [c, *shape] of their rows of x.

    The gradients are copied into the rows of g. What lives beside the rows is one group's activations and gradients.
    """

    execution: str = "batched"
    draws: ClassVar[bool] = False

    def __init__(self, workload: Workload, layers: Sequence[nn.Module], workers_at_once: int) -> None:
        self.workload = workload
        self.models, self.layers, self.precision = workload.models, layers, workload.precision
        self.loss, self.ignored = workload.loss, workload.ignored
        self.workers_at_once = workers_at_once
        self.lanes = Lanes()
        self.g = torch.empty(0)
        self._groups: dict[int, tuple[list[slice], list[list[Tensor]], Tensor]] = {}
        self._leaves: dict[tuple[int, tuple[int, ...], int], list[list[Tensor]]] = {}

    def __call__(
        self, x: Tensor, inputs: Tensor, targets: Tensor, workers: Sequence[int], seed: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """For each group: one forward pass, the losses, one backward pass for their sum, a copy into the rows of g."""
        device, r = self.models.device, len(workers)
        if r not in self._groups:
            if not self._groups:
                self.g = x.new_empty(len(self.models.modules), x.shape[1])
            slices = self.groups(r)
            self._groups[r] = slices, [self.models.views(self.g[group]) for group in slices], self.g[:r]
        groups, gradients, g = self._groups[r]
        losses = []
        precise = self.precision.forward(device)
        with torch.enable_grad(), self.precision.passes(device):
            for group, leaves, views in zip(groups, self._bound(x, groups), gradients, strict=True):
                with precise:
                    outputs = forward(self.layers, inputs[group], leaves)
                each = self.loss(outputs.to(x.dtype).flatten(0, 1), targets[group].flatten(0, 1), reduction="none")
                loss = self._means(each, targets[group])
                torch._foreach_copy_(views, torch.autograd.grad(loss.sum(), leaves))
                losses.append(loss.detach())
        return torch.cat(losses), g

    def doubt(self, x: Tensor, inputs: Tensor, targets: Tensor) -> str | None:
        """Compares with one worker after the other, each at a model of its own: a copy of its row with noise."""
        fast = SideBySide(self.workload, self.layers, self.workers_at_once)
        exact = OneByOne(self.models, self.precision, self.loss)
        generator = torch_generator("cpu", 0, "proof")
        try:
            for group in self.groups(len(x)):
                rows = x[group] + _NOISE * torch.randn(x[group].shape, generator=generator).to(x)
                batch = inputs[group], targets[group]
                expected = exact(rows, batch[0].clone(), batch[1], range(len(rows)), lambda j: None)
                try:
                    found = fast(rows, batch[0].clone(), batch[1], range(len(rows)), lambda j: None)
                except Exception as error:
                    return f"{self._first_wrong(rows, batch[0])} fails side by side ({error})"
                if not all(agree(*each, self.precision) for each in zip(found, expected, strict=True)):
                    return f"{self._first_wrong(rows, batch[0])} computes something else side by side"
            return None
        finally:
            self.models.release()

    def _first_wrong(self, x: Tensor, inputs: Tensor) -> str:
        """The first layer whose outputs are wrong, by its place and class."""
        parameters = self.models.views(x)
        self.models.bind(x, range(len(x)))
        with torch.no_grad(), self.precision.passes(self.models.device), self.precision.forward(self.models.device):
            each = [batch.clone() for batch in inputs]
            for number, layer in enumerate(self.layers):
                each = [(sequence(m) or [])[number](one) for m, one in zip(self.models.modules, each, strict=False)]
                with suppress(Exception):
                    found = forward(self.layers[: number + 1], inputs.clone(), parameters)
                    if each[0].dim() == 4 and found.dim() == 4:
                        found = found.unflatten(1, (len(x), -1)).transpose(0, 1)
                    if agree(found, torch.stack(each), self.precision):
                        continue
                return f"its layer {number}, {type(layer).__name__},"
        return "the backward pass"

    def _means(self, losses: Tensor, targets: Tensor) -> Tensor:
        """The mean losses [c] of a group, from those of all its targets [c, B, ...]; without those that are ignored."""
        each = losses.reshape(len(targets), -1)
        if self.ignored is None:
            return each.mean(1)
        return each.sum(1) / (targets != self.ignored).flatten(1).sum(1)

    def groups(self, r: int) -> list[slice]:
        """The groups of r rows, of about the same size."""
        bounds = torch.arange(r).tensor_split(-(-r // self.workers_at_once))
        return [slice(int(group[0]), int(group[-1]) + 1) for group in bounds]

    def _bound(self, x: Tensor, groups: Sequence[slice]) -> list[list[Tensor]]:
        """The parameters of each group, as leaves of autograd."""
        place = x.data_ptr(), x.stride(), len(x)
        if place not in self._leaves:
            if len(self._leaves) >= _PLACES:
                del self._leaves[next(iter(self._leaves))]
            views = [self.models.views(x[group]) for group in groups]
            self._leaves[place] = [[view.detach().requires_grad_() for view in group] for group in views]
        return self._leaves[place]
