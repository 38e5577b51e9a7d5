"""`decentral-run -m`: every combination of the values, as many at a time as there is room for."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from decentral.algorithms.features import Feature
from decentral.cli.command import TABLE, as_options, check_directory
from decentral.cli.predicted import compared, predictions, work_out
from decentral.cli.single import carry_out
from decentral.cluster.cluster import VirtualCluster
from decentral.config.composition import compose, compose_each, fitting
from decentral.config.identity import run_directory, run_id
from decentral.config.overrides import checked, options, together
from decentral.config.parsing import as_settings, folders_of, plain
from decentral.config.prepared import prepare
from decentral.config.schema import GROUPS, Config, Simulate
from decentral.errors import ConfigError
from decentral.host.torchrun import under_torchrun
from decentral.measurements.training_run import TrainingRun, run_command, written
from decentral.registry.find import own_name, own_names
from decentral.report.run_figures import draw
from decentral.report.summary import overview
from decentral.scheduling.board import board, failure_line
from decentral.scheduling.job import Ended
from decentral.scheduling.scheduler import Pending, schedule
from decentral.store import RunStore, read_metadata
from decentral.store.failures import Failure
from decentral.store.files import at_home
from decentral.study import catalogue
from decentral.study.catalogue import grid_study, judged_study, reserved, study_from
from decentral.terminal.console import FAILED, INTERRUPTED, REFUSED, aligned, duration, is_leader, report_error, say
from decentral.training.loggers.stored import log_stored

if TYPE_CHECKING:
    from decentral.report.results import Results
    from decentral.report.runs_table import Layout

_LISTED = 12  # runs, up to which each has a line beside the table of means
_NAMED = 3  # unfinished runs that are named


INTERVAL = re.compile(r"([\w.]+)=(log|int|interval)\(([^,()]+),([^,()]+)\)")
"""Intervals of sweeper=optuna: `lr=log(1e-3,1)`, `batch_size=int(8,64)`, `alpha=interval(0.1,1)`."""


class Combination(NamedTuple):
    """One run of a sweep."""

    words: list[str]
    """Its overrides."""
    config: Config
    predicted: Sequence[Callable[[Path], list[list[str]]]] = ()
    """Comparison with its prediction, if one is requested."""


def sweep(
    overrides: Sequence[str],
    config_dir: str | None,
    save_study: str | None = None,
    table: Mapping[str, Any] | None = None,
    predict: bool = False,
) -> int:
    """Carry out every combination; those that are refused or fail do not stop the others. Return the exit status.

    `save_study` is a name: in the end, the study that does the same is written into the user's folder. `table` has the
    options of the table that the user gave: fields of a `Layout`. With `predict`, a table compares predicted and
    measured values.

    All are composed before the first one starts, so that files that are edited meanwhile do not change later runs.
    """
    intervals = [one for one in overrides if INTERVAL.fullmatch(one.lstrip("+"))]
    if reserved(overrides, "sweeper")[0] == "optuna":
        if save_study:
            raise ConfigError("--save-study writes a grid, and sweeper=optuna has none: leave one of them out.")
        if asked := [*(table or {}), *["predict"] * predict]:
            raise ConfigError(f"--{asked[0]} needs a grid, and sweeper=optuna has none: leave one of them out.")
        return _search([one.lstrip("+") for one in overrides], config_dir)
    if intervals:
        raise ConfigError(
            f"{intervals[0]} is an interval: list the values, use range(start,stop,step), or search it with "
            "sweeper=optuna."
        )
    overrides = checked(overrides, folders_of(config_dir), several=True)
    commands = fitting([list(chain.from_iterable(job)) for job in product(*axes_of(overrides, config_dir))], config_dir)
    if not commands:
        raise ConfigError(f"-m {' '.join(overrides)} has no combination: a list of values is empty.")
    if len(commands) > 1 and any(override.startswith("run_dir=") for override in overrides):
        raise ConfigError("run_dir= names one directory, but -m starts several runs: use results_dir= instead.")
    if len(commands) == 1 and not (predict or save_study):
        config = compose(commands[0], config_dir)
        local = config.launcher.name == "local" or under_torchrun()
        return carry_out(config) if local else submit(commands[0], config, config_dir)
    accepted: list[Combination] = []
    refusals: dict[str, list[list[str]]] = {}
    for words, found in zip(commands, compose_each(commands, config_dir), strict=True):
        try:
            if isinstance(found, ConfigError):
                raise found
            if found.simulate is Simulate.training and not run_directory(found).exists():
                check_directory(prepare(found))
            accepted.append(Combination(words, found, predictions(found) if predict else ()))
        except ConfigError as error:
            refusals.setdefault(str(error), []).append(words)
    report_refusals(refusals, len(commands))
    refused = [REFUSED] * sum(map(len, refusals.values()))
    if not accepted:
        return exit_status(refused)
    accepted = _different(accepted)
    layout = _layout(accepted, overrides, table or {})
    grid = _grid(save_study, accepted, layout, config_dir) if save_study else {}
    given = as_options({"config-dir": config_dir, **(table or {}), "predict": predict, "save-study": save_study})
    statuses = _carry_out(accepted, config_dir, overrides, layout, given)
    ended = [one for one in accepted if RunStore.finished(run_directory(one.config), run_id(one.config))]
    if predict and ended and is_leader():
        titled = zip(_varying(ended), ended, strict=True)
        pairs = [(title, each(run_directory(one.config))) for title, one in titled for each in one.predicted]
        say(f"\n{compared(pairs)}")
    if save_study:
        from decentral.report.runs_table import metric_named

        runs = [run_directory(one.config) for one in accepted]
        known = [metrics for path in runs if (metrics := read_metadata(path))]
        panels = [metric_named(words, known, "--panels") for words in layout.panels]
        shown, judge = {"x": layout.x, "logy": layout.log or None}, metric_named(layout.metric, known)
        study = judged_study(grid, runs, judge, layout.worker or "worst", shown, list(filter(None, panels)))
        catalogue.save_study(save_study, config_dir, study)
    return exit_status(refused + statuses)


def _grid(name: str, combinations: Sequence[Combination], layout: Layout, config_dir: str | None) -> dict[str, Any]:
    """Return the keys of the study that define the runs of the sweep. Raises ConfigError if no study has these runs, or
    their table."""
    first = combinations[0].config
    wrong = "--throughput" if layout.throughput else f"--over={layout.over}" if layout.over != "seed" else ""
    if wrong or first.simulate is Simulate.timeline:
        raise ConfigError(f"--save-study does not apply to {wrong or 'simulate=timeline'}: leave one of them out.")
    words = [one.words for one in combinations]
    shown = names_in(one.config for one in combinations)
    grid = grid_study(name, words, layout.rows, layout.columns, layout.best, first.algo.name, shown)
    why = ""
    try:
        runs = sorted(job.id for cell in study_from(name, grid).cells([], config_dir) for job in cell.jobs())
    except ConfigError as error:
        runs, why = [], f" ({str(error).rstrip('.')})"
    if runs != sorted(run_id(one.config) for one in combinations):
        raise ConfigError(
            f"--save-study={name} cannot express these runs{why}: name each setting with several values in --rows, "
            "--columns or, if it is a number, --best."
        )
    return grid


def names_in(configs: Iterable[Config]) -> dict[str, str]:
    """Return module:Class -> the class's own name, for the components of these configurations; see `own_names`."""
    chosen = (getattr(config, group) for config in configs for group in GROUPS)
    return own_names((one.name, own_name(type(one))) for one in chosen)


