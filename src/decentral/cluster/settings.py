"""Settings of which each choice has its own: what a choice needs has to be given, and nothing else may be."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

from decentral.errors import ConfigError

T = TypeVar("T")
LONGEST_S = 1e9
"""About 32 years: sums of durations stay numbers, and microseconds of them differ."""
SLOWEST_GBPS = 1e-12
"""A bit in a quarter of an hour."""


def chosen(kind: type[T], settings: Any, where: str, choice: str, besides: tuple[str, ...] = ()) -> T:
    """A `kind`, whose fields are settings of the same names; those without a default have to be given.

    settings   a dataclass in which None is "not given"
    where      its place in the configuration, such as cluster.compute
    choice     the key of it that chose `kind`, such as distribution
    besides    keys that the caller looks after

    Raises:
        ConfigError: a setting that `kind` needs is None, or one that it has no use for is not.
    """
    said = f"{where}.{choice}={getattr(settings, choice).name}"
    taken = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    given = {f.name: getattr(settings, f.name) for f in fields(settings)}
    given = {key: value for key, value in given.items() if value is not None and key not in (choice, *besides)}
    for key, f in taken.items():
        if key not in given and f.default is MISSING:
            raise ConfigError(f"{said} needs {where}.{key}, which is not given: set {where}.{key}=...")
    for key, value in given.items():
        if key not in taken:
            raise ConfigError(
                f"{where}.{key}={value} has no meaning with {said}: leave it out, or set {where}.{key}=null."
            )
    return kind(**given)
