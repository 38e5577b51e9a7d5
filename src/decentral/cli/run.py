"""The console command `decentral-run`."""

from __future__ import annotations

from collections.abc import Sequence

from decentral import __version__
from decentral.cli.command import Options, guarded, table_options
from decentral.cli.help import print_help
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.host.machine import without_garbage_collection
from decentral.host.torchrun import under_torchrun
from decentral.terminal.console import is_leader, say


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-run`. Exit status: 0 done or diverged, 1 failed, 2 refused, 130 interrupted."""
    kept = "interrupted; stored results are kept, and the same command resumes."
    guarded("decentral-run", _carry_out_command, arguments, kept)


def parser() -> Options:
    """The options of `decentral-run`."""
    found = Options("decentral-run", "--version", "--resolve", "--predict")
    found.add_argument("-m", "--multirun", action="store_true")
    found.add_argument("--save-study", metavar="NAME")
    found.add_argument("-c", "--cfg", choices=["job"])
    found.add_table()
    return found


def _carry_out_command(arguments: list[str]) -> int:
    options = parser().begin(arguments, "")
    if options is None:
        return 0
    if options.version:
        say(f"decentral-run {__version__}")
        return 0
    if options.help:
        print_help(options.words, options.folders)
        return 0
    if options.resolve and not options.cfg:
        raise ConfigError("--resolve needs --cfg job, which prints the configuration.")

    with without_garbage_collection():
        from decentral.cli.predicted import compared, predictions
        from decentral.cli.single import carry_out
        from decentral.config.composition import as_yaml, compose
        from decentral.config.prepared import prepare

    if options.cfg:
        say(as_yaml(options.words, options.config_dir, options.resolve), end="")
        return 0
    table = table_options(options)
    if asked := next((word for word in options.words if word.startswith(("target=", "tune=", "budget="))), ""):
        if not options.multirun:
            raise ConfigError(f"{asked} needs -m, which compares several runs.")
        if options.predict:
            raise ConfigError("--predict does not apply to target=: leave one of them out.")
        from decentral.cli.to_target import compare

        return compare(options.words, options.config_dir, options.save_study, table)
    if options.multirun:
        from decentral.cli.sweep import sweep

        return sweep(options.words, options.config_dir, options.save_study, table, options.predict)
    for name in ["save-study"] * bool(options.save_study) + list(table):
        raise ConfigError(f"--{name} needs -m, which starts several runs.")
    with without_garbage_collection():
        config = compose(options.words, options.config_dir)
    if config.sweeper != Config.sweeper:
        raise ConfigError(f"sweeper={config.sweeper} needs -m, which starts several runs.")
    if config.launcher.name != "local" and not under_torchrun():
        from decentral.cli.sweep import submit

        return submit(options.words, config, options.config_dir)
    predicted = predictions(config) if options.predict else []
    status = carry_out(config)
    for found in predicted if is_leader() and not status else ():
        say(f"\n{compared([('', found(prepare(config).directory))])}")
    return status


if __name__ == "__main__":
    main()
