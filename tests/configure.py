"""`compose` for tests that ask for hundreds of configurations: what is made of the same choices is made once."""

from __future__ import annotations

from typing import Any

from decentral.config.composition import composed, to_config, with_usual
from decentral.config.parsing import folders_of
from decentral.config.schema import Config

_KNOWN: dict[tuple[Any, ...], Any] = {}


def configure(*overrides: str) -> Config:
    """The configuration for these overrides, resolved and checked; as `compose` gives it."""
    folders = folders_of(None)
    return to_config(composed(with_usual(overrides, folders), folders, _KNOWN))
