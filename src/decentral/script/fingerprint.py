"""A digest of objects: equal in every process where they compute the same, and another one where they may not."""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib.util
import os
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as for_all_modules
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from decentral.registry.sources import installed, release

_NOISE = frozenset(
    {"__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "_abc_impl", "_backward_cls"}
    | {"_torchdynamo_wrapper_id", "__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__"}
    | {"__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__abstractmethods__"}
)
"""Names in classes and functions whose values decide nothing, or follow from the rest."""

_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")
_DYNAMIC = (eval, exec, globals, __import__, importlib.import_module, sys.modules)
"""Ways to objects that the code does not name."""

_HEAP_TYPE, _MANAGED_DICT, _MANAGED_WEAKREF = 1 << 9, 1 << 4, 1 << 3
_WORD = 8


class _UnknownError(Exception):
    """Something has no value that can be compared."""


def fingerprint(value: Any, name: str) -> tuple[str, str]:
    """Return a digest of all that decides what `value` computes, and '' or what in it cannot be compared by value.

    In the second case the digest is new each time. `name` is what the value is called in that sentence.

    Code counts by its instructions, constants, closures, defaults and the globals that it reads; an object by its class
    and attributes; tensors and arrays by content, and by what they share. What belongs to Python or to an installed
    package counts by name and version. Code of a user's class is not called: no `__eq__`, `__hash__`, `__repr__`,
    property or `__reduce__`. Addresses, names of files and the order of sets do not count.
    """
    walk = _Walk(name)
    try:
        walk.whole(value)
    except _UnknownError as error:
        return os.urandom(8).hex(), str(error)
    except Exception as error:  # nested too deeply, or of a class that does not even let itself be looked at
        return os.urandom(8).hex(), f"{name} cannot be compared by value ({type(error).__name__})"
    return walk.digest.hexdigest()[:16], ""


def trail(module: nn.Module) -> list[list[str]]:
    """Pairs (where, digest so far) of what decides the outputs of `module` beside what its `state_dict` replaces.

    The first pair that differs from that of another module says where they differ. What cannot be compared by value
    counts as equal.
    """
    walk = _Walk(type(module).__name__, of_code=True)
    walk._put(release("os"), release("torch"))
    walk._mark("the version of Python or torch")
    with suppress(Exception):  # nested too deeply: what comes before it counts
        walk.whole(module)
    return walk.trail


def content(tensor: Tensor) -> Any:
    """The bytes of a dense tensor, as a flat array."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.flatten().view(torch.uint8).numpy()


class _Walk:
    """A fingerprint on its way.

    digest    of what was met so far
    trail     that digest in hexadecimal digits, after each module and each piece of code, with its place
    _met      id -> number and object (kept, so that its id is not given to another one)
    _waiting  code and classes, whose contents come last: they refer to each other too deeply for a recursion
    """

    def __init__(self, name: str, of_code: bool = False) -> None:
        """of_code: leave out tensors that are attributes of modules, and what cannot be compared."""
        self.digest, self.trail = hashlib.sha256(), list[list[str]]()
        self._of_code, self._passed_over = of_code, [_UnknownError] if of_code else []
        self._path = [name]
        self._met: dict[int, tuple[int, Any]] = {}
        self._storages: dict[int, int] = {}
        self._waiting: list[tuple[list[str], Callable[[], None]]] | None = []
        self._words: set[str] = set()
        self._reads_environment = False
        self._modes: dict[int, bool] = {}

    def whole(self, value: Any) -> None:
        """The value, and what holds for all modules."""
        if isinstance(value, nn.Module):
            self._modes = dict.fromkeys(_registered(value), value.training)
        self.add(value)
        for name, hooks in vars(for_all_modules).items():
            if name.startswith("_global") and type(hooks) is OrderedDict and hooks:
                self._entries(enumerate(hooks.values()))
        for module in (torch, nn.functional, nn.init):
            self._patches(vars(module), "")
        self._mark("torch, by hooks or replaced functions")
        while self._waiting:
            self._path, contents = self._waiting.pop(0)
            with suppress(*self._passed_over):
                contents()
            self._mark(f"the code of {self._where()}")
        if self._reads_environment:
            self._entries((word, os.environ[word]) for word in sorted(self._words & os.environ.keys()))

    def add(self, value: Any) -> None:
        """A value, by the nearest of its classes that is known here."""
        kind = type(value)
        if kind in _EXACT:
            self._put(kind.__name__, _written(value))
            if kind is str:
                self._words.add(value)
            return
        if kind is not tuple:
            if id(value) in self._met:
                self._put("met", str(self._met[id(value)][0]))
                return
            self._met[id(value)] = len(self._met), value
        next((_HOW[base] for base in kind.__mro__ if base in _HOW), _Walk._object)(self, value)

    def _put(self, *words: Any) -> None:
        """Texts or bytes, each with its length."""
        for word in words:
            data = word.encode("utf-8", "surrogatepass") if isinstance(word, str) else memoryview(word)
            self.digest.update(b"%d:" % len(data))
            self.digest.update(data)

    @contextmanager
    def _at(self, name: Any) -> Iterator[None]:
        self._path.append(f".{name}" if type(name) is str else f"[{name}]" if type(name) is int else "[...]")
        try:
            yield
        finally:
            self._path.pop()

    def _unknown(self, what: str) -> None:
        raise _UnknownError(f"{self._where()} {what} cannot be compared by value")

    def _where(self) -> str:
        return "".join(self._path).replace("._modules.", ".")

    def _mark(self, where: str) -> None:
        self.trail.append([where, self.digest.hexdigest()[:8]])

    def _later(self, contents: Callable[[], None]) -> None:
        if self._waiting is None:
            contents()
        else:
            self._waiting.append((list(self._path), contents))

    # -- objects -------------------------------------------------------------------------------------------------------

    def _entries(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Names, or keys, with values, in this order."""
        for name, value in entries:
            with self._at(name), suppress(*self._passed_over):
                self.add(name)
                self.add(value)
        self._put("end")

    def _state(self, value: Any) -> None:
        """The attributes and slots of an object."""
        kind = type(value)
        if kind.__dictoffset__:
            own = object.__getattribute__(value, "__dict__")
            self._entries((name, one) for name, one in dict.items(own) if name not in _NOISE)
        self._slots(value)

    def _slots(self, value: Any) -> None:
        kind = type(value)
        for base in kind.__mro__:
            for name, slot in vars(base).items() if base.__flags__ & _HEAP_TYPE else ():
                if type(slot) is types.MemberDescriptorType:
                    with suppress(AttributeError):  # nothing is in it yet
                        self._entries([(name, slot.__get__(value, kind))])

    def _object(self, value: Any) -> None:
        """By what foreign code pickles it as, or else by its attributes and slots."""
        kind = type(value)
        self.add(kind)
        how = [next((base for base in kind.__mro__ if name in vars(base)), object) for name in _PICKLING]
        how = [base for base in how if base is not object]
        reduce = copyreg.dispatch_table.get(kind)
        if reduce or (how and all(map(_version, how))):
            try:
                found = reduce(value) if reduce else kind.__reduce_ex__(value, 2)  # type: ignore[call-arg]
            except Exception:
                self._unknown(f"of type {_name(kind)}")
            if isinstance(found, str):
                self._put(found)
            else:
                call, arguments, state, *items = (*found, None, None, None)[:5]
                self._entries(enumerate([call, arguments, state, *(list(one) if one else None for one in items)]))
            if _version(kind):
                return
        elif kind is not object and _has_hidden_state(kind):
            if module := _where_found(value):
                self._put("found", release(module), module, value.__name__)
                return
            self._unknown(f"of type {_name(kind)}")
        self._state(value)

    def _derived(self, value: Any) -> None:
        """A number, text or bytes of a class derived from these."""
        kind = type(value)
        base = next(base for base in kind.__mro__ if base in _EXACT)
        self.add(kind)
        self.add(_EXACT[base](value))
        self._state(value)

    def _sequence(self, value: Any) -> None:
        kind = type(value)
        base = list if list in kind.__mro__ else tuple
        self._put(base.__name__, str(base.__len__(value)))
        for number, one in enumerate(base.__iter__(value)):
            with self._at(number):
                self.add(one)
        if kind is not base:
            self.add(kind)
            self._state(value)

    def _mapping(self, value: Any) -> None:
        kind = type(value)
        self.add(kind)
        self._entries(OrderedDict.items(value) if OrderedDict in kind.__mro__ else dict.items(value))
        if defaultdict in kind.__mro__:
            self.add(value.default_factory)
        if kind is not dict:
            self._state(value)

    def _set(self, value: Any) -> None:
        """Its members' digests, sorted."""
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
        self._put(*sorted(found), "end")
        if kind not in (set, frozenset):
            self._state(value)

    # -- torch ---------------------------------------------------------------------------------------------------------

    def _tensor(self, value: Tensor) -> None:
        """With its type, hooks and attributes, and where it lies in a memory that it shares."""
        self.add(type(value))
        with torch._C.DisableTorchFunctionSubclass():
            self._put(str(value.dtype), str(value.requires_grad), str(value.layout))
            if is_lazy(value):
                return
            self._put(str(tuple(value.shape)))
            if value.layout is torch.sparse_coo:
                self._entries(enumerate([value._indices(), value._values()]))
            elif not value.is_meta:
                try:
                    self._put(content(value))
                    memory = value.untyped_storage().data_ptr()
                except (RuntimeError, TypeError, NotImplementedError):  # nested, quantized, wrapped
                    self._unknown(f"of type {type(value).__qualname__} ({value.layout}, {value.dtype})")
                if memory in self._storages:
                    place = (self._storages[memory], value.storage_offset(), value.stride())
                    self._put("shared", str(place))
                self._storages.setdefault(memory, len(self._storages)) if memory else None
            for hooks in (value._backward_hooks, value._post_accumulate_grad_hooks):
                self._entries(enumerate(hooks.values() if hooks else ()))
            self._state(value)

    def _generator(self, value: torch.Generator) -> None:
        self._put("generator", str(value.device), content(value.get_state()))

    def _network(self, module: nn.Module) -> None:
        """Its attributes. Hooks count by their order; of the mode, whether it is another one than the whole's."""
        self.add(type(module))
        kept = dict(vars(module))
        hooks = {name: kept[name] for name in _HOOKS & kept.keys()}
        places = {key: place for place, key in enumerate(sorted({key for one in hooks.values() for key in one}))}
        for name, one in hooks.items():
            kept[name] = [(places[key], hook) for key, hook in one.items()]  # the keys are numbers of this process
        if id(module) in self._modes and "training" in kept:
            kept["training"] = "as all" if kept["training"] == self._modes[id(module)] else "otherwise"
        if self._of_code:
            replaced = Tensor | RemovableHandle  # by load_state_dict, and by each registration
            left_out = _NOISE | {"training", "_parameters", "_buffers", "_modules"}
            of_torch = type(module).__module__.startswith("torch.")  # an LSTM's _flat_weights follow from the others
            left_out |= {name for name in kept if of_torch and name.startswith("_")}
            own = {name: value for name, value in kept.items() if name not in left_out}
            self._entries((name, value) for name, value in own.items() if not isinstance(value, replaced))
            self._mark(f"the attributes of {self._where()}")
            kept = {"_modules": kept["_modules"]}
        self._entries((name, value) for name, value in kept.items() if name not in _NOISE)
        self._slots(module)

    # -- code ----------------------------------------------------------------------------------------------------------

    def _class(self, cls: type) -> None:
        self._put("class")
        self._later(lambda: self._class_contents(cls))

    def _class_contents(self, cls: type) -> None:
        qualname = type.__dict__["__qualname__"].__get__(cls)
        version = _version(cls)
        self._put(version, qualname)
        self._entries(enumerate(cls.__bases__))
        if version:
            self._patches(vars(cls), qualname)
            return
        self.add(type(cls))
        for name, value in list(vars(cls).items()):
            if name in _NOISE or type(value) in (types.MemberDescriptorType, types.GetSetDescriptorType):
                continue
            if name == "__hash__" and "<attrs" in getattr(getattr(value, "__code__", None), "co_filename", ""):
                continue  # it contains a number of this process
            # what libraries keep in a class under such a name was made from the rest
            with suppress(*[_UnknownError] if name.startswith("__") else ()):
                self._entries([(name, value)])

    def _patches(self, namespace: Mapping[str, Any], qualname: str) -> None:
        """What was put into a namespace of an installed package from elsewhere."""
        for name, value in list(namespace.items()):
            module = value.__globals__.get("__name__") if type(value) is types.FunctionType else None
            if module and (not release(module) or (qualname and value.__qualname__ != f"{qualname}.{name}")):
                self._entries([(name, value)])

    def _function(self, function: types.FunctionType) -> None:
        self._put("function")
        self._later(lambda: self._function_contents(function))

    def _of_c(self, value: Any) -> None:
        """A function or method of C, by its name and by what it belongs to."""
        module = _where_found(value)
        self._put(value.__qualname__, module)
        if module:
            self._put(release(module))
        elif not isinstance(value.__self__, types.ModuleType):
            self.add(value.__self__)

    def _function_contents(self, function: types.FunctionType) -> None:
        module = str(function.__globals__.get("__name__"))
        version = release(module)
        self._put(version, function.__name__)
        if version:
            self._put(module, function.__code__.co_qualname)
            if _is_found(function, module, function.__qualname__):
                return
        else:
            self._code(function.__code__, function.__globals__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # nothing is in it yet
                self._entries([(name, cell.cell_contents)])
        self._entries(enumerate([function.__defaults__, function.__kwdefaults__]))
        if not (version and self._of_code):  # torch notes on its own functions that they were used
            self._entries((name, one) for name, one in vars(function).items() if name not in _NOISE)

    def _code(self, code: types.CodeType, scope: Mapping[str, Any] | None = None) -> None:
        """Instructions and constants, and the globals and modules that they read from this scope."""
        self._put("code", code.co_code, code.co_exceptiontable)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._put(str(counts), str((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)))
        for constant in code.co_consts:
            if type(constant) is types.CodeType:
                self._code(constant, scope)
            else:
                self.add(constant)
        self._reads_environment |= not {"environ", "getenv"}.isdisjoint(code.co_names)
        if scope is None:
            return
        for names in _reads(code):
            with self._at(".".join(names)):
                self._read(names, scope)
        for module, names in _imports(code, scope):
            for name in names or [""]:
                with self._at(name):
                    self.add(vars(module).get(name, module))

    def _read(self, names: Sequence[str], scope: Mapping[str, Any]) -> None:
        """A global with those of its attributes that are read: of a module they alone count."""
        around = scope.get("__builtins__", builtins)
        known = scope if names[0] in scope else vars(around) if isinstance(around, types.ModuleType) else around
        if names[0] not in known:
            return
        value: Any
        value, of_others = known[names[0]], known is not scope
        for name in names[1:]:
            if types.ModuleType not in type(value).__mro__ or name not in vars(value):
                break
            of_others = bool(release(vars(value).get("__name__")))
            value = vars(value)[name]
        if any(value is one for one in _DYNAMIC):
            self._unknown("reaches what is not named in the code, which")
        by_value = not of_others or type(value) in _EXACT or type(value) is types.FunctionType or _is_class(value)
        if by_value and value is not os.environ:
            self._put(".".join(names))
            self.add(value)

    def _python_module(self, module: types.ModuleType) -> None:
        """By its version, or else by all that is in it."""
        name = vars(module).get("__name__")
        version = release(name)
        if version:
            self._put("module", version, name)
            return
        self._put("module")
        here = sorted((name, value) for name, value in vars(module).items() if not name.startswith("__"))
        self._later(lambda: self._entries(here))


def _written(value: Any) -> str | bytes:
    """A value of a plain type."""
    if isinstance(value, str | bytes):
        return value
    return hex(value) if type(value) is int else repr(value)


def _is_class(value: Any) -> bool:
    return type in type(value).__mro__


def _name(kind: type) -> str:
    return ".".join(str(type.__dict__[name].__get__(kind)) for name in ("__module__", "__qualname__"))


def _where_found(value: Any) -> str:
    """The module of an installed package that has a function of C under its name, or ''."""
    with suppress(AttributeError):
        module, name = (object.__getattribute__(value, one) for one in ("__module__", "__name__"))
        if isinstance(module, str) and release(module) and _is_found(value, module, name):
            return module
    return ""


def _is_found(value: Any, module: str, qualname: str) -> bool:
    """Whether it is what its module has under this name."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return (found.__func__ if isinstance(found, staticmethod | classmethod) else found) is value


def _version(cls: type) -> str:
    """Which package, of which version, a class is from; '' for one of one's own, or made on the way."""
    module, qualname = (type.__dict__[name].__get__(cls) for name in ("__module__", "__qualname__"))
    if cls.__flags__ & _HEAP_TYPE and not (isinstance(module, str) and _is_found(cls, module, qualname)):
        return ""
    return release(module) or ""


def _has_hidden_state(kind: type) -> bool:
    """Whether objects of it have more than attributes and slots: something that is known to C alone."""
    slots = sum(type(one) is types.MemberDescriptorType for base in kind.__mro__ for one in vars(base).values())
    slots += bool(kind.__dictoffset__ and not kind.__flags__ & _MANAGED_DICT)
    slots += bool(kind.__weakrefoffset__ and not kind.__flags__ & _MANAGED_WEAKREF)
    return bool(kind.__itemsize__) or kind.__basicsize__ > object.__basicsize__ + _WORD * slots


def _registered(module: nn.Module) -> Iterator[int]:
    """The ids of a module and of all below it, which `train` and `eval` reach."""
    yield id(module)
    for one in vars(module)["_modules"].values():
        if one is not None:
            yield from _registered(one)


def _reads(code: types.CodeType) -> Iterator[Sequence[str]]:
    """The globals that code reads, each with the attributes that are read of it at once: `torch`, `nn`, `Linear`."""
    names: list[str] = []
    for one in dis.get_instructions(code):
        if names and one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(one.argval)
            continue
        if names:
            yield names
        names = [one.argval] if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") else []


def _imports(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[types.ModuleType, Sequence[str]]]:
    """The modules of one's own that code imports when it is called, with the names that it imports from each."""
    steps = list(dis.get_instructions(code))
    for at, one in enumerate(steps):
        if one.opname == "IMPORT_NAME":
            level, names = steps[at - 2].argval, steps[at - 1].argval
            with suppress(Exception):  # one that is missing is missed when it is called
                name = importlib.util.resolve_name("." * level + one.argval, scope.get("__package__"))
                if not installed(name):
                    yield importlib.import_module(name), names or ()


_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)
_OF_C = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)

