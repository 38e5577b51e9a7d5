"""A digest of objects: equal in every process if they compute the same, different if they may not."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import os
import threading
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules import module as for_all_modules
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from decentral.registry.sources import release
from decentral.script.code import (
    EXACT,
    HEAP_TYPE,
    NOISE,
    UnknownError,
    add_class,
    add_code,
    add_function,
    add_function_of_c,
    add_module,
    add_patches,
    has_hidden_state,
    name_of,
    version_of,
    where_found,
)

_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")


def fingerprint(value: Any, name: str) -> tuple[str, str]:
    """Return a digest of all that determines what `value` computes, and '' or a part that has no comparable value.

    In the second case the digest is new each time. `name` is the value's name in that sentence.

    Code counts by its instructions, constants, closures, defaults and the globals that it reads; an object by its class
    and attributes; tensors and arrays by content and shared memory. Objects of Python or of an installed package count
    by name and version. Code of user classes is not called: no `__eq__`, `__hash__`, `__repr__`, property or
    `__reduce__`. Addresses, file names and the order of sets do not count.
    """
    walk = Walk(name)
    try:
        walk.whole(value)
    except UnknownError as error:
        return os.urandom(8).hex(), str(error)
    except Exception as error:  # nested too deeply, or a class that resists inspection
        return os.urandom(8).hex(), f"{name} cannot be compared by value ({type(error).__name__})"
    return walk.digest.hexdigest()[:16], ""


def trail(module: nn.Module) -> list[list[str]]:
    """Return pairs (where, digest so far) of all that determines the outputs of `module` besides its `state_dict`.

    The first pair that differs from another module's shows where they differ. Parts that cannot be compared by value
    count as equal.
    """
    walk = Walk(type(module).__name__, of_code=True)
    walk.put(release("os"), release("torch"))
    walk._mark("the version of Python or torch")
    with suppress(Exception):  # nested too deeply: use the part before it
        walk.whole(module)
    return walk.trail


def content(tensor: Tensor) -> Any:
    """Return the bytes of a dense tensor, as a flat array."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.flatten().view(torch.uint8).numpy()


