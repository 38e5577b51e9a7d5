"""Errors in a command line, in one sentence with the closest valid name."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from decentral.config.parsing import read_mapping
from decentral.config.schema import GROUPS, NODES, Config
from decentral.errors import ConfigError, suggest
from decentral.registry import component, components, find, plugins
from decentral.registry.signature import Plain, further
from decentral.settings import documented

CHOICES = ("experiment", *GROUPS)
"""Groups whose values are file names in a folder of conf/."""

_PLAIN = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)=([A-Za-z_/][\w/.-]*|[1-9][0-9]{0,15}|0)", re.ASCII)
_KEYS = tuple(f.name for f in dataclasses.fields(Config))


def options(group: str, folders: Sequence[Path]) -> list[str]:
    """The choices of a group: the YAML files in its folders, and the components, which need none if they are not
    ours."""
    files = {file.stem for folder in folders for file in (folder / group).glob("*.yaml")}
    return sorted(files.union(find.names(GROUPS[group]) if group in GROUPS else ()))


def checked(overrides: Sequence[str], folders: Sequence[Path], several: bool = False) -> list[str]:
    """Return the overrides without a leading '+', which has no meaning here, if all keys and options exist.

    Hydra would also notice, but without suggestions. `several` allows several values for a key, as in lr=0.1,0.2.
    Raises ConfigError.
    """
    plain = [override.lstrip("+") for override in spelt_out(overrides, folders)]
    given = {override.partition("=")[0]: override for override in plain if not override.endswith("=null")}
    if {"lr", "lr_per_worker"} <= given.keys():
        raise ConfigError(f"{given['lr']} conflicts with {given['lr_per_worker']}: leave one of them out.")
    for override in plain:
        key, _, text = override.partition("=")
        if pairs := together(override):
            if not several:
                raise ConfigError(f"{override} has several values: to run each of them, add -m.")
            checked([word for words in pairs for word in words], folders)
            continue
        _check_key(override, folders)
        try:
            parsed = parsed_override(override)
        except Exception:  # HydraException: to import Hydra takes longer than to read the others
            raise ConfigError(
                f"{override} cannot be read: write each setting as a separate argument, key=value, and quote special "
                f"characters: {_quoted(override)}."
            ) from None
        if parsed.is_sweep_override() and not several:
            raise ConfigError(
                f"{override} has several values: to run each of them, add -m (decentral-run -m "
                f"{' '.join(overrides)}); write a list in brackets, [1,2], and a text with commas as "
                f"{_quoted(override)}."
            )
        if key in CHOICES:
            simple = parsed.is_sweep_override() and parsed.is_choice_sweep() and "glob" not in text
            values = (
                [one.replace("\\:", ":") for one in parsed.sweep_string_iterator()] if simple else [text.strip("'\"")]
            )
            for value in values if "glob" not in text else ():
                _check_choice(key, value, options(key, folders))
    return plain


@lru_cache(maxsize=4096)  # runs of a study share overrides, and the grammar takes a millisecond
def parsed_override(override: str) -> Any:
    """Return `key=value` as Hydra reads it: a word, a path or a number without Hydra. Raises HydraException."""
    plain = _PLAIN.fullmatch(override)
    if plain and plain[2].lower() not in ("null", "true", "false", "inf", "nan"):
        value = int(plain[2]) if plain[2].isdecimal() else plain[2]
        return SimpleNamespace(key_or_group=plain[1], value=lambda: value, is_sweep_override=lambda: False)
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override)


def together(override: str) -> list[list[str]]:
    """The overrides of each place of settings that vary together, `algo,topology=(dpsgd,ring),(relaysgd,dbt)`; [] for
    any other override. Raises ConfigError where a place has not a value for each setting."""
    head, _, text = override.partition("=")
    keys, places = head.split(","), re.fullmatch(r"\s*\((.*)\)\s*", text, re.DOTALL)
    if len(keys) == 1:
        return []
    from hydra.errors import HydraException

    found = []
    for place in re.split(r"\)\s*,\s*\(", places[1]) if places else [""]:
        try:
            values = list(parsed_override(f"together={place}").sweep_string_iterator())
        except (HydraException, AttributeError):  # a single value
            values = []
        if len(values) != len(keys):
            one, other = (",".join(f"{letter}{number}" for number in range(1, len(keys) + 1)) for letter in "ab")
            raise ConfigError(
                f"{override} must give {len(keys)} values in each pair of parentheses: write, in quotes, "
                f"'{head}=({one}),({other})'."
            )
        found.append([f"{key}={value}".replace("\\:", ":") for key, value in zip(keys, values, strict=True)])
    return found


def literal(text: str, interpolated: bool = True) -> str:
    """A text as a value that Hydra, and OmegaConf where it is `interpolated`, read as just this text.

    Raises ConfigError for what no line holds.
    """
    if text == "???" or re.search("[\\n\\r\\0\\ud800-\\udfff]", text):
        raise ConfigError(f"{text!r} cannot be a value: use one line of UTF-8 text other than ???.")
    if re.fullmatch(r"[A-Za-z_/.][\w/.:-]*", text, re.ASCII) and text.lower() not in _NOT_TEXT:
        return text
    escaped = re.sub(r"(\\*)\$\{", r"\1\1\\${", text) if interpolated else text
    return '"' + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + found[2].replace('"', '\\"'), escaped) + '"'


def _quoted(override: str) -> str:
    """Quote `key=value` for a shell, with a literal value."""
    key, _, text = override.partition("=")
    return f"in two pairs of quotes, as in {shlex.quote(f'{key}={literal(text)}')}"


_NOT_TEXT = ("null", "true", "false", "nan", "inf")
"""Words that Hydra takes for something else."""

STANDS_FOR = {"env": ("gymnasium", "id")}
"""Group -> a component of it and a setting of that: what is the name of no component is the value of that setting."""

_SHORT = {"cluster.bandwidth": "cluster.links.bandwidth_gbps", "cluster.latency": "cluster.links.latency_s"}
"""Short forms of settings, unless a cluster of the user has them itself."""

_UNITS = {
    "_s": {"us": "1e-6", "ms": "1e-3", "s": "1", "min": "60", "h": "3600"},
    "_ms": {"us": "1e-3", "ms": "1", "s": "1e3"},
    "_gbps": {"kb": "1e-6", "Mb": "1e-3", "Gb": "1", "Tb": "1e3"},
    "_tokens": {"k": "1e3", "K": "1e3", "M": "1e6", "B": "1e9"},
}
"""End of a setting's name, which is its unit -> the units in which its values may be given, each in that of the name;
of bandwidths without their last letters, which are it, it/s or ps."""
_WITH_UNIT = re.compile(
    r"(?<![\w.])(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(us|ms|s|min|h|[kMGT]b(?=it|ps)|[kKMB])(?:it/s|it|ps)?(?![\w/])"
)


def in_its_unit(override: str) -> str:
    """Return an override with its values in the unit of its setting: cluster.links.latency_s=20ms is 0.02."""
    key, _, value = override.partition("=")
    units = next((units for ending, units in _UNITS.items() if f"_{key}".endswith(ending)), {})

    def number(match: re.Match[str]) -> str:
        return f"{float(Decimal(match[1]) * Decimal(units[match[2]])):.15g}" if match[2] in units else match[0]

    return f"{key}={_WITH_UNIT.sub(number, value)}" if units else override


def spelt_out(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return the overrides, where env=CartPole-v1 is env=gymnasium env.id=CartPole-v1, see `STANDS_FOR`, short forms
    are written out, and units are left out."""
    found: list[str] = []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in _SHORT and key not in places().get(key.rpartition(".")[2], ()):
            override = f"{_SHORT[key]}={value}"
        override = in_its_unit(override)
        group, _, value = override.lstrip("+").partition("=")
        if group in STANDS_FOR and value and "," not in value and value not in options(group, folders):
            name, setting = STANDS_FOR[group]
            found += [f"{group}={name}", f"{group}.{setting}={value}"]
        else:
            found.append(override)
    return found