_EXACT: dict[type, Callable[[Any], Any]] = {
    types.NoneType: bool,
    types.EllipsisType: bool,
    bool: bool,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: lambda value: memoryview(value).tobytes(),
}
"""Plain types -> the plain value of an object of a class derived from it."""

_HOW: dict[type, Callable[[_Walk, Any], None]] = {
    **dict.fromkeys((int, float, complex, str, bytes), _Walk._derived),
    **dict.fromkeys((list, tuple), _Walk._sequence),
    **dict.fromkeys((set, frozenset), _Walk._set),
    dict: _Walk._mapping,
    Tensor: _Walk._tensor,
    torch.Generator: _Walk._generator,
    nn.Module: _Walk._network,
    type: _Walk._class,
    types.FunctionType: _Walk._function,
    types.CodeType: _Walk._code,
    types.ModuleType: _Walk._python_module,
    types.MethodType: lambda walk, value: walk._entries([("method", value.__func__), ("of", value.__self__)]),
    types.MappingProxyType: lambda walk, value: walk.add(dict(value)),
    property: lambda walk, value: walk._entries(enumerate([value.fget, value.fset, value.fdel])),
    staticmethod: lambda walk, value: walk._entries([("static", value.__func__)]),
    classmethod: lambda walk, value: walk._entries([("class", value.__func__)]),
    functools._lru_cache_wrapper: lambda walk, value: walk._entries([("cached", value.__wrapped__)]),
    weakref.ref: lambda walk, value: walk._entries([("weak", weakref.ref.__call__(value))]),
    # a lock has no value
    **dict.fromkeys((type(threading.Lock()), type(threading.RLock())), lambda walk, value: walk._put("lock")),
    **dict.fromkeys(
        (types.BuiltinFunctionType, types.MethodWrapperType),
        _Walk._of_c,
    ),
    **dict.fromkeys(
        _OF_C,
        lambda walk, value: walk._entries([(value.__name__, value.__objclass__)]),
    ),
}
"""Type -> how its objects are added; the nearest base counts. Others: `_Walk._object`."""
