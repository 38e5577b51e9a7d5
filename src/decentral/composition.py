"""From overrides to a configuration. With cli.py, sweep.py and complaints.py the only module that knows Hydra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from decentral import config as configuration
from decentral.config import GROUPS, Config
from decentral.errors import ConfigError
from decentral.registry import components


def conf_directory() -> Path:
    """The folder of YAML files: inside the package if installed from a wheel, else at the top of the checkout."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "conf", package.parents[1] / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf/config.yaml is neither in {package} nor in {package.parents[1]}: install decentral again.")


def folders_of(config_dir: str | None) -> list[Path]:
    """Where choices are looked for: ours, then the user's. Raises ConfigError if that is no folder."""
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(
            f"--config-dir {config_dir} is not a folder: give one with folders such as experiment/ in it."
        )
    return [conf_directory()] + ([Path(config_dir)] if config_dir else [])


@cache
def register_schema() -> None:
    """Make the dataclasses of all components known to Hydra, as `<group>/schema/<name>`."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, package in GROUPS.items():
        for name, cls in components(package).items():
            store.store(group=f"{group}/schema", name=name, node=cls)


def compose(overrides: Sequence[str], config_dir: str | None = None) -> Config:
    """The configuration for these `key=value` overrides, resolved and checked.

    `config_dir` holds choices beside ours: `experiment/mine.yaml` in it is experiment=mine.
    Raises ConfigError, with one sentence, for anything that is wrong with it.
    """
    return compose_all([overrides], config_dir)[0]


def compose_all(commands: Sequence[Sequence[str]], config_dir: str | None = None) -> list[Config]:
    """The configurations of several lists of overrides; see `compose`."""
    configs = []
    for found in compose_each(commands, config_dir):
        if isinstance(found, ConfigError):
            raise found
        configs.append(found)
    return configs


def compose_each(commands: Sequence[Sequence[str]], config_dir: str | None = None) -> list[Config | ConfigError]:
    """The same, with what is wrong with a list in the place of its configuration.

    Hydra takes a tenth of a second for each set of choices, so that sets which differ only in plain values share one.
    """
    from hydra import initialize_config_dir

    folders = folders_of(config_dir)
    register_schema()
    composed: dict[tuple[str, ...], Any] = {}
    configs: list[Config | ConfigError] = []
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        for given in commands:
            try:
                configs.append(_compose_one(given, folders, config_dir, composed))
            except ConfigError as error:
                configs.append(error)
    return configs


def _compose_one(
    given: Sequence[str], folders: list[Path], config_dir: str | None, composed: dict[tuple[str, ...], Any]
) -> Config:
    """Choices that are in `composed` already are taken from there."""
    from decentral.complaints import CHOICES, checked

    overrides = checked(given, folders)
    choices = tuple(o for o in overrides if o.partition("=")[0] in CHOICES)
    with explained(overrides):
        if choices not in composed:
            composed[choices] = _compose_choices(choices, config_dir)
        values = _with_values(composed[choices], [o for o in overrides if o not in choices])
        try:
            return to_config(values)
        except MemoryError:
            raise ConfigError(f"num_workers={values.num_workers} is too large for this machine: use fewer.") from None


def _compose_choices(choices: Sequence[str], config_dir: str | None) -> Any:
    from hydra import compose as hydra_compose

    search = [f"hydra.searchpath=['file://{Path(config_dir).resolve()}']"] if config_dir else []
    return hydra_compose("config", overrides=[*choices, *search])


def _with_values(composed: Any, overrides: Sequence[str]) -> Any:
    """What Hydra does with plain `key=value` overrides, after the choices: they are set in order."""
    from copy import deepcopy

    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    values = deepcopy(composed)
    parser = OverridesParser.create()
    for override in overrides:
        parsed = parser.parse_override(override)
        OmegaConf.update(values, parsed.key_or_group, parsed.value(), merge=True)
    return values


@contextmanager
def explained(overrides: Sequence[str]) -> Iterator[None]:
    """What Hydra and OmegaConf raise becomes a ConfigError."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from decentral.complaints import explain

    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(explain(error, overrides)) from None


def to_config(composed: Any) -> Config:
    """From Hydra's dictionary to the dataclasses; resolved and checked."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_object(composed)
    if not isinstance(values, Config):  # Hydra's own keys make it a dictionary
        assert isinstance(values, dict)
        values = Config(**{str(key): value for key, value in values.items() if key != "hydra"})
    return configuration.resolve(values)
