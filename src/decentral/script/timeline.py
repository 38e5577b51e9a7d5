"""What all ranks did, and when, in one file: a Chrome trace for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from decentral.store.files import write_text

_LANES = 1000  # numbers of processes in the trace for each rank: the CPU, and its GPU
_NAMES_OF_PROCESSES = ("process_name", "process_labels", "process_sort_index")


@contextmanager
def timeline(begin: Callable[[], object], gather: Callable[[bytes], list[bytes]], path: Path) -> Iterator[None]:
    """Record every rank until the end of the block, where rank 0 writes one file with a lane for each rank.

    `begin` and `gather` (what each rank gives, by rank; nothing but on rank 0) wait for all ranks.
    """
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would warn of every machine without a GPU
    begin()
    with profile(activities=activities) as recorded:
        yield
    if packed := gather(zlib.compress(_exported(recorded).encode())):
        traces = [json.loads(zlib.decompress(each)) for each in packed]
        write_text(path, json.dumps(merged(traces)))
    begin()


def _exported(recorded: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        return file.read_text(encoding="utf-8")


def merged(traces: list[dict[str, Any]]) -> dict[str, Any]:
    """One trace of several, by rank: clocks that start alike, and processes named after ranks."""
    starts = [int(trace.get("baseTimeNanoseconds", 0)) for trace in traces]
    events: list[dict[str, Any]] = []
    for rank, (trace, start) in enumerate(zip(traces, starts, strict=True)):
        lanes: dict[int, int] = {}
        for event in trace["traceEvents"]:
            if event["name"] in _NAMES_OF_PROCESSES or not isinstance(event["pid"], int):
                continue
            lane = lanes.setdefault(event["pid"], rank * _LANES + len(lanes))
            moved = {"ts": event["ts"] + (start - min(starts)) / 1e3} if "ts" in event else {}
            arrow = {"id": f"{rank}.{event['id']}"} if "id" in event else {}
            events.append(event | moved | arrow | {"pid": lane})
        labels = {e["pid"]: e["args"]["labels"] for e in trace["traceEvents"] if e["name"] == "process_labels"}
        for process, lane in lanes.items():
            label = labels.get(process, "CPU")
            events += _named(lane, f"rank {rank}" if label == "CPU" else f"rank {rank}, {label}")
    kept = {key: value for key, value in traces[0].items() if key not in ("traceEvents", "traceName")}
    return kept | {"baseTimeNanoseconds": min(starts), "traceEvents": events}


def _named(lane: int, name: str) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "name": "process_name", "pid": lane, "tid": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": lane, "tid": 0, "args": {"sort_index": lane}},
    ]
