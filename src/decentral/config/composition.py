"""From overrides to a configuration. Apart from `cli`, only this module and `overrides.py` know Hydra."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from decentral import settings
from decentral.config.checks import resolve
from decentral.config.overrides import CHOICES, checked, explain, literal, parsed_override, with_usual
from decentral.config.parsing import check_yaml, read_yaml
from decentral.config.schema import GROUPS, Config
from decentral.errors import ConfigError
from decentral.registry import blame, component, find, plugins
from decentral.terminal.console import is_leader, warn

_Finished = TypeVar("_Finished")


def conf_directory() -> Path:
    """The folder of YAML files: inside the package if installed from a wheel, else at the top of the checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parents[1] / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf/config.yaml is neither in {package} nor in {package.parents[1]}: install decentral again.")


def folders_of(config_dir: str | None) -> list[Path]:
    """Where choices are looked for: ours, then the user's. From now on, components in the user's folder are found, too.

    Raises ConfigError if that is no folder, or a file in it cannot be a YAML file.
    """
    if config_dir is None:
        return [conf_directory()]
    theirs = Path(config_dir)
    if not config_dir or not os.path.isdir(theirs):
        raise ConfigError(
            f"--config-dir {config_dir} is not a folder: give one with folders such as experiment/ in it."
        )
    for group in ("experiment", "study", *GROUPS):
        for path in sorted((theirs / group).glob("*.yaml")):
            check_yaml(path)
            if group != "study" and (conf_directory() / group / path.name).is_file():
                raise ConfigError(f"{path} has the name of one of ours: give it another one.")
    plugins.use(theirs)
    return [conf_directory(), theirs]


