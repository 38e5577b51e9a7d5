"""One torch module per local worker, whose trained parameters are views of its row, and what else a module keeps."""

from __future__ import annotations

import copy
import inspect
import random
import sys
import weakref
from collections import ChainMap, Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from types import CellType, FunctionType, MethodType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from decentral.errors import ConfigError
from decentral.randomness import address
from decentral.store.models import packed, unpacked

_INTERNAL = frozenset(vars(nn.Module()))


class ModuleState:
    """Buffers, parameters with requires_grad=False, `get_extra_state`, and plain attributes that have changed.

    Plain attributes are numbers, strings, tensors, arrays, and lists, tuples, sets, dicts and objects of these; of
    modules of torch, numbers, strings and `training`. Objects that are hooks count as attributes.
    """

    def __init__(self, module: nn.Module) -> None:
        """Changes count from now on."""
        self.module = module
        self._own, self._before = tensors_of(module), self._attributes()

    def found(self) -> dict[str, Any]:
        """tensors: name -> tensor or None, which alias the module's own; extra, attributes: name -> `packed` value.

        Each is left out where it is empty.
        """
        tensors: dict[str, Any] = dict.fromkeys(self._own) | tensors_of(self.module)
        attributes = {
            key: value
            for key, value in self._attributes().items()
            if key not in self._before or not same(value, self._before[key])
        }
        extra = {
            name: packed(module.get_extra_state())
            for name, module in self.module.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }
        entry = {"tensors": tensors, "extra": extra, "attributes": attributes}
        return {key: value for key, value in entry.items() if value}

    def put(self, entry: dict[str, Any]) -> None:
        """Let the module be as it was found. Tensors that are where they were at first keep their places."""
        tensors: dict[str, Any] = entry.get("tensors", {})
        new = tensors_of(self.module).keys() - self._own.keys()
        for name, value in {**dict.fromkeys(new), **tensors}.items():
            put_tensor(self.module, name, value, self._own.get(name))
        for name, value in entry.get("extra", {}).items():
            self.module.get_submodule(name).set_extra_state(unpacked(value))
        now, then = self._attributes(), self._before | entry.get("attributes", {})
        for key in now.keys() | then.keys():
            if key not in now or key not in then or not same(now[key], then[key]):
                owner, leaf = owner_of(self.module, key)
                if key in then:
                    _put_attribute(ChainMap(vars(owner), _hooks(owner)), leaf, unpacked(then[key]))
                else:
                    del vars(owner)[leaf]

    def _attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, module in self.module.named_modules():
            found[f"{name}.training"] = module.training  # a forward pass may call eval()
            theirs = type(module).__module__.partition(".")[0] == "torch"
            own = {key: value for key, value in vars(module).items() if key not in _INTERNAL}
            if theirs:
                own = {key: value for key, value in own.items() if type(value) in (bool, int, float, str)}
            for key, value in (own | _hooks(module)).items():
                with suppress(TypeError, RecursionError):  # nothing that a checkpoint can hold
                    found[f"{name}.{key}"] = packed(_plain(value))
        return found


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Buffers and parameters with requires_grad=False, by all of their names."""
    frozen = ((name, p) for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad)
    return {name: t.detach() for name, t in (*module.named_buffers(remove_duplicate=False), *frozen)}


def put_tensor(module: nn.Module, name: str, value: Tensor | None, own: Tensor | None = None) -> None:
    """Let a buffer or parameter be a copy of `value`: in the memory of `own`, if it is there and of the same kind."""
    owner, leaf = owner_of(module, name)
    now = owner._parameters[leaf] if leaf in owner._parameters else owner._buffers.get(leaf)
    if now is None or value is None:
        owner._buffers[leaf] = None if value is None else value.clone()
    elif own is not None and _alike(now, value) and now.layout == torch.strided and now.data_ptr() == own.data_ptr():
        now.detach().copy_(value)
    elif leaf in owner._parameters:
        now.data = value.to(now.device, copy=True)
    else:
        owner._buffers[leaf] = value.to(now.device, copy=True)


def make_room(module: nn.Module, tensors: Mapping[str, Any]) -> None:
    """Let buffers be of the shapes and types that training has given them, so that `load_state_dict` takes them."""
    owners = dict(module.named_modules())
    for name, value in tensors.items():
        path, _, leaf = name.rpartition(".")
        buffers = owners[path]._buffers if path in owners else {}
        if leaf not in buffers or is_lazy(buffers[leaf]):
            continue
        if (now := buffers[leaf]) is None or not _alike(now, value):
            buffers[leaf] = torch.empty_like(value, device=next(module.parameters()).device)


def with_versions(module: nn.Module, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """These as a `state_dict` of the module, with the versions of its parts: `load_state_dict` migrates nothing."""
    found = module.state_dict()
    found.clear()
    found.update(tensors)
    return found


def owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that has a tensor or an attribute of this name, and what it calls it."""
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.layout == other.layout


