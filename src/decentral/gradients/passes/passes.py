"""The forward and backward passes of a step: the interface, one worker at a time, and groups of workers batched."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from decentral.errors import ConfigError
from decentral.gradients.passes.layers import CallSizes, MemoryFormat, Way
from decentral.gradients.passes.worker_models import WorkerModels, copied, is_foreign_loss, random_state, seed_draws
from decentral.gradients.precision import Precision
from decentral.randomness import torch_generator

if TYPE_CHECKING:
    from decentral.gradients.execution import Loss, Workload


class Lanes:
    """Lanes for the passes of workers; by default they run one after the other."""

    def __call__(self, turn: int) -> AbstractContextManager[object]:
        """Return a context for the passes of the worker at position `turn`."""
        return nullcontext()

    def join(self) -> None:
        """Let subsequent work begin after all lanes."""


class Passes(ABC):
    """The forward and backward passes of r of the k local workers, at models that are the rows of x [r, P]."""

    execution: str
    """Its name for `execution=`, for the run's records."""

    takes_lists: bool = False
    """True if workers may have batches of different shapes: then inputs and targets are lists of r."""

    seconds: list[float] | None = None
    """A list to receive the time of each row's pass in the last call; on a GPU each pass then synchronizes. It stays
    empty if rows are computed together."""

    @abstractmethod
    def __call__(
        self,
        x: Tensor,
        inputs: Any,
        targets: Any,
        workers: Sequence[int],
        seed: Callable[[int], None],
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses [r] and their gradients g [r, P] for inputs [r, B, ...], such as images [r, B, C, H, W],
        and targets [r, B, ...], such as labels [r, B]. If this `takes_lists`, both are lists of r, and inputs[j] is the
        argument of the module of row j, a tensor or a tuple of tensors.

        `workers` are the distinct indices of the r workers among the local ones. g is the same memory in every call;
        the caller may overwrite it until the next call. `seed(j)` addresses the randomness of the worker of row j; it
        is called right before that worker's forward pass, if that may draw random numbers.
        """

    def doubt(self, x: Tensor, inputs: Tensor, targets: Tensor) -> str | None:
        """Explain why these passes are wrong for a first batch of all local workers at models near x [k, P]; None if
        they are right up to rounding. The state is unchanged."""
        return None


def agree(found: Tensor, expected: Tensor, precision: Precision, nudged: Tensor | None = None) -> bool:
    """Return whether tensors [r, ...] agree per worker up to rounding: in half of the digits of the precision.

    A sum of m terms in another order is off by less than m roundings, and an activation near 0 may be clipped or not.
    Mixed-up workers differ in the first digit. Non-finite values are not compared. If the result for models `nudged` by
    a rounding is known, `found` may be off by twice that change, and by a third at most, as with many layers in
    bfloat16.
    """
    if found.shape != expected.shape:
        return False
    size, off = _norms(expected), _norms(found - expected)
    allowed = precision.rounding**0.5 * size
    if nudged is not None:
        allowed = torch.maximum(allowed, torch.minimum(2 * _norms(nudged - expected), size / 3))
    return bool(((off <= allowed) | ~size.isfinite()).all())


def _norms(each: Tensor) -> Tensor:
    return torch.linalg.vector_norm(each.reshape(len(each), -1), dim=1)


def bytes_kept(template: nn.Module, workload: Workload, shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the memory that the gradient of one worker needs at least, for inputs of this shape and type: what the
    forward pass keeps, the outputs, and the gradients of the loss by two of its stages; 0 if it depends on values.

    A copy of the module computes with tensors that have shapes, but no memory. It takes two seconds.
    """
    module, precision, device = copied(template), workload.precision, workload.models.device
    kept, mode = dict[int, int](), FakeTensorMode(allow_non_fake_inputs=True)

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    try:
        with mode, torch.enable_grad(), precision.passes(device), saved_tensors_hooks(keep, lambda kept: kept):
            tensors: dict[str, Tensor] = {
                name: mode.from_tensor(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())
            }
            with precision.forward(device):
                outputs = functional_call(module, tensors, torch.ones(*shape, dtype=dtype))
            workload.loss(outputs.to(precision.dtype), torch.zeros(outputs.shape[:-1], dtype=torch.int64))
    except Exception:  # of the module, whose code may not accept such tensors
        return 0
    return sum(kept.values()) + 3 * outputs.numel() * precision.dtype.itemsize


class OneByOne(Passes):
    """Modules whose parameters alias the rows of x; their gradients are copied into the rows of g.

    Each parameter's gradient is written twice and read once. Nothing as large as x is allocated: besides the rows there
    are only one worker's activations and gradient.
    """

    execution: str = "loop"
    takes_lists: bool = True

    def __init__(self, models: WorkerModels, precision: Precision, loss: Loss) -> None:
        self.models, self.precision, self.loss = models, precision, loss
        self.memory_format = MemoryFormat(models.modules[0], models.device)
        self.draws: bool | None = None
        """True if passes draw random numbers, or may in a later step; known after the first pass."""
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
        """Compute for each worker in turn its module's forward pass, the loss, the backward pass, and a copy into its
        row of g."""
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
        """Return the loss of worker i; its gradient goes to row j."""
        models, device = self.models, self.models.device
        if self.draws is not False:
            seed(j)
        is_first = self.draws is None
        before = random_state(device) if is_first else []
        with precise:
            outputs = models.modules[i](self.memory_format(inputs))
        if is_first:
            own = models.foreign or is_foreign_loss(self.loss)
            self.draws = own or not all(map(torch.equal, before, random_state(device)))
            models.check()
            if not isinstance(outputs, Tensor):
                raise ConfigError(
                    f"In training the model gives a {type(outputs).__name__}, but the loss takes one tensor: "
                    "let it return its logits [B, classes] alone (a model of torchvision: aux_logits=False)."
                )
        loss: Tensor = self.loss(outputs.to(dtype), targets)
        gradients = torch.autograd.grad(loss, models.leaves[i], allow_unused=True)
        if is_first:
            models.unused = tuple(name for name, g in zip(models.names, gradients, strict=True) if g is None)
        pairs = zip(gradients, models.leaves[i], strict=True)
        gradients = tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in pairs)
        if models.foreign:
            models.follow(i)
            gradients = tuple(g.to_dense() if g.is_sparse else g for g in gradients)
        torch._foreach_copy_(self._gradients[j], gradients)
        return loss.detach()


