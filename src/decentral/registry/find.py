"""Discovery of a package's components: to add one, add a file.

A component is a dataclass with a `name` (it is both configuration and object). Every module of the package is imported,
so modules of components must not import torch at the top. Further components are found in our plug-ins
(`decentral/plugins/*/<package>/*.py`), in the user's folder (`<--config-dir>/<package>/*.py`) and through entry points
of installed packages.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from decentral.errors import ConfigError
from decentral.registry import plugins, sources
from decentral.registry.blame import place, sentence, shown

CONTRACTS = {
    "algorithms": "algorithms.algorithm.Algorithm",
    "topology": "topology.topology.Topology",
    "tasks": "tasks.task.Task",
    "data": "data.dataset.DataSet",
    "environments": "environments.environment.Environment",
    "partition": "partition.partition.Partition",
    "models": "models.model.Model",
    "models.adapters": "models.adapters.Adapter",
    "optim": "optim.optimizer.Optimizer",
    "lr_schedules": "lr_schedules.schedule.LearningRateSchedule",
    "compression": "compression.compressor.Compressor",
    "network.attacks": "network.attacks.Attack",
    "network.robust": "network.robust.Robust",
    "network.privacy": "network.privacy.Privacy",
    "cluster": "cluster.cluster.Cluster",
    "availability": "availability.availability.Availability",
    "gradients": "gradients.execution.Execution",
    "training.loggers": "training.loggers.logger.Logger",
    "scheduling.launchers": "scheduling.launchers.launcher.Launcher",
    "measurements": "measurements.measurement.Measurement",
    "study.kinds": "study.study.Study",
    "study.tuning": "study.tuning.rule.Rule",
    "report.claims": "report.claims.Claim",
    "report.figures": "report.figures.figure.StudyFigure",
    "report.listings": "report.listings.Listing",
}
"""Package -> the base class of user components, which are found in a folder (and entry points) with the last part of
the package's name."""

PLAIN = frozenset({"models", "data", "optim", "lr_schedules", "partition", "topology", "training.loggers"})
"""Packages for which a plain class or function of a module is taken, too."""


def components(package: str) -> dict[str, type]:
    """Return name -> dataclass for every component of `decentral.<package>` and every user component.

    Raises ConfigError if a user component cannot be imported, or its name is taken.
    """
    return _components(package, plugins.folder())


def names(package: str) -> list[str]:
    """Return the names of the components, without importing those that come with decentral."""
    return list(components(package) if _has_users(package) else _homes(package))


def component(package: str, name: str, trust: bool = True) -> type | None:
    """Return the component with this name, or that of the class or function `module:Name`; None if it does not exist.

    Without `trust`, it is None, too, for code that was not chosen in this process. Raises ConfigError if the module
    cannot be imported or has no such class.
    """
    if not trust and is_foreign(package, name):
        return None
    if not _has_users(package) and ":" not in name:  # without importing all others
        home = _homes(package).get(name)
        return next(cls for cls in _classes(importlib.import_module(home)) if name_of(cls) == name) if home else None
    known = components(package)
    if name in known or ":" not in name:
        return known.get(name)
    found: type = importlib.import_module("decentral.registry.signature").named(package, name)
    NAMED.add((package, name))
    return found


NAMED: set[tuple[str, str]] = set()
"""(package, name) of components, and (key, name) of the functions, that a command, a script or a file that it
trusts has chosen."""


def is_foreign(package: str, name: str) -> bool:
    """Return whether this is code in a module not requested in this process; always false for torch's own."""
    known = name.startswith(("torch.optim:", "torch.optim.lr_scheduler:")) or (package, name) in NAMED
    return ":" in name and not known


def owner(cls: type) -> str | None:
    """Return the file of a user component, as the user would write it; None for built-in ones."""
    found = sources.source(cls)
    return shown(found["file"]) if found else None


@cache
def _components(package: str, folder: Path | None) -> dict[str, type]:
    found = dict(ours(package))
    if package not in CONTRACTS:
        return found
    for cls in (*_installed(package), *(_in_folder(package, folder) if folder else ())):
        name = name_of(cls)
        assert name is not None
        if name in found and found[name] is not cls:
            there, here = (shown(inspect.getfile(one)) for one in (found[name], cls))
            raise ConfigError(
                f"{here}: the name '{name}' is already used by {there}: choose another one, as in name: str = "
                f"'my_{name}'."
            )
        sources.source(cls)  # record its current source
        found[name] = cls
    return dict(sorted(found.items()))


def _has_users(package: str) -> bool:
    return plugins.folder() is not None or bool(plugins.entry_points(package.rpartition(".")[2]))


@cache
def ours(package: str) -> dict[str, type]:
    """Return the built-in components of this package or module, and those of our plug-ins."""
    found: dict[str, type] = {}
    for module in map(importlib.import_module, _modules(package)):
        for cls in _classes(module):
            name = name_of(cls)
            if name is not None and (package not in CONTRACTS or issubclass(cls, contract_of(package))):
                if name in found:
                    raise AssertionError(f"two components of {package} are called '{name}'")
                found[name] = cls
    return dict(sorted(found.items()))


@cache
def _homes(package: str) -> dict[str, str]:
    """Return name -> module of the components that `ours` returns, from the text of the files."""
    named = ((re.findall(_NAME, file.read_text(encoding="utf-8")), name) for name, file in _modules(package).items())
    return dict(sorted((name, module) for names, module in named for name in names))


_NAME = re.compile(r'^    name: str = "(\w+)"$', re.M)


