"""The options of the commands: what begins with a dash."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from decentral.config.composition import folders_of
from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest
from decentral.registry import own
from decentral.terminal.console import say

SETTINGS = frozenset(field.name for field in dataclasses.fields(Config))
"""What is set without dashes, `key=value`."""


class Options(argparse.ArgumentParser):
    """Those that every command has, and one sentence for what is wrong."""

    def __init__(self, command: str, settings: Collection[str] = SETTINGS) -> None:
        super().__init__(command, add_help=False, allow_abbrev=False)
        self._settings = settings
        self.add_argument("words", nargs="*")
        self.add_argument("-h", "--help", action="store_true")
        self.add_argument("-cd", "--config-dir")
        self.add_argument("-sc", "--shell-completion", action="store_true")

    def begin(self, arguments: list[str], help: str) -> argparse.Namespace | None:
        """The options, with `folders`, once components of one's own can be found; None if help or tab completion was
        all that was asked for."""
        options = self.parse_intermixed_args(arguments)
        own.use(None)
        if options.help and help:
            say(help.rstrip())
            return None
        options.folders = folders_of(options.config_dir or _completed_folder(options))
        if options.shell_completion:
            from decentral.cli.completion import complete

            complete(options.words, self.prog)
            return None
        return options

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


def _completed_folder(options: argparse.Namespace) -> str | None:
    """The --config-dir of a line that is being completed, if it is a folder by now."""
    words = os.environ.get("COMP_LINE", "").split() if options.shell_completion else []
    given = [word for before, word in pairwise(words) if before in ("--config-dir", "-cd")]
    given += [word.partition("=")[2] for word in words if word.startswith("--config-dir=")]
    return given[-1] if given and Path(given[-1]).is_dir() else None


class PlanOptions(Options):
    """Those of the commands that can also say what is to do, or report what is stored."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.add_argument("--plan", action="store_true")
        self.add_argument("--report", action="store_true")


class RunOptions(Options):
    """Those of `decentral-run`: our own, and those of Hydra's that make sense here."""

    def __init__(self) -> None:
        super().__init__("decentral-run")
        self.add_argument("--version", action="store_true")
        self.add_argument("-m", "--multirun", action="store_true")
        self.add_argument("--save-study", metavar="NAME")
        self.add_argument("-c", "--cfg", choices=["job"])
        self.add_argument("--resolve", action="store_true")
