"""A forward and a backward pass for each worker in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from decentral.errors import ConfigError
from decentral.gradients.passes.passes import Lanes, Passes, agree
from decentral.gradients.passes.sizes import MemoryFormat
from decentral.gradients.passes.worker_models import WorkerModels, random_state
from decentral.gradients.precision import Precision

if TYPE_CHECKING:
    from decentral.gradients.execution import Loss


class OneByOne(Passes):
    """Modules whose parameters alias the rows of x; their gradients are copied into the rows of g.

    Each parameter's gradient is written twice and read once. Nothing as large as x is allocated: what lives beside the
    rows is one worker's activations and one worker's gradient.
    """

    execution: str = "loop"
    takes_lists: bool = True

    def __init__(self, models: WorkerModels, precision: Precision, loss: Loss) -> None:
        self.models, self.precision, self.loss = models, precision, loss
        self.memory_format = MemoryFormat(models.modules[0], models.device)
        self.draws: bool | None = None
        """Whether passes draw random numbers, or may in a later step: known after the first one."""
        self.lanes = Lanes()
        self.g = torch.empty(0)
        self._gradients: list[list[Tensor]] = []

    def __call__(
        self,
        x: Tensor,
        inputs: Tensor | Sequence[Any],
        targets: Tensor | Sequence[Tensor],
        workers: Sequence[int],
        seed: Callable[[int], None],
    ) -> tuple[Tensor, Tensor]:
        """For each worker in turn: its module's forward pass, the loss, the backward pass, a copy into its row of g."""
        models, device = self.models, self.models.device
        if not self._gradients:
            self.g = x.new_empty(len(models.modules), x.shape[1])
            self._gradients = [models.views(row) for row in self.g]
        models.bind(x, workers)
        losses, seconds = [], self.seconds
        if seconds is not None:
            seconds.clear()
        precise = self.precision.forward(device)
        with torch.enable_grad(), self.precision.passes(device):
            for j, i in enumerate(workers):
                began = time.perf_counter()
                with self.lanes(j):
                    losses.append(self._one(j, i, x.dtype, inputs[j], targets[j], seed, precise))
                if seconds is not None:
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)
                    seconds.append(time.perf_counter() - began)
        self.lanes.join()
        return torch.stack(losses), self.g[: len(workers)]

    def _one(
        self,
        j: int,
        i: int,
        dtype: torch.dtype,
        inputs: Any,
        targets: Tensor,
        seed: Callable[[int], None],
        precise: AbstractContextManager[object],
    ) -> Tensor:
        """The loss of worker i, whose gradient goes to row j."""
        models, device = self.models, self.models.device
        if self.draws is None and models.foreign:
            self._check_repeats(i, inputs, partial(seed, j), precise)
        if self.draws is not False:
            seed(j)
        before = random_state(device) if self.draws is None else []
        with precise:
            outputs = models.modules[i](self.memory_format(inputs))
        if self.draws is None:
            self.draws = models.foreign or not all(map(torch.equal, before, random_state(device)))
            models.check()
            if not isinstance(outputs, Tensor):
                raise ConfigError(
                    f"In training the model gives a {type(outputs).__name__}, but the loss takes one tensor: "
                    "let it return its logits [B, classes] alone (a model of torchvision: aux_logits=False)."
                )
        loss: Tensor = self.loss(outputs.to(dtype), targets)
        gradients = torch.autograd.grad(loss, models.leaves[i], materialize_grads=True)
        if models.foreign:
            models.follow(i)
            gradients = tuple(g.to_dense() if g.is_sparse else g for g in gradients)
        torch._foreach_copy_(self._gradients[j], gradients)
        return loss.detach()

    def _check_repeats(
        self, i: int, inputs: Any, seed: Callable[[], None], precise: AbstractContextManager[object]
    ) -> None:
        """Raise a ConfigError if two copies of module i differ on the same inputs, with the same draws."""
        found = []
        for _ in range(2):
            copy, its = self.models.for_tests(i), tree_map(torch.clone, inputs)
            seed()
            with precise, torch.no_grad():
                found.append(copy(self.memory_format(its)))
        if all(isinstance(one, Tensor) for one in found) and not agree(found[0], found[1], self.precision):
            raise ConfigError(
                "The model computes something else when a step is repeated: let it draw from the global generators of "
                "torch, numpy or random, which are seeded for every worker and step, and keep all state in the module."
            )
