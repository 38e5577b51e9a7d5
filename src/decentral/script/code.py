"""Fingerprints of code: classes, functions, instructions and the globals they read, without calling any of it."""

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
"""Attributes of classes and functions that do not affect results, or follow from the rest."""

_DYNAMIC = (eval, exec, globals, __import__, importlib.import_module, sys.modules)
"""Functions that access objects which the code does not name."""

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
    """An object cannot be compared by value."""


def add_class(walk: Walk, cls: type) -> None:
    """Add a class by its content; one of an installed package by name, version, and replaced attributes."""
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
            continue  # it contains a process-specific number
        # libraries cache data under such names in a class, derived from the rest
        with suppress(*[UnknownError] if name.startswith("__") else ()):
            walk.entries([(name, value)])


def add_patches(walk: Walk, namespace: Mapping[str, Any], qualname: str) -> None:
    """Add objects that other code put into a namespace of an installed package."""
    for name, value in list(namespace.items()):
        module = value.__globals__.get("__name__") if type(value) is types.FunctionType else None
        if module and (not release(module) or (qualname and value.__qualname__ != f"{qualname}.{name}")):
            walk.entries([(name, value)])


def add_function_of_c(walk: Walk, value: Any) -> None:
    """Add a C function or method by its name and owner."""
    module = where_found(value)
    walk.put(value.__qualname__, module)
    if module:
        walk.put(release(module))
    elif not isinstance(value.__self__, types.ModuleType):
        walk.add(value.__self__)


def add_function(walk: Walk, function: types.FunctionType) -> None:
    """Add a function by its code and everything it holds; one of an installed package by name and version."""
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
        with suppress(ValueError):  # an empty cell
            walk.entries([(name, cell.cell_contents)])
    walk.entries(enumerate([function.__defaults__, function.__kwdefaults__]))
    if not (version and walk.of_code):  # torch marks its functions as used
        walk.entries((name, one) for name, one in vars(function).items() if name not in NOISE)


def add_code(walk: Walk, code: types.CodeType, scope: Mapping[str, Any] | None = None) -> None:
    """Add instructions and constants, and the globals and modules that they read from this scope."""
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
    """Add a global with the attributes that are read; for a module only these count."""
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
    """Add a module by its version, or else by its whole content."""
    name = vars(module).get("__name__")
    version = release(name)
    if version:
        walk.put("module", version, name)
    else:
        walk.later("module", _add_contents, module)


def _add_contents(walk: Walk, module: types.ModuleType) -> None:
    walk.entries(sorted((name, one) for name, one in vars(module).items() if not name.startswith("__")))


def is_class(value: Any) -> bool:
    """Return whether it is a class, of any metaclass."""
    return type in type(value).__mro__


def name_of(kind: type) -> str:
    """Return the full name of a class."""
    return ".".join(str(type.__dict__[name].__get__(kind)) for name in ("__module__", "__qualname__"))


def where_found(value: Any) -> str:
    """Return the module of an installed package that has a C function under its name, or ''."""
    with suppress(AttributeError):
        module, name = (object.__getattribute__(value, one) for one in ("__module__", "__name__"))
        if isinstance(module, str) and release(module) and is_found(value, module, name):
            return module
    return ""


def is_found(value: Any, module: str, qualname: str) -> bool:
    """Return whether its module has it under this name."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return (found.__func__ if isinstance(found, staticmethod | classmethod) else found) is value


def version_of(cls: type) -> str:
    """Return package and version of a class; '' for user classes and dynamically created ones."""
    module, qualname = (type.__dict__[name].__get__(cls) for name in ("__module__", "__qualname__"))
    if cls.__flags__ & HEAP_TYPE and not (isinstance(module, str) and is_found(cls, module, qualname)):
        return ""
    return release(module) or ""


def has_hidden_state(kind: type) -> bool:
    """Return whether its objects have state beyond attributes and slots, known to C only."""
    slots = sum(type(one) is types.MemberDescriptorType for base in kind.__mro__ for one in vars(base).values())
    slots += bool(kind.__dictoffset__ and not kind.__flags__ & _MANAGED_DICT)
    slots += bool(kind.__weakrefoffset__ and not kind.__flags__ & _MANAGED_WEAKREF)
    return bool(kind.__itemsize__) or kind.__basicsize__ > object.__basicsize__ + _WORD * slots


def reads(code: types.CodeType) -> Iterator[Sequence[str]]:
    """Yield the globals that code reads, each with its chain of attributes: `torch`, `nn`, `Linear`."""
    names: list[str] = []
    for one in dis.get_instructions(code):
        if names and one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(one.argval)
            continue
        if names:
            yield names
        names = [one.argval] if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") else []


def imports(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[types.ModuleType, Sequence[str]]]:
    """Yield the user modules that code imports when called, with the names imported from each."""
    steps = list(dis.get_instructions(code))
    for at, one in enumerate(steps):
        if one.opname == "IMPORT_NAME":
            level, names = steps[at - 2].argval, steps[at - 1].argval
            with suppress(Exception):  # a missing module fails when the code is called
                name = importlib.util.resolve_name("." * level + one.argval, scope.get("__package__"))
                if not installed(name):
                    yield importlib.import_module(name), names or ()
