"""From overrides to a configuration. Apart from `cli`, only this module and `overrides.py` know Hydra."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from decentral.config.checks import resolve
from decentral.config.own_files import check_yaml, refuse_both_names
from decentral.config.renamed import move_old_keys, moves, renamed_keys, settled, with_old_keys
from decentral.config.schema import GROUPS, NODES, Config
from decentral.errors import ConfigError
from decentral.registry import blame, component, find, own


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
    renamed = renamed_keys({group: find.ours(package) for group, package in GROUPS.items()}, NODES)
    for group in ("experiment", "study", *GROUPS):
        for path in sorted((theirs / group).glob("*.yaml")):
            check_yaml(path)
            refuse_both_names(path, renamed)
            if group != "study" and (conf_directory() / group / path.name).is_file():
                raise ConfigError(f"{path} has the name of one of ours: give it another one.")
    own.use(theirs)
    return [conf_directory(), theirs]


@cache
def register_schema() -> None:
    """Make the dataclasses of our components known to Hydra, as `<group>/schema/<name>`."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=with_old_keys(Config, "", moves(NODES)))
    for group, package in GROUPS.items():
        for name, cls in find.ours(package).items():
            store.store(group=f"{group}/schema", name=name, node=with_old_keys(cls, group, moves(NODES)))


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
                    store.store(group=folder, name=name, node=with_old_keys(cls, group, moves(NODES)))
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
    (found,) = compose_each([overrides], config_dir, made)
    if isinstance(found, ConfigError):
        raise found
    return found


def compose_all(commands: Sequence[Sequence[str]], config_dir: str | None = None) -> list[Config]:
    """The configurations of several lists of overrides; see `compose`."""
    configs = []
    for found in compose_each(commands, config_dir):
        if isinstance(found, ConfigError):
            raise found
        configs.append(found)
    return configs


def compose_each(
    commands: Sequence[Sequence[str]], config_dir: str | None = None, made: Mapping[str, Any] | None = None
) -> list[Config | ConfigError]:
    """The same, with what is wrong with a list in the place of its configuration.

    Hydra takes a fifth of a second for each set of choices, so that each choice is composed once: see `_Pieces`.
    """
    from hydra import initialize_config_dir

    folders = folders_of(config_dir)
    register_schema()
    register_own([override for command in commands for override in command])
    pieces = _Pieces(config_dir)
    configs: list[Config | ConfigError] = []
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        for given in commands:
            try:
                configs.append(_compose_one(given, folders, pieces, made or {}))
            except ConfigError as error:
                configs.append(error)
    return configs


def _compose_one(
    given: Sequence[str],
    folders: list[Path],
    pieces: _Pieces,
    made: Mapping[str, Any],
) -> Config:
    from decentral.config.overrides import CHOICES, checked, with_usual

    overrides = with_usual(checked(given, folders), folders)
    choices = tuple(o for o in overrides if o.partition("=")[0] in CHOICES)
    with blame.named(), explained(overrides):
        values = _with_values(pieces.together(choices), [o for o in overrides if o not in choices])
        try:
            return to_config(values, made)
        except MemoryError:
            raise ConfigError(f"num_workers={values.num_workers} is too large for this machine: use fewer.") from None


class _Pieces:
    """What Hydra composed, group by group: a group's part follows from the experiment and its own choice alone.

    Without an experiment it is what the choice's file gives by itself: config.yaml sets nothing in a group. What is
    chosen among ours is the same for the whole process; what is the user's may have changed by the next time.
    """

    _ours: ClassVar[dict[tuple[str, str], Any]] = {}

    def __init__(self, config_dir: str | None) -> None:
        self._config_dir, self._theirs = config_dir, dict[tuple[str, str], Any]()

    def together(self, choices: Sequence[str]) -> Any:
        """The composed configuration for these choices, put together if each of them was composed before."""
        known = self._ours if self._config_dir is None and all(map(_is_ours, choices)) else self._theirs
        chosen = {choice.partition("=")[0]: choice for choice in choices}
        experiment = chosen.get("experiment", "")
        whole, places = (experiment, ""), {group: (experiment, chosen.get(group, group)) for group in GROUPS}
        missing = {group: place for group, place in places.items() if place not in known}
        ours = not experiment and all(_is_ours(choice) for _, choice in missing.values())
        if whole in known and ours and len(missing) < 3:  # three take Hydra as long as everything
            known.update({place: alone(group, place[1].partition("=")[2]) for group, place in missing.items()})
        elif missing:
            found = self._compose(choices)
            known.update({place: found[group] for group, place in places.items()})
            known[whole] = found
            for group in GROUPS:
                found[group] = None  # not copied below
        together = deepcopy(known[whole])
        for group, place in places.items():
            together[group] = known[place]  # a copy
        return together

    def _compose(self, choices: Sequence[str]) -> Any:
        from hydra import compose as hydra_compose

        from decentral.config.overrides import literal

        search = []
        if self._config_dir:
            search = [f"hydra.searchpath=[{literal(f'file://{Path(self._config_dir).resolve()}', False)}]"]
        return hydra_compose("config", overrides=[*choices, *search])


def alone(group: str, name: str) -> Any:
    """The part of a group with this choice, one of ours, where no experiment changes it."""
    from hydra import compose as hydra_compose

    return hydra_compose(f"{group}/{name}")[group]


@cache
def _is_ours(choice: str) -> bool:
    """Whether nothing that is chosen here can be another thing later in this process."""
    group, _, name = choice.partition("=")
    return (conf_directory() / group / f"{name}.yaml").is_file()


def _with_values(values: Any, overrides: Sequence[str]) -> Any:
    """What Hydra does with plain `key=value` overrides, after the choices: they are set in order."""
    from omegaconf import OmegaConf

    from decentral.config.overrides import parsed_override

    move_old_keys(values)  # so that what follows on the command line overrides them, too
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

    from decentral.config.overrides import explain

    try:
        yield
    except RecursionError:
        raise ConfigError("the configuration cannot be composed: a YAML file has itself among its defaults.") from None
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(explain(error, overrides)) from None


def to_config(composed: Any, made: Mapping[str, Any] | None = None) -> Config:
    """From Hydra's dictionary to the dataclasses, some of which are `made` already; resolved and checked."""
    from omegaconf import OmegaConf

    move_old_keys(composed)
    values = OmegaConf.to_object(composed)
    if not isinstance(values, Config):  # Hydra's own keys make it a dictionary
        assert isinstance(values, dict)
        values = Config(**{str(key): value for key, value in values.items() if key != "hydra"})
    values = settled(values)
    for group in GROUPS:
        if isinstance(getattr(values, group), dict | list | None) and group not in (made or {}):
            raise ConfigError(
                f"{group}: its YAML file does not say which component it sets: its first lines have to be "
                "'defaults:' and '  - schema/NAME@_here_'."
            )
    for f in dataclasses.fields(values):
        setattr(values, f.name, (made or {}).get(f.name, settled(getattr(values, f.name))))
    return resolve(values)
