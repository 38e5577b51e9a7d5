"""What Hydra and OmegaConf complain about, in one sentence with the nearest right name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from decentral.config import GROUPS, Config
from decentral.errors import ConfigError, suggest
from decentral.registry import components


def options(group: str, conf: Path) -> list[str]:
    """The choices of a group: its YAML files."""
    return sorted(file.stem for file in (conf / group).glob("*.yaml"))


def check_names(overrides: Sequence[str], conf: Path) -> None:
    """Refuse unknown keys, groups and options before Hydra does, and say what was meant."""
    keys = {f.name for f in dataclasses.fields(Config)}
    chosen: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.lstrip("+~").partition("=")
        if not equals and not override.startswith("~"):
            raise ConfigError(f"'{override}' is no setting: write key=value, for example lr=0.1.")
        head = key.partition("@")[0].partition(".")[0].partition("/")[0]
        if head == "hydra":
            continue
        if head not in keys:
            raise ConfigError(f"there is no setting '{key}'.{suggest(head, keys)}")
        if key in GROUPS and equals:
            for choice in value.split(","):
                _check_choice(key, choice.strip(), options(key, conf))
            chosen[key] = value
    for override in overrides:
        _check_field(override.lstrip("+~").partition("=")[0], chosen, conf)


def _check_choice(group: str, choice: str, known: list[str]) -> None:
    if choice not in known:
        raise ConfigError(f"{group}={choice} does not exist.{suggest(choice, known)}")


def _check_field(key: str, chosen: dict[str, str], conf: Path) -> None:
    """`algo.fill=...`: does the chosen algorithm (or the default one) have that field?"""
    group, dot, name = key.partition(".")
    if not dot or group == "hydra":
        return
    if group == "network":
        classes = [type(Config().network)]
    elif group in GROUPS:
        names = chosen.get(group, _default(group, conf)).split(",")
        classes = [components(GROUPS[group])[_schema(group, n.strip(), conf)] for n in names]
    else:
        raise ConfigError(f"{group} is one value and has no part '{name}': write {group}=...")
    for cls in classes:
        known = [f.name for f in dataclasses.fields(cls)]
        if name not in known:
            which = "network" if group == "network" else f"{group}={chosen.get(group, _default(group, conf))}"
            raise ConfigError(f"{which} has no setting '{name}'.{suggest(name, [k for k in known if k != 'name'])}")


def _default(group: str, conf: Path) -> str:
    found = re.search(rf"^\s*- {group}: (\S+)$", (conf / "config.yaml").read_text(), re.M)
    assert found is not None, f"conf/config.yaml has no default for {group}"
    return found[1]


def _schema(group: str, option: str, conf: Path) -> str:
    """The component behind an option: several options may share one, with other values."""
    found = re.search(r"^\s*- schema/(\S+)@_here_$", (conf / group / f"{option}.yaml").read_text(), re.M)
    assert found is not None, f"conf/{group}/{option}.yaml names no schema"
    return found[1]


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """One sentence for what Hydra or OmegaConf raised."""
    cause: BaseException = error
    while cause.__cause__ is not None and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    text = str(cause) or str(error)
    key = re.search(r"full_key: (\S+)", text)
    first = text.strip().splitlines()[0].rstrip(".")
    if key is not None:
        given = next((o for o in overrides if o.lstrip("+").partition("=")[0] == key[1]), key[1])
        return f"{given} cannot be used: {first[0].lower()}{first[1:]}."
    if "sweep" in text.lower() or "Ambiguous" in text:
        return f"{first}; to try several values, add -m: decentral-run -m {' '.join(overrides)}."
    return f"{first}."
