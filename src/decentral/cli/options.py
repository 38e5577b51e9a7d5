"""The options of the commands: what begins with a dash."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection
from typing import NoReturn

from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest

SETTINGS = frozenset(field.name for field in dataclasses.fields(Config))
"""What is set without dashes, `key=value`."""


class Options(argparse.ArgumentParser):
    """Those that every command has, and one sentence for what is wrong."""

    def __init__(self, command: str, words: str, settings: Collection[str] = ()) -> None:
        super().__init__(command, add_help=False, allow_abbrev=False)
        self._settings = settings
        self.add_argument(words, nargs="*")
        self.add_argument("-h", "--help", action="store_true")

    def error(self, message: str) -> NoReturn:
        """One sentence instead of a usage message. Raises ConfigError."""
        if not message.startswith("unrecognized"):
            raise ConfigError(f"{message}: see {self.prog} --help.")
        wrong = message.removeprefix("unrecognized arguments: ").split()[0]
        key = wrong.lstrip("-").partition("=")[0]
        if key in self._settings:
            raise ConfigError(f"{wrong} is no option: settings have no dashes, write {key}=... instead.")
        known = [option for option in self._option_string_actions if option.startswith("--")]
        raise ConfigError(f"{wrong} is no option.{suggest(wrong, known)}")


class RunOptions(Options):
    """Those of `decentral-run`: our own, and those of Hydra's that make sense here."""

    def __init__(self) -> None:
        super().__init__("decentral-run", "overrides", SETTINGS)
        self.add_argument("--version", action="store_true")
        self.add_argument("-m", "--multirun", action="store_true")
        self.add_argument("-cd", "--config-dir")
        self.add_argument("-c", "--cfg", choices=["job"])
        self.add_argument("--resolve", action="store_true")
        self.add_argument("-sc", "--shell-completion", action="store_true")
