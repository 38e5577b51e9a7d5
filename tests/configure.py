"""`compose` for tests that ask for hundreds of configurations: what takes Hydra long is done once for each choice."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from decentral.config.composition import alone, conf_directory, register_schema, to_config
from decentral.config.schema import GROUPS, Config


def configure(*overrides: str) -> Config:
    """The configuration for these overrides, resolved and checked; as `compose` gives it."""
    composed, values = copy.deepcopy(_default()), []
    for override in overrides:
        group, _, option = override.partition("=")
        if group in GROUPS:
            composed[group] = _choice(group, option)
        else:
            values.append(override)
    return to_config(OmegaConf.merge(composed, OmegaConf.from_dotlist(values)))


@cache
def _default() -> Any:
    register_schema()
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        return compose("config")


@cache
def _choice(group: str, name: str) -> Any:
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        return alone(group, name)
