"""A component from a plain class or function: its settings are the parameters of its signature."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from decentral.errors import ConfigError, suggest
from decentral.registry import find, plugins, sources
from decentral.registry.find import NAMED, PLAIN, component, load

_PLAIN = (bool, int, float, str)
EXTRAS = {"torchmetrics": "metrics", "timm": "timm", "datasets": "datasets", "transformers": "lora"}
"""Package that settings may name -> the extra of ours that installs it."""


class Plain:
    """Base of the components created here; a subclass's fields are the settings."""

    name: str
    plain_module: str
    """The module that the class or function is in."""
    plain_package: str
    plain_name: str
    """module:Name."""
    plain_target: ClassVar[Any]
    plain_object: ClassVar[bool] = False
    """True if a script has given the class or function as an object, whose source is unknown."""
    plain_verbs: ClassVar[tuple[str, str]] = ("returns", "return")
    """The verbs of messages on its result: of the function, and of the advice."""

    def target(self) -> Callable[..., Any]:
        """Return the class or function."""
        return self.plain_target  # type: ignore[no-any-return]

    def settings(self) -> dict[str, Any]:
        """Return the values by parameter name, including further keyword arguments; lists become tuples if the default
        is a tuple."""
        known, fields = parameters_of(self.target()), dataclasses.fields(self)  # type: ignore[arg-type]
        values = {f.name: getattr(self, f.name) for f in fields if f.name != "name" and f.name in known}
        tuples = {name for name, one in known.items() if isinstance(one.default, tuple)}
        values = {name: tuple(value) if name in tuples else value for name, value in values.items()}
        return values | getattr(self, further(self.target()), {})

    def __reduce__(self) -> Any:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        target = self.plain_target if self.plain_object else None
        return _unpickled, (plugins.passport(), self.plain_package, self.plain_name, values, target)


@cache
def named(package: str, name: str) -> type:
    """Return the component for `module:Name`: of a class derived from the package's contract, a subclass with this
    name; else one that calls the class or function. Raises ConfigError if neither exists."""
    target: Any = function(find.contract_of(package).settings_at, name)
    is_component = isinstance(target, type) and issubclass(target, find.contract_of(package))
    if package in PLAIN and not is_component:
        return wrapped(package, name, target)
    find.check_component(package, target, str(sys.modules[name.partition(":")[0]].__file__))
    return dataclasses.make_dataclass(
        target.__name__,
        [("name", str, dataclasses.field(default=name))],
        bases=(target, Plain),
        namespace=_named(package, name, target) | {"__doc__": target.__doc__},
    )


def wrapped(package: str, name: str, target: Callable[..., Any]) -> type:
    """Return the component of this name that calls a class or function."""
    found: type = importlib.import_module(f"decentral.{package}.plain").plain(name, target)
    return found


def component_from(package: str, name: str, target: Callable[..., Any], base: type, given: Collection[str]) -> type:
    """Return a dataclass, derived from `base` (a `Plain`), for a class or function.

    Its fields are the parameters, less those that are `given` when it is called, and those whose defaults are no plain
    values; and of **kwargs one, a dictionary. Raises ConfigError for parameters that cannot be filled in.
    """
    where = f"{find.contract_of(package).settings_at}={name}"
    fields: list[Any] = [("name", str, dataclasses.field(default=name))]
    hints = _hints(target)
    for one in parameters_of(target).values():
        if one.name in given:
            continue
        if callable(getattr(base, one.name, None)):
            raise ConfigError(
                f"{where} cannot be used: its parameter '{one.name}' has the name of a method of decentral: rename "
                "it, or set it in a wrapper function."
            )
        kind = _kind(hints.get(one.name), one.default)
        required = one.default is inspect.Parameter.empty
        if kind is None or one.name == "name" or one.kind is inspect.Parameter.POSITIONAL_ONLY:
            if required:
                raise ConfigError(
                    f"{where} cannot be built: its parameter '{one.name}' has no default and is not a setting; give "
                    "it a default."
                )
            continue
        fields.append((one.name, kind, _field(one.default)))
    if more := further(target):
        fields.append((more, dict[str, Any], dataclasses.field(default_factory=dict, metadata={"older": {}})))
    names = _named(package, name, target) | {"__doc__": inspect.getdoc(target) or f"{name}, as it comes."}
    fields.sort(
        key=lambda field: field[2].default is dataclasses.MISSING and field[2].default_factory is dataclasses.MISSING
    )
    return dataclasses.make_dataclass(name.rpartition(":")[2], fields, bases=(base,), namespace=names, kw_only=True)


def _named(package: str, name: str, target: Callable[..., Any]) -> dict[str, Any]:
    """Return the attributes of a `Plain` for the class or function of this name."""
    return {
        "__module__": __name__,
        "plain_module": name.partition(":")[0],
        "plain_package": package,
        "plain_name": name,
        "plain_target": staticmethod(target),
    }


