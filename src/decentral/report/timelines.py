"""What `simulate=timeline` has found, as a table and as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decentral.measurements.timeline import SimulatedTimeline
from decentral.report.run_figures import draw_time
from decentral.report.series import describe
from decentral.report.summary import short, staleness_words
from decentral.store.lines import read_lines
from decentral.terminal.text import aligned, duration, in_bytes

_HEADS = ("simulated", "per step", "steps per s", "computing", "waiting", "exchange", "sent by a worker", "fresh")


def table(timelines: Sequence[tuple[str, Path]]) -> str:
    """A line for each (title, directory): seconds, shares of the workers' time, and how much is fresh."""
    rows = [["run", *_HEADS]]
    for title, directory in timelines:
        facts = read_facts(directory)
        means = [mean for mean, _, _ in facts["simulated_shares"].values()]
        ages = staleness(facts)
        rows.append(
            [
                title,
                duration(facts["simulated_s"]),
                short(facts["step_s"]),
                f"{1 / facts['step_s']:.3g}",
                *(f"{100 * mean / sum(means):.1f} %" for mean in means),
                in_bytes(facts["bytes_sent"] / facts["num_workers"]),
                f"{100 * ages.get(0, 0) / sum(ages.values()):.0f} %" if ages else "-",
            ]
        )
    return aligned(rows)


def text(directory: Path) -> str:
    """What one of them has found, and where it is."""
    facts = read_facts(directory)
    lines = [table([("", directory)]).replace("run", "   ", 1), ""]
    if ages := staleness(facts):
        lines.append(f"Staleness: {staleness_words(ages)}")
    if "critical" in facts:
        worker, times, of = facts["critical"]
        lines.append(f"Critical:  worker {worker} was the last one most often, {times} of {of} times")
    lines.append(f"Results:   {directory}  (timeline.jsonl; of each worker: workers.csv)")
    lines.append(f"Timeline:  {directory / 'timeline.png'}; timeline.json beside it opens in ui.perfetto.dev")
    if (directory / "staleness.png").exists():
        lines.append(f"Ages:      {directory / 'staleness.png'}")
    head = f"{describe(directory)}\n{facts['steps']} steps, messages of {facts['num_parameters']:,} parameters"
    return "\n".join([head, "", *lines])


def draw(directory: Path) -> None:
    """timeline.png, and staleness.png where there are ages."""
    draw_time(directory, staleness(read_facts(directory)))


def read_facts(directory: Path) -> dict[str, Any]:
    """The line of a timeline that is done."""
    found = read_lines(directory / SimulatedTimeline.lines)[-1]
    return found


def staleness(facts: dict[str, Any]) -> dict[int, int]:
    """Age in versions -> how many contributions; {} where there are none."""
    return {int(age): times for age, times in (facts.get("staleness") or {}).items()}