def _different(combinations: Sequence[Combination]) -> list[Combination]:
    """The first of the combinations that are one run; a sentence says which settings make no difference."""
    firsts: dict[str, Combination] = {}
    keys: dict[str, None] = {}
    for one in combinations:
        first = firsts.setdefault(run_id(one.config), one)
        keys |= {word.partition("=")[0].lstrip("+"): None for word in one.words if word not in first.words}
    if len(firsts) < len(combinations) and is_leader():
        number = "1 run" if len(firsts) == 1 else f"{len(firsts)} runs"
        settings = " and ".join(f"{key}=" for key in keys)
        why = f"the values of {settings} do not affect the result" if keys else "values are repeated"
        say(f"These {len(combinations)} combinations are {number}: {why}.")
    return list(firsts.values())


def submit(words: Sequence[str], config: Config, config_dir: str | None) -> int:
    """A single run by its launcher; returns the exit status."""
    check_directory(prepare(config))
    return exit_status(_carry_out([Combination(list(words), config)], config_dir, words))


def _layout(combinations: Sequence[Combination], overrides: Sequence[str], table: Mapping[str, Any]) -> Layout:
    """Return the layout of the sweep's table; what the options in `table` leave open is as in `layout_of`. Raises
    ConfigError for settings that the runs do not have."""
    from decentral.report.runs_table import Layout, layout_of, resolved

    settings = dict.fromkeys(key for one in combinations for key in as_settings(plain(one.config)))
    asked = resolved(Layout(**{"rows": [], **table}), settings)
    usual = layout_of(list(map(_settings, combinations)), together_in(overrides))
    free = [key for key in usual.labels if key not in (*asked.labels, asked.best)]
    rows = list(asked.rows) or [key for key in free if asked.columns or key != usual.columns] or free
    columns = asked.columns or next((key for key in reversed(free) if key not in rows), "")
    best = asked.best or ("" if usual.best in (*rows, columns) else usual.best)
    return dataclasses.replace(asked, rows=rows, columns=columns, best=best)


