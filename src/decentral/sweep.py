"""`decentral-run -m`: every combination of the values given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from decentral.cli import (
    FAILED,
    INTERRUPTED,
    REFUSED,
    carry_out,
    complain,
    compose,
    conf_directory,
    folders_of,
    is_leader,
    say,
)
from decentral.complaints import checked
from decentral.config import Config
from decentral.errors import ConfigError


def sweep(overrides: Sequence[str], config_dir: str | None) -> int:
    """Every combination, one after the other; those that are refused or fail do not stop the others.

    All are composed before the first one starts, so that files that are edited meanwhile do not change later runs.
    """
    jobs = _combinations(checked(overrides, folders_of(config_dir), several=True))
    if not jobs:
        raise ConfigError(f"-m {' '.join(overrides)} has no combination: a list of values is empty.")
    if len(jobs) > 1 and any(override.startswith("run_dir=") for override in overrides):
        raise ConfigError("run_dir= is one directory, but -m starts several runs: use results_dir= instead.")
    if len(jobs) == 1:
        return carry_out(compose(jobs[0], config_dir))
    accepted: list[tuple[str, Config]] = []
    statuses: list[int] = []
    for job in jobs:
        try:
            accepted.append((" ".join(job), compose(job, config_dir)))
        except ConfigError as error:
            statuses.append(_refused(" ".join(job), error))
    ended: list[tuple[str, Config]] = []
    for number, (name, config) in enumerate(accepted, start=1):
        if is_leader():
            say(f"Run {number} of {len(accepted)}: {name}")
        try:
            statuses.append(carry_out(config))
            ended.append((name, config))
        except ConfigError as error:
            statuses.append(_refused(name, error))
        if statuses[-1] == INTERRUPTED:
            break
    if is_leader() and len(ended) > 1:
        say(f"\n{closing_table(ended)}")
    return worst(statuses)


def closing_table(ended: Sequence[tuple[str, Config]]) -> str:
    """A line for each run: how it ended, its first metric for the worst worker, their mean and the averaged model."""
    from decentral.config import run_directory
    from decentral.report.summary import aligned, overview

    varying = [set(words) for words in zip(*(name.split(" ") for name, _ in ended), strict=True)]
    shown = [place for place, words in enumerate(varying) if len(words) > 1]
    rows = [["run", "status", "metric", "worst", "mean", "averaged model", "results"]]
    for name, config in ended:
        words = name.split(" ")
        rows.append([" ".join(words[place] for place in shown), *overview(run_directory(config))])
    return aligned(rows)


def _refused(run: str, error: ConfigError) -> int:
    complain(str(error) if run in str(error) else f"{run}: {error}")
    return REFUSED


def worst(statuses: Sequence[int]) -> int:
    """The exit status of several runs, and one line about those that did not end well."""
    refused, failed = statuses.count(REFUSED), statuses.count(FAILED)
    if len(statuses) > 1 and refused + failed:
        complain(f"of {len(statuses)} runs, {refused} refused and {failed} failed.")
    return FAILED if failed else max(statuses, default=0)


def _combinations(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each run of a sweep."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    choices = []
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        for override in parser.parse_overrides(list(overrides)):
            if override.is_interval_sweep():
                raise ConfigError(
                    f"{override.input_line} is an interval: list the values, or use range(start,stop,step)."
                )
            key = override.get_key_element()
            if override.is_sweep_override():
                choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
            else:
                choices.append([f"{key}={override.get_value_element_as_str()}"])
    return [list(job) for job in product(*choices)]