def _modules(package: str) -> dict[str, Path]:
    """Return module -> file for all that may hold built-in components: in the core and in our plug-ins."""
    place = _ROOT.joinpath(*package.split("."))
    files = [place.with_suffix(".py")] if not place.is_dir() else [*place.glob("*.py"), *place.glob("*/__init__.py")]
    return _by_module(sorted(files)) | _shipped(place.name)


def _shipped(group: str) -> dict[str, Path]:
    """Return module -> file for the files of a group in our plug-ins."""
    return _by_module([file for folder in plugins.shipped() for file in sorted((folder / group).glob("[!_]*.py"))])


def _by_module(files: Iterable[Path]) -> dict[str, Path]:
    """Return module -> file for files of ours."""
    parts = {file: file.relative_to(_ROOT.parent).with_suffix("").parts for file in files}
    return {".".join(found[:-1] if found[-1] == "__init__" else found): file for file, found in parts.items()}


_ROOT = Path(plugins.__file__).resolve().parents[1]


def functions(group: str) -> dict[str, Callable[..., Any]]:
    """Return name -> function for the public functions of `<group>/*.py` in plug-ins and in the user's folder."""
    folder = plugins.folder()
    theirs = (load(name, shown(file)) for file, name in _files(group, folder)) if folder else ()
    return {
        name: function
        for module in (*map(importlib.import_module, _shipped(group)), *theirs)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }


def _classes(module: ModuleType) -> list[type]:
    """Return the classes defined in the module."""
    return [cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == module.__name__]


def name_of(cls: type) -> str | None:
    """Return the name of a component; None for other classes."""
    if not dataclasses.is_dataclass(cls):
        return None
    name = next((f.default for f in dataclasses.fields(cls) if f.name == "name"), None)
    return name if isinstance(name, str) else None


def own_name(cls: type) -> str:
    """Return the name that a component `module:Class` gives itself; '' for others."""
    return name_of(getattr(cls, "plain_target", type(None))) or ""


def own_names(pairs: Iterable[tuple[Any, str]]) -> dict[str, str]:
    """Return module:Class -> the class's own name, where no other value has that. `pairs` are values, each with its own
    name or ''."""
    shown = {str(value): name or str(value) for value, name in pairs}
    counts = Counter(shown.values())
    return {value: name for value, name in shown.items() if ":" in value and name != value and counts[name] == 1}


# -- one's own ---------------------------------------------------------------------------------------------------------


def _in_folder(package: str, folder: Path) -> Iterator[type]:
    for file, name in _files(package.rpartition(".")[2], folder):
        yield from _checked(package, load(name, shown(file)))


def _files(group: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a group in the user's folder, with the names of their modules."""
    for file in sorted((folder / group).glob("*.py")):
        if not file.name.startswith("_"):
            if not file.exists():  # a link to nothing, or to itself
                raise ConfigError(f"{shown(file)} cannot be read: it links to a missing file; remove the link.")
            if not file.stem.isidentifier():
                raise ConfigError(
                    f"{shown(file)} cannot be imported: rename it to a Python identifier, as in my_{group}.py."
                )
            yield file, f"{plugins.package_of(folder)}.{group}.{file.stem}"


def _installed(package: str) -> Iterator[type]:
    for one in plugins.entry_points(package.rpartition(".")[2]):
        what = f"{one.dist.name if one.dist else 'an installed package'} (entry point {one.group}: {one.name})"
        module = load(one.module, what)
        if not one.attr:
            yield from _checked(package, module)
            continue
        cls = getattr(module, one.attr, None)
        if not isinstance(cls, type):
            raise ConfigError(f"{what}: {shown(str(module.__file__))} has no class {one.attr}.")
        check_component(package, cls, str(module.__file__))
        yield cls


def load(module: str, what: str) -> ModuleType:
    """Import a user module. Raises ConfigError that names file and line of its error."""
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        where = place(error) or what
        raise ConfigError(f"{where}: {sentence(error)}.") from error


def _checked(package: str, module: ModuleType) -> Iterator[type]:
    """Yield the components of a user module."""
    contract = contract_of(package)
    for cls in _classes(module):
        meant = issubclass(cls, contract) and not inspect.isabstract(cls) and not cls.__name__.startswith("_")
        if meant or name_of(cls) is not None:
            check_component(package, cls, str(module.__file__))
            yield cls


def contract_of(package: str) -> Any:
    """Return the base class of a package's user components."""
    module, _, name = CONTRACTS[package].rpartition(".")
    contract = getattr(importlib.import_module(f"decentral.{module}"), name)
    return contract


def check_component(package: str, cls: type, file: str) -> None:
    """Raise ConfigError for what would not work as a component."""
    where, contract = f"{shown(file)}: {cls.__name__}", CONTRACTS[package]
    if not (isinstance(cls, type) and issubclass(cls, contract_of(package))):
        raise ConfigError(
            f"{where} is not derived from decentral.{contract}: derive it, as all components in {package} are."
        )
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise ConfigError(f"{where} is not a complete decentral.{contract}: define {missing}.")
    if "__dataclass_fields__" not in vars(cls):
        raise ConfigError(
            f"{where} is not a dataclass: decorate it with @dataclass, so that its fields become settings."
        )
    name = name_of(cls)
    if name is None or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"{where} has no valid name: add one, such as name: str = '{cls.__name__.lower()}'.")


def described(cls: type) -> str:
    """Return the first line of a component's docstring; '' if it has none."""
    text = inspect.getdoc(cls) or ""
    return "" if text.startswith(f"{cls.__name__}(") else text.partition("\n")[0].strip()
