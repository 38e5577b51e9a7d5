"""Predictions without training: the timelines of runs in a virtual cluster, and what plug-ins predict of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from decentral.cli.command import check_writable
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.registry.find import functions
from decentral.report.run_figures import draw_time
from decentral.report.summary import staleness, timeline_facts, timeline_table, timeline_text
from decentral.store import RunStore, Status
from decentral.terminal.console import INTERRUPTED, aligned, is_leader, say


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
