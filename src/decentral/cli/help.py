"""The choices and settings, from the components and the files of conf/: for `--help`, for tab completion, and for the
pages of the documentation."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decentral.config.overrides import CHOICES, meant, options, places
from decentral.config.schema import GROUPS, NODES, Config
from decentral.errors import ConfigError, suggest
from decentral.registry import component
from decentral.registry.find import described, functions, owner
from decentral.settings import documented, limits_in_words
from decentral.terminal.console import say
from decentral.topology.facts import told

if TYPE_CHECKING:
    from decentral.topology.rounds import Rounds


@dataclass(frozen=True)
class Setting:
    """One setting, as a user writes it."""

    name: str
    value: str
    """The default."""
    values: str
    """The possible values, in words; may be empty."""
    about: str
    """The docstring's line on it; may be empty."""


@dataclass(frozen=True)
class Choice:
    """One choice of a group of the configuration."""

    group: str
    option: str
    file: Path | None
    """Its file in conf/; None for a component without one."""
    cls: type | None
    """The component; None for a file that builds on another choice, or on several."""
    summary: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """The settings in its file."""

    @property
    def doc(self) -> str:
        """The component's docstring."""
        return inspect.getdoc(self.cls) or "" if self.cls else ""

    @property
    def settings(self) -> list[Setting]:
        """The settings of the component itself."""
        return [setting for setting in settings_of(self.cls, self.values) if setting.name not in self.nodes]

    @property
    def nodes(self) -> dict[str, list[Setting]]:
        """Settings that belong together -> them."""
        fields = dataclasses.fields(self.cls) if self.cls else ()
        nested = {f.name: type(default(f)) for f in fields if dataclasses.is_dataclass(default(f))}
        return {name: settings_of(node, self.values.get(name)) for name, node in nested.items()}

    def rounds(self, num_workers: int) -> Rounds | None:
        """Return the rounds of a topology with default settings; None without them for this number of workers."""
        try:
            return self.schedule(num_workers)
        except (ConfigError, TypeError):
            return None

    def schedule(self, num_workers: int) -> Rounds:
        """The rounds of a topology with default settings; ConfigError (settings that it lacks: TypeError) if it has
        none."""
        assert self.cls is not None
        made: Rounds = self.cls(**{k: v for k, v in self.values.items() if k != "name"}).schedule(num_workers)
        return made


def choice(group: str, option: str, folders: Sequence[Path]) -> Choice:
    """Return the facts of `group=option`, which exists."""
    file = _file(group, option, folders)
    schema = re.search(r"^(?:\s*- schema/|name: )(\S+?)(?:@_here_)?$", file.read_text(), re.M) if file else None
    about = summary(group, option, folders)
    if file is not None and schema is None:
        return Choice(group, option, file, None, about)
    cls = component(GROUPS[group], schema[1] if schema else option)
    assert cls is not None
    return Choice(group, option, file, cls, about, _values(file) if file else {})


def usual(group: str, folders: Sequence[Path]) -> str:
    """The choice of a group where nothing is said; '' if there is none."""
    found = re.search(rf"^\s*- {group}: (\S+)$", (folders[0] / "config.yaml").read_text(), re.M)
    return found[1] if found and found[1] != "null" else ""


def settings_of(cls: type | None, values: Mapping[str, Any] | None = None) -> list[Setting]:
    """The fields of a dataclass, which its docstring, or that of a class above, describes; with these values."""
    if cls is None:
        return []
    about = documented(cls)
    return [
        Setting(f.name, show((values or {}).get(f.name, default(f))), can_be(f), about.get(f.name, ""))
        for f in dataclasses.fields(cls)
        if f.name != "name"
    ]


def summary(group: str, option: str, folders: Sequence[Path]) -> str:
    """The comment at the top of a choice's file; without a file, the first line of the component's docstring."""
    file = _file(group, option, folders)
    if file is None:
        cls = component(GROUPS[group], option)
        return described(cls) if cls is not None else ""
    comments = [line for line in file.read_text().splitlines() if line.startswith("#") and "@package" not in line]
    return comments[0].lstrip("# ") if comments else ""


