"""Logging what a run has recorded before: a finished run is not run again for the sake of its logger."""

from __future__ import annotations

import contextlib
from pathlib import Path

from decentral.config.identity import run_id
from decentral.config.parsing import plain
from decentral.config.schema import Config
from decentral.store import RunStore
from decentral.store.files import read_json, write_json
from decentral.store.metrics import read_metrics
from decentral.training.loggers.logger import Guarded

_FILE = "logged.json"


def log_stored(config: Config, directory: Path) -> str:
    """Give the stored metrics of a finished run to `logger`, unless it has had them; a sentence on that, '' without a
    logger."""
    name, settings = config.logger.name, plain(config.logger)
    if name == "none":
        return ""
    if settings in _logged(directory):
        return f"logger={name} had its metrics before."
    sink = Guarded(config.logger, run_id(config), plain(config), directory)
    for step, values in _by_step(directory).items():
        sink.log(step, values)
    sink.close(str((RunStore.peek(directory) or {}).get("status")))
    if sink.failed:
        return ""
    remember(config, directory)
    return f"Its stored metrics went to logger={name}."


def remember(config: Config, directory: Path) -> None:
    """Note that the logger has had all metrics of the run; a folder that cannot be written is left as it is."""
    if config.logger.name != "none":
        known = [one for one in _logged(directory) if one != plain(config.logger)]
        with contextlib.suppress(OSError):
            write_json(directory / _FILE, {"loggers": [*known, plain(config.logger)]})


def _logged(directory: Path) -> list[object]:
    found = (read_json(directory / _FILE) or {}).get("loggers")
    return found if isinstance(found, list) else []


def _by_step(directory: Path) -> dict[int, dict[str, float]]:
    """Step -> what a logger gets at it: as in `Evaluation.summary`, without single workers."""
    found: dict[int, dict[str, float]] = {}
    for row in read_metrics(directory):
        values = found.setdefault(row["step"], {})
        if not isinstance(row["worker"], int):
            values[f"{row['split']}/{row['metric']}/{row['worker']}"] = row["value"]
        values |= {axis: float(row[axis]) for axis in ("epoch", "bytes_sent") if axis in row}
    return dict(sorted(found.items()))
