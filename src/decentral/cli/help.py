"""`decentral-run --help`: what can be chosen and set, from the components and the files of conf/ themselves."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from decentral.config.overrides import CHOICES, options
from decentral.config.schema import GROUPS, NODES, Config
from decentral.errors import ConfigError, suggest
from decentral.registry import component
from decentral.registry.find import described, owner
from decentral.terminal.console import say

_HEAD = """\
decentral-run trains n workers with a decentralized algorithm, on one machine or many, and records what they reach.

  decentral-run                                      relaysgd on double binary trees, 16 workers, digits: a minute
  decentral-run algo=dpsgd topology=ring alpha=0.01  another algorithm, topology and split of the data
  decentral-run task=quadratics steps=100            a small problem with a known optimum: seconds
  decentral-run -m algo=relaysgd,dpsgd lr=0.05,0.1   every combination, as many at a time as there are cores
  decentral-run experiment=relaysum_cifar10 lr=0.6   a paper's settings; what comes after them wins
  torchrun --nproc-per-node=4 -m decentral ...       the same run over the processes (and machines) of torchrun

  decentral-run --help algo                          all algorithms, a line each; so for every choice below
  decentral-run --help algo=relaysgd                 its formula, its source and its settings
"""

_OPTIONS = """\
Options
  -m, --multirun          run every combination of values such as lr=0.05,0.1
  --config-dir FOLDER     choices of your own: FOLDER/experiment/mine.yaml is experiment=mine; algo=, model=, ...
                          of your own are FOLDER/algorithms/mine.py, ... (docs/own_components.md)
  --cfg job               print the composed configuration instead of running (with --resolve: without references)
  -sc install=bash        print the script for tab completion: eval "$(decentral-run -sc install=bash)"; or zsh
  --version, --help