def _carry_out(
    combinations: Sequence[Combination],
    config_dir: str | None,
    overrides: Sequence[str],
    layout: Layout | None = None,
    options: Sequence[str] = (),
) -> list[int]:
    """Return the exit status of each run, carried out by the launcher; print the table with this layout."""
    if combinations[0].config.simulate is Simulate.timeline:
        titles = _varying(combinations)
        return [work_out([(title, one.config) for title, one in zip(titles, combinations, strict=True)])]
    titled = zip(combinations, _varying(combinations), strict=True)
    runs = [_job(words, config, title, config_dir) for (words, config, _), title in titled]
    unfinished = [run for run in runs if run.finished() is None]
    before = len(runs) - len(unfinished)
    config = combinations[0].config
    if before:
        say(f"{before} of {len(runs)} runs were already finished{'; nothing was computed' if not unfinished else ''}.")
    logged = [log_stored(run.prepared) for run in runs if run.finished() is not None]
    for told in dict.fromkeys(filter(None, logged)):
        say(f"{told} ({logged.count(told)} of {len(runs)} runs)")
    ended, interrupted = dict[str, Ended](), False
    if unfinished:
        ended, interrupted = _launch(lambda: [run for run in unfinished if run.finished() is None], config)
    table = "" if layout is None else _table(combinations, config_dir, overrides, layout, options)
    if not table or len(runs) <= _LISTED:
        say(f"\n{closing_table([(run.title, run.directory, ended.get(run.id)) for run in runs])}")
    if table:
        say(f"\n{table}")
    return [0] * before + _statuses(runs, ended, interrupted)


def _job(words: Sequence[str], config: Config, title: str, config_dir: str | None) -> TrainingRun:
    command, stale = run_command(words, config_dir), written(run_directory(config))
    return TrainingRun(config, name=title, afterwards=draw, command=command, stale=stale)