_NOISE = 0.01  # so that models of a first batch differ, which may all be the same
_PLACES = 2  # how many places of x are remembered, for algorithms in which two of them take turns


class SideBySide(Passes):
    """Passes of groups of workers, whose parameters are views [c, *shape] of their rows of x.

    The gradients are copied into the rows of g. Besides the rows there are only one group's activations and gradients.
    """

    execution: str = "batched"

    def __init__(
        self,
        workload: Workload,
        layers: Sequence[nn.Module],
        sizes: CallSizes,
        way: Way,
    ) -> None:
        """Store `layers` and `sizes`, the result of `shared` for this way."""
        self.workload = workload
        self.models, self.layers, self.precision = workload.models, layers, workload.precision
        self.loss, self.ignored = workload.loss, workload.ignored
        self.sizes, self.way = sizes, way
        self.workers_at_once = sizes.workers_at_once(workload.models.device)
        self.draws = bool(sizes.dropouts)
        self.lanes = Lanes()
        self.g = torch.empty(0)
        self._groups: dict[int, tuple[list[slice], list[list[Tensor]], Tensor]] = {}
        self._leaves: dict[tuple[int, tuple[int, ...], int], list[list[Tensor]]] = {}

    def __call__(
        self, x: Tensor, inputs: Tensor, targets: Tensor, workers: Sequence[int], seed: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """Compute for each group one forward pass, the losses, one backward pass for their sum, and a copy into the
        rows of g."""
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
                if leaves[0].grad is not views[0]:  # these leaves are new, or were in another group
                    for leaf, view in zip(leaves, views, strict=True):
                        leaf.grad = view  # where a layer may put its gradient at once
                with precise:
                    draws = self._draws(range(group.start, group.stop), seed, x, inputs.shape[1]) if self.draws else ()
                    modules = [self.models.modules[i] for i in workers[group]]
                    outputs = self.way.forward(self.layers, inputs[group], leaves, draws, modules)
                loss = self._losses(outputs.to(x.dtype), targets[group], group, seed)
                found = torch.autograd.grad(loss.sum(), leaves)
                moved = [pair for pair in zip(views, found, strict=True) if pair[0].data_ptr() != pair[1].data_ptr()]
                torch._foreach_copy_([view for view, _ in moved], [gradient for _, gradient in moved])
                losses.append(loss.detach())
        return torch.cat(losses), g

    def _losses(self, outputs: Tensor, targets: Tensor, group: slice, seed: Callable[[int], None]) -> Tensor:
        """Return the mean losses [c] of the rows of a group, for their outputs and targets [c, B, ...]."""
        if is_foreign_loss(self.loss):
            losses = []
            for j, one, their in zip(range(group.start, group.stop), outputs, targets, strict=True):
                seed(j)
                losses.append(self.loss(one, their))
            return torch.stack(losses)
        each = self.loss(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="none").reshape(len(targets), -1)
        if self.ignored is None:
            return each.mean(1)
        return each.sum(1) / (targets != self.ignored).flatten(1).sum(1)

    def doubt(self, x: Tensor, inputs: Tensor, targets: Tensor) -> str | None:
        """Compare with passes of single workers, each at a different model: a copy of its row with noise."""
        fast = SideBySide(self.workload, self.layers, self.sizes, self.way)
        alone = OneByOne(self.models, self.precision, self.loss)
        generator, device = torch_generator("cpu", 0, "proof"), self.models.device
        own_loss = is_foreign_loss(self.loss)
        what = "its layers or its loss" if own_loss else "its layers"
        seed = partial(seed_draws, device, 0, foreign=own_loss)

        def noise(rows: Tensor) -> Tensor:
            return torch.randn(rows.shape, generator=generator).to(rows)

        def computed(passes: Passes, rows: Tensor, group: slice) -> list[Tensor]:
            with self.models.keeping_buffers():
                each = passes(rows, inputs[group].clone(), targets[group], range(len(rows)), seed)
                statistics = [list(map(torch.flatten, module.buffers())) for module in self.models.modules[: len(rows)]]
                kept = [torch.cat(buffers).to(rows) for buffers in statistics if buffers]
                return [tensor.clone() for tensor in each] + ([torch.stack(kept)] if kept else [])

        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                for group in self.groups(len(x)):
                    rows = x[group] + _NOISE * noise(x[group])
                    expected = computed(alone, rows, group)
                    try:
                        found = computed(fast, rows, group)
                    except Exception as error:
                        return f"{what} fail side by side ({error})"
                    if all(agree(*each, self.precision) for each in zip(found, expected, strict=True)):
                        continue
                    nudged = computed(alone, rows * (1 + self.precision.rounding * noise(rows)), group)
                    each = zip(found, expected, nudged, strict=True)
                    if not all(agree(one, other, self.precision, third) for one, other, third in each):
                        return f"{what} compute something else side by side"
                return None
        finally:
            self.models.release()

    def _draws(self, rows: Sequence[int], seed: Callable[[int], None], like: Tensor, B: int) -> list[Tensor]:
        """Return the dropout masks of a batch, [c, B, ...] each: each worker draws the same as alone."""
        device, drawn = like.device.type, []
        lower = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype
        for j in rows:
            seed(j)
            drawn.append(
                [
                    F.dropout(like.new_ones(B, *shape, dtype=lower if multiplied else like.dtype), p)
                    for p, shape, multiplied in self.sizes.dropouts
                ]
            )
        return [torch.stack(each) for each in zip(*drawn, strict=True)]

    def groups(self, r: int) -> list[slice]:
        """Return the groups of r rows, of about the same size."""
        bounds = torch.arange(r).tensor_split(-(-r // self.workers_at_once))
        return [slice(int(group[0]), int(group[-1]) + 1) for group in bounds]

    def _bound(self, x: Tensor, groups: Sequence[slice]) -> list[list[Tensor]]:
        """Return the parameters of each group, as leaves of autograd."""
        place = x.data_ptr(), x.stride(), len(x)
        if place not in self._leaves:
            if len(self._leaves) >= _PLACES:
                del self._leaves[next(iter(self._leaves))]
            views = [self.models.views(x[group]) for group in groups]
            self._leaves[place] = [[view.detach().requires_grad_() for view in group] for group in views]
        return self._leaves[place]
