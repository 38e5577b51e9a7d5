"""`decentral-run simulate=timeline`: what steps take in a virtual cluster, one configuration or several."""

from __future__ import annotations

from collections.abc import Sequence

from decentral.cli.folders import check_writable
from decentral.config.checks import check_lengths
from decentral.config.schema import Config
from decentral.terminal.console import INTERRUPTED, is_leader, say


def work_out(timelines: Sequence[tuple[str, Config]]) -> int:
    """Work out all of (title, configuration), draw and print what was found; returns the exit status."""
    from decentral.measurements.timeline import SimulatedTimeline
    from decentral.report import timelines as report
    from decentral.store import RunStore, Status

    for _, config in timelines:
        check_lengths(config)
    if not is_leader():
        return 0
    jobs = [SimulatedTimeline(config, {"method": title}) for title, config in timelines]
    for job in jobs:
        check_writable("results_dir", job.config.results_dir, job.directory)
        if job.config.rerun and job.finished() is not None:
            RunStore.forget(job.directory, job.id)
        if len(jobs) > 1:
            say(f"{job.title} ...")
        if job.carry_out() is Status.interrupted:
            return INTERRUPTED
        report.draw(job.directory)
    if len(jobs) == 1:
        say(report.text(jobs[0].directory))
        return 0
    say("\n" + report.table([(job.title, job.directory) for job in jobs]))
    say(f"\nPictures, and what each worker did: {jobs[0].directory.parent}/ID")
    for job in jobs:
        say(f"  {job.id}  {job.title}")
    return 0
