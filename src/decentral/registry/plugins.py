"""Locations of components outside the core: in plug-ins, in the user's folder and in installed packages."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import decentral
from decentral.errors import ConfigError

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
    """Return the entry points of `decentral.<group>`, by name; each names a component or a module with components."""
    return [one for one in _all() if one.group == f"{_PREFIX}{group}"]


def is_installed(module: str) -> bool:
    """Return whether the module is of a package that has entry points here."""
    return module.split(".")[0] in _tops()


@cache
def installed_roots() -> tuple[Path, ...]:
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


@cache
def shipped() -> tuple[Path, ...]:
    """Return the folders in `decentral/plugins`, laid out like a user's folder; none if that was deleted."""
    root = Path(decentral.__file__).resolve().parent / "plugins"
    return tuple(sorted(file.parent for file in root.glob("*/__init__.py")))


VARIABLE = "DECENTRAL_OWN"
"""The environment variable that child processes read: JSON, see `_read`."""


def use(folder: Path | None) -> None:
    """Set the folder of user components (None: none), besides installed ones."""
    text = str(folder.resolve()) if folder is not None else ""
    if text != _read()["folder"]:
        _write({"folder": text, "path": [], "sources": {}})


def folder() -> Path | None:
    """The folder that the command was given by `--config-dir`."""
    text = _read()["folder"]
    return Path(text) if text else None


def package_of(folder: Path) -> str:
    """The name of the package whose modules are the files of the folder."""
    word = re.sub(r"\W", "_", folder.name)
    return f"{__name__}.{word}_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def search(place: str) -> None:
    """Let modules be found in the folder `place`, too: here and in all processes that this one starts."""
    known = _read()
    if place not in known["path"]:
        _write(known | {"path": [*known["path"], place]})


def expect(module: str, digest: str, file: str) -> None:
    """Remember what the source of a module was.

    Raises ConfigError if the process that started this one had found another one.
    """
    known = _read()
    before = known["sources"].setdefault(module, digest)
    if before != digest:
        raise ConfigError(f"{file}, or a file that it imports, has changed since the start: rerun the command.")
    _write(known)


def passport() -> str:
    """Return what another process needs to find the same components; '' without user components."""
    return os.environ.get(VARIABLE, "")


def enter(passport: str) -> None:
    """Find the components of the process that this passport comes from."""
    if passport:
        os.environ[VARIABLE] = passport
    mount()


def mount() -> None:
    """Make the folder a package, and make modules in it and next to it importable."""
    known = _read()
    if known["folder"]:
        name = package_of(Path(known["folder"]))
        if name not in sys.modules:
            module = ModuleType(name)
            module.__path__ = [known["folder"]]
            sys.modules[name] = module
    for place in [known["folder"], *known["path"]]:
        if place and place not in sys.path:
            sys.path.append(place)


def _read() -> dict[str, Any]:
    """folder; path: more places to look for modules; sources: module -> digest of its source."""
    text = os.environ.get(VARIABLE)
    return json.loads(text) if text else {"folder": "", "path": [], "sources": {}}


def _write(known: dict[str, Any]) -> None:
    if any(known.values()):
        os.environ[VARIABLE] = json.dumps(known, sort_keys=True)
    else:
        os.environ.pop(VARIABLE, None)
    mount()


mount()  # a child process that only unpickles imports nothing else