def _is_object(value: Any) -> bool:
    """Whether it is one whose attributes count, such as a dataclass."""
    return hasattr(value, "__dict__") and not isinstance(value, type | Tensor | nn.Module | list | dict | set)


def _plain(value: Any) -> Any:
    """The value as types that a checkpoint can hold; of an object, the attributes that are such."""
    if isinstance(value, Counter | defaultdict):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(value)
    if not _is_object(value):
        return value
    found = {}
    for key, each in vars(value).items():
        with suppress(TypeError, RecursionError):
            packed(each)
            found[key] = each
    return found


def _hooks(module: nn.Module) -> dict[str, Any]:
    """The objects among the hooks of a module, also those with a method that is one."""
    kinds = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    every = [hook.__self__ if isinstance(hook, MethodType) else hook for kind in kinds for hook in kind.values()]
    return {
        f"hook {i}": each for i, each in enumerate(every) if _is_object(each) and not isinstance(each, FunctionType)
    }


def _put_attribute(where: MutableMapping[str, Any], leaf: str, value: Any) -> None:
    """Lists, dicts and objects keep their places, since hooks may hold them, and deques their lengths."""
    now: Any = where.get(leaf)
    if _is_object(now) and isinstance(value, dict):
        for key in _plain(now).keys() - value.keys():
            delattr(now, key)
        vars(now).update(value)
    elif isinstance(value, tuple) and hasattr(now, "_fields"):
        where[leaf] = type(now)._make(value)
    elif type(now) is type(value) and isinstance(now, list | deque):
        now.clear()
        now.extend(value)
    elif isinstance(now, dict) and isinstance(value, dict):
        now.clear()
        now.update(value)
    else:
        where[leaf] = value


def same(one: Any, other: Any) -> bool:
    """Whether two states, or two packed values, are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return _alike(one, other) and (torch.equal(one, other) if one.layout == torch.strided else one is other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other or (one != one and other != other))


def copied(module: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy, `memo` as of `copy.deepcopy`.

    Tensors that were computed, such as the weight of a pruned layer, are cut from their graphs. A function that refers
    to parts of the module (a hook, mostly) refers to the parts of the copy, and parameters keep their hooks.
    """
    memo = {} if memo is None else memo
    for _, _, value in items_of(module, deep=True):
        if isinstance(value, nn.UninitializedBuffer):  # of which `deepcopy` makes no copy
            memo[id(value)] = cast("Any", type(value))(device=value.device, dtype=value.dtype)
        elif isinstance(value, Tensor) and not value.is_leaf:
            memo[id(value)] = value.detach().clone()
    found = copy.deepcopy(module, memo)
    for container, key, value in items_of(found, deep=True):
        new: Any = value
        if isinstance(value, FunctionType) and (value.__closure__ or value.__defaults__):
            new = _around(value, memo)
        elif isinstance(value, weakref.ref) and id(value()) in memo:
            new = weakref.ref(memo[id(value())])
        if new is not value:
            if isinstance(container, tuple):
                raise TypeError("a function or reference in a tuple cannot follow the copy: use a list")
            container[key] = new
    for theirs, own in zip(module.parameters(), found.parameters(), strict=True):
        vars(own).update(copy.deepcopy(vars(theirs), memo))
        for hook in (theirs._backward_hooks or {}).values():
            own.register_hook(hook)
    return found


