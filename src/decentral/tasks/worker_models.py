"""One torch module per local worker, whose parameters are views of that worker's row."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from decentral.randomness import address


class WorkerModels:
    """k copies of a module. Parameters alias the rows of x [k, P], their gradients those of g [k, P]: nothing is packed.

    Buffers (batch-norm statistics) are each copy's own. The order of the coordinates is that of `module.parameters()`.
    """

    def __init__(self, template: nn.Module, num_workers: int, device: torch.device) -> None:
        template = template.to(device)
        self.parameters = list(template.parameters())
        self.num_parameters = sum(p.numel() for p in self.parameters)
        self.modules = [self._copy(template) for _ in range(num_workers)]
        self.leaves = [list(module.parameters()) for module in self.modules]
        self.g = torch.zeros(num_workers, self.num_parameters, device=device)
        for leaves, row in zip(self.leaves, self.g, strict=True):
            for leaf, view in zip(leaves, self.views(row), strict=True):
                leaf.grad = view
        self._bound: tuple[int, tuple[int, ...]] | None = None
        self._views: dict[tuple[int, tuple[int, ...]], list[list[Tensor]]] = {}

    def flat(self) -> Tensor:
        """The template's parameters as one row [P]."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def views(self, row: Tensor) -> list[Tensor]:
        """A row [P] as the module's parameters: views, nothing is copied."""
        parts = row.split([p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def bind(self, x: Tensor) -> None:
        """Let the parameters be the rows of x [k, P]. Costs nothing while the algorithm keeps x where it is."""
        key = x.data_ptr(), x.stride()
        if key == self._bound:
            return
        if key not in self._views:
            if len(self._views) >= 4:
                self._views.clear()
            self._views[key] = [self.views(row) for row in x]
        for leaves, views in zip(self.leaves, self._views[key], strict=True):
            for leaf, view in zip(leaves, views, strict=True):
                leaf.data = view
        self._bound = key

    def buffers(self) -> dict[str, Tensor]:
        """The modules' buffers by name, [k, ...] each, stacked into one tensor that the modules' own then alias."""
        stacked = {}
        for name, _ in self.modules[0].named_buffers():
            owners = [_owner(module, name) for module in self.modules]
            rows = torch.stack([owner._buffers[leaf] for owner, leaf in owners])  # type: ignore[arg-type]
            for (owner, leaf), row in zip(owners, rows, strict=True):
                owner._buffers[leaf] = row
            stacked[name] = rows
        return stacked

    @staticmethod
    def _copy(template: nn.Module) -> nn.Module:
        """A copy whose parameters are placeholders; buffers are really copied."""
        memo = {id(p): nn.Parameter(torch.empty_like(p, device="meta")) for p in template.parameters()}
        clone = copy.deepcopy(template, memo)
        for name, p in list(clone.named_parameters()):
            owner, leaf = _owner(clone, name)
            owner._parameters[leaf] = nn.Parameter(torch.empty(p.shape, device=next(template.parameters()).device))
        return clone


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
