"""The console command `decentral-run`. Only this module, composition.py, sweep.py and complaints.py know Hydra."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decentral.composition import compose, conf_directory, explained, folders_of, register_schema, to_config
from decentral.config import Config, dump
from decentral.console import FAILED, INTERRUPTED, REFUSED, complain, is_leader, say
from decentral.errors import ConfigError
from decentral.identity import run_directory, run_id
from decentral.options import Options


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-run`. Exit status: 0 done or diverged, 1 failed, 2 refused, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(_carry_out_command(arguments))
    except ConfigError as error:
        complain(str(error))
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _carry_out_command(arguments: list[str]) -> int:
    _check_working_directory()
    options = Options().parse_intermixed_args(arguments)
    folders = folders_of(options.config_dir)
    if options.version:
        from decentral import __version__

        print(f"decentral-run {__version__}")
        return 0
    if options.help:
        from decentral.usage import print_help

        print_help(options.overrides, folders)
        return 0
    if (options.package or options.resolve) and not options.cfg:
        raise ConfigError("--package and --resolve belong to --cfg job, which prints the configuration.")
    hydra_override = any(o.lstrip("+~").startswith(("hydra.", "hydra/")) for o in options.overrides)
    if options.cfg or options.info or options.hydra_help or options.shell_completion or hydra_override:
        return _through_hydra(options, arguments, folders)
    if options.multirun:
        from decentral.sweep import sweep

        return sweep(options.overrides, options.config_dir)
    return carry_out(compose(options.overrides, options.config_dir))


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder has been deleted: change to one that exists (cd).") from None


def carry_out(config: Config) -> int:
    """Run, and say where the results are; returns the exit status."""
    from decentral.launch.failures import advice, classify, describe
    from decentral.launch.launch import launch
    from decentral.report.pictures import draw
    from decentral.report.summary import summary
    from decentral.store import Status

    try:
        check_directory(config)
        outcome = launch(config)
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if os.environ.get("DECENTRAL_TRACEBACK"):
            raise
        what, directory = describe(error).rstrip("."), run_directory(config)
        complain(f"the run failed: {what}. {advice(classify(error))}. What it had computed is in {directory}.")
        return FAILED
    if is_leader():
        if outcome.done_before:
            say(f"This run was done before{_by_other_code(outcome.directory)}; nothing was computed.")
        else:
            draw(outcome.directory)
        say(summary(outcome.directory))
    return INTERRUPTED if outcome.status is Status.interrupted else 0


def _by_other_code(directory: Path) -> str:
    """' (by commit ...)' if the finished run was computed by another version of this program."""
    import json

    from decentral.provenance import collect

    try:
        then = json.loads((directory / "provenance.json").read_text())
    except (OSError, ValueError):
        return ""
    now = collect([], 1)
    for key, what in (("git_commit", "commit"), ("version", "version")):
        if then.get(key) and now.get(key) and then[key] != now[key]:
            return f" (by {what} {then[key][:12]}, this is {now[key][:12]}; delete {directory} to compute it again)"
    return ""


def check_directory(config: Config) -> None:
    """Refuse a run directory that cannot be used, before torch is imported; creates nothing."""
    from decentral.store import RunStore

    directory = run_directory(config)
    if not is_leader() or RunStore.finished(directory, run_id(config)) is not None:
        return
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        RunStore.open(directory, run_id(config), dump(config)).close()
        return
    key = "run_dir" if config.run_dir else "results_dir"
    check_writable(key, getattr(config, key), directory)


def check_writable(key: str, value: str, directory: Path) -> None:
    """Refuse a folder, given as key=value, that cannot be created or written; creates nothing."""
    parent = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not parent.is_dir():
        raise ConfigError(f"{key}={value} cannot be created, because {parent} is a file: choose another folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{key}={value} cannot be written, because {parent} is read-only for you: choose another folder."
        )


def _through_hydra(options: argparse.Namespace, arguments: list[str], folders: list[Path]) -> int:
    """What only Hydra does: --cfg, --info, shell completion, its launchers and sweepers (hydra/launcher=...)."""
    import hydra

    from decentral.complaints import checked
    from decentral.sweep import exit_status

    overrides = options.overrides
    if not options.shell_completion:
        overrides = checked(overrides, folders, several=True)
    register_schema()
    statuses: list[int] = []

    def task(composed: Any) -> None:
        try:
            statuses.append(carry_out(to_config(composed)))
        except ConfigError as error:  # the other runs of a sweep go on
            complain(str(error))
            statuses.append(REFUSED)
        if statuses[-1] == INTERRUPTED:
            raise KeyboardInterrupt

    before, full_error = list(sys.argv), os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, so that errors become one sentence here
    flags = [a for a in arguments if a not in options.overrides]
    sys.argv[1:] = [*overrides, *flags]
    try:
        with explained(overrides):
            hydra.main(version_base="1.3", config_path=str(conf_directory()), config_name="config")(task)()
    finally:
        sys.argv[:] = before
        os.environ.pop("HYDRA_FULL_ERROR")
        if full_error is not None:
            os.environ["HYDRA_FULL_ERROR"] = full_error
    return exit_status(statuses)


if __name__ == "__main__":
    main()