def taken(target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `given` values for which the class or function has parameters."""
    return {name: value for name, value in given.items() if name in parameters_of(target)}


def call(target: Callable[..., Any], given: Mapping[str, Any], *arguments: Any, **settings: Any) -> Any:
    """Call a user's function with the arguments, the settings, and the `given` values that its parameters name.

    An object of a class is made from the settings and called the same way, if its class defines __call__, or there are
    arguments; a module is returned, unless there are arguments.
    """
    if isinstance(target, type):
        made = target(**settings, **taken(target, given))
        if not arguments and ("forward" in dir(target) or not callable(made)):
            return made
        target, settings = made, {}
    return target(*arguments, **settings, **taken(target, given))


@cache
def function(key: str, name: str) -> Callable[..., Any]:
    """The class or function `module:Name` that a setting names. Raises ConfigError if there is no such thing."""
    module, _, attribute = name.partition(":")
    where = f"{key}={name}"
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise ConfigError(f"{where} cannot be read: write module:Name, as in {key}=mymodule:MyName.")
    found = _imported(module, where)
    target = found
    for part in attribute.split("."):  # a class method, too
        target = getattr(target, part, None)
    if not callable(target):
        known = {key: value for key, value in vars(found).items() if callable(value) and not key.startswith("_")}
        own = [key for key in known if str(known[key].__module__).startswith(module.partition(".")[0])]
        hint = suggest(attribute, own or known) if known else ""
        raise ConfigError(f"{where} does not exist: {found.__file__} has no class or function {attribute}.{hint}")
    NAMED.add((key, name))
    return target


def functions(cls: type, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(key, module:Name) of each function that values of a dataclass's fields name, those with metadata `code`: its
    key in a configuration."""
    found = []
    for f in dataclasses.fields(cls):
        if key := f.metadata.get("code"):
            value = values.get(f.name)
            found += [(key, str(one).lstrip("+-")) for one in (value if isinstance(value, list) else [value])]
    return [(key, name) for key, name in found if ":" in name]


def function_source(key: str, name: str) -> dict[str, str]:
    """file and sha256 (or the version) of the code behind the function `module:Name`."""
    function(key, name)
    return sources.of_module(name.partition(":")[0])


def _imported(module: str, where: str) -> Any:
    """The module from the current folder, PYTHONPATH or what is installed."""
    here = os.getcwd()
    with _first(here):
        try:
            known = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            known = module == "__main__"  # a script, which has no spec
        if not known and importlib.util.find_spec(top := module.partition(".")[0]) is None:
            hint = f": pip install '.[{EXTRAS[top]}]'" if top in EXTRAS else ""
            raise ConfigError(
                f"{where}: there is no module {module} in this folder ({here}), on PYTHONPATH or installed{hint}."
            )
        plugins.search(here)
        found = sys.modules["__main__"] if module == "__main__" else load(module, where)
    if not getattr(found, "__file__", None):
        if module == "__main__":
            raise ConfigError(
                f"{where}: this notebook or session has no file: give the class or function itself, or put it in a "
                "module."
            )
        raise ConfigError(f"{where}: {module} is a folder without __init__.py, not a module.")
    sources.freeze(module)
    return found


@contextmanager
def _first(folder: str) -> Iterator[None]:
    """Modules in the folder come before others of the same name."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def _unpickled(passport: str, package: str, name: str, values: dict[str, Any], target: Any) -> Any:
    plugins.enter(passport)
    cls = component(package, name) if target is None else wrapped(package, name, target)
    assert cls is not None
    return cls(**values)


def parameters_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a class or function that have names."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: one for name, one in _signature(target).items() if one.kind not in variadic}


def _signature(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except ValueError:  # a function in C
        return {}


def further(target: Callable[..., Any]) -> str:
    """Return the name of the **kwargs parameter; '' if there is none."""
    return next((one.name for one in _signature(target).values() if one.kind is inspect.Parameter.VAR_KEYWORD), "")


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(vars(target).get("__init__", target) if isinstance(target, type) else target)
    except Exception:  # an annotation for type checkers only
        return {}


def _kind(hint: Any, default: Any) -> Any:
    """The type of a setting; None for a parameter that cannot be one."""
    known = _known(hint)
    if default is inspect.Parameter.empty:
        return known or Any
    if default is None:
        return (known | None if isinstance(known, type | UnionType) else known) or Any
    if isinstance(default, Enum):
        return type(default)
    if isinstance(default, _PLAIN):
        return known or type(default)
    if isinstance(default, list | tuple) and all(isinstance(item, _PLAIN) for item in default):
        kinds = {type(item) for item in default}
        return known or (list[kinds.pop()] if len(kinds) == 1 else list[Any])  # type: ignore[misc]
    return None


def _known(hint: Any) -> Any:
    """An annotation as the type of a setting; None if it cannot be one."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _PLAIN or (isinstance(hint, type) and issubclass(hint, Enum)):
        return hint
    if origin in (list, tuple) and parts and parts[0] in _PLAIN and set(parts[1:]) <= {parts[0], Ellipsis}:
        return list[parts[0]]  # type: ignore[valid-type]
    if origin in (Union, UnionType):  # float | Tensor is a number, as is int | float
        kinds = {kind for part in parts if (kind := _known(part)) is not None} - ({int} if float in parts else set())
        inner = kinds.pop() if len(kinds) == 1 else None
        return inner | None if inner is not None and NoneType in parts else inner
    return None


def _field(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return dataclasses.field()
    if isinstance(default, list | tuple):
        return dataclasses.field(default_factory=partial(list, default))
    return dataclasses.field(default=default)
