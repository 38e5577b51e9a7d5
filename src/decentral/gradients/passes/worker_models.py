"""One torch module per local worker, whose trained parameters are views of that worker's row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decentral.errors import ConfigError
from decentral.gradients.passes.module_state import ModuleState, copied, names_of
from decentral.randomness import address

_KNOWN = ("torch", "torchvision", "decentral")


class WorkerModels:
    """k copies of a module whose trained parameters alias the rows of x [k, P].

    Nothing is packed. What else a module keeps is each copy's own: buffers (batch-norm statistics), parameters with
    requires_grad=False, attributes. The order of the coordinates is that of `module.parameters()`.
    """

    def __init__(self, template: nn.Module, num_workers: int, device: torch.device) -> None:
        trained = [(name, p) for name, p in template.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.shapes = [p.shape for _, p in trained]
        self.num_parameters = sum(shape.numel() for shape in self.shapes)
        self.device = device
        self.modules = [_copy(template, device) for _ in range(num_workers)]
        self.leaves = [_trained(module) for module in self.modules]
        self.foreign = any(map(_is_foreign, template.modules()))
        """Whether a forward pass may change more than batch-norm statistics: the code is not known."""
        self._known = names_of(template)
        self._states = [ModuleState(module) for module in self.modules]
        self._bound = [-1] * num_workers  # where the row in use begins
        self._views: list[dict[int, list[Tensor]]] = [{} for _ in range(num_workers)]

    def views(self, rows: Tensor) -> list[Tensor]:
        """Rows [..., P] as the module's trained parameters, [..., *shape] each: views, nothing is copied."""
        parts = rows.split([shape.numel() for shape in self.shapes], dim=-1)
        return [part.view((*part.shape[:-1], *shape)) for part, shape in zip(parts, self.shapes, strict=True)]

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

    def follow(self, i: int) -> None:
        """Take over what a forward pass has put in the place of parameters of module i, by `weight.data = ...`."""
        for leaf, view in zip(self.leaves[i], self._views[i][self._bound[i]], strict=True):
            if leaf.data_ptr() != view.data_ptr():
                leaf.data = view.copy_(leaf.data)

    def release(self) -> None:
        """Forget the rows: they may be freed."""
        for known in self._views:
            known.clear()
        self._bound = [-1] * len(self.modules)
        for leaf in (leaf for leaves in self.leaves for leaf in leaves):
            leaf.data = _placeholder(leaf.shape, leaf.dtype, leaf.device)

    def for_tests(self, i: int) -> nn.Module:
        """Module i for forward passes of which nothing may stay: of foreign code a copy, which is used once."""
        if not self.foreign:
            return self.modules[i]
        return copied(self.modules[i], {id(leaf): nn.Parameter(leaf.data.clone()) for leaf in self.leaves[i]})

    def check(self) -> None:
        """Raise a ConfigError if a forward pass has added, frozen or replaced parameters, or added buffers."""
        for module, leaves in zip(self.modules, self.leaves, strict=True) if self.foreign else ():
            own = set(leaves)
            replaced = {name for name, p in module.named_parameters() if p.requires_grad and p not in own}
            if changed := sorted(self._known ^ names_of(module) | replaced):
                raise ConfigError(
                    f"The model changes {changed[0]} while it is trained: make parameters and buffers in __init__ "
                    "(None will do for a buffer), and say there what requires_grad."
                )

    def state(self) -> list[dict[str, Any]]:
        """What each module keeps beside its trained parameters, see `ModuleState`. Raises as `check` does."""
        self.check()
        return [state.found() for state in self._states]

    def load_state(self, entries: Sequence[dict[str, Any]]) -> None:
        """Let the modules be as `state` has found them."""
        for state, entry in zip(self._states, entries, strict=True):
            state.put(entry)


def flat(module: nn.Module) -> Tensor:
    """All trained parameters as one new row [P]."""
    return torch.cat([p.detach().reshape(-1) for p in _trained(module)])


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def _copy(template: nn.Module, device: torch.device) -> nn.Module:
    """A copy whose trained parameters take no memory until they are bound; all else is really copied."""
    memo: dict[int, Any] = {id(p): nn.Parameter(_placeholder(p.shape, p.dtype, device)) for p in _trained(template)}
    return copied(template, memo).to(device)


def _placeholder(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def _is_foreign(module: nn.Module) -> bool:
    if type(module).__module__.partition(".")[0] not in _KNOWN or "forward" in vars(module):
        return True
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    hooked = any(hooks) or any(parameter._backward_hooks for parameter in module.parameters(recurse=False))
    return hooked or getattr(module, "max_norm", None) is not None  # embeddings are scaled in place


def seed_draws(device: torch.device, seed: int, *indices: int, purpose: str = "dropout", foreign: bool = True) -> None:
    """Address the randomness of the forward pass that follows (dropout, say, has no generator argument).

    In training the indices are worker and draw. Foreign code may draw from the generators of numpy and Python, too.
    """
    number = address(seed, purpose, *indices)
    for generator in _generators(device):
        generator.manual_seed(number)
    if foreign:
        np.random.seed(number % 2**32)
        random.seed(number)


def random_state(device: torch.device) -> list[Tensor]:
    """How far the generators are that a forward pass can draw from: it has drawn something if this has changed."""
    return [generator.get_state() for generator in _generators(device)]


def _generators(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
