"""The console command `decentral-run`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from decentral.cli.guarded import guarded
from decentral.cli.options import RunOptions
from decentral.cli.single import carry_out
from decentral.config.composition import as_yaml, compose, folders_of
from decentral.errors import ConfigError
from decentral.host.torchrun import under_torchrun
from decentral.registry import own
from decentral.terminal.console import say


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-run`. Exit status: 0 done or diverged, 1 failed, 2 refused, 130 interrupted."""
    kept = "interrupted; what is stored is kept, and the same command goes on from there."
    guarded("decentral-run", _carry_out_command, arguments, kept)


def _carry_out_command(arguments: list[str]) -> int:
    _check_working_directory()
    options = RunOptions().parse_intermixed_args(arguments)
    own.use(None)
    folders = folders_of(options.config_dir or _completed_folder(options))
    if options.version:
        from decentral import __version__

        say(f"decentral-run {__version__}")
        return 0
    if options.help:
        from decentral.cli.help import print_help

        print_help(options.overrides, folders)
        return 0
    if options.shell_completion:
        from decentral.cli.completion import complete

        complete(options.overrides, "decentral-run")
        return 0
    if options.resolve and not options.cfg:
        raise ConfigError("--resolve belongs to --cfg job, which prints the configuration.")
    if options.cfg:
        say(as_yaml(options.overrides, options.config_dir, options.resolve), end="")
        return 0
    if options.multirun:
        from decentral.cli.sweep import sweep

        return sweep(options.overrides, options.config_dir)
    config = compose(options.overrides, options.config_dir)
    if config.launcher.name != "local" and not under_torchrun():
        from decentral.cli.sweep import submit

        return submit(options.overrides, config, options.config_dir)
    return carry_out(config)


def _completed_folder(options: argparse.Namespace) -> str | None:
    """The --config-dir of a line that is being completed, if it is a folder by now."""
    words = os.environ.get("COMP_LINE", "").split() if options.shell_completion else []
    given = [word for before, word in pairwise(words) if before in ("--config-dir", "-cd")]
    given += [word.partition("=")[2] for word in words if word.startswith("--config-dir=")]
    return given[-1] if given and Path(given[-1]).is_dir() else None


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder has been deleted: change to one that exists (cd).") from None


if __name__ == "__main__":
    main()
