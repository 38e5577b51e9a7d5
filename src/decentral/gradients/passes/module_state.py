"""What a module keeps beside its trained parameters, as plain values; and copies of modules."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from types import CellType, FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from decentral.store.models import packed, unpacked

_INTERNAL = frozenset(vars(nn.Module()))


class ModuleState:
    """Buffers, parameters with requires_grad=False, `get_extra_state`, and plain attributes that have changed.

    Plain attributes are numbers, strings, tensors, arrays, and lists, tuples, sets, dicts and objects of these, of
    modules whose class is not torch's.
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
                    _put_attribute(vars(owner), leaf, unpacked(then[key]))
                else:
                    del vars(owner)[leaf]

    def _attributes(self) -> dict[str, Any]:
        found = {}
        for name, module in self.module.named_modules():
            if type(module).__module__.partition(".")[0] == "torch":
                continue
            for key in vars(module).keys() - _INTERNAL:
                value = vars(module)[key]
                try:
                    found[f"{name}.{key}"] = packed(dict(vars(value)) if _is_object(value) else value)
                except (TypeError, RecursionError):  # nothing that a checkpoint can hold
                    continue
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
    elif own is not None and now.data_ptr() == own.data_ptr() and _alike(now, value):
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


def _put_attribute(where: dict[str, Any], leaf: str, value: Any) -> None:
    """Lists, dicts and objects keep their places, since hooks may hold them, and deques their lengths."""
    now: Any = where.get(leaf)
    if _is_object(now) and isinstance(value, dict):
        _put_attribute({"vars": vars(now)}, "vars", value)
    elif type(now) is type(value) and isinstance(now, list | deque):
        now.clear()
        now.extend(value)
    elif type(now) is type(value) and isinstance(now, dict):
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
    for _, _, value in items_of(module):
        if isinstance(value, nn.UninitializedBuffer):  # of which `deepcopy` makes no copy
            memo[id(value)] = cast(Any, type(value))(device=value.device, dtype=value.dtype)
        elif isinstance(value, Tensor) and not value.is_leaf:
            memo[id(value)] = value.detach().clone()
    found = copy.deepcopy(module, memo)
    for container, key, value in items_of(found):
        if isinstance(value, FunctionType) and value.__closure__:
            container[key] = _around(value, memo)
    for theirs, own in zip(module.parameters(), found.parameters(), strict=True):
        for hook in (theirs._backward_hooks or {}).values():
            own.register_hook(hook)
    return found


def _around(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """The function with what was copied in the place of what it was copied from."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(CellType(memo.get(id(cell.cell_contents), cell.cell_contents)))
        except ValueError:  # nothing is in it yet
            cells.append(cell)
    found = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells)
    )
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


def items_of(module: nn.Module) -> Iterator[tuple[Any, Any, Any]]:
    """(dict or list, key, value) of everything in a module's attributes, hooks among them; nothing of submodules."""
    inside: list[Any] = [vars(each) for each in module.modules()]
    seen = set[int]()
    while inside:
        container = inside.pop()
        if id(container) in seen:
            continue
        seen.add(id(container))
        for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
            yield container, key, value
            if isinstance(value, dict | list):
                inside.append(value)
