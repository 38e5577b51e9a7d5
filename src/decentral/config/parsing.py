"""YAML files of users, looked at before anybody loads them; and dataclasses, such as a configuration, from plain values
and back."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Mapping
from enum import Enum
from functools import cache
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from decentral import settings
from decentral.config.schema import GROUPS, NODES, Config
from decentral.errors import ConfigError, suggest
from decentral.registry import component, components, find, is_foreign, plugins, sources
from decentral.registry.signature import function_source, functions

_MOST_VALUES, _MOST_BYTES = 100_000, 1 << 20
MISSING = "???"
"""The value of a setting without a default, as OmegaConf writes it."""
_NEEDED = ("algo", "task", "num_workers", "seed", "batch_size")  # in every stored configuration


def conf_directory() -> Path:
    """The folder of YAML files: inside the package if installed from a wheel, else at the top of the checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parents[1] / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf/config.yaml is neither in {package} nor in {package.parents[1]}: reinstall decentral.")


def folders_of(config_dir: str | None) -> list[Path]:
    """Return the folders of choices: the core's, the plug-ins', the user's. Registers components in the user's folder.

    Raises ConfigError if the path is not a folder, or if a file in it is not valid YAML.
    """
    built_in = [conf_directory(), *(folder / "conf" for folder in plugins.shipped())]
    if config_dir is None:
        return built_in
    theirs = Path(config_dir)
    if not config_dir or not os.path.isdir(theirs):
        raise ConfigError(
            f"--config-dir {config_dir} is not a folder: give one that contains folders such as experiment/."
        )
    for group in ("experiment", "study", *GROUPS):
        for path in sorted((theirs / group).glob("*.yaml")):
            check_yaml(path)
            files = [file for folder in built_in if (file := folder / group / path.name).is_file()]
            equal = any(file.read_bytes() == path.read_bytes() for file in files)  # conf/ of a clone
            if group in GROUPS and not equal and (files or path.stem in find.ours(GROUPS[group])):
                raise ConfigError(f"{path} has the name of a built-in choice: rename it.")
    plugins.use(theirs)
    return [*built_in, theirs]


def read_yaml(path: Path) -> Any:
    """The plain values in a YAML file; nothing in it is executed or looked up. Raises ConfigError as `check_yaml` does,
    and for what is no YAML."""
    import yaml

    check_yaml(path)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except Exception as error:  # YAMLError, and whatever dates, numbers and depths cause
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The keys and values in a YAML file. Raises ConfigError."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must contain keys with values.")
    return values


def check_yaml(path: Path) -> None:
    """Refuse a file that cannot be a configuration, or that would take forever to load.

    Raises ConfigError unless it is a regular file in UTF-8 of at most 1 MB, also once its aliases are written out, as
    all of them are when a configuration is composed. The caller refuses bad YAML.
    """
    import yaml

    if not path.is_file():
        raise ConfigError(f"{path} is not a regular file: put a YAML file there, or remove it.")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} has {path.stat().st_size:,} bytes: use at most {_MOST_BYTES:,}.")
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path} is not UTF-8 (line {line}): save it with that encoding.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    if "&" not in text or "*" not in text:
        return
    try:
        number = _written_out(yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})
    except (yaml.YAMLError, RecursionError):
        return
    if number > _MOST_VALUES:
        raise ConfigError(
            f"{path} has {f'{number:,}' if number < 1e12 else 'endlessly many'} values after alias expansion: use at "
            f"most {_MOST_VALUES:,}."
        )


def _written_out(node: Any, known: dict[int, float]) -> float:
    """Return the number of values of a node with all aliases expanded."""
    if id(node) not in known:
        known[id(node)] = math.inf  # a node that contains itself
        inside = node.value if isinstance(getattr(node, "value", None), list) else []
        parts = [part for each in inside for part in (each if isinstance(each, tuple) else (each,))]
        known[id(node)] = 1 + sum(_written_out(part, known) for part in parts)
    return known[id(node)]


