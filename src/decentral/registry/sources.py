"""The source code of user components, as part of a run's identity."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decentral.registry import plugins
from decentral.registry.plugins import is_installed

_OURS = "decentral"
SITES = {"site-packages", "dist-packages"}
_DIGEST = "_decentral_source"  # attribute of a user module: its source at import


def is_own(module: str) -> bool:
    """Return whether the module comes from the user's folder or from an installed package with components."""
    return module.startswith(f"{plugins.__name__}.") or (module.split(".")[0] != _OURS and is_installed(module))


def source(cls: Any) -> dict[str, str] | None:
    """Return file and sha256 (or the version) of the code of a user component; None for built-in ones.

    The hash covers its module and all neighboring modules that it imports, as of the import. Raises ConfigError if the
    parent process had found another source.
    """
    plain = getattr(cls, "plain_module", None)
    module = plain or cls.__module__
    known = not getattr(cls, "plain_object", False) and (plain is not None or is_own(module))
    return of_module(module) if known else None


def of_module(module: str) -> dict[str, str]:
    """The same of the code of an imported module."""
    file = str(sys.modules[module].__file__)
    found = freeze(module)
    plugins.expect(module, found, file)
    return {"file": file, "sha256": found}


def freeze(module: str) -> str:
    """The digest of an imported module's source, from now on whatever happens to the file."""
    known = vars(sys.modules[module])
    if _DIGEST not in known:
        file = Path(str(sys.modules[module].__file__)).resolve()
        known[_DIGEST] = _released(module, file) or _digest(file, root_of(module))
    return str(known[_DIGEST])


def _released(module: str, file: Path) -> str | None:
    """The version of a package that is installed, and made by others (torchvision, say): all of it has one."""
    top = module.partition(".")[0]
    if SITES.isdisjoint(file.parts) or is_own(module):
        return None
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def installed(top: str) -> bool:
    """Return whether a top-level module, imported or not, is Python's or of an installed package."""
    if top in sys.modules:
        if top == "__main__" or is_own(top):
            return False
        file = "built-in" if top in sys.builtin_module_names else vars(sys.modules[top]).get("__file__")
    else:
        spec = importlib.util.find_spec(top)
        file = spec and spec.origin
    if file in ("built-in", "frozen"):
        return True
    path = Path(file).resolve() if file else Path()
    return not SITES.isdisjoint(path.parts) or path.is_relative_to(Path(os.__file__).resolve().parent)


def root_of(module: str) -> Path:
    """Return the folder of a user module: modules imported from there are part of its source."""
    file = Path(str(sys.modules[module].__file__)).resolve()
    if module.startswith(f"{plugins.__name__}."):
        return Path(sys.modules[".".join(module.split(".")[: plugins.__name__.count(".") + 2])].__path__[0])
    depth = module.count(".") + (file.name == "__init__.py")
    return file.parents[depth]


def _digest(file: Path, root: Path) -> str:
    digest = hashlib.sha256()
    for path, name in sorted(_closure(file, root).items(), key=lambda item: item[1].parts):
        content = hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
        digest.update(f"{name.as_posix()} {content}\n".encode())
    return digest.hexdigest()[:16]


def _closure(file: Path, root: Path) -> dict[Path, Path]:
    """Return the file and all user files it imports, directly or indirectly, with their paths relative to the folders
    in which they were found."""
    found: dict[Path, Path] = {}
    waiting = [(file, root)]
    while waiting:
        path, root = waiting.pop()
        if path not in found:
            found[path] = path.relative_to(root)
            waiting += _imported(path, root)
    return found


def _imported(file: Path, root: Path) -> Iterator[tuple[Path, Path]]:
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:  # in a file whose import is never reached
        return
    for node in ast.walk(tree):
        for level, name in _named(node):
            yield from _files(level, name, file, root)


def _named(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The modules that a statement or call may import, each with how many folders upwards it is looked for."""
    if isinstance(node, ast.Import):
        yield from ((0, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        head = f"{node.module}." if node.module else ""
        yield from ((node.level, f"{head}{alias.name}") for alias in node.names)
    elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):  # import_module("helpers")
        yield from ((0, one.value) for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _files(level: int, name: str, file: Path, root: Path) -> Iterator[tuple[Path, Path]]:
    """The files of a module and of the packages that it is in, with the folder in which it was found."""
    top = name.partition(".")[0]
    folder = root if level or top == file.relative_to(root).parts[0] else _folder_of(top, root)
    if folder is None:
        return
    place = file.parents[level - 1] if level else folder
    for part in name.split("."):
        place = place / part
        yield from ((one, folder) for one in (place / "__init__.py", place.with_name(f"{part}.py")) if one.is_file())


def _folder_of(top: str, root: Path) -> Path | None:
    """Return the folder of a user module: the starting folder, or another one of Python's path."""
    if top == _OURS:
        return None
    if root.name not in SITES and any((root / name).exists() for name in (top, f"{top}.py")):
        return root
    with contextlib.suppress(ImportError, ValueError):
        found = None if installed(top) else importlib.util.find_spec(top)
        if found is not None and found.origin:
            return Path(found.origin).parents[Path(found.origin).name == "__init__.py"]
    return None
