"""The console command `decentral-run`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from decentral.cli.guarded import guarded
from decentral.cli.options import RunOptions
from decentral.cli.single import carry_out
from decentral.config.composition import (
    compose,
    conf_directory,
    explained,
    folders_of,
    register_own,
    register_schema,
    to_config,
)
from decentral.errors import ConfigError
from decentral.host.torchrun import under_torchrun
from decentral.registry import blame, own
from decentral.terminal.console import INTERRUPTED, REFUSED, report_error, say


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
    if (options.package or options.resolve) and not options.cfg:
        raise ConfigError("--package and --resolve belong to --cfg job, which prints the configuration.")
    hydra_override = any(o.lstrip("+~").startswith(("hydra.", "hydra/")) for o in options.overrides)
    if options.cfg or options.info or options.hydra_help or hydra_override:
        return _through_hydra(options, arguments, folders)
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


def _through_hydra(options: argparse.Namespace, arguments: list[str], folders: list[Path]) -> int:
    """What only Hydra does: --cfg, --info, its launchers and sweepers (hydra/launcher=...)."""
    import hydra

    from decentral.cli.sweep import exit_status, refuse_too_many
    from decentral.config.overrides import checked, with_usual

    overrides = with_usual(checked(options.overrides, folders, several=True), folders)
    if options.multirun:
        refuse_too_many(overrides, options.config_dir)
    register_schema()
    register_own(overrides)
    statuses: list[int] = []

    def task(composed: Any) -> None:
        try:
            with blame.named():
                config = to_config(composed)
            statuses.append(carry_out(config))
        except ConfigError as error:  # the other runs of a sweep go on
            report_error(str(error))
            statuses.append(REFUSED)
        if statuses[-1] == INTERRUPTED:
            raise KeyboardInterrupt

    before, full_error = list(sys.argv), os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, so that errors become one sentence here
    flags = [a for a in arguments if a not in options.overrides]
    sys.argv[1:] = [*overrides, *flags]
    try:
        with explained(overrides), contextlib.suppress(BrokenPipeError):  # of what it prints: a run catches its own
            hydra.main(version_base="1.3", config_path=str(conf_directory()), config_name="config")(task)()
    finally:
        sys.argv[:] = before
        os.environ.pop("HYDRA_FULL_ERROR")
        if full_error is not None:
            os.environ["HYDRA_FULL_ERROR"] = full_error
    return exit_status(statuses)


if __name__ == "__main__":
    main()
