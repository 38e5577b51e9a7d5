"""One torch module per local worker, whose parameters are views of that worker's row."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from decentral.randomness import address


class WorkerModels:
    """k copies of a module whose parameters alias the rows of x [k, P].

    Nothing is packed. Buffers (batch-norm statistics) are each copy's own. The order of the coordinates is that of
    `module.parameters()`.
    """

    def __init__(self, template: nn.Module, num_workers: int, device: torch.device) -> None:
        self.shapes = [p.shape for p in template.parameters()]
        self.num_parameters = sum(shape.numel() for shape in self.shapes)
        self.device = device
        self.modules = [_copy(template, device) for _ in range(num_workers)]
        self.leaves = [list(module.parameters()) for module in self.modules]
        self._bound: tuple[int, tuple[int, ...]] | None = None
        self._views: dict[tuple[int, tuple[int, ...]], list[list[Tensor]]] = {}

    def views(self, rows: Tensor) -> list[Tensor]:
        """Rows [..., P] as the module's parameters, [..., *shape] each: views, nothing is copied."""
        parts = rows.split([shape.numel() for shape in self.shapes], dim=-1)
        return [
            part.unflatten(-1, shape) if shape else part[..., 0] for part, shape in zip(parts, self.shapes, strict=True)
        ]

    def bind(self, x: Tensor) -> None:
        """Let the parameters be the rows of x [k, P]. Costs next to nothing while the algorithm keeps x where it is.

        The views of two places are kept, for algorithms in which x and another row tensor take turns.
        """
        key = x.data_ptr(), x.stride()
        if key == self._bound:
            return
        if key not in self._views:
            if len(self._views) >= 2:
                del self._views[next(iter(self._views))]
            self._views[key] = [self.views(row) for row in x]
        for leaves, views in zip(self.leaves, self._views[key], strict=True):
            for leaf, view in zip(leaves, views, strict=True):
                leaf.data = view
        self._bound = key

    def release(self) -> None:
        """Forget the rows: they may be freed."""
        self._views.clear()
        self._bound = None
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


def _copy(template: nn.Module, device: torch.device) -> nn.Module:
    """A copy whose parameters take no memory until they are bound; buffers are really copied."""
    memo = {id(p): nn.Parameter(_placeholder(p.shape, p.dtype, device)) for p in template.parameters()}
    return copy.deepcopy(template, memo).to(device)


def _placeholder(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def has_dropout(module: nn.Module) -> bool:
    """Whether a forward pass in training draws random numbers."""
    return any(isinstance(m, nn.modules.dropout._DropoutNd) for m in module.modules())


def seed_dropout(device: torch.device, seed: int, worker: int, index: int) -> None:
    """Address the randomness of the forward pass that follows (dropout has no generator argument)."""
    if device.type == "cuda":
        torch.cuda.manual_seed(address(seed, "dropout", worker, index))
    else:
        torch.default_generator.manual_seed(address(seed, "dropout", worker, index))
