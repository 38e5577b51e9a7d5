"""One torch module per local worker, whose trained parameters are views of its row, and its other state."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from decentral.errors import ConfigError
from decentral.randomness import address
from decentral.store.models import packed, unpacked


def state_of(module: nn.Module) -> dict[str, Any]:
    """Return what a `state_dict` has besides trained parameters: buffers, frozen parameters and extra state.

    tensors: name -> tensor, which aliases the module's; extra: name -> `packed` value. Each is omitted if it is empty.
    """
    extra = {
        name: packed(part.get_extra_state())
        for name, part in module.named_modules()
        if type(part).get_extra_state is not nn.Module.get_extra_state
    }
    entry = {"tensors": tensors_of(module), "extra": extra}
    return {key: value for key, value in entry.items() if value}


def put_state(
    module: nn.Module, entry: Mapping[str, Any], first: Mapping[str, Tensor], frozen: Mapping[str, Tensor]
) -> None:
    """Restore a result of `WorkerModels.state`. Tensors that are in the memory of the `first` ones stay there."""
    for name, value in {**dict.fromkeys(_buffers_of(module)), **entry.get("tensors", {})}.items():
        _put_tensor(module, name, frozen.get(name) if value is None else value, first.get(name))
    for name, value in entry.get("extra", {}).items():
        module.get_submodule(name).set_extra_state(unpacked(value))


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return persistent buffers and parameters with requires_grad=False, by all of their names."""
    frozen = {name: p for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: t.detach() for name, t in (_buffers_of(module) | frozen).items() if t is not None}


def _buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Return persistent buffers, including those that are None."""
    return {
        f"{name}.{leaf}".removeprefix("."): buffer
        for name, part in module.named_modules(remove_duplicate=False)
        for leaf, buffer in part._buffers.items()
        if leaf not in part._non_persistent_buffers_set
    }


def _put_tensor(module: nn.Module, name: str, value: Tensor | None, first: Tensor | None) -> None:
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    now = owner._parameters[leaf] if leaf in owner._parameters else owner._buffers.get(leaf)
    if now is None or value is None:
        owner._buffers[leaf] = None if value is None else value.clone()
    elif first is not None and _alike(now, value) and now.layout == torch.strided and _in_one_memory(now, first):
        if not _in_one_memory(now, value):
            now.detach().copy_(value)
    elif leaf in owner._parameters:
        now.data = value.to(now.device, copy=True)
    else:
        owner._buffers[leaf] = value.to(now.device, copy=True)


def make_room(module: nn.Module, tensors: Mapping[str, Any]) -> None:
    """Adapt buffers to the shapes and types that training has given them, so that `load_state_dict` accepts them."""
    owners = dict(module.named_modules())
    for name, value in tensors.items():
        path, _, leaf = name.rpartition(".")
        buffers = owners[path]._buffers if path in owners else {}
        if leaf not in buffers or is_lazy(buffers[leaf]):
            continue
        if (now := buffers[leaf]) is None or not _alike(now, value):
            buffers[leaf] = torch.empty_like(value, device=next(module.parameters()).device)


def with_versions(module: nn.Module, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return these tensors as a `state_dict` of the module, with the versions of its parts: `load_state_dict` migrates
    nothing."""
    state = module.state_dict()
    state.clear()
    state.update(tensors)
    return state


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.layout == other.layout


def same(one: Any, other: Any) -> bool:
    """Return whether two states, or two packed values, are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return _alike(one, other) and (torch.equal(one, other) if one.layout == torch.strided else one is other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other or (one != one and other != other))


def shared(tensor: Tensor) -> Tensor:
    """Return the tensor in the same memory until either of the two is written, and then in its own (copy on write)."""
    try:
        return torch._lazy_clone(tensor.detach())
    except RuntimeError:  # memory that torch has not allocated, such as NumPy's
        return tensor.detach().clone()


def _in_one_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two dense tensors begin at the same address, without the copy that `data_ptr` makes."""
    address = cast("Any", torch._C)._data_address
    return bool(address(one) == address(other))


