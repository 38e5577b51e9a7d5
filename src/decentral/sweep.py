"""`decentral-run -m`: every combination of the values given, as many at a time as there is room for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from decentral.cli import carry_out, check_directory
from decentral.complaints import checked
from decentral.composition import compose, compose_each, conf_directory, folders_of
from decentral.config import Config
from decentral.console import FAILED, INTERRUPTED, REFUSED, complain, is_leader, say
from decentral.errors import ConfigError
from decentral.identity import run_directory
from decentral.launch.failures import Failure
from decentral.launch.job import TrainingRun
from decentral.launch.launch import under_torchrun
from decentral.launch.pool import Ended


class Combination(NamedTuple):
    """One run of a sweep."""

    words: list[str]
    """Its overrides."""
    config: Config


def sweep(overrides: Sequence[str], config_dir: str | None) -> int:
    """Every combination; those that are refused or fail do not stop the others. Returns the exit status.

    All are composed before the first one starts, so that files that are edited meanwhile do not change later runs.
    """
    commands = _combinations(checked(overrides, folders_of(config_dir), several=True))
    if not commands:
        raise ConfigError(f"-m {' '.join(overrides)} has no combination: a list of values is empty.")
    if len(commands) > 1 and any(override.startswith("run_dir=") for override in overrides):
        raise ConfigError("run_dir= is one directory, but -m starts several runs: use results_dir= instead.")
    if len(commands) == 1:
        return carry_out(compose(commands[0], config_dir))
    accepted: list[Combination] = []
    refused = 0
    for words, found in zip(commands, compose_each(commands, config_dir), strict=True):
        try:
            if isinstance(found, ConfigError):
                raise found
            if not run_directory(found).exists():
                check_directory(found)
            accepted.append(Combination(words, found))
        except ConfigError as error:
            refused += 1
            _complain_of(" ".join(words), error)
    if not accepted:
        return exit_status([REFUSED] * refused)
    if any(one.config.launcher != accepted[0].config.launcher for one in accepted):
        raise ConfigError("launcher= is one for all runs of a sweep: give it, and its settings, one value.")
    statuses = _one_by_one(accepted) if under_torchrun() else _schedule(accepted, config_dir)
    return exit_status([REFUSED] * refused + statuses)


def _schedule(combinations: Sequence[Combination], config_dir: str | None) -> list[int]:
    """The exit status of each run, carried out by the launcher."""
    from decentral.launch.board import board, failure_line
    from decentral.launch.scheduler import Fixed, schedule

    runs = [_job(one, shown, config_dir) for one, shown in zip(combinations, _varying(combinations), strict=True)]
    unfinished = [run for run in runs if run.finished() is None]
    before = len(runs) - len(unfinished)
    config = combinations[0].config
    if before:
        say(f"{before} of {len(runs)} runs were done before{'; nothing was computed' if not unfinished else ''}.")
    different = len({run.id for run in runs})
    if different < len(runs):
        number = f"{different} different run{'s' if different > 1 else ''}"
        say(
            f"These {len(runs)} combinations are {number}: settings like execution= and processes= make no difference "
            "to what is computed."
        )
    ended: dict[str, Ended] = {}
    interrupted = False
    if unfinished:
        config.launcher.check()
        with board("sweep", config.progress) as shown:
            tally = schedule(Fixed(unfinished), config.launcher, Path(config.results_dir).expanduser(), shown)
        ended, interrupted = {one.job.id: one for one in tally.ended}, tally.interrupted
    say(f"\n{closing_table([(run.title, run.directory, ended.get(run.id)) for run in runs])}")
    for one in ended.values():
        if one.failure is not None:
            complain(failure_line(one))
    statuses = [0] * before + [_status(one) for one in ended.values()]
    return [*statuses, INTERRUPTED] if interrupted else statuses


def _job(one: Combination, title: str, config_dir: str | None) -> TrainingRun:
    folder = ["--config-dir", config_dir] if config_dir else []
    command = shlex.join(["decentral-run", *folder, *one.words])
    return TrainingRun(one.config, name=title, pictures=True, command=command)


def _status(ended: Ended) -> int:
    if ended.failure is None:
        return 0
    return REFUSED if ended.failure == Failure.refused else FAILED


def _one_by_one(combinations: Sequence[Combination]) -> list[int]:
    """The same under torchrun, whose processes carry out every run together."""
    statuses: list[int] = []
    for number, (words, config) in enumerate(combinations, start=1):
        name = " ".join(words)
        if is_leader():
            say(f"Run {number} of {len(combinations)}: {name}")
        try:
            statuses.append(carry_out(config))
        except ConfigError as error:
            statuses.append(REFUSED)
            _complain_of(name, error)
        if statuses[-1] == INTERRUPTED:
            break
    if is_leader():
        titles = _varying(combinations)
        rows = [(title, run_directory(one.config), None) for title, one in zip(titles, combinations, strict=True)]
        say(f"\n{closing_table(rows)}")
    return statuses


def closing_table(runs: Sequence[tuple[str, Path, Ended | None]]) -> str:
    """A line for each run: how it ended, its first metric for the worst worker, their mean and the averaged model.

    `runs` are titles, directories, and how the launcher says that they ended, if they were started.
    """
    from decentral.report.summary import aligned, overview

    rows = [["run", "status", "metric", "worst", "mean", "averaged model", "results"]]
    for title, directory, ended in runs:
        status, *numbers = overview(directory)
        rows.append([title, status if ended is None else ended.status.value, *numbers])
    return aligned(rows)


def _varying(combinations: Sequence[Combination]) -> list[str]:
    """What tells each run from the others."""
    places = [number for number, words in enumerate(zip(*(one.words for one in combinations), strict=True))
              if len(set(words)) > 1]  # fmt: skip
    return [" ".join(one.words[place] for place in places) for one in combinations]


def _complain_of(run: str, error: ConfigError) -> None:
    complain(str(error) if run in str(error) else f"{run}: {error}")


def exit_status(statuses: Sequence[int]) -> int:
    """The exit status of several runs, and one line about those that did not end well."""
    refused, failed = statuses.count(REFUSED), statuses.count(FAILED)
    if len(statuses) > 1 and refused + failed:
        complain(f"of {len(statuses)} runs, {refused} refused and {failed} failed.")
    if INTERRUPTED in statuses:
        return INTERRUPTED
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