def _search(overrides: Sequence[str], config_dir: str | None) -> int:
    """The runs that Optuna asks for; returns the exit status."""
    from decentral.cli.search import Trials

    found = {one: interval for one in overrides if (interval := INTERVAL.fullmatch(one))}
    ends = [f"{found[one][1]}={found[one][3]},{found[one][4]}" if one in found else one for one in overrides]
    checked(ends, folders_of(config_dir), several=True)
    axes: dict[str, re.Match[str] | dict[str, list[str]]] = {}
    for one, places in zip(overrides, axes_of(ends, config_dir), strict=True):
        axes[one.partition("=")[0]] = found.get(one) or {" ".join(place): place for place in places}
    if "seed" in axes and (isinstance(axes["seed"], re.Match) or len(axes["seed"]) > 1):
        raise ConfigError("seed= has several values, and a search would pick the luckiest: give one.")
    single = [axis for axis in axes.values() if isinstance(axis, dict) and len(axis) == 1]
    fixed = set(chain.from_iterable(chain.from_iterable(axis.values() for axis in single)))

    def make(words: list[str], config: Config) -> TrainingRun:
        return _job(words, config, " ".join(word for word in words if word not in fixed), config_dir)

    trials = Trials(axes, make, config_dir)
    before = len(trials.runs)
    if before:
        say(f"{before} trials were started or finished before: {trials.file}")
    ended, interrupted = _launch(trials.pending, trials.config)
    runs = list(trials.runs.values())
    say(f"\n{closing_table([(run.title, run.directory, ended.get(run.id)) for run in runs])}\n")
    say(trials.best())
    say(
        f"Study:    {trials.file}  (Optuna's; the same command with trials={2 * trials.config.trials} continues the "
        "search)"
    )
    for why in trials.refused:
        report_error(why)
    return exit_status([REFUSED] * len(trials.refused) + _statuses(runs, ended, interrupted, trials.left()))


def _launch(pending: Pending, config: Config) -> tuple[dict[str, Ended], bool]:
    """Carry out the pending runs; how the runs have ended, by their ids, and whether the user stopped it."""
    config.launcher.check()
    with board("sweep", config.progress) as shown:
        tally = schedule(pending, config.launcher, at_home(config.results_dir), shown)
    return {one.job.id: one for one in tally.ended}, tally.interrupted


def _statuses(
    runs: Sequence[TrainingRun], ended: Mapping[str, Ended], interrupted: bool, further: int = 0
) -> list[int]:
    """The exit status of each run that was started; those that failed are told, and how far an interrupted sweep is,
    with so many `further` runs that are not known yet."""
    statuses = []
    for one in ended.values():
        if one.failure is not None:
            report_error(failure_line(one))
        statuses.append(0 if one.failure is None else REFUSED if one.failure == Failure.refused else FAILED)
    if interrupted:
        say(_stopped(runs, ended, further))
    return [*statuses, INTERRUPTED] if interrupted else statuses


def _stopped(runs: Sequence[TrainingRun], ended: Mapping[str, Ended], further: int) -> str:
    """Count the runs of a stopped sweep by their state, each run once."""
    counts = {"done": 0, "failed": 0, "interrupted": 0, "not started": further}
    for run in {run.id: run for run in runs}.values():
        failed = run.id in ended and ended[run.id].failure is not None
        begun = "interrupted" if RunStore.peek(run.directory) else "not started"
        counts["done" if run.finished() is not None else "failed" if failed else begun] += 1
    told = ", ".join(f"{number} {what}" for what, number in counts.items() if number or what != "failed")
    return f"\nStopped:  {told}, of {sum(counts.values())} runs."


def _settings(one: Combination) -> dict[str, str]:
    """Key -> value, of its overrides."""
    return dict(word.lstrip("+").split("=", 1) for word in one.words)


