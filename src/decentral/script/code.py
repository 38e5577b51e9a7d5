"""What code is, for a fingerprint: classes, functions, instructions and what they read, without calling any of it."""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from decentral.registry.sources import installed, release

if TYPE_CHECKING:
    from decentral.script.fingerprint import Walk

HEAP_TYPE, _MANAGED_DICT, _MANAGED_WEAKREF = 1 << 9, 1 << 4, 1 << 3
_WORD = 8

NOISE = frozenset(
    {"__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "_abc_impl", "_backward_cls"}
    | {"_torchdynamo_wrapper_id", "__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__"}
    | {"__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__abstractmethods__"}
)
"""Names in classes and functions whose values decide nothing, or follow from the rest."""

_DYNAMIC = (eval, exec, globals, __import__, importlib.import_module, sys.modules)
"""Ways to objects that the code does not name."""

EXACT: dict[type, Callable[[Any], Any]] = {
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


class UnknownError(Exception):
    """Something has no value that can be compared."""


def add_class(walk: Walk, cls: type) -> None:
    """By what is in it; of a class of an installed package, by its name, version, and what has been replaced."""
    qualname = type.__dict__["__qualname__"].__get__(cls)
    version = version_of(cls)
    walk.put(version, qualname)
    walk.entries(enumerate(cls.__bases__))
    if version:
        add_patches(walk, vars(cls), qualname)
        return
    walk.add(type(cls))
    for name, value in list(vars(cls).items()):
        if name in NOISE or type(value) in (types.MemberDescriptorType, types.GetSetDescriptorType):
            continue
        if name == "__hash__" and "<attrs" in getattr(getattr(value, "__code__", None), "co_filename", ""):
            continue  # it contains a number of this process
        # what libraries keep in a class under such a name was made from the rest
        with suppress(*[UnknownError] if name.startswith("__") else ()):
            walk.entries([(name, value)])


def add_patches(walk: Walk, namespace: Mapping[str, Any], qualname: str) -> None:
    """What was put into a namespace of an installed package from elsewhere."""
    for name, value in list(namespace.items()):
        module = value.__globals__.get("__name__") if type(value) is types.FunctionType else None
        if module and (not release(module) or (qualname and value.__qualname__ != f"{qualname}.{name}")):
            walk.entries([(name, value)])


def add_function_of_c(walk: Walk, value: Any) -> None:
    """A function or method of C, by its name and by what it belongs to."""
    module = where_found(value)
    walk.put(value.__qualname__, module)
    if module:
        walk.put(release(module))
    elif not isinstance(value.__self__, types.ModuleType):
        walk.add(value.__self__)


def add_function(walk: Walk, function: types.FunctionType) -> None:
    """By its code and all that it holds; a function of an installed package by its name and version."""
    module = str(function.__globals__.get("__name__"))
    version = release(module)
    walk.put(version, function.__name__)
    if version:
        walk.put(module, function.__code__.co_qualname)
        if is_found(function, module, function.__qualname__):
            return
    else:
        add_code(walk, function.__code__, function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            walk.entries([(name, cell.cell_contents)])
    walk.entries(enumerate([function.__defaults__, function.__kwdefaults__]))
    if not (version and walk.of_code):  # torch notes on its own functions that they were used
        walk.entries((name, one) for name, one in vars(function).items() if name not in NOISE)


def add_code(walk: Walk, code: types.CodeType, scope: Mapping[str, Any] | None = None) -> None:
    """Instructions and constants, and the globals and modules that they read from this scope."""
    walk.put("code", code.co_code, code.co_exceptiontable)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    walk.put(str(counts), str((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)))
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            add_code(walk, constant, scope)
        else:
            walk.add(constant)
    walk.reads_environment |= not {"environ", "getenv"}.isdisjoint(code.co_names)
    if scope is None:
        return
    for names in reads(code):
        with walk.at(".".join(names)):
            _add_read(walk, names, scope)
    for module, names in imports(code, scope):
        for name in names or [""]:
            with walk.at(name):
                walk.add(vars(module).get(name, module))


def _add_read(walk: Walk, names: Sequence[str], scope: Mapping[str, Any]) -> None:
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
        walk.unknown("reaches what is not named in the code, which")
    by_value = not of_others or type(value) in EXACT or type(value) is types.FunctionType or is_class(value)
    if by_value and value is not os.environ:
        walk.put(".".join(names))
        walk.add(value)


def add_module(walk: Walk, module: types.ModuleType) -> None:
    """By its version, or else by all that is in it."""
    name = vars(module).get("__name__")
    version = release(name)
    if version:
        walk.put("module", version, name)
    else:
        walk.later("module", _add_contents, module)


def _add_contents(walk: Walk, module: types.ModuleType) -> None:
    walk.entries(sorted((name, one) for name, one in vars(module).items() if not name.startswith("__")))


def is_class(value: Any) -> bool:
    """Whether it is a class, of whatever metaclass."""
    return type in type(value).__mro__


def name_of(kind: type) -> str:
    """The full name of a class."""
    return ".".join(str(type.__dict__[name].__get__(kind)) for name in ("__module__", "__qualname__"))


def where_found(value: Any) -> str:
    """The module of an installed package that has a function of C under its name, or ''."""
    with suppress(AttributeError):
        module, name = (object.__getattribute__(value, one) for one in ("__module__", "__name__"))
        if isinstance(module, str) and release(module) and is_found(value, module, name):
            return module
    return ""


def is_found(value: Any, module: str, qualname: str) -> bool:
    """Whether it is what its module has under this name."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return (found.__func__ if isinstance(found, staticmethod | classmethod) else found) is value


def version_of(cls: type) -> str:
    """Which package, of which version, a class is from; '' for one of one's own, or made on the way."""
    module, qualname = (type.__dict__[name].__get__(cls) for name in ("__module__", "__qualname__"))
    if cls.__flags__ & HEAP_TYPE and not (isinstance(module, str) and is_found(cls, module, qualname)):
        return ""
    return release(module) or ""


def has_hidden_state(kind: type) -> bool:
    """Whether objects of it have more than attributes and slots: something that is known to C alone."""
    slots = sum(type(one) is types.MemberDescriptorType for base in kind.__mro__ for one in vars(base).values())
    slots += bool(kind.__dictoffset__ and not kind.__flags__ & _MANAGED_DICT)
    slots += bool(kind.__weakrefoffset__ and not kind.__flags__ & _MANAGED_WEAKREF)
    return bool(kind.__itemsize__) or kind.__basicsize__ > object.__basicsize__ + _WORD * slots


def reads(code: types.CodeType) -> Iterator[Sequence[str]]:
    """The globals that code reads, each with the attributes that are read of it at once: `torch`, `nn`, `Linear`."""
    names: list[str] = []
    for one in dis.get_instructions(code):
        if names and one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(one.argval)
            continue
        if names:
            yield names
        names = [one.argval] if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") else []


def imports(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[types.ModuleType, Sequence[str]]]:
    """The modules of one's own that code imports when it is called, with the names that it imports from each."""
    steps = list(dis.get_instructions(code))
    for at, one in enumerate(steps):
        if one.opname == "IMPORT_NAME":
            level, names = steps[at - 2].argval, steps[at - 1].argval
            with suppress(Exception):  # one that is missing is missed when it is called
                name = importlib.util.resolve_name("." * level + one.argval, scope.get("__package__"))
                if not installed(name):
                    yield importlib.import_module(name), names or ()
