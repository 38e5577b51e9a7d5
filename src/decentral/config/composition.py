"""Composition of a configuration: Hydra reads the overrides, OmegaConf merges what they choose and set."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from decentral.config.checks import resolve
from decentral.config.overrides import (
    CHOICES,
    check_setting,
    checked,
    explain,
    options,
    parsed_override,
    placed,
    places,
    read_choice,
    read_experiment,
    with_usual,
)
from decentral.config.parsing import defaults, folders_of, from_dict, read_yaml
from decentral.config.schema import GROUPS, Config
from decentral.errors import ConfigError, suggest
from decentral.registry import blame, component, find
from decentral.registry.find import names
from decentral.terminal.console import is_leader, warn
from decentral.terminal.display import unless_quick

_Finished = TypeVar("_Finished")


def compose(overrides: Sequence[str], config_dir: str | None = None, made: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration for these `key=value` overrides, resolved and checked.

    `config_dir` has additional choices: `experiment/mine.yaml` in it is experiment=mine.
    `made` has existing components by group, which replace the choices.
    Raises ConfigError, with one sentence, for an invalid configuration.
    """
    found = _accepted(compose_each([overrides], config_dir, made)[0])
    words = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
    if "epochs" in words and found.steps is not None and is_leader():
        warn(f"epochs={words['epochs']} is ignored, because steps={found.steps} is given: leave one of them out.")
    return found


def compose_all(
    commands: Sequence[Sequence[str]], config_dir: str | None = None, of_sweep: bool = False
) -> list[Config]:
    """Return the configurations of a study's runs, which are evaluated at their task's interval even if they are short,
    unless they are those `of_sweep`; see `compose`."""
    configs = [_accepted(composed) for composed in compose_each(commands, config_dir)]
    for config in configs if not of_sweep else ():
        config.evaluation.every_epochs = config.evaluation.every_epochs or config.task.eval_every_epochs
    return configs


def compose_each(
    commands: Sequence[Sequence[str]], config_dir: str | None = None, made: Mapping[str, Any] | None = None
) -> list[Config | ConfigError]:
    """Return the configuration of each list of overrides, or its ConfigError."""
    return _of_each(commands, config_dir, partial(to_config, made=made))


def as_yaml(overrides: Sequence[str], config_dir: str | None = None, resolve: bool = False) -> str:
    """The composed configuration for these overrides, with its references unless they are to be resolved."""
    return _accepted(_of_each([overrides], config_dir, partial(OmegaConf.to_yaml, resolve=resolve))[0])


def _accepted(found: _Finished | ConfigError) -> _Finished:
    if isinstance(found, ConfigError):
        raise found
    return found


def _of_each(
    commands: Sequence[Sequence[str]], config_dir: str | None, finish: Callable[[Any], _Finished]
) -> list[_Finished | ConfigError]:
    """Apply `finish` to the composed dictionary of each command; return its result or ConfigError."""
    folders = folders_of(config_dir)
    foreign = config_dir is not None or any(":" in word for words in commands for word in words)  # and may change
    known = {} if foreign else _ours
    finished: list[_Finished | ConfigError] = []
    with unless_quick(f"Composing {len(commands)} configurations", len(commands)) as advance:
        for given in commands:
            try:
                overrides = checked(given, folders)
                with blame.named(), explained(overrides):
                    finished.append(finish(composed(with_usual(overrides, folders), folders, known)))
            except ConfigError as error:
                finished.append(error)
            advance(1)
    return finished


_ours: dict[tuple[Any, ...], Any] = {}
"""Cached compositions of built-in choices in this process."""


def composed(overrides: Sequence[str], folders: Sequence[Path], known: dict[tuple[Any, ...], Any]) -> Any:
    """Merge the defaults, the choice in each group, the experiment, and the other overrides, in this order. `known`
    caches compositions of choices, and each choice."""
    parsed = [parsed_override(override) for override in overrides]
    chosen = {
        one.key_or_group: str(one.value()) for one in parsed if one.key_or_group in CHOICES and one.value() is not None
    }
    key = tuple(chosen.items())
    if key not in known:
        experiment = chosen.pop("experiment", None)
        of_experiment, settings = read_experiment(experiment, folders) if experiment else ({}, [])
        if key:
            values, groups = composed([], folders, known), of_experiment | chosen
        else:
            usual = [one for one in read_yaml(folders[0] / "config.yaml")["defaults"] if isinstance(one, dict)]
            groups = {group: name for one in usual for group, name in one.items() if group in GROUPS}
            values = OmegaConf.create(defaults(Config))
        for group, name in groups.items():
            if (group, name) not in known:
                known[group, name] = OmegaConf.merge(*_layers(group, name, folders))
            values[group] = known[group, name]
        for layer in settings:
            for group in GROUPS.keys() & set(layer):
                for part in layer[group]:
                    check_setting(f"{group}.{part}", values, of_experiment, f"experiment={experiment}: ")
        values.merge_with(*settings)
        known[key] = pickle.dumps(values)  # whose copies take an eighth of the time of deepcopy's
    values, adapters = pickle.loads(known[key]), names("models.adapters")
    for one in parsed:
        if one.key_or_group not in CHOICES and not _is_left_out(one, values):
            place = placed(one.key_or_group, values)
            check_setting(place, values, chosen)
            parent = place.rpartition(".")[0]
            if parent.removeprefix("model.") in adapters and OmegaConf.select(values, parent) is None:
                OmegaConf.update(values, parent, {})
            OmegaConf.update(values, place, one.value(), merge=True)
    return values