def _table(
    combinations: Sequence[Combination],
    config_dir: str | None,
    overrides: Sequence[str],
    layout: Layout,
    options: Sequence[str],
) -> str:
    """Return the table of the whole sweep: mean ± standard deviation over seeds, at the best learning rate; '' for a
    single run. Its files lie in results_dir/tables. The commands below it have the `options` of this one."""
    if len(combinations) == 1:
        return ""
    settings = list(map(_settings, combinations))

    from decentral.report.make import make
    from decentral.report.runs_table import collect_runs, folder_of

    runs = [run_directory(one.config) for one in combinations]
    titled = zip(_varying(combinations), combinations, strict=True)
    left = [title for title, one in titled if RunStore.finished(run_directory(one.config), run_id(one.config)) is None]
    resume = f"Missing:  {', '.join(left[:_NAMED])}{', ...' * (len(left) > _NAMED)} ({len(left)} of {len(runs)} runs)\n"
    resume = f"{resume}Resume:   {shlex.join(['decentral-run', '-m', *overrides, *options])}\n" if left else ""
    directory = folder_of(at_home(combinations[0].config.results_dir) / "tables", layout, runs)
    try:
        choices = [{key: value for key, value in each.items() if key in GROUPS} for each in settings]
        collect_runs(runs, layout, directory, {run.name: own for run, own in zip(runs, choices, strict=True)})
        made = make(directory)
    except ConfigError as error:
        return f"{resume}Note:     no table of means: {error}"
    asked = {name: value for name in TABLE if (value := getattr(layout, name)) != getattr(type(layout), name, "")}
    again = ["decentral-report", "runs", f"results_dir={directory}", *as_options(asked)]
    lines = [
        made.summary(),
        *resume.splitlines(),
        f"Next:     {shlex.join(again)}  (--metric, --worker, --where: any other table; --html: a page)",
    ]
    if len({Feature.synchrony in one.config.algo.supports for one in combinations}) > 1:
        first = made.results.values.iloc[0]
        cluster = [] if isinstance(combinations[0].config.cluster, VirtualCluster) else ["cluster=two_delayed"]
        target = f"target={first['metric'].partition(' (')[0]}:{made.results.values['averaged'].median():.2g}"
        words = shlex.join(
            ["decentral-run", "-m", *overrides, *cluster, target, *as_options({"config-dir": config_dir})]
        )
        lines.append(f"Times:    {words}  (at equal simulated time, budget=, instead of equal steps)")
    if wider := _wider(made.results, layout.best, overrides):
        lines.append(f"Wider:    {shlex.join(['decentral-run', '-m', *wider, *options])}  (a best value is at an end)")
    return "\n".join(lines)


def together_in(overrides: Sequence[str]) -> set[str]:
    """Return the settings that vary together with others: 'algo,topology=(dpsgd,ring),(relaysgd,dbt)'."""
    heads = (word.lstrip("+").partition("=")[0].split(",") for word in overrides)
    return {key for keys in heads if len(keys) > 1 for key in keys}


