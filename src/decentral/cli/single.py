"""One run: launched, drawn and summed up."""

from __future__ import annotations

import os
from pathlib import Path

from decentral.cli.command import check_directory
from decentral.config.prepared import prepare
from decentral.config.schema import Config, Simulate
from decentral.errors import ConfigError
from decentral.host.interrupt import was_raised
from decentral.report.run_figures import FIGURE, draw
from decentral.report.series import read_config, read_curves
from decentral.report.summary import summary
from decentral.runtime.devices import slow_precision
from decentral.runtime.launch import launch
from decentral.store import Status
from decentral.store.failures import ADVICE, classify, describe
from decentral.store.files import read_json
from decentral.store.provenance import collect
from decentral.terminal.console import FAILED, INTERRUPTED, is_leader, report_error, say, warn
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
        from decentral.cli.predicted import work_out

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


def _by_other_code(directory: Path) -> str:
    """' (by commit ...)' if the finished run was computed by another version of this program."""
    then, now = read_json(directory / "provenance.json") or {}, collect([], 1)
    for key, what in (("git_commit", "commit"), ("version", "version")):
        if then.get(key) and now.get(key) and then[key] != now[key]:
            return f" (by {what} {then[key][:12]}, this is {now[key][:12]}; use rerun=true to repeat it)"
    return ""