def fitting(commands: Sequence[Sequence[str]], config_dir: str | None = None) -> list[list[str]]:
    """Return the commands of a sweep with settings of a component as null where the chosen one lacks them and another
    one that the sweep lists has them: availability=none,persistent availability.share=0.1."""
    folders = folders_of(config_dir)
    said = [dict(word.partition("=")[::2] for word in words) for words in commands]
    settings: dict[str, dict[str, list[str]]] = {}  # group -> choice -> its settings
    for group in {key.partition(".")[0] for keys in said for key in keys if "." in key}.intersection(GROUPS):
        settings[group] = {}
        for choice in dict.fromkeys(keys[group] for keys in said if group in keys):
            with suppress(ConfigError):  # which its own run reports
                values = composed(checked([f"{group}={choice}"], folders), folders, {})
                settings[group][choice] = list(values[group])
    fitted = []
    for words, keys in zip(commands, said, strict=True):
        fitted.append(list(words))
        for number, word in enumerate(words):
            key = word.partition("=")[0]
            group, _, setting = key.partition(".")
            having = [choice for choice, known in settings.get(group, {}).items() if setting.partition(".")[0] in known]
            if having and keys[group] not in having and keys[group] in settings[group]:
                fitted[-1][number] = f"{key}=null"
    return fitted


def _is_left_out(override: Any, values: Any) -> bool:
    """Return whether it is `group.setting=null`, where the chosen component has no such setting and another one has."""
    group, _, setting = str(override.key_or_group).partition(".")
    if group not in GROUPS or override.value() is not None or setting.partition(".")[0] in list(values[group]):
        return False
    return f"{group}.{setting}" in places().get(setting.rpartition(".")[2], ())


def _layers(group: str, name: str, folders: Sequence[Path]) -> Iterator[Any]:
    """Yield the layers of a choice: the fields of its component, and the values in its file."""
    file = next((path for folder in folders if (path := folder / group / f"{name}.yaml").is_file()), None)
    if file is None:
        yield _fields(group, name, folders)
        return
    values, defaults = read_choice(file)
    if "name" in values:
        yield _fields(group, str(values["name"]), folders)
    for one in defaults if "_self_" in defaults else [*defaults, "_self_"]:
        if one == "_self_":
            yield values
        elif str(one).startswith("schema/"):
            yield _fields(group, one.removeprefix("schema/").removesuffix("@_here_"), folders)
        else:
            yield from _layers(group, str(one), folders)


def _fields(group: str, name: str, folders: Sequence[Path]) -> Any:
    """Return the settings of a component with their defaults. Raises ConfigError for unsupported types."""
    cls = component(GROUPS[group], name)
    if cls is None:
        raise ConfigError(f"{group}={name} does not exist.{suggest(name, options(group, folders))}")
    try:
        return OmegaConf.create(defaults(cls))
    except ConfigError as error:
        raise ConfigError(f"{find.owner(cls) or name}: {error}") from None


@contextmanager
def explained(overrides: Sequence[str]) -> Iterator[None]:
    """Convert exceptions of OmegaConf to ConfigError."""
    try:
        yield
    except RecursionError:
        raise ConfigError(
            "the configuration cannot be composed: a YAML file lists itself in its defaults; remove that entry."
        ) from None
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(explain(error, overrides)) from None


def to_config(values: Any, made: Mapping[str, Any] | None = None) -> Config:
    """Return the dataclasses of composed values, some of which are `made` already; resolved and checked."""
    plain: Any = OmegaConf.to_container(values, resolve=True)
    for group in GROUPS:
        if made and group in made:
            plain[group] = made[group]
        elif not isinstance(plain[group], dict) or "name" not in plain[group]:
            raise ConfigError(f"{group}: its YAML file does not name its component: add the line 'name: NAME'.")
    config = from_dict(plain, trust=True)
    if config.name is not None and made is None:
        raise ConfigError(
            f"name={config.name} belongs to decentral.train: leave it out, as a command finds its run by its settings."
        )
    try:
        return resolve(config)
    except MemoryError:
        raise ConfigError(f"num_workers={config.num_workers} is too large for this machine: use fewer.") from None
