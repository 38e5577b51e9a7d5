"""`decentral-run --help`: what can be chosen and set, from the components themselves."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from decentral.complaints import _schema, options
from decentral.config import GROUPS, Config
from decentral.errors import ConfigError, suggest
from decentral.network.settings import NetworkSettings
from decentral.registry import components

_HEAD = """\
decentral-run trains n workers with a decentralized algorithm, on one machine or many, and records what they reach.

  decentral-run                                      relaysgd on double binary trees, 16 workers, digits
  decentral-run algo=dpsgd topology=ring alpha=0.01  another algorithm, topology and split of the data
  decentral-run -m algo=relaysgd,dpsgd lr=0.05,0.1   every combination, one after the other
  decentral-run --help algo=relaysgd                 what a choice does, with its formula and settings
  torchrun --nproc-per-node=4 -m decentral.cli ...   the same run over the processes (and machines) of torchrun
"""

_TAIL = """\
A run is the same whatever the number of processes. Its results are in results/runs/<id>, where the id follows from the
configuration: a finished run is not run again, an interrupted one goes on from its last checkpoint."""


def print_help(overrides: Sequence[str], conf: Path) -> None:
    """General help, or that of the choices that are named, as in `--help algo=relaysgd`."""
    if not overrides:
        print("\n".join([_HEAD, _choices(conf), _settings(), _TAIL]))
        return
    for override in overrides:
        group, _, option = override.partition("=")
        if group not in GROUPS:
            raise ConfigError(f"--help {override}: there is no group '{group}'.{suggest(group, GROUPS)}")
        known = options(group, conf)
        if option and option not in known:
            raise ConfigError(f"--help {override}: {group}={option} does not exist.{suggest(option, known)}")
        print("\n\n".join(_describe(group, name, conf) for name in ([option] if option else known)))


def _choices(conf: Path) -> str:
    lines = ["Choices (a folder of conf/ each; settings of a choice are written algo.fill=own)"]
    for group in GROUPS:
        lines.append(
            textwrap.fill(
                " ".join(options(group, conf)), 118, initial_indent=f"  {group + '=':<11}", subsequent_indent=13 * " "
            )
        )
    return "\n".join(lines) + "\n"


def _settings() -> str:
    lines = ["Settings"]
    for f in dataclasses.fields(Config):
        if "help" in f.metadata:
            lines.append(f"  {f.name + '=' + _show(f.default):<26}{f.metadata['help']}")
    for f in dataclasses.fields(NetworkSettings):
        lines.append(f"  network.{f.name}={_show(f.default)}")
    return "\n".join(lines) + "\n"


def _describe(group: str, option: str, conf: Path) -> str:
    cls = components(GROUPS[group])[_schema(group, option, conf)]
    lines = [f"{group}={option}", "", textwrap.indent(inspect.getdoc(cls) or "", "  ")]
    fields = [f for f in dataclasses.fields(cls) if f.name != "name"]
    if fields:
        lines += ["", "  Settings"]
        lines += [f"    {group}.{f.name}={_show(_default(f))}{_members(f)}" for f in fields]
    return "\n".join(lines)


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default if f.default is not dataclasses.MISSING else f.default_factory()  # type: ignore[misc]


def _members(f: dataclasses.Field[Any]) -> str:
    default = _default(f)
    return f"    one of {', '.join(m.name for m in type(default))}" if isinstance(default, Enum) else ""


def _show(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
