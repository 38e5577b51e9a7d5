"""A configuration as plain values, as YAML, and back."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import Any

from decentral.config.parsing import build, read_yaml
from decentral.config.schema import GROUPS, NODES, Config
from decentral.errors import ConfigError, suggest
from decentral.registry import component, components, is_foreign, sources


def plain(value: Any) -> Any:
    """Dataclasses, enums and containers as what JSON and YAML know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def dump(config: Config) -> str:
    """The configuration as YAML, with the source of components that are not ours; `load` is its inverse."""
    import yaml

    found = {group: sources.source(type(getattr(config, group))) for group in GROUPS}
    own = {group: source for group, source in found.items() if source is not None}
    return yaml.safe_dump(plain(config) | ({"own": own} if own else {}), sort_keys=False)


def load(text: str) -> Config:
    """The configuration that `dump` wrote, in a process that ours has started: it is trusted, see `from_dict`."""
    import yaml

    return from_dict(yaml.safe_load(text), trust=True)


def read(path: Path, trust: bool = False) -> Config:
    """The configuration in a file, which anybody may have written; see `from_dict`. Raises ConfigError."""
    try:
        return from_dict(read_yaml(path), trust)
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {type(error).__name__}: {error}.") from None


def from_dict(values: dict[str, Any], trust: bool = False) -> Config:
    """A configuration from plain values, each group by its `name`; the types are those of the dataclasses.

    Without `trust` no module is imported that nothing but the values names. Raises ConfigError for a name or key that
    does not exist, a value that does not fit, code that is not trusted, and a component of one's own that was another
    one then.
    """
    values = dict(values)
    written = values.pop("own", {})
    for group, package in GROUPS.items():
        name = values[group]["name"]
        code = str(values[group].get("id", name))  # gymnasium imports the module in an id, too
        if not trust and is_foreign(package, code):
            raise ConfigError(
                f"{group}={code} is code that a stored file names, which is not imported unasked: give trust=True, as "
                "in decentral.load(..., trust=True), if you trust its author."
            )
        cls = component(package, str(name))
        if cls is None:
            raise ConfigError(f"{group}={name} does not exist.{suggest(str(name), components(package))}")
        source = sources.source(cls)
        if group in written and source is not None and source["sha256"] != written[group]["sha256"]:
            raise ConfigError(f"{group}={name}: {source['file']} is not what it was when this was written.")
        values[group] = build(cls, values[group], group)
    for node, cls in NODES.items():
        values[node] = build(cls, values.get(node, {}), node)
    return build(Config, values, "")


def run_settings(directory: Path) -> dict[str, Any]:
    """Every setting of a run as on the command line: `algo`, `algo.fill`, `lr`; none where they cannot be read."""
    try:
        values = read_yaml(directory / "config.yaml")
    except ConfigError:
        return {}
    found: dict[str, Any] = {}
    for key, value in values.items() if isinstance(values, dict) else ():
        if not isinstance(value, dict):
            found[key] = value
            continue
        found |= {key: value["name"]} if "name" in value else {}
        found |= {f"{key}.{part}": one for part, one in value.items() if part != "name"}
    return found
