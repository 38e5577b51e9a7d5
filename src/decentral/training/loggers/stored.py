"""The values that a logger gets: during a run, or later from the stored metrics, since a finished run is not repeated
for a logger."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from decentral.config.prepared import Prepared
from decentral.store import RunStore
from decentral.store.files import read_json, write_json
from decentral.store.metrics import read_metrics
from decentral.training.loggers.logger import Guarded

FILE = "logged.json"


def shown(run: Prepared, rows: Sequence[dict[str, Any]], steps_per_epoch: float) -> dict[str, float]:
    """Return the logged values after a step: 'split/metric/worst', likewise for mean and averaged, and per worker if
    requested; the learning rate of that step (the workers' mean if they differ); the epoch and the bytes."""
    config, step, each = run.config, rows[0]["step"], run.config.logger.every_worker
    values: dict[str, float] = {axis: float(rows[0][axis]) for axis in ("epoch", "bytes_sent") if axis in rows[0]}
    for row in rows:
        who = row["worker"]
        if each or not isinstance(who, int):
            values[f"{row['split']}/{row['metric']}/{f'worker{who}' if isinstance(who, int) else who}"] = row["value"]
    total_steps = config.steps or max(1, round(config.epochs * steps_per_epoch))
    factor, own = config.schedule.rates(steps_per_epoch, total_steps)(max(0, step - 1)), run.own.get("lr")
    values["lr"] = factor * (config.lr if own is None else float(own.mean()))
    if own is not None and each:
        values |= {f"lr/worker{worker}": factor * lr for worker, lr in enumerate(own.tolist())}
    return values


def log_stored(run: Prepared) -> str:
    """Send the stored metrics of a finished run to `logger`, unless it has them; return a sentence, '' without a
    logger."""
    config, directory, name = run.config, run.directory, run.config.logger.name
    if name == "none":
        return ""
    if _settings(run) in _logged(directory):
        return f"logger={name} already has its metrics."
    sink = Guarded(config.logger, run.id, run.values, directory)
    rows = sorted(read_metrics(directory), key=itemgetter("step"))
    last = rows[-1] if rows else {}
    steps_per_epoch = last["step"] / last["epoch"] if last.get("epoch") else 1.0
    for step, some in groupby(rows, itemgetter("step")):
        sink.log(step, shown(run, list(some), steps_per_epoch))
    sink.close(str((RunStore.peek(directory) or {}).get("status")))
    if sink.failed:
        return ""
    remember(run, sink.place)
    return f"Sent the stored metrics to logger={name}."


def remember(run: Prepared, place: str, whole: bool = True) -> None:
    """Record where the logger has the metrics of the run, and whether all of them; a read-only folder is left
    unchanged."""
    known, path = [one for one in _logged(run.directory) if one != _settings(run)], run.directory / FILE
    loggers = [*known, _settings(run)] if whole else known
    places = (read_json(path) or {}).get("places", {}) | {run.config.logger.name: place}
    with contextlib.suppress(OSError):
        write_json(path, {"loggers": loggers, "places": places})


def _settings(run: Prepared) -> dict[str, Any]:
    return {"every_worker": False} | run.values["logger"]


def _logged(directory: Path) -> list[dict[str, Any]]:
    """Return the settings of the loggers that have all metrics of the run."""
    found = (read_json(directory / FILE) or {}).get("loggers")
    return [{"every_worker": False} | one for one in found or [] if isinstance(one, dict)]