def default(f: dataclasses.Field[Any]) -> Any:
    """The default of a field; ??? where it has to be given."""
    if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
        return "???"
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def show(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _file(group: str, option: str, folders: Sequence[Path]) -> Path | None:
    return next((file for folder in folders if (file := folder / group / f"{option}.yaml").is_file()), None)


def _values(file: Path) -> dict[str, Any]:
    """Return the settings in a choice's file."""
    import yaml

    return {key: value for key, value in yaml.safe_load(file.read_text()).items() if key != "defaults"}


def can_be(f: dataclasses.Field[Any]) -> str:
    """The values of a field, in words; '' if nothing is said of them."""
    if isinstance(default(f), Enum):
        return f"one of {', '.join(member.name for member in type(default(f)))}"
    return limits_in_words(f.metadata)


_HEAD = """\
decentral-run trains n workers with a decentralized algorithm, on one machine or many, and records what they reach.

  decentral-run                                      relaysgd on double binary trees, 16 workers, digits: a minute
  decentral-run algo=dpsgd topology=ring alpha=0.01  another algorithm, topology and split of the data
  decentral-run task=quadratics steps=100            a small problem with a known optimum: seconds
  decentral-run -m algo=relaysgd,dpsgd lr=0.05,0.1   every combination, one run per core at a time
  decentral-run experiment=relaysum_cifar10 lr=0.6   a paper's settings; later settings override them
  torchrun --nproc-per-node=4 -m decentral ...       the same run over the processes (and machines) of torchrun

  decentral-run --help algo                          list all algorithms; the same for every choice below
  decentral-run --help algo=relaysgd                 its formula, its source and its settings
  decentral-run --help topology=bt num_workers=7     a graph's properties for 7 workers, and its privacy
  decentral-run --help clip_norm                     a setting: its full key, and the choices that have it
"""

_OPTIONS = """\
Options
  -m, --multirun          run every combination of values such as lr=0.05,0.1 and, of settings that vary together,
                          'algo,topology=(dpsgd,ring),(relaysgd,dbt)'; sweeper=optuna searches instead
  target=METRIC:VALUE     with -m and a cluster=: simulated time, bytes and steps of each combination until the averaged
                          model reaches it, as in target='test accuracy:90'; all have the same budget= of simulated
                          seconds (default: what the first one takes), and three seeds. Use it to compare asynchronous
                          with synchronous methods: -m alone compares them at equal steps
  budget=60               with target=: simulated seconds of each combination, also 2min (default: what the first takes)
  tune=lr                 with target=: search the best value, from the default in factors of two; also tune=algo.gamma
  --x bytes|seconds|...   with -m, the table and figure of the sweep: also --log, --panels, --rows, --columns, --best,
                          --metric, --worker, --name and the others of decentral-report runs (decentral-report --help)
  --save-study NAME       with -m: write the sweep as a study, FOLDER/study/NAME.yaml (docs/studies.md)
  --config-dir FOLDER     your own choices: FOLDER/experiment/mine.yaml is experiment=mine; your own algo=, model=,
                          ... are FOLDER/algorithms/mine.py, ... (docs/own_components.md), or without a folder
                          algo=mymodule:MyMethod, from the current one
  --cfg job               print the composed configuration instead of running (with --resolve: without references)
  -sc install=bash        print the script for tab completion: eval "$(decentral-run -sc install=bash)"; or zsh
  --version, --help
"""

_TAIL = """\
A run's results do not depend on the number of processes. They are stored in results/runs/<id>; the ID derives from the
configuration. A finished run is skipped, and an interrupted run resumes from its last checkpoint."""

_KEY_WIDTH = 36
_WIDTH = 118
_SIZES = (4, 16, 32, 64)
_USUAL_SIZE = 16


def print_help(topics: Sequence[str], folders: Sequence[Path]) -> None:
    """General help, or that of what is named: `algo`, `algo=relaysgd`, `relaysgd`, `lr`, `optim.clip_norm`,
    `clip_norm`. ConfigError if it is unknown."""
    if not topics:
        lines = [_HEAD, "Choices (each is a file in a folder of conf/; its settings are written algo.fill=own)"]
        for group in (*GROUPS, "experiment"):
            head, names = f"  {group + '=':<13}", " ".join(options(group, folders))
            lines.append(textwrap.fill(names, _WIDTH, initial_indent=head, subsequent_indent=15 * " "))
        lines += ["", "Settings, with their defaults", *(line for _, line in _setting_lines()), "", _OPTIONS, _TAIL]
        say("\n".join(lines))
        return
    sizes: list[int] = []
    if any(topic.startswith("topology=") or topic in options("topology", folders) for topic in topics):
        numbers = [topic for topic in topics if re.fullmatch(r"num_workers=[1-9]\d*", topic)]
        topics = [topic for topic in topics if topic not in numbers]
        sizes = [int(number.partition("=")[2]) for number in numbers]
    say("\n\n".join(_topic(topic, folders, sizes) for topic in topics))


def _topic(topic: str, folders: Sequence[Path], sizes: Sequence[int]) -> str:
    name, _, chosen = topic.partition("=")
    if name in CHOICES:
        known = options(name, folders)
        for option in chosen.split(",") if chosen else ():
            if option not in known and (name not in GROUPS or component(GROUPS[name], option) is None):
                raise ConfigError(f"--help {topic}: {name}={option} does not exist.{suggest(option, known)}")
        if chosen:
            return "\n\n".join(_describe(name, option, folders, sizes) for option in chosen.split(","))
        return _overview(name, folders)
    lines = [line for key, line in _setting_lines() if key == name or key.partition(".")[0] == name]
    named = [_describe(group, name, folders, sizes) for group in CHOICES if name in options(group, folders)]
    lines += re.findall(rf"^  {re.escape(name)}=.*(?:\n {{10,}}.*)*", _OPTIONS, re.M)  # words of sweeps
    found = "\n".join(lines) or "\n\n".join(named + _with_owners(name, folders))
    if found:
        return found
    longer = [group for group in CHOICES if name.startswith(group)]  # optimizer: optim
    every = longer or [*CHOICES, *NODES, *(option for group in CHOICES for option in options(group, folders))]
    near = get_close_matches(name, [*every, *places()], n=1, cutoff=0.7)
    hint = suggest(name, every) if "." not in name and near and near[0] in every else meant(name)
    hint = f" Write its group, as in algo={name}." if ":" in name else hint
    more = "" if "--help lists" in hint else " decentral-run --help lists everything."
    raise ConfigError(f"--help {topic}: there is no such setting or choice.{hint}{more}")


def _with_owners(name: str, folders: Sequence[Path]) -> list[str]:
    """The lines of settings, named in full or by their last parts, each with the choices that have it."""
    found: dict[str, list[str]] = {}
    for key in places().get(name.rpartition(".")[2], []):
        group, _, inside = key.partition(".")
        if "." in name and name not in (key, inside):
            continue
        found |= {line: [] for one, line in _setting_lines() if one == key}
        for option in options(group, folders) if group in GROUPS else ():
            one = choice(group, option, folders)
            nodes = {group: one.settings} | {f"{group}.{node}": settings for node, settings in one.nodes.items()}
            for node, settings in nodes.items():
                for line in _setting_texts(node, [own for own in settings if f"{node}.{own.name}" == key]):
                    found.setdefault(line, []).append(f"{group}={option}")
    wrapped = textwrap.TextWrapper(_WIDTH, initial_indent="      of ", subsequent_indent="         ")
    return ["\n".join([line, *wrapped.wrap(", ".join(having))]) for line, having in found.items()]


def _setting_lines() -> list[tuple[str, str]]:
    """(key, line of help) of everything that is no choice."""
    found = []
    for f in dataclasses.fields(Config):
        if "help" in f.metadata:
            limits = limits_in_words(f.metadata)
            about = f.metadata["help"] + (f"; {limits}" if limits else "")
            line = f"  {f.name + '=' + show(default(f)):<25} {about}"
            found.append((f.name, textwrap.fill(line, _WIDTH, subsequent_indent=28 * " ")))
    for node, cls in NODES.items():
        settings = settings_of(cls)
        keys = (f"{node}.{setting.name}" for setting in settings)
        found += zip(keys, _setting_texts(node, settings), strict=True)
    return found


def _setting_texts(node: str, settings: Sequence[Setting]) -> list[str]:
    """A line of help for each setting of a node."""
    return [
        textwrap.fill(
            f"  {f'{node}.{setting.name}={setting.value}':<{_KEY_WIDTH}}  "
            + "; ".join(filter(None, [setting.about, setting.values])),
            _WIDTH,
            subsequent_indent=(_KEY_WIDTH + 4) * " ",
        )
        for setting in settings
    ]


def _overview(group: str, folders: Sequence[Path]) -> str:
    """A line for each choice of a group."""
    known = options(group, folders)
    width = max(len(name) for name in known) + 2
    default = usual(group, folders)
    lines = [f"{group}=..." + (f"  (default: {default})" if default else "")]
    for name in known:
        line = f"  {name:<{width}}{summary(group, name, folders)}"
        lines.append(textwrap.fill(line, _WIDTH, subsequent_indent=(width + 2) * " "))
    return "\n".join([*lines, "", f"decentral-run --help {group}={known[0]} shows one of them with all its settings."])


def _describe(group: str, option: str, folders: Sequence[Path], sizes: Sequence[int]) -> str:
    """Describe one choice: its text, its settings with its values, and a topology's facts."""
    found = choice(group, option, folders)
    if found.cls is None:
        assert found.file is not None
        return f"{group}={option}    ({found.file})\n\n" + textwrap.indent(found.file.read_text().rstrip(), "  ")
    where = owner(found.cls)
    head = f"{group}={option}    {found.summary}" + (f"    ({where})" if where else "")
    lines = [head, "", textwrap.indent(found.doc.removeprefix(found.summary).lstrip("\n"), "  ")]
    if group == "algo":
        for key, value in getattr(found.cls, "usual", {}).items():
            lines += ["", f"  Default {key}: {key}={value}"]
    if group == "topology":
        lines += _facts(found, sizes)
    shown = [(f"{group}.{setting.name}={setting.value}", setting) for setting in found.settings]
    width = max((len(text) for text, _ in shown), default=0) + 2
    if found.settings or found.nodes:
        lines += ["", "  Settings"]
    lines += [_setting_text(text, setting, width, found.doc) for text, setting in shown]
    for name, node in found.nodes.items():
        lines += ["", *_setting_texts(f"{group}.{name}", node)]
    return "\n".join(lines)


def _setting_text(text: str, setting: Setting, width: int, doc: str) -> str:
    """A line of a choice's settings: its values, and what they are where the choice's own docstring does not say it."""
    told = re.search(rf"^{setting.name}  +\S", doc, re.M)
    line = f"    {text:<{width}}" + "; ".join(filter(None, ["" if told else setting.about, setting.values]))
    return textwrap.fill(line, _WIDTH, subsequent_indent=(width + 4) * " ", drop_whitespace=True).rstrip()


def _facts(topology: Choice, sizes: Sequence[int]) -> list[str]:
    """Return what agreement takes with a topology's usual settings, and further facts: functions in
    `topology_facts/*.py`, such as its privacy.

    Without `sizes`, for those of the usual numbers for which it exists.
    """
    found = {n: rounds for n in _SIZES if (rounds := topology.rounds(n)) is not None}
    if sizes:
        found = {n: topology.schedule(n) for n in sizes}
    lines = [f"    num_workers={n:<4} {told(rounds)}" for n, rounds in found.items()]
    for n in sizes or sorted(found, key=lambda n: abs(n - _USUAL_SIZE))[:1]:
        for name, fact in functions("topology_facts").items():
            lines.append(f"  {name.replace('_', ' ').capitalize()}, num_workers={n}")
            lines.append(textwrap.fill(fact(found[n]), _WIDTH, initial_indent="    ", subsequent_indent="    "))
    return ["", "  With these settings", *lines] if lines else []
