"""Dataclasses from the plain values of YAML: stored configurations, studies, reports, the settings of a script."""

from __future__ import annotations

import dataclasses
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from decentral import settings
from decentral.errors import ConfigError, suggest


def build(cls: type, values: Any, where: str) -> Any:
    """An instance of the dataclass `cls` from a mapping, nested ones too.

    Raises ConfigError naming `where` (study and place; '' at the top of a configuration), the key, its value and what
    would work.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where or 'a configuration'} should be keys with values, not {values!r}.")
    hints, inside = _hints(cls), f"{where}." if where else ""
    for key in values:
        if key not in hints:
            raise ConfigError(f"{where or 'a configuration'} has no key '{key}'.{suggest(str(key), hints)}")
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise ConfigError(f"{inside}{field.name} is missing: it should be {words(hints[field.name])}.")
    converted = {key: convert(hints[key], value, f"{inside}{key}") for key, value in values.items()}
    settings.check(cls, converted, where)
    return cls(**converted)


def convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type `hint`: str, bool, int, float, enum (by name), literal, list, dict, dataclass or a union.

    What is an instance of a dataclass or an enum already stays what it is. Raises ConfigError where it does not fit.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        return convert(next(part for part in parts if part is not NoneType), value, where)
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, Enum)):
        if isinstance(value, hint):
            return value
        return member(hint, value, where) if issubclass(hint, Enum) else build(hint, value, where)
    if origin is list and isinstance(value, list):
        return [convert(parts[0], item, f"{where}[{number}]") for number, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {str(key): convert(parts[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal and value in parts:
        return value
    found = None if origin else _plain(hint, value)
    if found is None:
        raise ConfigError(f"{where}={value!r} does not fit: it should be {words(hint)}.")
    return found


def member(choices: type[Enum], name: Any, where: str) -> Enum:
    """The member of an enum by its name. Raises ConfigError."""
    if str(name) not in choices.__members__:
        raise ConfigError(f"{where}='{name}' does not exist.{suggest(str(name), choices.__members__)}")
    return choices[str(name)]


def _plain(hint: type, value: Any) -> Any:
    """A bool, number or text; None if it is none. YAML reads 1e-6 as text, and workers' numbers as numbers."""
    if hint is bool or isinstance(value, bool):
        return value if hint is bool and isinstance(value, bool) else None
    if hint is str:
        return str(value) if isinstance(value, str | int | float) else None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if hint is float:
        return number
    return int(number) if hint is int and number.is_integer() else None


def words(hint: Any) -> str:
    """A type as a person calls it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(words(part) for part in parts)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin is list:
        return f"a list, each item {words(parts[0])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(hint.__members__)}"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "keys with values"
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}
    return names.get(hint, "anything")


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}