def _wider(results: Results, best: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides with more values of the setting of which a best value is at an end; [] if none is, or the
    setting varies together with others."""
    tried = sorted(results.values["rate"].dropna().unique()) if best else []
    ends = {rate for entry in results.entries() if entry.at_edge for rate in entry.rates}
    if len(tried) < 2 or tried[0] <= 0 or not ends or best in together_in(overrides):
        return []
    lower, upper = tried[0] ** 2 / tried[1], tried[-1] ** 2 / tried[-2]
    values = [*[lower] * (tried[0] in ends), *tried, *[upper] * (tried[-1] in ends)]
    listed = f"{best}={','.join(f'{value:.6g}' for value in values)}"
    return [listed if word.lstrip("+").startswith(f"{best}=") else word for word in overrides]


def closing_table(runs: Sequence[tuple[str, Path, Ended | None]]) -> str:
    """A line for each run: its topology, how it ended, its first metric: worst worker, their mean, averaged model; and
    what it took in simulated time, where some run has that.

    `runs` are titles, directories, and how the launcher says that they ended, if they were started.
    """
    rows = [["run", "topology", "status", "metric", "worst", "mean", "averaged model", "simulated", "results"]]
    for title, directory, ended in runs:
        topology, status, *numbers, path = overview(directory)
        seconds = (RunStore.peek(directory) or {}).get("simulated_s")
        took = "-" if seconds is None else duration(seconds)
        rows.append([title, topology, status if ended is None else ended.status.value, *numbers, took, path])
    if all(row[-2] == "-" for row in rows[1:]):
        rows = [[*row[:-2], row[-1]] for row in rows]
    return aligned(rows)


def _varying(combinations: Sequence[Combination]) -> list[str]:
    """Return the settings that tell each run from the others."""
    places = [number for number, words in enumerate(zip(*(one.words for one in combinations), strict=True))
              if len(set(words)) > 1]  # fmt: skip
    return [" ".join(one.words[place] for place in places) for one in combinations]


def report_refusals(refusals: Mapping[str, Sequence[list[str]]], total: int) -> None:
    """Tell each reason once, with the overrides that its runs have in common; `refusals` has the overrides of these."""
    for why, concerned in refusals.items():
        alike = [word for word in concerned[0] if all(word in words for words in concerned)]
        run, how_many = " ".join(alike), f" ({len(concerned)} of {total} runs)" * (len(concerned) > 1)
        report_error(why + how_many if run in why else f"{run}{how_many}: {why}")


def exit_status(statuses: Sequence[int]) -> int:
    """The exit status of several runs, and one line about those that did not end well."""
    refused, failed = statuses.count(REFUSED), statuses.count(FAILED)
    if len(statuses) > 1 and refused + failed:
        report_error(f"of {len(statuses)} runs, {refused} refused and {failed} failed.")
    if INTERRUPTED in statuses:
        return INTERRUPTED
    return FAILED if failed else max(statuses, default=0)


def axes_of(overrides: Sequence[str], config_dir: str | None) -> list[list[list[str]]]:
    """The values of each override, each as one or several overrides.

    Raises ConfigError if these are more than `max_combinations`, of which none is made, and for values that others for
    the same key would hide.
    """
    most = Config.max_combinations
    folders = folders_of(config_dir)
    loader: Any = SimpleNamespace(get_group_options=lambda group, **_: options(group, folders))  # for glob(*)
    parser = OverridesParser.create(config_loader=loader)
    axes = [together(one) or parser.parse_overrides([one])[0] for one in overrides]
    named = [one.partition("=")[0].split(",") for one in overrides]
    keys = list(chain.from_iterable(named))
    for own, axis in zip(named, axes, strict=True):
        several = isinstance(axis, list) or axis.is_sweep_override()
        twice = [key for key in own if several and keys.count(key) > 1]
        if twice:
            raise ConfigError(
                f"{twice[0]}= is given more than once: list all values in one argument, as in {twice[0]}=1,2."
            )
        if own == ["max_combinations"] and isinstance(axis, Override) and isinstance(value := axis.value(), int):
            most = value
    found = [axis if isinstance(axis, list) else _words(axis, most) for axis in axes]
    if math.prod(map(len, found)) > max(1, most):
        raise ConfigError(
            f"-m {' '.join(overrides)} has more combinations than max_combinations={most}: list fewer values, or "
            "raise max_combinations."
        )
    return found


def _words(override: Override, most: int) -> list[list[str]]:
    """`key=value` for each of its values, in turn: each in a list, as of one setting; of too many, one too many."""
    several = override.is_sweep_override()
    try:
        values = override.sweep_string_iterator() if several else [override.get_value_element_as_str()]
    except ValueError as error:  # of a range whose step is 0
        raise ConfigError(f"{override.input_line} has no values: {error}.") from None
    words = (f"{override.get_key_element()}={value}".replace("\\:", ":") for value in values)  # mymodule:MyNet
    return [[word] for word in islice(words, max(1, most) + 1)]
