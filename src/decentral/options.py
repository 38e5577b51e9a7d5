"""The options of `decentral-run`: what begins with a dash."""

from __future__ import annotations

import argparse
import dataclasses
from typing import NoReturn

from decentral.config import Config
from decentral.errors import ConfigError, suggest


class Options(argparse.ArgumentParser):
    """Options: our own, and those of Hydra's that make sense here."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("overrides", nargs="*")
        self.add_argument("-h", "--help", action="store_true")
        self.add_argument("--version", action="store_true")
        self.add_argument("-m", "--multirun", action="store_true")
        self.add_argument("-cd", "--config-dir")
        self.add_argument("-c", "--cfg", choices=["job", "hydra", "all"])
        self.add_argument("--resolve", action="store_true")
        self.add_argument("-p", "--package")
        kinds = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
        self.add_argument("-i", "--info", nargs="?", const="all", choices=kinds)
        self.add_argument("-sc", "--shell-completion", action="store_true")
        self.add_argument("--hydra-help", action="store_true")

    def error(self, message: str) -> NoReturn:
        """One sentence instead of a usage message."""
        wrong = message.removeprefix("unrecognized arguments: ").split()[0]
        if not message.startswith("unrecognized"):
            raise ConfigError(f"{message}: see decentral-run --help.")
        key = wrong.lstrip("-").partition("=")[0]
        settings = {f.name for f in dataclasses.fields(Config)}
        if key in settings:
            raise ConfigError(f"{wrong} is no option: settings have no dashes, write {key}=... instead.")
        known = [option for option in self._option_string_actions if option.startswith("--")]
        raise ConfigError(f"{wrong} is no option.{suggest(wrong, known)}")
