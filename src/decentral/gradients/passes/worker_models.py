"""One torch module per local worker, whose parameters are views of that worker's row."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decentral.randomness import address


class WorkerModels:
    """k copies of a module whose parameters alias the rows of x [k, P].

    Nothing is packed. Buffers (batch-norm statistics) are each copy's own. The order of the coordinates is that of
    `module.parameters()`.
    """

    def __init__(self, template: nn.Module, num_workers: int, device: torch.device) -> None:
        self.names = [name for name, _ in template.named_parameters()]
        self.shapes = [p.shape for p in template.parameters()]
        self.num_parameters = sum(shape.numel() for shape in self.shapes)
        self.device = device
        self.modules = [_copy(template, device) for _ in range(num_workers)]
        self.leaves = [list(module.parameters()) for module in self.modules]
        self._bound = [-1] * num_workers  # where the row in use begins
        self._views: list[dict[int, list[Tensor]]] = [{} for _ in range(num_workers)]

    def views(self, rows: Tensor) -> list[Tensor]:
        """Rows [..., P] as the module's parameters, [..., *shape] each: views, nothing is copied."""
        parts = rows.split([shape.numel() for shape in self.shapes], dim=-1)
        return [
            part.unflatten(-1, shape) if shape else part[..., 0] for part, shape in zip(parts, self.shapes, strict=True)
        ]

    def bind(self, x: Tensor, workers: Sequence[int] | None = None) -> None:
        """Let the parameters of the modules `workers`, by default all, be the rows of x [r, P].

        Costs next to nothing while the algorithm keeps x where it is. The views of two rows are kept for each module,
        for algorithms in which x and another row tensor take turns.
        """
        start, step = x.data_ptr(), x.stride(0) * x.element_size()
        for j, i in enumerate(range(len(x)) if workers is None else workers):
            place = start + j * step
            if place == self._bound[i]:
                continue
            known = self._views[i]
            if place not in known:
                if len(known) >= 2:
                    del known[next(iter(known))]
                known[place] = self.views(x[j])
            for leaf, view in zip(self.leaves[i], known[place], strict=True):
                leaf.data = view
            self._bound[i] = place

    def release(self) -> None:
        """Forget the rows: they may be freed."""
        for known in self._views:
            known.clear()
        self._bound = [-1] * len(self.modules)
        for leaf in (leaf for leaves in self.leaves for leaf in leaves):
            leaf.data = _placeholder(leaf.shape, leaf.dtype, leaf.device)

    def buffers(self) -> dict[str, Tensor]:
        """The modules' buffers by name, [k, ...] each, stacked into one tensor that the modules' own then alias."""
        stacked = {}
        for name, _ in self.modules[0].named_buffers():
            owners = [_owner(module, name) for module in self.modules]
            rows = torch.stack([owner.get_buffer(leaf) for owner, leaf in owners])
            for (owner, leaf), row in zip(owners, rows, strict=True):
                owner._buffers[leaf] = row
            stacked[name] = rows
        return stacked


def flat(module: nn.Module) -> Tensor:
    """All parameters as one new row [P]."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def copied(module: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A copy, with the hooks of its parameters, which `deepcopy` leaves out."""
    found = copy.deepcopy(module, memo)
    for theirs, own in zip(module.parameters(), found.parameters(), strict=True):
        for hook in (theirs._backward_hooks or {}).values():
            own.register_hook(hook)
    return found


def _copy(template: nn.Module, device: torch.device) -> nn.Module:
    """A copy whose parameters take no memory until they are bound; buffers are really copied."""
    memo = {id(p): nn.Parameter(_placeholder(p.shape, p.dtype, device)) for p in template.parameters()}
    return copied(template, memo).to(device)


def _placeholder(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def seed_draws(device: torch.device, seed: int, worker: int, index: int) -> None:
    """Address the randomness of the forward pass that follows (dropout, say, has no generator argument)."""
    for generator in _generators(device):
        generator.manual_seed(address(seed, "dropout", worker, index))


def random_state(device: torch.device) -> list[Tensor]:
    """How far the generators are that a forward pass can draw from: it has drawn something if this has changed."""
    return [generator.get_state() for generator in _generators(device)]


def _generators(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
