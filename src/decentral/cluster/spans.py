"""What each worker was doing when; and timeline.json, which ui.perfetto.dev and chrome://tracing open.

The file is in the Trace Event Format: one complete event ("ph": "X") for each span, with `ts` and `dur` in microseconds
of simulated time, on a track for each worker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from decentral.store.files import read_json, write_text

FILE = "timeline.json"


class Span(NamedTuple):
    """A worker computes, waits or exchanges from one simulated time to another, in seconds."""

    worker: int
    kind: str
    begin_s: float
    end_s: float


class Spans:
    """The spans of the first workers of a timeline."""

    def __init__(self, workers: int) -> None:
        """`workers`: of how many they are kept."""
        self.found: list[Span] = []
        self._workers = workers

    def add(self, worker: int, kind: str, begin_s: float, end_s: float) -> None:
        """Keep one that takes time."""
        if end_s > begin_s and worker < self._workers:
            self.found.append(Span(worker, kind, begin_s, end_s))


def write_spans(directory: Path, spans: Iterable[Span]) -> Path:
    """Replace `timeline.json` atomically; returns its path."""
    spans = sorted(spans, key=lambda span: (span.worker, span.begin_s))
    names = {
        worker: {"name": "thread_name", "ph": "M", "pid": 0, "tid": worker, "args": {"name": f"worker {worker}"}}
        for worker in sorted({span.worker for span in spans})
    }
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "simulated time"}},
        *names.values(),
        *({"name": span.kind, "ph": "X", "pid": 0, "tid": span.worker, **_times(span)} for span in spans),
    ]
    lines = ",\n".join(json.dumps(event) for event in events)
    path = directory / FILE
    write_text(path, f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n')
    return path


def read_spans(directory: Path) -> list[Span]:
    """What `timeline.json` holds; nothing if there is none. Never raises."""
    events = (read_json(directory / FILE) or {}).get("traceEvents", [])
    return [
        Span(one["tid"], one["name"], one["ts"] / 1e6, (one["ts"] + one["dur"]) / 1e6)
        for one in events
        if one.get("ph") == "X"
    ]


def _times(span: Span) -> dict[str, float]:
    return {"ts": round(1e6 * span.begin_s, 3), "dur": round(1e6 * (span.end_s - span.begin_s), 3)}