class Walk:
    """A fingerprint under construction.

    digest    of what was met so far
    trail     that digest in hexadecimal digits, after each module and each piece of code, with its place
    _met      id -> number and object (kept, so that its id is not given to another one)
    _waiting  code and classes, whose contents come last: they refer to each other too deeply for a recursion
    """

    def __init__(self, name: str, of_code: bool = False) -> None:
        """Start a fingerprint. of_code: omit tensor attributes of modules, and parts that cannot be compared."""
        self.digest, self.trail = hashlib.sha256(), list[list[str]]()
        self.of_code, self._passed_over = of_code, [UnknownError] if of_code else []
        self._path = [name]
        self._met: dict[int, tuple[int, Any]] = {}
        self._storages: dict[int, int] = {}
        self._waiting: list[tuple[list[str], Callable[[], None]]] | None = []
        self.words: set[str] = set()
        self.reads_environment = False
        self._modes: dict[int, bool] = {}

    def whole(self, value: Any) -> None:
        """Add the value, and settings shared by all modules."""
        if isinstance(value, nn.Module):
            self._modes = dict.fromkeys(_registered(value), value.training)
        self.add(value)
        for name, hooks in vars(for_all_modules).items():
            if name.startswith("_global") and type(hooks) is OrderedDict and hooks:
                self.entries(enumerate(hooks.values()))
        for module in (torch, nn.functional, nn.init):
            add_patches(self, vars(module), "")
        self._mark("torch, by hooks or replaced functions")
        while self._waiting:
            self._path, contents = self._waiting.pop(0)
            with suppress(*self._passed_over):
                contents()
            self._mark(f"the code of {self._where()}")
        if self.reads_environment:
            self.entries((word, os.environ[word]) for word in sorted(self.words & os.environ.keys()))

    def add(self, value: Any) -> None:
        """Add a value, by the nearest known class in its MRO."""
        kind = type(value)
        if kind in EXACT:
            written = value if kind in (str, bytes) else hex(value) if kind is int else repr(value)
            self.put(kind.__name__, written)
            if kind is str:
                self.words.add(value)
            return
        if kind is not tuple:
            if id(value) in self._met:
                self.put("met", str(self._met[id(value)][0]))
                return
            self._met[id(value)] = len(self._met), value
        next((_HOW[base] for base in kind.__mro__ if base in _HOW), Walk._object)(self, value)

    def put(self, *words: Any) -> None:
        """Add texts or bytes, each with its length."""
        for word in words:
            data = word.encode("utf-8", "surrogatepass") if isinstance(word, str) else memoryview(word)
            self.digest.update(b"%d:" % len(data))
            self.digest.update(data)

    @contextmanager
    def at(self, name: Any) -> Iterator[None]:
        """Descend into a part of the value, for the location in `unknown`."""
        self._path.append(f".{name}" if type(name) is str else f"[{name}]" if type(name) is int else "[...]")
        try:
            yield
        finally:
            self._path.pop()

    def unknown(self, what: str) -> NoReturn:
        """Raise UnknownError for the current part."""
        raise UnknownError(f"{self._where()} {what} cannot be compared by value")

    def _where(self) -> str:
        return "".join(self._path).replace("._modules.", ".")

    def _mark(self, where: str) -> None:
        self.trail.append([where, self.digest.hexdigest()[:8]])

    def later(self, word: str, contents: Callable[[Walk, Any], None], value: Any) -> None:
        """Add the word now, and the contents of the value at the end."""
        self.put(word)
        if self._waiting is None:
            contents(self, value)
        else:
            self._waiting.append((list(self._path), lambda: contents(self, value)))

    # -- objects -------------------------------------------------------------------------------------------------------

    def entries(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Add names or keys with values, in this order."""
        for name, value in entries:
            with self.at(name), suppress(*self._passed_over):
                self.add(name)
                self.add(value)
        self.put("end")

    def _state(self, value: Any) -> None:
        """Add the attributes and slots of an object."""
        kind = type(value)
        if kind.__dictoffset__:
            own = object.__getattribute__(value, "__dict__")
            self.entries((name, one) for name, one in dict.items(own) if name not in NOISE)
        self._slots(value)

    def _slots(self, value: Any) -> None:
        kind = type(value)
        for base in kind.__mro__:
            for name, slot in vars(base).items() if base.__flags__ & HEAP_TYPE else ():
                if type(slot) is types.MemberDescriptorType:
                    with suppress(AttributeError):  # an empty slot
                        self.entries([(name, slot.__get__(value, kind))])

    def _object(self, value: Any) -> None:
        """Add an object by its pickled form if its code is third-party, else by attributes and slots."""
        kind = type(value)
        self.add(kind)
        how = [next((base for base in kind.__mro__ if name in vars(base)), object) for name in _PICKLING]
        how = [base for base in how if base is not object]
        reduce = copyreg.dispatch_table.get(kind)
        if reduce or (how and all(map(version_of, how))):
            try:
                found = reduce(value) if reduce else kind.__reduce_ex__(value, 2)  # type: ignore[call-arg]
            except Exception:
                self.unknown(f"of type {name_of(kind)}")
            if isinstance(found, str):
                self.put(found)
            else:
                call, arguments, state, *items = (*found, None, None, None)[:5]
                self.entries(enumerate([call, arguments, state, *(list(one) if one else None for one in items)]))
            if version_of(kind):
                return
        elif kind is not object and has_hidden_state(kind):
            if module := where_found(value):
                self.put("found", release(module), module, value.__name__)
                return
            self.unknown(f"of type {name_of(kind)}")
        self._state(value)

    def _derived(self, value: Any) -> None:
        """Add a number, text or bytes of a derived class."""
        kind = type(value)
        base = next(base for base in kind.__mro__ if base in EXACT)
        self.add(kind)
        self.add(EXACT[base](value))
        self._state(value)

    def _sequence(self, value: Any) -> None:
        kind = type(value)
        base = list if list in kind.__mro__ else tuple
        self.put(base.__name__, str(base.__len__(value)))
        for number, one in enumerate(base.__iter__(value)):
            with self.at(number):
                self.add(one)
        if kind is not base:
            self.add(kind)
            self._state(value)

    def _mapping(self, value: Any) -> None:
        kind = type(value)
        self.add(kind)
        self.entries(OrderedDict.items(value) if OrderedDict in kind.__mro__ else dict.items(value))
        if defaultdict in kind.__mro__:
            self.add(value.default_factory)
        if kind is not dict:
            self._state(value)

    def _set(self, value: Any) -> None:
        """Add the sorted digests of its members."""
        kind = type(value)
        base = set if set in kind.__mro__ else frozenset
        self.add(kind)
        before = self.digest, self._met, self._waiting
        found = []
        for one in base.__iter__(value):
            self.digest, self._met, self._waiting = hashlib.sha256(), dict(before[1]), None
            self.add(one)
            found.append(self.digest.digest())
        self.digest, self._met, self._waiting = before
        self.put(*sorted(found), "end")
        if kind not in (set, frozenset):
            self._state(value)

    # -- torch ---------------------------------------------------------------------------------------------------------

    def _tensor(self, value: Tensor) -> None:
        """Add a tensor with its type, hooks, attributes, and position in shared memory."""
        self.add(type(value))
        with torch._C.DisableTorchFunctionSubclass():
            self.put(str(value.dtype), str(value.requires_grad), str(value.layout))
            if is_lazy(value):
                return
            self.put(str(tuple(value.shape)))
            if value.layout is torch.sparse_coo:
                self.entries(enumerate([value._indices(), value._values()]))
            elif not value.is_meta:
                try:
                    self.put(content(value))
                    memory = value.untyped_storage().data_ptr()
                except (RuntimeError, TypeError, NotImplementedError):  # nested, quantized, wrapped
                    self.unknown(f"of type {type(value).__qualname__} ({value.layout}, {value.dtype})")
                if memory in self._storages:
                    place = (self._storages[memory], value.storage_offset(), value.stride())
                    self.put("shared", str(place))
                self._storages.setdefault(memory, len(self._storages)) if memory else None
            for hooks in (value._backward_hooks, value._post_accumulate_grad_hooks):
                self.entries(enumerate(hooks.values() if hooks else ()))
            self._state(value)

    def _network(self, module: nn.Module) -> None:
        """Add a module's attributes. Hooks count by order; the mode only if it differs from the whole's."""
        self.add(type(module))
        kept = dict(vars(module))
        hooks = {name: kept[name] for name in _HOOKS & kept.keys()}
        places = {key: place for place, key in enumerate(sorted({key for one in hooks.values() for key in one}))}
        for name, one in hooks.items():
            kept[name] = [(places[key], hook) for key, hook in one.items()]  # the keys are process-specific
        if id(module) in self._modes and "training" in kept:
            kept["training"] = "as all" if kept["training"] == self._modes[id(module)] else "otherwise"
        if self.of_code:
            replaced = Tensor | RemovableHandle  # by load_state_dict, and by each registration
            left_out = NOISE | {"training", "_parameters", "_buffers", "_modules"}
            of_torch = type(module).__module__.startswith("torch.")  # an LSTM's _flat_weights follow from the others
            left_out |= {name for name in kept if of_torch and name.startswith("_")}
            own = {name: value for name, value in kept.items() if name not in left_out}
            self.entries((name, value) for name, value in own.items() if not isinstance(value, replaced))
            self._mark(f"the attributes of {self._where()}")
            kept = {"_modules": kept["_modules"]}
        self.entries((name, value) for name, value in kept.items() if name not in NOISE)
        self._slots(module)


def _registered(module: nn.Module) -> Iterator[int]:
    """Yield the IDs of a module and its submodules, which `train` and `eval` reach."""
    yield id(module)
    for one in vars(module)["_modules"].values():
        if one is not None:
            yield from _registered(one)


_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)
_OF_C = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)

_HOW: dict[type, Callable[[Walk, Any], None]] = {
    **dict.fromkeys((int, float, complex, str, bytes), Walk._derived),
    **dict.fromkeys((list, tuple), Walk._sequence),
    **dict.fromkeys((set, frozenset), Walk._set),
    dict: Walk._mapping,
    Tensor: Walk._tensor,
    torch.Generator: lambda walk, value: walk.put("generator", str(value.device), content(value.get_state())),
    nn.Module: Walk._network,
    type: lambda walk, value: walk.later("class", add_class, value),
    types.FunctionType: lambda walk, value: walk.later("function", add_function, value),
    types.CodeType: add_code,
    types.ModuleType: add_module,
    types.MethodType: lambda walk, value: walk.entries([("method", value.__func__), ("of", value.__self__)]),
    types.MappingProxyType: lambda walk, value: walk.add(dict(value)),
    property: lambda walk, value: walk.entries(enumerate([value.fget, value.fset, value.fdel])),
    staticmethod: lambda walk, value: walk.entries([("static", value.__func__)]),
    classmethod: lambda walk, value: walk.entries([("class", value.__func__)]),
    functools._lru_cache_wrapper: lambda walk, value: walk.entries([("cached", value.__wrapped__)]),
    weakref.ref: lambda walk, value: walk.entries([("weak", weakref.ref.__call__(value))]),
    # a lock has no value
    **dict.fromkeys((type(threading.Lock()), type(threading.RLock())), lambda walk, value: walk.put("lock")),
    **dict.fromkeys((types.BuiltinFunctionType, types.MethodWrapperType), add_function_of_c),
    **dict.fromkeys(_OF_C, lambda walk, value: walk.entries([(value.__name__, value.__objclass__)])),
}
"""Type -> the function that adds its objects, by nearest base. Others: `Walk._object`."""