def _around(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """Return the function with references replaced by their copies; itself, if there are none."""
    cells, refers = [], False
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # nothing is in it yet
            cells.append(cell)
            continue
        refers |= id(content) in memo
        cells.append(CellType(memo.get(id(content), content)))
    defaults = function.__defaults__ and tuple(memo.get(id(each), each) for each in function.__defaults__)
    if not refers and not any(id(each) in memo for each in function.__defaults__ or ()):
        return function
    found = FunctionType(function.__code__, function.__globals__, function.__name__, defaults, tuple(cells))
    found.__kwdefaults__, found.__qualname__ = function.__kwdefaults__, function.__qualname__
    found.__dict__.update(function.__dict__)
    return found


def names_of(module: nn.Module) -> set[str]:
    """Trained parameters, and buffers that are stored, those that are None among them."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return trained | {
        f"{name}.{leaf}".removeprefix(".")
        for name, part in module.named_modules()
        for leaf in part._buffers.keys() - part._non_persistent_buffers_set
    }


def items_of(module: nn.Module, deep: bool = False) -> Iterator[tuple[Any, Any, Any]]:
    """(dict or list, key, value) of everything in the attributes of a module and its parts, hooks among them.

    deep  of tuples and objects, too
    """
    inside: list[Any] = [vars(each) for each in module.modules()]
    seen = set[int]()
    while inside:
        container = inside.pop()
        if id(container) in seen:
            continue
        seen.add(id(container))
        for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
            yield container, key, value
            if isinstance(value, dict | list) or (deep and isinstance(value, tuple)):
                inside.append(value)
            elif deep and _is_object(value):
                inside.append(vars(value))


def generator_in(module: nn.Module) -> str | None:
    """Say which attribute is a generator of random numbers; None if none is."""
    kinds = torch.Generator | np.random.Generator | np.random.RandomState | np.random.BitGenerator | random.Random
    for _, key, value in items_of(module):
        if isinstance(value, kinds):
            return (
                f"its {key} is a generator ({type(value).__name__}), which workers would share and checkpoints would "
                "omit: draw from the global generators of torch, numpy or random"
            )
    return None


def changed_around(call: Callable[[], object], things: Sequence[Any], itself: bool = False) -> str | None:
    """Call a function twice, and name what the second call changes around these objects and functions: in their classes
    and files, in variables that functions enclose, and with `itself` in the objects. None if nothing changes.

    That finds counters: plain values, and lists and dicts of a fixed length. Those that grow are taken for logs.
    """
    call()
    once = _values_around(things, itself)
    call()
    twice = _values_around(things, itself)
    changed = (name for name in once if once[name] != twice.get(name) and len(once[name]) == len(twice.get(name, ())))
    return next(changed, None)


def _values_around(things: Sequence[Any], themselves: bool) -> dict[str, list[Any]]:
    holders: dict[str, Mapping[str, Any]] = {}
    for thing in things:
        owners: Sequence[Any] = [thing] if isinstance(thing, FunctionType) else type(thing).__mro__
        for owner in filter(_is_own, owners):
            holders[owner.__name__] = vars(owner)
            holders[owner.__module__] = vars(sys.modules.get(owner.__module__, owner))
        if isinstance(thing, FunctionType):
            with suppress(ValueError):  # one has no value yet
                holders[f"a variable of {thing.__qualname__}"] = inspect.getclosurevars(thing).nonlocals
        elif themselves:
            holders[type(thing).__name__] = dict(vars(type(thing))) | getattr(thing, "__dict__", {})
    found = {}
    for holder, values in holders.items():
        for key, value in values.items():
            entries = [value]
            if isinstance(value, dict | list):
                entries = [*value, *value.values()] if isinstance(value, dict) else value.copy()
            if not key.startswith("__") and all(type(each) in (bool, int, float, str) for each in entries):
                found[f"{holder}.{key}"] = entries
    return found


def _is_own(owner: Any) -> bool:
    return str(owner.__module__).partition(".")[0] not in (*_KNOWN, "builtins")


_KNOWN = ("torch", "torchvision", "decentral")


class WorkerModels:
    """k copies of a module whose trained parameters alias the rows of x [k, P].

    Nothing is packed. All other state is private to each copy: buffers (batch-norm statistics), parameters with
    requires_grad=False, attributes. The order of the coordinates is that of `module.parameters()`.
    """

    def __init__(self, template: nn.Module, num_workers: int, device: torch.device) -> None:
        trained = [(name, p) for name, p in template.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.shapes = [p.shape for _, p in trained]
        self.num_parameters = sum(shape.numel() for shape in self.shapes)
        self.device = device
        self.modules = []
        for _ in range(num_workers):  # trained parameters take no memory until they are bound
            memo: dict[int, Any] = {id(p): nn.Parameter(_placeholder(p.shape, p.dtype, device)) for _, p in trained}
            self.modules.append(copied(template, memo).to(device))
        self.leaves = [_trained(module) for module in self.modules]
        self.foreign = any(map(_is_foreign, template.modules()))
        """Whether a forward pass may change more than batch-norm statistics: the code is not known."""
        self.unused: tuple[str, ...] = ()
        """Trained parameters without a gradient in the first pass."""
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
        """Adopt parameters of module i that a forward pass replaced by `weight.data = ...`."""
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

    @contextmanager
    def keeping_buffers(self) -> Iterator[None]:
        """After this, the modules' buffers are as they were."""
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
            if reason := generator_in(module):
                raise ConfigError(f"The model makes a generator while it is trained: {reason}.")
            own = set(leaves)
            replaced = {name for name, p in module.named_parameters() if p.requires_grad and p not in own}
            if changed := sorted(self._known ^ names_of(module) | replaced):
                raise ConfigError(
                    f"The model changes {changed[0]} while it is trained: make parameters and buffers in __init__ "
                    "(None will do for a buffer), and say there what requires_grad."
                )

    @property
    def are_stateless(self) -> bool:
        """Whether no module can keep anything beside its trained parameters; equal on all processes: it depends on
        the classes alone and not on who has trained yet."""
        of_torch = all(type(one).__module__.partition(".")[0] == "torch" for one in self.modules[0].modules())
        return of_torch and not (self.foreign or self._states[0].found())

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each module besides its trained parameters, see `ModuleState`. Raises as `check` does."""
        self.check()
        return [state.found() for state in self._states]

    def load_state(self, entries: Sequence[dict[str, Any] | None]) -> None:
        """Restore the result of `state`; None: unchanged."""
        for state, entry in zip(self._states, entries, strict=True):
            if entry is not None:
                state.put(entry)


def flat(module: nn.Module) -> Tensor:
    """All trained parameters as one new row [P]."""
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