"""

_TAIL = """\
A run is the same whatever the number of processes. Its results are in results/runs/<id>, where the id follows from the
configuration: a finished run is not run again, an interrupted one goes on from its last checkpoint."""

_KEY_WIDTH = 36
_WIDTH = 118
_SIZES = (4, 16, 32, 64)


def print_help(topics: Sequence[str], folders: Sequence[Path]) -> None:
    """General help, or that of what is named: `algo`, `algo=relaysgd`, `relaysgd`, `lr`. ConfigError if it is
    unknown."""
    if not topics:
        say("\n".join([_HEAD, _choices(folders), _settings(), _OPTIONS, _TAIL]))
        return
    say("\n\n".join(_topic(topic, folders) for topic in topics))


def _topic(topic: str, folders: Sequence[Path]) -> str:
    name, _, chosen = topic.partition("=")
    if name in CHOICES:
        known = options(name, folders)
        for option in chosen.split(",") if chosen else ():
            if option not in known and (name not in GROUPS or component(GROUPS[name], option) is None):
                raise ConfigError(f"--help {topic}: {name}={option} does not exist.{suggest(option, known)}")
        if chosen:
            return "\n\n".join(_describe(name, option, folders) for option in chosen.split(","))
        return _overview(name, folders)
    head = name.partition(".")[0]
    if head in GROUPS:  # a setting of a choice: algo.fill
        return _overview(head, folders)
    lines = [line for key, line in _setting_lines() if key.partition(".")[0] == head]
    if lines:
        return "\n".join(lines)
    named = [group for group in CHOICES if name in options(group, folders)]
    if named:
        return "\n\n".join(_describe(group, name, folders) for group in named)
    every = [*CHOICES, *(key for key, _ in _setting_lines()), *(o for g in CHOICES for o in options(g, folders))]
    close = suggest(name, every)
    raise ConfigError(
        f"--help {topic}: there is no such setting or choice."
        + (close if "Did you mean" in close else " decentral-run --help lists all.")
    )


def _choices(folders: Sequence[Path]) -> str:
    lines = ["Choices (each is a file in a folder of conf/; its settings are written algo.fill=own)"]
    for group in (*GROUPS, "experiment"):
        names = " ".join(options(group, folders))
        lines.append(textwrap.fill(names, _WIDTH, initial_indent=f"  {group + '=':<13}", subsequent_indent=15 * " "))
    return "\n".join(lines) + "\n"


def _settings() -> str:
    return "\n".join(["Settings, with their defaults", *(line for _, line in _setting_lines())]) + "\n"


def _setting_lines() -> list[tuple[str, str]]:
    """(key, line of help) of everything that is no choice."""
    found = [
        (f.name, f"  {f.name + '=' + _show(f.default):<25} {f.metadata['help']}")
        for f in dataclasses.fields(Config)
        if "help" in f.metadata
    ]
    return found + [line for node, cls in NODES.items() for line in _node_lines(node, cls)]


def _node_lines(node: str, cls: type, values: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
    """The same for the settings of a node, whose docstring describes them; with these values instead of defaults."""
    documented = {
        name: " ".join(text.split())
        for name, text in re.findall(r"^(\w+)  +(\S.*(?:\n  +.*)*)", inspect.getdoc(cls) or "", re.M)
    }
    found = []
    for f in dataclasses.fields(cls):
        key = f"{node}.{f.name}"
        value = (values or {}).get(f.name, _default(f))
        line = f"  {key + '=' + _show(value):<{_KEY_WIDTH}}  {documented.get(f.name, '')}"
        found.append((key, textwrap.fill(line, _WIDTH, subsequent_indent=(_KEY_WIDTH + 4) * " ")))
    return found


def _overview(group: str, folders: Sequence[Path]) -> str:
    """A line for each choice of a group."""
    known = options(group, folders)
    width = max(len(name) for name in known) + 2
    default = re.search(rf"^\s*- {group}: (\S+)$", (folders[0] / "config.yaml").read_text(), re.M)
    lines = [f"{group}=..." + (f"  (default: {default[1]})" if default and default[1] != "null" else "")]
    for name in known:
        line = f"  {name:<{width}}{_summary(group, name, folders)}"
        lines.append(textwrap.fill(line, _WIDTH, subsequent_indent=(width + 2) * " "))
    return "\n".join([*lines, "", f"decentral-run --help {group}={known[0]} shows one of them with all its settings."])


def _describe(group: str, option: str, folders: Sequence[Path]) -> str:
    """One choice: what it is, and its settings with the values that this choice gives them."""
    file = _file(group, option, folders)
    schema = re.search(r"^\s*- schema/(\S+)@_here_$", file.read_text(), re.M) if file else None
    if file is not None and schema is None:  # an experiment, or a file of the user's that builds on another choice
        return f"{group}={option}    ({file})\n\n" + textwrap.indent(file.read_text().rstrip(), "  ")
    cls = component(GROUPS[group], schema[1] if schema else option)
    assert cls is not None
    where = owner(cls)
    head = f"{group}={option}    {_summary(group, option, folders)}" + (f"    ({where})" if where else "")
    lines = [head, "", textwrap.indent(inspect.getdoc(cls) or "", "  ")]
    if usual := getattr(cls, "usual_topology", ""):
        lines += ["", f"  Where no topology is named: topology={usual}"]
    fields = [f for f in dataclasses.fields(cls) if f.name != "name"]
    values = _values(file) if file else {}
    if group == "topology":
        lines += _facts(cls, values)
    if fields:
        nodes = {f.name: type(_default(f)) for f in fields if dataclasses.is_dataclass(_default(f))}
        shown = [
            (f, f"{group}.{f.name}={_show(values.get(f.name, _default(f)))}") for f in fields if f.name not in nodes
        ]
        width = max((len(text) for _, text in shown), default=0) + 2
        lines += ["", "  Settings"]
        lines += [f"    {text:<{width}}{_members(f)}".rstrip() for f, text in shown]
        for name, node in nodes.items():
            lines += ["", *(line for _, line in _node_lines(f"{group}.{name}", node, values.get(name)))]
    return "\n".join(lines)


def _facts(topology: type, values: Mapping[str, Any]) -> list[str]:
    """What agreement takes with a topology's usual settings, for the numbers of workers for which it exists."""
    from decentral.topology.facts import told

    found = []
    for n in _SIZES:
        try:
            rounds = topology(**{k: v for k, v in values.items() if k != "name"}).schedule(n)
        except ConfigError:
            continue
        found.append(f"    num_workers={n:<4} {told(rounds)}")
    return ["", "  With these settings", *found] if found else []


def _file(group: str, option: str, folders: Sequence[Path]) -> Path | None:
    return next((file for folder in folders if (file := folder / group / f"{option}.yaml").is_file()), None)


def _summary(group: str, option: str, folders: Sequence[Path]) -> str:
    """The comment at the top of a choice's file; without a file, the first line of the component's docstring."""
    file = _file(group, option, folders)
    if file is None:
        cls = component(GROUPS[group], option)
        return described(cls) if cls is not None else ""
    comments = [line for line in file.read_text().splitlines() if line.startswith("#") and "@package" not in line]
    return comments[0].lstrip("# ") if comments else ""


def _values(file: Path) -> dict[str, Any]:
    """What a choice's file sets."""
    import yaml

    return {key: value for key, value in yaml.safe_load(file.read_text()).items() if key != "defaults"}


def _default(f: dataclasses.Field[Any]) -> Any:
    if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
        return "???"
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def _members(f: dataclasses.Field[Any]) -> str:
    default = _default(f)
    return f"one of {', '.join(m.name for m in type(default))}" if isinstance(default, Enum) else ""


def _show(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
