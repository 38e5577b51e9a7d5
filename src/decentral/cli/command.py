"""The common part of all console commands: options, checks of folders, and exit statuses of errors."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from decentral.cli.completion import complete
from decentral.config.parsing import conf_directory, folders_of
from decentral.config.prepared import Prepared
from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest
from decentral.host.interrupt import end_at_once, raise_once, was_raised
from decentral.registry import plugins
from decentral.store import RunStore
from decentral.store.failures import Failure, classify, describe
from decentral.terminal.console import FAILED, INTERRUPTED, REFUSED, is_leader, report_error, say

SETTINGS = frozenset(field.name for field in dataclasses.fields(Config))
"""Settings, which are written without dashes, `key=value`."""
TABLE: dict[str, Any] = {
    **{"rows": "", "columns": "", "best": "", "over": "seed", "metric": "", "worker": ""},
    **{"x": "", "panels": "", "log": False, "throughput": False, "name": ""},
}
"""Options of a table of runs and its figure, the fields of a `Layout`; with what they are where they are not given."""


class Options(argparse.ArgumentParser):
    """The options that every command has, and `flags` without values; errors are one sentence."""

    def __init__(self, command: str, *flags: str, settings: Collection[str] = SETTINGS) -> None:
        super().__init__(command, add_help=False, allow_abbrev=False)
        self._settings = settings
        self.add_argument("words", nargs="*")
        self.add_argument("-h", "--help", action="store_true")
        for flag in flags:
            self.add_argument(flag, action="store_true")
        self.add_argument("-cd", "--config-dir")
        self.add_argument("-sc", "--shell-completion", action="store_true")

    def add_table(self) -> None:
        """Add the options in TABLE."""
        for name, usual in TABLE.items():
            self.add_argument(f"--{name}", default=usual, action="store" if usual is not False else "store_true")

    def begin(self, arguments: list[str], help: str) -> argparse.Namespace | None:
        """The options, with `folders`, once components of one's own can be found; None if help or tab completion was
        all that was asked for."""
        options = self.parse_intermixed_args(arguments)
        plugins.use(None)
        if options.help and help:
            pages = conf_directory().parent / "docs"
            say(help.rstrip() + (f"\n\ndocs/ is {pages}" if "docs/" in help and pages != Path.cwd() / "docs" else ""))
            return None
        if options.shell_completion:
            complete(options.words, self.prog)
            return None
        options.folders = folders_of(options.config_dir)
        return options

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with one sentence instead of a usage message."""
        if not message.startswith("unrecognized"):
            raise ConfigError(f"{message}: see {self.prog} --help.")
        wrong = message.removeprefix("unrecognized arguments: ").split()[0]
        key = wrong.lstrip("-").partition("=")[0]
        if key in self._settings:
            raise ConfigError(f"{wrong} is not an option: settings have no dashes; write {key}=... instead.")
        known = [option for option in self._option_string_actions if option.startswith("--")]
        raise ConfigError(f"{wrong} is not an option.{suggest(wrong, known)}")


def table_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options in TABLE that the user gave."""
    given = {name: getattr(options, name) for name, usual in TABLE.items() if getattr(options, name) != usual}
    return given | {
        name: [word for word in given[name].split(",") if word] for name in ("rows", "panels") if name in given
    }


def as_options(values: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line; None and False are not given."""
    given = {f"--{name}": value for name, value in values.items() if value is not None and value is not False}
    texts = {name: value if isinstance(value, str | bool) else ",".join(value) for name, value in given.items()}
    return [word for pair in texts.items() for word in pair if isinstance(word, str)]


def check_directory(run: Prepared) -> None:
    """Refuse a run directory that cannot be used, before torch is imported; creates none."""
    config, directory = run.config, run.directory
    key = "run_dir" if config.run_dir else "results_dir"
    if not is_leader() or RunStore.finished(directory, run.id) is not None:
        return
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        RunStore.open(directory, run.id, run.text).close()
    else:
        check_writable(key, getattr(config, key), directory)


def check_writable(key: str, value: str, directory: Path) -> None:
    """Refuse a folder that was set by key=value, if it cannot be created or written; creates nothing."""
    parent = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not parent.is_dir():
        raise ConfigError(f"{key}={value} cannot be created, because {parent} is a file: choose another folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={value} cannot be written, because {parent} is read-only: choose another folder.")


def guarded(
    command: str,
    carry_out: Callable[[list[str]], int],
    arguments: Sequence[str] | None,
    interrupted: str = "interrupted.",
) -> NoReturn:
    """Exit with the status that `carry_out` returns of the arguments; what goes wrong becomes a sentence and a status.

    2 for what is refused (ConfigError, and a file or folder that is closed to the user), 1 for what the machine does
    not allow (OSError: a full disk, say), 130 after Ctrl-C, which is told in the words of `interrupted`.

    Without `arguments`, those of this process are taken, which is the command's: Ctrl-C ends it at any moment.
    """
    status = INTERRUPTED
    with suppress(KeyboardInterrupt):
        if arguments is None:
            os.environ["MPLBACKEND"] = "agg"  # a notebook's kernel leaves its own there; a command shows no windows
            raise_once(f"{command}: {interrupted}\n" if is_leader() else "", INTERRUPTED)
        status = _status(command, carry_out, list(sys.argv[1:] if arguments is None else arguments))
        if arguments is None:
            end_at_once("", status)
    if status == INTERRUPTED:
        report_error(interrupted, command)
        exec("")  # Python notes that one was interrupted, as of a dataclass, and would end with another status
    sys.exit(status)


def _status(command: str, carry_out: Callable[[list[str]], int], arguments: list[str]) -> int:
    try:
        status = carry_out(arguments)
        say("", end="")  # what is left in the buffer
        return status
    except Exception as error:
        if was_raised():  # what the interruption was turned into on its way
            return INTERRUPTED
        if isinstance(error, ConfigError):
            report_error(str(error), command)
            return REFUSED
        if not isinstance(error, OSError):
            raise
        if isinstance(error, PermissionError) and error.filename is not None:
            where = (
                f"{error.filename} is not accessible: you lack permission to read, write or enter it or a parent folder"
            )
            report_error(f"{where}. Choose another one, or change its permissions.", command)
            return REFUSED
        free = "Free some space and rerun" if classify(error) is Failure.disk_full else "Rerun"
        report_error(f"{describe(error)}. {free} the same command.", command)
        return FAILED
