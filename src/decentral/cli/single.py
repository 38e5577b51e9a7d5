"""One run, launched, drawn and summed up, or its timeline in a virtual cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from decentral.cli.command import check_directory, check_writable
from decentral.config.prepared import prepare
from decentral.config.schema import Config, Simulate
from decentral.errors import ConfigError
from decentral.host.interrupt import was_raised
from decentral.registry.find import functions
from decentral.report.run_figures import FIGURE, draw, draw_time
from decentral.report.series import read_config, read_curves
from decentral.report.summary import staleness, summary, timeline_facts, timeline_table, timeline_text
from decentral.runtime.devices import slow_precision
from decentral.runtime.launch import launch
from decentral.store import RunStore, Status
from decentral.store.failures import ADVICE, classify, describe
from decentral.store.files import read_json
from decentral.store.provenance import collect
from decentral.terminal.console import FAILED, INTERRUPTED, aligned, is_leader, report_error, say, warn
from decentral.training.loggers.stored import log_stored
from decentral.training.operations import FILE as OPERATIONS


def carry_out(config: Config) -> int:
    """Run on this machine, and say where the results are; returns the exit status."""
    if config.launcher.name != "local":
        raise ConfigError(
            f"launcher={config.launcher.name} starts the processes of a run itself: leave out torchrun, or "
            "use launcher=local."
        )
    if config.simulate is Simulate.timeline:
        return work_out([("", config)])

    run = prepare(config)
    try:
        check_directory(run)
        if is_leader() and (word := slow_precision(config)):
            warn(word)
        outcome = launch(run)
    except (ConfigError, KeyboardInterrupt, PermissionError):
        raise
    except BaseException as error:
        if os.environ.get("DECENTRAL_TRACEBACK") or was_raised():
            raise
        what = describe(error).rstrip(".")
        report_error(f"the run failed: {what}. {ADVICE[classify(error)]}. Partial results are in {run.directory}.")
        return FAILED
    if is_leader():
        if outcome.done_before:
            say(f"This run was already finished{_by_other_code(outcome.directory)}; nothing was computed.")
            then = read_config(outcome.directory).get("save", config.save.name)
            if then != config.save.name:
                say(f"It stored the models of save={then}: use rerun=true to repeat it with save={config.save.name}.")
            if config.record_operations and not (outcome.directory / OPERATIONS).exists():
                say("It recorded no operations: use rerun=true to repeat it with record_operations=true.")
            if told := log_stored(run):
                say(told)
        curves = read_curves(outcome.directory)
        undrawn = not outcome.done_before or not (outcome.directory / FIGURE).exists()  # killed before it was drawn
        say(summary(outcome.directory, curves, undrawn))
        if undrawn:
            draw(outcome.directory, curves)
    return INTERRUPTED if outcome.status is Status.interrupted else 0


def predictions(config: Config) -> list[Callable[[Path], list[list[str]]]]:
    """Predict a run; return functions of its directory: rows of a quantity, its predicted and its measured value."""
    return [predict(config) for predict in functions("predictions").values()]


def compared(runs: Sequence[tuple[str, list[list[str]]]]) -> str:
    """Return the table of what was predicted and measured; of several runs, given with their titles, a row for each."""
    rows = [["", "predicted", "measured"], *runs[0][1]]
    if len(runs) > 1:
        rows = [["predicted / measured", *(name for name, *_ in runs[0][1])]]
        rows += [[title, *(" / ".join(values) for _, *values in found)] for title, found in runs]
    table = (
        "Predicted from the method's coefficients (root mean square over workers; bias and noise: distances from the "
        f"optimum by heterogeneity and by gradient noise):\n{aligned(rows)}"
    )
    return table + "\n* Not converged: the predicted ends are those of a longer run." * ("*" in table)


def _by_other_code(directory: Path) -> str:
    """' (by commit ...)' if the finished run was computed by another version of this program."""
    then, now = read_json(directory / "provenance.json") or {}, collect([], 1)
    for key, what in (("git_commit", "commit"), ("version", "version")):
        if then.get(key) and now.get(key) and then[key] != now[key]:
            return f" (by {what} {then[key][:12]}, this is {now[key][:12]}; use rerun=true to repeat it)"
    return ""


def work_out(timelines: Sequence[tuple[str, Config]]) -> int:
    """Work out all of (title, configuration), draw and print what was found; returns the exit status."""
    from decentral.measurements.timeline import SimulatedTimeline

    if not is_leader():
        return 0
    for _, config in timelines:
        if not config.compress.by_length:
            raise ConfigError(
                "simulate=timeline has neither gradients nor layers, which determine what "
                f"compress={config.compress.name} sends: train instead, or use another compressor, such as topk."
            )
    jobs = [SimulatedTimeline(config, {"method": title}) for title, config in timelines]
    for job in jobs:
        check_writable("results_dir", job.config.results_dir, job.directory)
        if job.config.rerun and job.finished() is not None:
            RunStore.forget(job.directory, job.id)
        if len(jobs) > 1:
            say(f"{job.title} ...")
        if job.carry_out() is Status.interrupted:
            return INTERRUPTED
        draw_time(job.directory, staleness(timeline_facts(job.directory)))
    if len(jobs) == 1:
        say(timeline_text(jobs[0].directory))
        return 0
    say("\n" + timeline_table([(job.title, job.directory) for job in jobs]))
    say(f"\nFigures, and the timeline of each worker: {jobs[0].directory.parent}/ID")
    for job in jobs:
        say(f"  {job.id}  {job.title}")
    return 0