@cache
def register_schema() -> None:
    """Make the dataclasses of our components known to Hydra, as `<group>/schema/<name>`."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, package in GROUPS.items():
        for name, cls in find.ours(package).items():
            store.store(group=f"{group}/schema", name=name, node=cls)


def register_own(overrides: Sequence[str] = ()) -> None:
    """The same for components of one's own, which are choices `<group>/<name>` as well: they need no YAML file.

    Plain classes are those that the overrides choose.
    """
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    for group, package in GROUPS.items():
        chosen = [override.partition("=")[2].split(",") for override in overrides if override.startswith(f"{group}=")]
        plain = {word: component(package, word) for words in chosen for word in words if ":" in word}
        for name, cls in (find.own_components(package) | plain).items():
            if cls is None:
                continue
            try:
                for folder in (f"{group}/schema", group):
                    store.store(group=folder, name=name, node=cls)
            except Exception as error:
                where = find.owner(cls) or name
                raise ConfigError(
                    f"{where}: a field of {cls.__name__} cannot be a setting: {' '.join(str(error).split())}: use "
                    "numbers, texts, true or false, lists of them, or an Enum."
                ) from error


def compose(overrides: Sequence[str], config_dir: str | None = None, made: Mapping[str, Any] | None = None) -> Config:
    """The configuration for these `key=value` overrides, resolved and checked.

    `config_dir` holds choices beside ours: `experiment/mine.yaml` in it is experiment=mine.
    `made` are components that exist already, by their group, in the place of what is chosen.
    Raises ConfigError, with one sentence, for anything that is wrong with it.
    """
    found = _accepted(compose_each([overrides], config_dir, made)[0])
    words = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
    if "epochs" in words and found.steps is not None and is_leader():
        warn(f"epochs={words['epochs']} does not count beside steps={found.steps}: leave one of them out.")
    return found


def compose_all(commands: Sequence[Sequence[str]], config_dir: str | None = None) -> list[Config]:
    """The configurations of several lists of overrides; see `compose`."""
    return [_accepted(found) for found in compose_each(commands, config_dir)]


def compose_each(
    commands: Sequence[Sequence[str]], config_dir: str | None = None, made: Mapping[str, Any] | None = None
) -> list[Config | ConfigError]:
    """The same, with what is wrong with a list in the place of its configuration.

    Hydra takes an eighth of a second for each set of choices, so that what it has composed is kept: see `_composed`.
    """
    return _of_each(commands, config_dir, partial(to_config, made=made))


def as_yaml(overrides: Sequence[str], config_dir: str | None = None, resolve: bool = False) -> str:
    """The composed configuration for these overrides, with its references unless they are to be resolved."""
    from omegaconf import OmegaConf

    return _accepted(_of_each([overrides], config_dir, partial(OmegaConf.to_yaml, resolve=resolve))[0])


def _accepted(found: _Finished | ConfigError) -> _Finished:
    if isinstance(found, ConfigError):
        raise found
    return found


def _of_each(
    commands: Sequence[Sequence[str]], config_dir: str | None, finish: Callable[[Any], _Finished]
) -> list[_Finished | ConfigError]:
    """What `finish` makes of the composed dictionary of each of the commands, or what is wrong with it."""
    from hydra import initialize_config_dir

    folders = folders_of(config_dir)
    register_schema()
    register_own([override for command in commands for override in command])
    known = _ours if config_dir is None else {}
    finished: list[_Finished | ConfigError] = []
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        for given in commands:
            try:
                overrides = with_usual(checked(given, folders), folders)
                choices = tuple(o for o in overrides if o.partition("=")[0] in CHOICES)
                with blame.named(), explained(overrides):
                    values = _composed(choices, folders, known)
                    finished.append(finish(_with_values(values, [o for o in overrides if o not in choices])))
            except ConfigError as error:
                finished.append(error)
    return finished


_ours: dict[tuple[str, ...], Any] = {}
"""Choices, all of them ours -> what Hydra has composed of them in this process."""


def _composed(choices: tuple[str, ...], folders: list[Path], known: dict[tuple[str, ...], Any]) -> Any:
    """The composed configuration for these choices; what is composed for the first time becomes `known`.

    A group is what its choice's file gives by itself, and what an experiment sets in it.
    """
    from hydra import compose as hydra_compose
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    experiments = [choice for choice in choices if choice.startswith("experiment=")]
    parts = [choice for choice in choices if choice not in experiments]
    said = [_said(choice.partition("=")[2]) for choice in experiments]
    if choices not in known and parts and None not in said and all(map(_is_part, parts)):
        with suppress(OmegaConfBaseException):  # of which Hydra says more
            composed = _composed(tuple(experiments), folders, known)
            for choice in parts:
                group, _, name = choice.partition("=")
                sections = [values[group] for values in said if values and group in values]
                composed[group] = OmegaConf.merge(alone(group, name), *sections)  # a copy
            return composed
    if choices not in known:
        search = [f"hydra.searchpath=[{literal(f'file://{folder.resolve()}', False)}]" for folder in folders[1:]]
        known[choices] = hydra_compose("config", overrides=[*choices, *search])
    return deepcopy(known[choices])


@cache
def _is_part(choice: str) -> bool:
    """Whether this is a choice of ours."""
    group, _, name = choice.partition("=")
    return (conf_directory() / group / f"{name}.yaml").is_file()


@cache
def _said(experiment: str) -> dict[str, Any] | None:
    """What an experiment says beside its choices; None if it builds on others, or is not ours."""
    file = conf_directory() / "experiment" / f"{experiment}.yaml"
    if not file.is_file():
        return None
    values: dict[str, Any] = read_yaml(file)
    defaults = [one for one in values.get("defaults") or [] if one != "_self_"]
    plain = all(isinstance(one, dict) and next(iter(one)).startswith("override ") for one in defaults)
    return values if plain else None


@cache
def alone(group: str, name: str) -> Any:
    """The part of a group with this choice, one of ours, where no experiment changes it.

    Where a file's defaults are a schema and itself, this is what Hydra composes of it, 25 times as fast.
    """
    from hydra import compose as hydra_compose
    from omegaconf import OmegaConf

    values: Any = OmegaConf.load(conf_directory() / group / f"{name}.yaml")
    schema, *rest = values.pop("defaults", None) or [""]
    if rest != ["_self_"] or not schema.startswith("schema/"):
        return hydra_compose(f"{group}/{name}")[group]
    cls = find.ours(GROUPS[group])[schema.removeprefix("schema/").removesuffix("@_here_")]
    return OmegaConf.merge(OmegaConf.structured(cls), values)


def _with_values(values: Any, overrides: Sequence[str]) -> Any:
    """What Hydra does with plain `key=value` overrides, after the choices: they are set in order."""
    from omegaconf import OmegaConf

    for override in overrides:
        parsed = parsed_override(override)
        OmegaConf.update(values, parsed.key_or_group, parsed.value(), merge=True)
    return values


@contextmanager
def explained(overrides: Sequence[str]) -> Iterator[None]:
    """What Hydra and OmegaConf raise becomes a ConfigError."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except RecursionError:
        raise ConfigError("the configuration cannot be composed: a YAML file has itself among its defaults.") from None
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(explain(error, overrides)) from None


def to_config(composed: Any, made: Mapping[str, Any] | None = None) -> Config:
    """From Hydra's dictionary to the dataclasses, some of which are `made` already; resolved and checked."""
    from omegaconf import OmegaConf

    known = {key: composed[key] for key in settings.limited(Config)}
    settings.check(Config, known, "")  # before the groups, which refer to some of them: alpha=0, not partition.alpha=0
    values = OmegaConf.to_object(composed)
    assert isinstance(values, Config)
    for group in GROUPS:
        if made and group in made:
            setattr(values, group, made[group])
        elif isinstance(getattr(values, group), dict | list | None):
            raise ConfigError(
                f"{group}: its YAML file does not say which component it sets: its first lines have to be "
                "'defaults:' and '  - schema/NAME@_here_'."
            )
    try:
        return resolve(values)
    except MemoryError:
        raise ConfigError(f"num_workers={values.num_workers} is too large for this machine: use fewer.") from None
