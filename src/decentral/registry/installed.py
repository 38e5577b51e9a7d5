"""Installed packages that have components: entry points `decentral.algorithms`, `decentral.models`, ..."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path

_PREFIX = "decentral."


@cache
def _all() -> tuple[importlib.metadata.EntryPoint, ...]:
    found = {
        (one.group, one.name, one.value): one
        for package in importlib.metadata.distributions()
        for one in package.entry_points
        if one.group.startswith(_PREFIX)
    }
    return tuple(found[key] for key in sorted(found))


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """Those of `decentral.<group>`, by name; each names a component, or a module with components."""
    return [one for one in _all() if one.group == f"{_PREFIX}{group}"]


def is_installed(module: str) -> bool:
    """Whether the module is of a package that has entry points here."""
    return module.split(".")[0] in _tops()


@cache
def roots() -> tuple[Path, ...]:
    """The folders (or the one file) of those packages."""
    found = []
    for top in sorted(_tops()):
        spec = importlib.util.find_spec(top)
        if spec is not None and spec.origin is not None:
            path = Path(spec.origin).resolve()
            found.append(path.parent if path.name == "__init__.py" else path)
    return tuple(found)


@cache
def _tops() -> frozenset[str]:
    return frozenset(one.module.split(".")[0] for one in _all())
