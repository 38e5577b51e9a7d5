"""The console command `decentral-run`: the only module that knows Hydra."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decentral import config as configuration
from decentral.config import GROUPS, Config
from decentral.errors import ConfigError
from decentral.registry import components

REFUSED, FAILED, INTERRUPTED = 2, 1, 130


def conf_directory() -> Path:
    """The folder of YAML files: inside the package when installed from a wheel, at the top of the checkout
    otherwise."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "conf", package.parents[1] / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf/config.yaml is neither in {package} nor in {package.parents[1]}: install decentral again.")


def register_schema() -> None:
    """Make the dataclasses of all components known to Hydra, as `<group>/schema/<name>`."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, package in GROUPS.items():
        for name, cls in components(package).items():
            store.store(group=f"{group}/schema", name=name, node=cls)


def compose(overrides: Sequence[str]) -> Config:
    """The configuration for these `key=value` overrides, resolved and checked.

    Raises ConfigError, with one sentence, for anything that is wrong with it.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from decentral.complaints import check_names, explain

    check_names(overrides, conf_directory())
    register_schema()
    try:
        with initialize_config_dir(str(conf_directory()), version_base="1.3"):
            composed = hydra_compose("config", overrides=list(overrides))
        return to_config(composed)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, overrides)) from None


def to_config(composed: Any) -> Config:
    """From Hydra's dictionary to the dataclasses; resolved and checked."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_object(composed)
    if not isinstance(values, Config):  # Hydra's own keys make it a dictionary
        assert isinstance(values, dict)
        values.pop("hydra", None)
        values = Config(**values)
    return configuration.resolve(values)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-run`. Exit status: 0 done or diverged, 1 failed, 2 refused, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if any(a in ("-h", "--help") for a in arguments):
            from decentral.usage import print_help

            print_help([a for a in arguments if not a.startswith("-")], conf_directory())
            return
        if any(a.startswith("-") for a in arguments):
            sys.exit(_through_hydra(arguments))
        sys.exit(carry_out(compose(arguments)))
    except ConfigError as error:
        complain(str(error))
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def carry_out(config: Config) -> int:
    """Run, and say where the results are; returns the exit status."""
    from decentral.launch.launch import launch
    from decentral.report.summary import summary
    from decentral.store import Status

    try:
        outcome = launch(config)
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if os.environ.get("DECENTRAL_TRACEBACK"):
            raise
        directory = configuration.run_directory(config)
        complain(
            f"the run failed: {type(error).__name__}: {error} (set DECENTRAL_TRACEBACK=1 to see where). What it had "
            f"computed is in {directory}; the same command goes on from the last checkpoint."
        )
        return FAILED
    if os.environ.get("RANK", "0") == "0":
        if outcome.done_before:
            print("This run was done before; nothing was computed.")
        print(summary(outcome.directory))
    return INTERRUPTED if outcome.status is Status.interrupted else 0


def complain(message: str) -> None:
    """One line on stderr, from one process."""
    if os.environ.get("RANK", "0") == "0":
        print(f"decentral-run: {message}", file=sys.stderr)


def _through_hydra(arguments: list[str]) -> int:
    """Hydra's own options: -m (sweeps), --cfg, --config-dir, shell completion, ...; returns the exit status."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from decentral.complaints import check_names, explain

    check_names([a for a in arguments if not a.startswith("-")], conf_directory())
    register_schema()
    statuses: list[int] = []

    def task(composed: Any) -> None:
        try:
            statuses.append(carry_out(to_config(composed)))
        except ConfigError as error:  # the other runs of a sweep go on
            complain(str(error))
            statuses.append(REFUSED)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, so that errors become one sentence here
    sys.argv[1:] = arguments
    try:
        hydra.main(version_base="1.3", config_path=str(conf_directory()), config_name="config")(task)()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, arguments)) from None
    if len(statuses) > 1 and any(statuses):
        complain(f"{sum(map(bool, statuses))} of {len(statuses)} runs were refused or failed.")
    return max(statuses, default=0)


if __name__ == "__main__":
    main()
