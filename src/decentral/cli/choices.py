"""What is known of one choice, such as algo=relaysgd: what `--help` and the pages of the documentation say of it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decentral.config.schema import GROUPS
from decentral.errors import ConfigError
from decentral.registry import component
from decentral.registry.find import described
from decentral.settings import limits_in_words

if TYPE_CHECKING:
    from decentral.topology.rounds import Rounds


@dataclass(frozen=True)
class Setting:
    """One setting, as a user writes it."""

    name: str
    value: str
    """What it is unless something else is said."""
    values: str
    """Those that it can have, in words; it may be nothing."""
    about: str
    """What the docstring says of it, in one line; it may be nothing."""


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
    """What its file sets."""

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
        """Of a topology with its usual settings; None where it does not exist for so many workers."""
        assert self.cls is not None
        try:
            made: Rounds = self.cls(**{k: v for k, v in self.values.items() if k != "name"}).schedule(num_workers)
        except ConfigError:
            return None
        return made


def choice(group: str, option: str, folders: Sequence[Path]) -> Choice:
    """What is known of `group=option`, which exists."""
    file = _file(group, option, folders)
    schema = re.search(r"^\s*- schema/(\S+)@_here_$", file.read_text(), re.M) if file else None
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
    documented = {
        name: " ".join(text.split())
        for base in reversed(cls.__mro__)
        for name, text in re.findall(r"^(\w+)  +(\S.*(?:\n  +.*)*)", inspect.cleandoc(base.__doc__ or ""), re.M)
    }
    return [
        Setting(f.name, show((values or {}).get(f.name, default(f))), can_be(f), documented.get(f.name, ""))
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
    """What a choice's file sets."""
    import yaml

    return {key: value for key, value in yaml.safe_load(file.read_text()).items() if key != "defaults"}


def can_be(f: dataclasses.Field[Any]) -> str:
    """The values of a field, in words; '' if nothing is said of them."""
    if isinstance(default(f), Enum):
        return f"one of {', '.join(member.name for member in type(default(f)))}"
    return limits_in_words(f.metadata)
