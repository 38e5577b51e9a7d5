"""Jobs that are carried out by another machine's processes: what they report, and how far they are."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from decentral.launch.failures import Failure, classify, describe
from decentral.launch.job import Job
from decentral.launch.pool import Ended, Seen
from decentral.store import DirectoryTaken, RunStore, Status

_TAIL_BYTES = 1 << 16


class Report(NamedTuple):
    """How a job ended, as the process that carried it out says."""

    status: str
    failure: str | None = None
    reason: str = ""

    def of(self, job: Job) -> Ended:
        """The same for the scheduler."""
        return Ended(job, Status(self.status), self.failure, self.reason)


def carry_out(job: Job) -> Report:
    """Carry the job out in this process; whatever happens becomes a report. SIGTERM asks it to stop.

    A run writes a checkpoint and stops at the first SIGTERM; where nothing waits for the signal, the job is broken off.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _break_off) if main else None
    try:
        status = job.carry_out()
    except KeyboardInterrupt:
        return Report(Status.interrupted)
    except DirectoryTaken as error:
        return Report(Status.running, None, str(error))
    except Exception as error:
        print(traceback.format_exc(), file=sys.stderr, flush=True)
        return Report(Status.failed, classify(error).value, describe(error))
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    if status is Status.failed:
        facts = RunStore.peek(job.directory) or {}
        return Report(status, facts.get("failure", Failure.error.value), str(facts.get("reason", "")))
    return Report(status)


def died(job: Job, reason: str, asked: bool = False) -> Ended:
    """How a job ended whose process is gone without a report; `asked` if it had been asked to stop."""
    finished = job.finished()
    if finished is not None:
        return Ended(job, finished)
    if asked:
        return Ended(job, Status.interrupted)
    return Ended(job, Status.failed, Failure.killed, reason)


def seen(job: Job, place: str) -> Seen:
    """How far the job is, from its run directory: this works wherever the directory can be read.

    A job may say it in its status (`fraction`, `text`); else it is seen from the steps and the metrics of a run.
    """
    facts = RunStore.peek(job.directory) or {}
    if "fraction" in facts:
        return Seen(job, place, min(1.0, _number(facts["fraction"])), str(facts.get("text", "")))
    config = _settings(job)
    row = newest_row(job.directory / "metrics.jsonl")
    step, epoch = (max(_number(facts.get(key)), _number(row.get(key))) for key in ("step", "epoch"))
    done, total = (step, config.get("steps")) if config.get("steps") else (epoch, config.get("epochs"))
    fraction = min(1.0, done / total) if isinstance(total, int | float) and total > 0 else None
    text = f"epoch {epoch:.1f}" if row else ""
    if row.get("worker") == "worst":
        text += f"  worst {str(row['metric']).replace('_', ' ')} {_number(row['value']):.4g}"
    return Seen(job, place, fraction, text)


def newest_row(path: Path) -> dict[str, Any]:
    """The first metric of the worst worker in the newest evaluation, else the last row, of a metrics.jsonl; {} if there
    is none. Reads the end of the file only.
    """
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
        rows = [row for row in map(_row, lines) if row]
    except OSError:
        return {}
    newest = [row for row in rows if row["step"] == rows[-1]["step"]]
    return next((row for row in newest if row["worker"] == "worst"), newest[-1] if newest else {})


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        return row if {"step", "epoch", "worker", "metric", "value"} <= row.keys() else {}
    except (ValueError, AttributeError):  # the file's end may begin in the middle of a line
        return {}


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _settings(job: Job) -> dict[str, Any]:
    """`steps` and `epochs` of a run."""
    config = getattr(job, "config", None)
    return {key: getattr(config, key, None) for key in ("steps", "epochs")}


def _break_off(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