def copied(module: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return `copy.deepcopy` of a module, of which parameters keep their hooks and attributes, and frozen ones stay in
    one memory until they are written.

    Tensors that were computed, such as the weight of a pruned layer, are cut from their graphs, except views of leaves:
    they would not follow the copy's.
    """
    memo = {} if memo is None else memo
    for value in tree_leaves([vars(part) for part in module.modules()]):
        if isinstance(value, nn.UninitializedBuffer):  # of which `deepcopy` makes no copy
            memo[id(value)] = cast("Any", type(value))(device=value.device, dtype=value.dtype)
        elif isinstance(value, Tensor) and not value.is_leaf and (value._base is None or not value._base.is_leaf):
            memo[id(value)] = value.detach().clone()
    for parameter in module.parameters():
        if type(parameter) is nn.Parameter and not parameter.requires_grad:
            memo[id(parameter)] = nn.Parameter(shared(parameter), requires_grad=False)
    result = copy.deepcopy(module, memo)
    for theirs, parameter in zip(module.parameters(), result.parameters(), strict=True):
        vars(parameter).update(copy.deepcopy(vars(theirs), memo))
        for hook in (theirs._backward_hooks or {}).values():
            parameter.register_hook(hook)
    return result


def names_of(module: nn.Module) -> set[str]:
    """Return the names of trained parameters, and of persistent buffers, including those that are None."""
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad} | _buffers_of(
        module
    ).keys()


_KNOWN = ("torch", "torchvision", "decentral")


class WorkerModels:
    """k copies of a module whose trained parameters alias the rows of x [k, P].

    Nothing is packed. Parameters with requires_grad=False take memory once, unless a forward pass writes them. All
    other state is private to each copy, such as buffers (batch-norm statistics). The order of the coordinates is that
    of `module.parameters()`.
    """

    def __init__(self, template: nn.Module, num_workers: int, device: torch.device) -> None:
        trained = [(name, p) for name, p in template.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.shapes = [p.shape for _, p in trained]
        self.num_parameters = sum(shape.numel() for shape in self.shapes)
        self.device = device
        for parameter in template.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(device)
        named = template.named_parameters(remove_duplicate=False)
        self.frozen = {name: shared(p) for name, p in named if type(p) is nn.Parameter and not p.requires_grad}
        """Initial frozen parameters, by all of their names."""
        self.modules = []
        for _ in range(num_workers):  # trained parameters take no memory until they are bound
            memo: dict[int, Any] = {id(p): nn.Parameter(_placeholder(p.shape, p.dtype, device)) for _, p in trained}
            self.modules.append(copied(template, memo).to(device))
        self.leaves = [_trained(module) for module in self.modules]
        self.foreign = any(map(_is_foreign, template.modules()))
        """True if a forward pass may change more than batch-norm statistics, since its code is unknown."""
        self.unused: tuple[str, ...] = ()
        """Trained parameters without a gradient in the first pass."""
        self._known = names_of(template)
        self._first = [tensors_of(module) for module in self.modules]
        self._bound = [-1] * num_workers  # where the row in use begins
        self._views: list[dict[int, list[Tensor]]] = [{} for _ in range(num_workers)]

    def views(self, rows: Tensor) -> list[Tensor]:
        """Return rows [..., P] as the module's trained parameters, [..., *shape] each: views, without copies."""
        parts = rows.split([shape.numel() for shape in self.shapes], dim=-1)
        return [part.view((*part.shape[:-1], *shape)) for part, shape in zip(parts, self.shapes, strict=True)]

    def bind(self, x: Tensor, workers: Sequence[int] | None = None) -> None:
        """Bind the parameters of the modules `workers`, by default all, to the rows of x [r, P].

        The cost is negligible while the algorithm keeps x in the same memory. The views of two rows are kept for each
        module, for algorithms in which x and another row tensor take turns.
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
        """Adopt parameters of module i that a forward pass replaced by `weight.data = ...`."""
        for leaf, view in zip(self.leaves[i], self._views[i][self._bound[i]], strict=True):
            if leaf.data_ptr() != view.data_ptr():
                leaf.data = view.copy_(leaf.data)

    def release(self) -> None:
        """Release the rows: they may be freed."""
        for known in self._views:
            known.clear()
        self._bound = [-1] * len(self.modules)
        for leaf in (leaf for leaves in self.leaves for leaf in leaves):
            leaf.data = _placeholder(leaf.shape, leaf.dtype, leaf.device)

    def for_tests(self, i: int) -> nn.Module:
        """Return module i for forward passes without lasting effects: for foreign code a copy, which is used once."""
        if not self.foreign:
            return self.modules[i]
        return copied(self.modules[i], {id(leaf): nn.Parameter(leaf.data.clone()) for leaf in self.leaves[i]})

    @contextmanager
    def keeping_buffers(self) -> Iterator[None]:
        """Restore the modules' buffers when the context ends."""
        buffers = [buffer for module in self.modules for buffer in module.buffers()]
        before = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            for buffer, kept in zip(buffers, before, strict=True):
                buffer.copy_(kept)

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

    @property
    def are_stateless(self) -> bool:
        """Return whether no module can have state besides its trained parameters; equal on all processes."""
        return not (self.foreign or state_of(self.modules[0]))

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each module besides its trained parameters, see `state_of`: frozen parameters are None as
        long as they have their initial values. Raises as `check` does."""
        self.check()
        states = [state_of(module) for module in self.modules]
        for tensors in (state["tensors"] for state in states if self.frozen):
            tensors.update({name: None for name in self.frozen if self.is_initial(name, tensors[name])})
        return states

    def is_initial(self, name: str, value: Any) -> bool:
        """Return whether this is a frozen parameter with its initial value."""
        return name in self.frozen and (
            _in_one_memory(self.frozen[name], value) or same(self.frozen[name], value.detach())
        )

    def load_state(self, entries: Sequence[dict[str, Any] | None]) -> None:
        """Restore the result of `state`; None: unchanged."""
        for module, entry, first in zip(self.modules, entries, self._first, strict=True):
            if entry is not None:
                put_state(module, entry, first, self.frozen)


def flat(module: nn.Module) -> Tensor:
    """Return all trained parameters as one new row [P]."""
    return torch.cat([p.detach().reshape(-1) for p in _trained(module)])


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def _placeholder(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def is_foreign_loss(loss: object) -> bool:
    """Return whether it is a user's function, which may be random and depend on the whole batch."""
    return getattr(loss, "foreign", False)


def _is_foreign(module: nn.Module) -> bool:
    if type(module).__module__.partition(".")[0] not in _KNOWN or "forward" in vars(module):
        return True
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    hooked = any(hooks) or any(parameter._backward_hooks for parameter in module.parameters(recurse=False))
    return hooked or getattr(module, "max_norm", None) is not None  # embeddings are scaled in place


def seed_draws(device: torch.device, seed: int, *indices: int, purpose: str = "dropout", foreign: bool = True) -> None:
    """Seed the randomness of the next forward pass (dropout, for example, has no generator argument).

    In training the indices are worker and draw. Foreign code may draw from the generators of numpy and Python, too.
    """
    number = address(seed, purpose, *indices)
    for generator in _generators(device):
        generator.manual_seed(number)
    if foreign:
        np.random.seed(number % 2**32)
        random.seed(number)


def random_state(device: torch.device) -> list[Tensor]:
    """Return the states of the generators that a forward pass can draw from: a change means that it has drawn random
    numbers."""
    return [generator.get_state() for generator in _generators(device)]


def _generators(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
