"""Settings that once had other names: these go on working, and runs keep their ids.

The metadata of a field says it: {"was": "old_key"} of its key, {"values_were": {"old": "new"}} of its values, where the
values of the field `name` of a component are what a choice is called, and {"was_at": "task.old_key"} of one that lay in
another part of the configuration. A command line with an old name gets a warning, files with one are read, and the
identity of a run is computed with the old names. (A member of an Enum has its old name as an alias of Python's;
`values_were` is then for the identity.)

What is no setting any more a class says in `gone`: key -> (the value with which it did nothing, what to use instead).
Stored configurations may have it with that value; anywhere else it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields, make_dataclass
from functools import cache, partial
from typing import Any, NamedTuple, get_type_hints

from decentral.errors import ConfigError
from decentral.terminal.console import warn

_OLD = "old"


class Move(NamedTuple):
    """A setting that lies elsewhere now."""

    old: str
    """Its path, such as task.test_batch_size."""
    new: str
    hint: Any
    """Its type."""


def moves(nodes: Mapping[str, type]) -> tuple[Move, ...]:
    """What lies in these parts of the configuration now and was elsewhere."""
    return tuple(
        Move(f.metadata["was_at"], f"{node}.{f.name}", _hints(cls)[f.name])
        for node, cls in nodes.items()
        for f in fields(cls)
        if "was_at" in f.metadata
    )


_hints = cache(get_type_hints)


def renamed_keys(groups: Mapping[str, Mapping[str, type]], nodes: Mapping[str, type]) -> set[tuple[str, str]]:
    """(old, new) full key of every setting of these components, and of these parts, that was called something else."""
    owners = [(place, cls) for place, choices in groups.items() for cls in choices.values()] + list(nodes.items())
    within = {
        (f"{place}.{f.metadata['was']}", f"{place}.{f.name}")
        for place, cls in owners
        for f in fields(cls)
        if "was" in f.metadata
    }
    return within | {(move.old, move.new) for move in moves(nodes)}


def with_moved(values: Mapping[str, Any], nodes: Mapping[str, type]) -> dict[str, Any]:
    """The values of a stored configuration, with each setting where it lies today."""
    found = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    for move in moves(nodes):
        *parents, name = move.old.split(".")
        part = found.get(parents[0], {}) if parents else found
        if name in part:
            node, _, key = move.new.partition(".")
            found.setdefault(node, {}).setdefault(key, part.pop(name))
    return found


def identity_key(f: Field[Any]) -> str:
    """What a field is called in the identity of a run: its oldest name."""
    return str(f.metadata.get("was", f.name))


def identity_value(f: Field[Any], value: Any) -> Any:
    """What a plain value is called there."""
    older = {new: old for old, new in f.metadata.get("values_were", {}).items()}
    return older.get(value, value) if isinstance(value, str) else value


def new_choice(name: Any, choices: Mapping[str, type]) -> Any:
    """The name of a component that may have been called `name`."""
    older = {old: new for cls in choices.values() for old, new in _values(cls, "name").items()}
    return name if name in choices else older.get(name, name)


def with_new_names(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys and values of a file for a dataclass, by their names of today."""
    keys = {str(f.metadata["was"]): f.name for f in fields(cls) if "was" in f.metadata}
    renamed = {keys.get(key, key): value for key, value in values.items()}
    return {key: _new_value(cls, key, value) for key, value in renamed.items()}


