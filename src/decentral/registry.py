"""Finding the components of a package: adding one is adding a file.

A component is a dataclass with a `name` (its configuration, and the object that is built from it, are the same thing).
Every module of the package is imported, so modules of components must not import torch at the top.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from functools import cache


@cache
def components(package: str) -> dict[str, type]:
    """name -> dataclass, for every component defined in the modules of `decentral.<package>`."""
    root = importlib.import_module(f"decentral.{package}")
    found: dict[str, type] = {}
    for info in pkgutil.iter_modules(root.__path__):
        module = importlib.import_module(f"{root.__name__}.{info.name}")
        for cls in vars(module).values():
            if not (isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__):
                continue
            name = next((f.default for f in dataclasses.fields(cls) if f.name == "name"), None)
            if isinstance(name, str):
                if name in found:
                    raise AssertionError(f"two components of {package} are called '{name}'")
                found[name] = cls
    return dict(sorted(found.items()))
