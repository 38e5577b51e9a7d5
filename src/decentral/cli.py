"""The console command `decentral-run`. Only this module, sweep.py and complaints.py know Hydra."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from decentral import config as configuration
from decentral.config import GROUPS, Config
from decentral.errors import ConfigError
from decentral.options import Options
from decentral.registry import components

REFUSED, FAILED, INTERRUPTED = 2, 1, 130


def conf_directory() -> Path:
    """The folder of YAML files: inside the package if installed from a wheel, else at the top of the checkout."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "conf", package.parents[1] / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf/config.yaml is neither in {package} nor in {package.parents[1]}: install decentral again.")


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


def folders_of(config_dir: str | None) -> list[Path]:
    """Where choices are looked for: ours, then the user's. Raises ConfigError if that is no folder."""
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(
            f"--config-dir {config_dir} is not a folder: give one with folders such as experiment/ in it."
        )
    return [conf_directory()] + ([Path(config_dir)] if config_dir else [])


@cache
def register_schema() -> None:
    """Make the dataclasses of all components known to Hydra, as `<group>/schema/<name>`."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, package in GROUPS.items():
        for name, cls in components(package).items():
            store.store(group=f"{group}/schema", name=name, node=cls)


def compose(overrides: Sequence[str], config_dir: str | None = None) -> Config:
    """The configuration for these `key=value` overrides, resolved and checked.

    `config_dir` holds choices beside ours: `experiment/mine.yaml` in it is experiment=mine.
    Raises ConfigError, with one sentence, for anything that is wrong with it.
    """
    return compose_all([overrides], config_dir)[0]


def compose_all(commands: Sequence[Sequence[str]], config_dir: str | None = None) -> list[Config]:
    """The configurations of several lists of overrides; see `compose`."""
    configs = []
    for found in compose_each(commands, config_dir):
        if isinstance(found, ConfigError):
            raise found
        configs.append(found)
    return configs


def compose_each(commands: Sequence[Sequence[str]], config_dir: str | None = None) -> list[Config | ConfigError]:
    """The same, with what is wrong with a list in the place of its configuration.

    Hydra takes a tenth of a second for each set of choices, so that sets which differ only in plain values share one.
    """
    from hydra import initialize_config_dir

    folders = folders_of(config_dir)
    register_schema()
    composed: dict[tuple[str, ...], Any] = {}
    configs: list[Config | ConfigError] = []
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        for given in commands:
            try:
                configs.append(_compose_one(given, folders, config_dir, composed))
            except ConfigError as error:
                configs.append(error)
    return configs


def _compose_one(
    given: Sequence[str], folders: list[Path], config_dir: str | None, composed: dict[tuple[str, ...], Any]
) -> Config:
    """Choices that are in `composed` already are taken from there."""
    from decentral.complaints import CHOICES, checked

    overrides = checked(given, folders)
    choices = tuple(o for o in overrides if o.partition("=")[0] in CHOICES)
    with _explained(overrides):
        if choices not in composed:
            composed[choices] = _compose_choices(choices, config_dir)
        values = _with_values(composed[choices], [o for o in overrides if o not in choices])
        try:
            return to_config(values)
        except MemoryError:
            raise ConfigError(f"num_workers={values.num_workers} is too large for this machine: use fewer.") from None


def _compose_choices(choices: Sequence[str], config_dir: str | None) -> Any:
    from hydra import compose as hydra_compose

    search = [f"hydra.searchpath=['file://{Path(config_dir).resolve()}']"] if config_dir else []
    return hydra_compose("config", overrides=[*choices, *search])


def _with_values(composed: Any, overrides: Sequence[str]) -> Any:
    """What Hydra does with plain `key=value` overrides, after the choices: they are set in order."""
    from copy import deepcopy

    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    values = deepcopy(composed)
    parser = OverridesParser.create()
    for override in overrides:
        parsed = parser.parse_override(override)
        OmegaConf.update(values, parsed.key_or_group, parsed.value(), merge=True)
    return values


@contextmanager
def _explained(overrides: Sequence[str]) -> Iterator[None]:
    """What Hydra and OmegaConf raise becomes a ConfigError."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from decentral.complaints import explain

    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(explain(error, overrides)) from None


def to_config(composed: Any) -> Config:
    """From Hydra's dictionary to the dataclasses; resolved and checked."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_object(composed)
    if not isinstance(values, Config):  # Hydra's own keys make it a dictionary
        assert isinstance(values, dict)
        values = Config(**{str(key): value for key, value in values.items() if key != "hydra"})
    return configuration.resolve(values)


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
        what, directory = describe(error).rstrip("."), configuration.run_directory(config)
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
    from decentral.launch.launch import finished_status
    from decentral.store import RunStore

    directory = configuration.run_directory(config)
    if not is_leader() or finished_status(config, directory) is not None:
        return
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        RunStore.open(directory, configuration.run_id(config), configuration.dump(config)).close()
        return
    parent = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    key = "run_dir" if config.run_dir else "results_dir"
    value = getattr(config, key)
    if not parent.is_dir():
        raise ConfigError(f"{key}={value} cannot be created, because {parent} is a file: choose another folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{key}={value} cannot be written, because {parent} is read-only for you: choose another folder."
        )


def say(text: str) -> None:
    """Text on stdout. Where nobody reads it any more (`| head`) or it has no room, the run does not suffer."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str, program: str = "decentral-run") -> None:
    """One line on stderr, from one process."""
    if is_leader():
        print(f"{program}: {' '.join(message.split())}", file=sys.stderr)


def is_leader() -> bool:
    """Whether this process is the one that talks."""
    from decentral.launch.launch import under_torchrun

    return not under_torchrun() or os.environ["RANK"] == "0"


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
        with _explained(overrides):
            hydra.main(version_base="1.3", config_path=str(conf_directory()), config_name="config")(task)()
    finally:
        sys.argv[:] = before
        os.environ.pop("HYDRA_FULL_ERROR")
        if full_error is not None:
            os.environ["HYDRA_FULL_ERROR"] = full_error
    return exit_status(statuses)


if __name__ == "__main__":
    main()