def without_gone(cls: type, values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The values of a stored configuration, less those that did nothing and are no settings any more.

    Raises ConfigError for one that did something.
    """
    gone: Mapping[str, tuple[Any, str]] = getattr(cls, "gone", {})
    for key, (idle, _) in gone.items():
        if values.get(key, idle) != idle:
            raise ConfigError(instead_of_gone(cls, f"{place}.{key}") or "")
    return {key: value for key, value in values.items() if key not in gone}


def instead_of_gone(cls: type, key: str) -> str | None:
    """What to say of a key of a class that was a setting once; None if it was not."""
    name = key.rpartition(".")[2]
    gone: Mapping[str, tuple[Any, str]] = getattr(cls, "gone", {})
    return f"{key} is no setting any more: {gone[name][1]}." if name in gone else None


def new_override(override: str, groups: Mapping[str, Mapping[str, type]], nodes: Mapping[str, type], top: type) -> str:
    """`key=value` by its names of today; an old one gets a line of warning.

    groups   group -> its components;   nodes, top   the other dataclasses that have settings
    """
    given, equals, value = override.partition("=")
    key = {move.old: move.new for move in moves(nodes)}.get(given, given)
    head, dot, part = key.partition(".")
    (head,) = with_new_names(top, {head: None})
    owners: Iterable[type] = groups[head].values() if head in groups else [nodes[head]] if head in nodes else [top]
    if head in groups and not dot:
        value = _each(value, partial(new_choice, choices=groups[head]))
    for cls in owners:
        if dot:
            (part,) = with_new_names(cls, {part: None})
            value = _each(value, partial(_new_value, cls, part))
        elif cls is top:
            value = _each(value, partial(_new_value, top, head))
    renamed = f"{head}{dot}{part}{equals}{value}"
    if renamed != override:
        old, new = (given, f"{head}{dot}{part}") if given != f"{head}{dot}{part}" else (override, renamed)
        _warn(old, new)
    return renamed


@cache
def with_old_keys(cls: type, group: str = "", moved: tuple[Move, ...] = ()) -> type:
    """The dataclass with its old keys beside the new ones, so that a YAML file may have them; see `move_old_keys`.

    `group` is where it stands in a configuration ('': at the top), `moved` what may have been there.
    """
    hints = get_type_hints(cls)
    old: list[Any] = [
        (f.metadata["was"], hints[f.name] | None, field(default=None, metadata={_OLD: f.name}))
        for f in fields(cls)
        if "was" in f.metadata
    ]
    for move in moved:
        place, _, name = move.old.rpartition(".")
        if place == group and name not in hints:
            old.append((name, move.hint | None, field(default=None, metadata={_OLD: move.new})))
    return make_dataclass(cls.__name__, old, bases=(cls,), namespace={"__doc__": cls.__doc__}) if old else cls


def is_old(f: Field[Any]) -> bool:
    """Whether `with_old_keys` added this field."""
    return _OLD in f.metadata


def settled(value: Any) -> Any:
    """An instance of such a dataclass, without old keys, as one of the dataclass itself; anything else as it is."""
    cls = type(value)
    if not any(is_old(f) for f in getattr(cls, "__dataclass_fields__", {}).values()):
        return value
    return cls.__bases__[0](**{f.name: getattr(value, f.name) for f in fields(cls) if not is_old(f)})


def move_old_keys(composed: Any) -> None:
    """In a composed configuration, move values that YAML files gave under old keys to the new ones."""
    from omegaconf import DictConfig, OmegaConf

    for place in ("", *composed):
        node = composed._get_node(place) if place else composed
        cls = OmegaConf.get_type(node) if isinstance(node, DictConfig) else None
        for f in getattr(cls, "__dataclass_fields__", {}).values():
            if is_old(f) and not OmegaConf.is_missing(node, f.name) and node[f.name] is not None:
                inside = f"{place}." if place else ""
                new = f.metadata[_OLD] if "." in f.metadata[_OLD] else f"{inside}{f.metadata[_OLD]}"
                _warn(f"{inside}{f.name}", new)
                OmegaConf.update(composed, new, node[f.name])
                node[f.name] = None


def _values(cls: type, key: str) -> Mapping[str, str]:
    """Old value -> new value of a field."""
    found: list[Mapping[str, str]] = [f.metadata.get("values_were", {}) for f in fields(cls) if f.name == key]
    return found[0] if found else {}


def _new_value(cls: type, key: str, value: Any) -> Any:
    return _values(cls, key).get(value, value) if isinstance(value, str) else value


def _each(values: str, new: Callable[[str], Any]) -> str:
    """The value of an override, which may be several with commas between them, by their names of today."""
    return ",".join(str(new(value)) for value in values.split(","))


@cache
def _warn(old: str, new: str) -> None:
    """Once in a process."""
    warn(f"{old} is now called {new}.")
