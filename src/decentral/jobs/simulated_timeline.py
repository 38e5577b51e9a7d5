"""simulate=timeline: what steps take in a virtual cluster, without training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from decentral.cluster.trace_events import write_spans
from decentral.jobs.computation import Computation
from decentral.store.files import csv_text, write_text
from decentral.store.lines import LineFile


@dataclass(frozen=True)
class SimulatedTimeline(Computation):
    """One line: what `config.steps` steps of the method take in its cluster, on what, and how late contributions are.

    Beside it workers.csv, the same for each worker, and timeline.json, the beginning for ui.perfetto.dev.
    """

    folder: ClassVar[str] = "timelines"
    lines: ClassVar[str] = "timeline.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Nothing beside the configuration."""
        return {}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """At once: a timeline takes seconds."""
        from decentral.training.recorder import time_facts
        from decentral.training.timing import spans_of, timed

        if lines.known:
            return True
        config, steps = self.config, self.config.steps
        assert steps is not None
        num_parameters = config.cluster.num_parameters or config.task.num_parameters(config)
        write_spans(self.directory, spans_of(config, steps, num_parameters))
        found = timed(config, steps, num_parameters)
        write_text(self.directory / "workers.csv", _workers(found.accounts, found.critical))
        line = {
            "simulated_s": found.simulated_s,
            "steps": steps,
            "step_s": found.step_s,
            "bytes_sent": found.bytes_sent,
            "num_workers": config.num_workers,
            "num_parameters": num_parameters,
        }
        lines.append(line | time_facts(found.accounts, found.lateness))
        return True


def _workers(accounts: dict[str, Any], critical: list[int]) -> str:
    """Seconds of each worker, and how often others waited for it last."""
    header = ("worker", *(f"{part}_s" for part in accounts), *(["critical"] if critical else []))
    columns = [range(len(accounts["compute"])), *(seconds.tolist() for seconds in accounts.values())]
    return csv_text(header, zip(*columns, *([critical] if critical else []), strict=True))