def build(cls: type, values: Any, where: str) -> Any:
    """Return an instance of the dataclass `cls` from a mapping, nested ones too.

    Raises ConfigError naming `where` (study and key; '' at the top of a configuration), the key, its value and what
    works.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or 'a configuration'} should be keys with values, not {values!r}.")
    hints, inside = _hints(cls), f"{where}." if where else ""
    for key in values:
        if key not in hints:
            raise ConfigError(f"{where or 'a configuration'} has no key '{key}'.{suggest(str(key), hints)}")
    converted = {}
    for field in (field for field in dataclasses.fields(cls) if field.init):
        key, hint, value = field.name, hints[field.name], values.get(field.name, MISSING)
        if not isinstance(value, str) or value != MISSING:
            example = f", such as {field.default:g}" if type(field.default) in (int, float) else ""
            example += f", such as {inside}{key}=[{value}]" * (get_origin(hint) is list and isinstance(value, str))
            wanted = field.metadata.get("wanted", words(hint) + example)
            converted[key] = convert(hint, value, f"{inside}{key}", wanted)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{inside}{key} is missing: give {words(hint)}.")
    settings.check(cls, converted, where)
    return cls(**converted)


def defaults(cls: type) -> dict[str, Any]:
    """Return the default of each field as a plain value, "???" for a field without one.

    Raises ConfigError for a type that no setting has.
    """
    made: dict[str, Any] = {}
    for field in (field for field in dataclasses.fields(cls) if field.init):
        if (hint := _hints(cls)[field.name]) is not Any and "a value" in words(hint):
            raise ConfigError(
                f"a field of {cls.__name__} has an unsupported type, {field.name}: {field.type}: use numbers, texts, "
                "true or false, lists of them, or an Enum."
            )
        factory: Any = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        made[field.name] = MISSING if default is dataclasses.MISSING else plain(default)
    return made


def convert(hint: Any, value: Any, where: str, wanted: str = "") -> Any:
    """Convert `value` to the type `hint`: str, bool, int, float, enum (by name), literal, list, dict, dataclass, union.

    Instances of dataclasses and enums are unchanged. Raises ConfigError if the value does not fit, with what is
    `wanted`.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any or (value is None and NoneType in parts):
        return value
    if origin in (Union, UnionType):
        inner = [part for part in parts if part is not NoneType]
        return convert(type(value) if type(value) in inner else inner[0], value, where, wanted)
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, Enum)):
        if isinstance(value, hint):
            return value
        return member(hint, value, where) if issubclass(hint, Enum) else build(hint, value, where)
    if (origin or hint) in (list, tuple) and isinstance(value, list | tuple):
        return [convert((parts or [Any])[0], item, f"{where}[{number}]") for number, item in enumerate(value)]
    if (origin or hint) is dict and isinstance(value, dict):
        return {str(key): convert((parts or [Any])[-1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal and value in parts:
        return value
    fitting = None if origin else _plain(hint, value)
    if fitting is None:
        raise ConfigError(f"{where}={value!r} has the wrong type: use {wanted or words(hint)}.")
    return fitting


def member(choices: type[Enum], name: Any, where: str) -> Enum:
    """The member of an enum by its name. Raises ConfigError."""
    if str(name) not in choices.__members__:
        raise ConfigError(f"{where}='{name}' does not exist.{suggest(str(name), choices.__members__)}")
    return choices[str(name)]


def _plain(hint: type, value: Any) -> Any:
    """Convert to bool, number or text; None if impossible. YAML reads 1e-6 as text, workers' numbers as numbers."""
    if hint is bool or isinstance(value, bool):
        return value if hint is bool and isinstance(value, bool) else None
    if hint is str:
        return str(value) if isinstance(value, str | int | float) else None
    if hint is int and isinstance(value, int):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if hint is float:
        return number
    return int(number) if hint is int and number.is_integer() else None


@cache
def words(hint: Any) -> str:
    """A type as a person calls it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(words(part) for part in parts)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if (origin or hint) in (list, tuple):
        return f"a list, each item {words(parts[0])}" if parts and parts[0] is not Any else "a list"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(hint.__members__)}"
    if (origin or hint) is dict or dataclasses.is_dataclass(hint):
        return "keys with values"
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}
    return names.get(hint, "a value")


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def plain(value: Any) -> Any:
    """Return dataclasses, enums and containers as JSON and YAML know them; other objects of a script by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | Real | dict | os.PathLike):
        return value
    return getattr(value, "__qualname__", type(value).__name__)


def dump(config: Config) -> str:
    """The configuration as YAML, with the source of components that are not ours; `load` is its inverse."""
    import yaml

    found = {group: sources.source(type(getattr(config, group))) for group in GROUPS}
    names = {group: {"name": name} for group in found if (name := find.own_name(type(getattr(config, group))))}
    own = {group: source | names.get(group, {}) for group, source in found.items() if source is not None}
    for one in (config, *(getattr(config, group) for group in GROUPS)):
        own |= {f"{key}={name}": function_source(key, name) for key, name in functions(type(one), vars(one))}
    values = plain(config) | ({"own": own} if own else {})
    return yaml.dump(values, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)


def load(text: str, made: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration that `dump` wrote, with components that are `made` already, in a process that ours has
    started: it is trusted, see `from_dict`."""
    import yaml

    return from_dict(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) | (made or {}), trust=True)


def read(
    path: Path, trust: bool = False, made: Mapping[str, Any] | None = None, groups: Collection[str] = tuple(GROUPS)
) -> Config:
    """Return the configuration in a file, which anybody may have written, with components that are `made` instead of
    those in the file; see `from_dict`. Raises ConfigError."""
    try:
        return from_dict(read_yaml(path) | (made or {}), trust, groups)
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {type(error).__name__}: {error}.") from None


def from_dict(values: dict[str, Any], trust: bool = False, groups: Collection[str] = tuple(GROUPS)) -> Config:
    """Create a configuration from plain values, each group by its `name`, with the types of the dataclasses.

    Of other groups than these, it has the plain values.
    Without `trust`, modules named only by the values are not imported. Raises ConfigError for an unknown name or key, a
    value that does not fit, untrusted code, and a user's component that has changed since.
    """
    config = build(Config, {key: value for key, value in values.items() if key != "own"}, "")
    for group in groups:
        setattr(config, group, component_from(group, values, trust))
    named = functions(Config, vars(config))
    for group in groups:
        named += functions(type(getattr(config, group)), vars(getattr(config, group)))
    for key, code in named if not trust else ():
        if is_foreign(key, code):
            raise _not_trusted(key, code)
    return config


def component_from(group: str, values: Mapping[str, Any], trust: bool = False) -> Any:
    """The component of one group from the plain values of a whole configuration; see `from_dict`."""
    # what older runs did not write down
    values = {younger: {"name": "none"} for younger in ("availability", "attack", "robust", "privacy")} | dict(values)
    own, package, written = values[group], GROUPS[group], values.get("own", {})
    if dataclasses.is_dataclass(own):
        return own
    name = own["name"]
    code = str(own.get("id", name))  # gymnasium imports the module in an id, too
    if not trust and is_foreign(package, code):
        raise _not_trusted(group, code)
    cls = component(package, str(name))
    if cls is None and group == "env" and (cls := component(package, "none")):  # 2.9 named gridworld for every task
        return cls()
    if cls is None:
        raise ConfigError(f"{group}={name} does not exist.{suggest(str(name), components(package))}")
    source = sources.source(cls)
    if group in written and source is not None and source["sha256"] != written[group]["sha256"]:
        raise ConfigError(f"{group}={name}: {source['file']} has changed since this was written; restore it, or rerun.")
    return build(cls, own, group)


def _not_trusted(key: str, code: str) -> ConfigError:
    return ConfigError(
        f"{key}={code} is code named by a stored file, which is not imported by default: if you trust its author, "
        "pass trust=True, as in decentral.load(..., trust=True)."
    )


def stored_config(directory: Path) -> dict[str, Any]:
    """The plain values of the frozen configuration of a run. Raises ConfigError if they are missing or damaged."""
    path = directory / "config.yaml"
    values, hints = read_mapping(path), _hints(Config)
    for key, value in values.items():
        if key in GROUPS or key in NODES:
            name = value.get("name", "") if isinstance(value, dict) else None if value is not None else ""
            if not isinstance(name, str):
                raise ConfigError(f"{path} is damaged: {key}={str(value)[:60]} has no name.")
        elif key in hints:
            try:
                convert(hints[key], value, key)
            except ConfigError as error:
                raise ConfigError(f"{path} is damaged: {error}") from None
    return values


def run_settings(directory: Path) -> dict[str, Any]:
    """Every setting of a run as on the command line: `algo`, `algo.fill`, `lr`. Raises ConfigError as `stored_config`
    does."""
    values = stored_config(directory)
    if absent := next((key for key in _NEEDED if key not in values), None):
        raise ConfigError(f"{directory / 'config.yaml'} is damaged: it has no {absent}.")
    return as_settings(values)


def as_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with the names of the command line: `algo`, `algo.fill`, `lr`, `cluster.links.ports`."""
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(value, dict) or not value:
            settings[key] = value
            continue
        if str(value.get("name")).startswith("transformers:"):  # see `overrides.placed`
            value = {part: inner for part, inner in value.items() if part != "kwargs"} | value.get("kwargs", {})
        settings |= {key: value["name"]} if "name" in value else {}
        settings |= as_settings({f"{key}.{part}": inner for part, inner in value.items() if part != "name"})
    return settings