def with_usual(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The overrides, and what is usual for their task and algorithm where neither they nor their experiment say
    anything of it: settings of the task (`Task.usual`), topology and compressor of the algorithm, and for settings of a
    cluster cluster=even."""
    said = {override.partition("=")[0]: override.partition("=")[2] for override in overrides}
    experiment = _choice("experiment", said, {})
    choices, layers = read_experiment(experiment, folders) if experiment not in ("", "null") else ({}, [])
    known = {str(key): "" for layer in layers for key in layer} | choices
    before = []
    task = component(GROUPS["task"], _choice("task", said, known))
    tasks: Mapping[str, str] = getattr(task, "usual", {})
    for key, value in tasks.items():
        if key not in {*said, *known}:
            before.append(f"{key}={value}")
    if any(key.startswith("cluster.") for key in said) and "cluster" not in {*said, *known, *tasks}:
        before.append("cluster=even")
    _check_source(said, _choice("task", said, known), getattr(task, "uses", None))
    chosen = component(GROUPS["algo"], _choice("algo", said, {**tasks, **known}))
    about = {key.partition(".")[0] if key.startswith("topology.") else key for key in (*said, *known)}
    usual: Mapping[str, str] = getattr(chosen, "usual", {})
    after = [f"{key}={value}" for key, value in usual.items() if key not in about]
    return [*before, *overrides, *after]


def _check_source(said: Mapping[str, str], task: str, uses: Sequence[str] | None) -> None:
    """Raise ConfigError for data that are chosen for a task with environments, and the other way round."""
    for group, other in (("env", "data"), ("data", "env")):
        if said.get(group, "none") != "none" and (other in uses if uses is not None else other == "data" and not task):
            chosen = said.get(f"{group}.id") or said[group]
            first = next(name for name, one in components(GROUPS["task"]).items() if group in getattr(one, "uses", ()))
            name = f"task={task}," if task else "the usual task, images,"
            raise ConfigError(
                f"{group}={chosen} does not apply to {name} which uses {other}= instead: leave it out, or choose "
                f"another task, such as task={first}."
            )


def _choice(group: str, said: Mapping[str, str], known: Mapping[str, str]) -> str:
    return said.get(group, known.get(group, "")).strip("'\"")


def read_choice(file: Path) -> tuple[Any, list[Any]]:
    """Read the values in the file of a choice or an experiment, and its defaults. Raises ConfigError."""
    from omegaconf import OmegaConf

    read_mapping(file)
    values: Any = OmegaConf.load(file)  # also reads 1e-3 as a number
    return values, list(values.pop("defaults", None) or [])


def read_experiment(name: str, folders: Sequence[Path]) -> tuple[dict[str, str], list[Any]]:
    """Return group -> choice and all other values of an experiment and its bases. Raises ConfigError."""
    file = next((path for f in folders if (path := f / "experiment" / f"{name}.yaml").is_file()), None)
    if file is None:
        raise ConfigError(f"experiment={name} does not exist.{suggest(name, options('experiment', folders))}")
    values, defaults = read_choice(file)
    choices: dict[str, str] = {}
    layers: list[Any] = []
    for one in defaults:
        if isinstance(one, str) and one != "_self_":
            more, others = read_experiment(one, folders)
            choices, layers = choices | more, layers + others
        elif not isinstance(one, str):
            choices |= {str(key).rpartition("/")[2].split()[-1]: str(value) for key, value in one.items()}
    return choices, [*layers, values]


def _check_key(override: str, folders: Sequence[Path]) -> None:
    if override.startswith("~"):
        raise ConfigError(
            f"{override}: settings cannot be removed; write {override.lstrip('~').partition('=')[0]}=... instead."
        )
    key, equals, value = override.partition("=")
    head, *parts = key.split(".")
    if not equals:
        raise ConfigError(_bare_word(override, folders))
    if not key or key.strip() != key:
        raise ConfigError(f"'{override}' has no name: write key=value without spaces, for example lr=0.1.")
    if head not in (*_KEYS, "experiment"):
        raise ConfigError(f"there is no setting '{key}'.{meant(key)}")
    if parts and head not in (*GROUPS, *NODES):
        raise ConfigError(f"{head} is a single value without a part '{'.'.join(parts)}': write {head}=...")
    inside = _parts(head, parts[0]) if parts else []
    if len(parts) == 1 and inside and not value.startswith(("{", "null")):
        raise ConfigError(f"{key} is a group of settings: write {key}.{inside[0]}=... or {key}.{inside[1]}=...")
    if len(parts) > (2 if inside else 1):
        *path, part = parts[: 3 if inside else 2]
        whole = ".".join([head, *path])
        raise ConfigError(f"{whole} is a single value without a part '{part}': write {whole}=...")
    if head in NODES and not parts:
        one, other = [f"{head}.{f.name}=..." for f in dataclasses.fields(NODES[head])][:2]
        raise ConfigError(f"{head} is a group of settings: write {one} or {other}")
    if parts == ["name"] and head in GROUPS:
        raise ConfigError(f"{override} only changes a label: choose the component with {head}=...")


_OTHER_WORDS = {
    "local_steps": "communication.every",
    "local_updates": "communication.every",
    "momentum_beta": "optim.momentum",
    "clip": "optim.clip_norm",
    "gradient_clipping": "optim.clip_norm",
    "grad_clip": "optim.clip_norm",
    "max_grad_norm": "optim.clip_norm",
    "dropout": "network.drop_probability",
    "message_dropout": "network.drop_probability",
    "dropout_of_messages": "network.drop_probability",
    "packet_loss": "network.drop_probability",
}
"""The field's terms for settings with other names here."""


def places() -> dict[str, list[str]]:
    """Return last part of a setting, or a synonym -> the full settings: momentum -> ['optim.momentum']."""
    found: dict[str, dict[str, None]] = {word: {key: None} for word, key in _OTHER_WORDS.items()}
    found |= {key: {key: None} for key in (*_KEYS, "experiment") if key not in NODES}
    owners = {group: components(package).values() for group, package in GROUPS.items()}
    for head, classes in (owners | {node: [cls] for node, cls in NODES.items()}).items():
        for f in (f for cls in classes for f in dataclasses.fields(cls)):
            made: Any = f.default_factory
            inside = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
            for name in [f"{f.name}.{inner.name}" for inner in inside] or [f.name] * (f.name != "name"):
                found.setdefault(name.rpartition(".")[2], {})[f"{head}.{name}"] = None
    return {name: list(keys) for name, keys in found.items()}


def meant(key: str) -> str:
    """' Did you mean 'optim.momentum'?' for a setting that does not exist: by its last part, which may be misspelled or
    shortened, or by the words that explain another one; else how all are listed."""
    if key.startswith("figures."):
        return f" It belongs to decentral-report, as in decentral-report FOLDER {key}=..."
    known, name = places(), key.rpartition(".")[2]
    part = re.compile(rf"(^|_){re.escape(name)}s?(_|$)")
    longer = [one for one in known if part.search(one)]
    first = [one for one in longer if one in (name, *_KEYS)]
    found = first or longer or get_close_matches(name, known, n=1, cutoff=0.7)
    inside = {place: None for one in longer for place in known[one] if place.startswith(key.rpartition(".")[0] + ".")}
    meant = list(inside or dict.fromkeys(place for one in found for place in known[one])) or _explained_with(name)
    meant = meant or get_close_matches(name, (*_KEYS, "experiment"), n=1, cutoff=0.6)
    if meant:
        return f" Did you mean {' or '.join(map(repr, meant))}?"
    return " decentral-run --help lists all settings."


def _explained_with(name: str) -> list[str]:
    """The setting of a run, or of one of its parts, whose explanation has this word first; [] if none has it."""
    texts = {f.name: f.metadata.get("help", "") for f in dataclasses.fields(Config)}
    for node, cls in NODES.items():
        texts |= {f"{node}.{setting}": text for setting, text in documented(cls).items()}
    words = re.compile(rf"(.*?)\b{re.escape(_american(name))}[ds]?\b")
    told = [(len(at[1]), key) for key, text in texts.items() if (at := words.match(_american(text)))]
    return [key for _, key in sorted(told)[:1]]


def _american(text: str) -> str:
    """The same for each spelling: personalised, neighbor, labeled, center."""
    text = text.lower().replace("_", " ").replace("our", "or").replace("ll", "l")
    return re.sub(r"re\b", "er", re.sub("is(?=[aei])", "iz", text))


def _parts(group: str, name: str) -> list[str]:
    """The settings in a setting of a group that is several, such as `cluster.links`."""
    owners = components(GROUPS[group]).values() if group in GROUPS else ()
    made: list[Any] = [f.default_factory for cls in owners for f in dataclasses.fields(cls) if f.name == name]
    made += [components("models.adapters").get(name)] if group == "model" else []
    return [part.name for one in made if dataclasses.is_dataclass(one) for part in dataclasses.fields(one)]


def _bare_word(word: str, folders: Sequence[Path]) -> str:
    if word in (*_KEYS, "experiment"):
        return f"'{word}' has no value: write {word}=..., without spaces around the '='."
    for group in CHOICES:
        if word in options(group, folders):
            return f"'{word}' is not a setting: did you mean {group}={word}?"
    return f"'{word}' is not a setting: write key=value, without spaces around the '=', for example lr=0.1."


def _check_choice(group: str, choice: str, known: list[str]) -> None:
    if choice in known or group in STANDS_FOR or (group == "experiment" and choice == "null"):
        return
    if group in GROUPS and component(GROUPS[group], choice) is not None:
        return
    for name, cls in components(GROUPS[group]).items() if group in GROUPS else ():
        if choice.endswith(tuple(getattr(cls, "reads", ()))):
            raise ConfigError(f"{group}={choice} is a file: use {group}={name} {group}.path={choice}.")
    folder = plugins.folder() if group in GROUPS else None
    if folder is not None and (file := folder / GROUPS[group].rpartition(".")[2] / f"{choice}.py").is_file():
        raise ConfigError(f"{group}={choice} does not exist: {file} defines no class with name: str = '{choice}'.")
    raise ConfigError(f"{group}={choice} does not exist.{suggest(choice.lower().replace('-', '_'), known)}")


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """Return one sentence for an exception of OmegaConf: of a reference, `${...}`, or of a YAML file."""
    key = getattr(error, "full_key", "") or ""
    source = next((o for o in reversed(overrides) if key and o.partition("=")[0] in (key, key.rpartition(".")[2])), key)
    reason = " ".join(str(error).strip().split("\n")[0].split()).rstrip(".:")
    if not source:
        return f"the configuration cannot be composed: {reason}."
    hint = f" (text with ${{ is {_quoted(source)})" if "${" in source else ""
    return f"{source} is invalid: {reason[0].lower()}{reason[1:]}{hint}."


def placed(key: str, values: Any) -> str:
    """Return the full key of a setting: a component that takes any has those that it does not declare in its
    dictionary."""
    group, _, name = key.partition(".")
    cls: Any = group in GROUPS and name and component(GROUPS[group], str(values[group].name))
    if not getattr(cls, "takes_any", False) or name.partition(".")[0] in cls.__dataclass_fields__:
        return key
    return f"{group}.{further(cls.plain_target)}.{name}"


def check_setting(key: str, values: Any, chosen: Mapping[str, str], source: str = "") -> None:
    """Raise ConfigError, starting with `source`, if the components do not have the setting `key`; `chosen` has the
    choices, which may have other names."""
    head, *parts = key.split(".")
    cls: Any = NODES.get(head) or (head in GROUPS and component(GROUPS[head], str(values[head].name)))
    for number, name in enumerate(parts if cls else ()):
        known = {f.name: f for f in dataclasses.fields(cls) if f.name != "name"}
        if name not in known:
            raise ConfigError(
                source + _unknown(".".join([head, *parts[:number]]), name, cls, list(known), values, chosen)
            )
        cls = known[name].default_factory
        if not dataclasses.is_dataclass(cls):
            return


def _unknown(group: str, name: str, cls: type, known: list[str], values: Any, chosen: Mapping[str, str]) -> str:
    """Return the refusal of a setting that `group`, of the class `cls`, does not have."""
    owner = f"{group}={chosen.get(group) or values[group].name}" if group in GROUPS else group
    if not known:
        other = f"choose another {group}= (decentral-run --help {group})"
        return f"{owner} has no settings: leave {group}.{name} out, or {other}."
    more = further(cls.plain_target) if issubclass(cls, Plain) else ""
    others = components(GROUPS[group]).items() if group in GROUPS else ()
    having = [f"{group}={choice}" for choice, each in others if name in (f.name for f in dataclasses.fields(each))]
    if 0 < len(having) < 3 and not get_close_matches(name, known, n=1):
        close = f": use {' or '.join(having)}, or leave {group}.{name} out."
    elif more and not get_close_matches(name, known, n=1, cutoff=0.8):
        close = f": write arguments of **{more} as {group}.{more}={{{name}:...}}."
    elif f"{group}.{name}" not in places().get(name, [f"{group}.{name}"]) and not get_close_matches(name, known, n=1):
        close = "." + meant(f"{group}.{name}")
    else:
        close = f".{suggest(name, known)}".replace("Did you mean '", f"Did you mean '{group}.")
    return f"{owner} has no setting '{name}'{close}"
