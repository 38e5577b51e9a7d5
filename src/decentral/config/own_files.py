"""YAML files of users, looked at before anybody loads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError

_MOST_VALUES, _MOST_BYTES = 100_000, 1 << 20


def read_yaml(path: Path) -> Any:
    """The plain values in a YAML file; nothing in it is executed or looked up. Raises ConfigError as `check_yaml` does,
    and for what is no YAML."""
    import yaml

    check_yaml(path)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except Exception as error:  # YAMLError, and whatever dates, numbers and depths cause
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}.") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The keys and values in a YAML file. Raises ConfigError."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path} has to hold keys and values.")
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
            raise ConfigError(f"{path} has {path.stat().st_size:,} bytes: {_MOST_BYTES:,} is the most.")
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
            f"{path} has {f'{number:,}' if number < 1e12 else 'endlessly many'} values once its aliases are written "
            f"out: {_MOST_VALUES:,} is the most."
        )


def _written_out(node: Any, known: dict[int, float]) -> float:
    """How many values a node holds with all that its aliases stand for."""
    if id(node) not in known:
        known[id(node)] = math.inf  # what holds itself
        inside = node.value if isinstance(getattr(node, "value", None), list) else []
        parts = [part for each in inside for part in (each if isinstance(each, tuple) else (each,))]
        known[id(node)] = 1 + sum(_written_out(part, known) for part in parts)
    return known[id(node)]
