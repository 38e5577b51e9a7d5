"""Trackio."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decentral.training.loggers.logger import Logger, Sink, require


@dataclass
class Trackio(Logger):
    """Trackio: all runs of a project beside each other, on this machine; look at them with `trackio show`.

    They are in a database of Trackio's, in the folder TRACKIO_DIR if that is set, else where Hugging Face caches.
    """

    name: str = "trackio"
    project: str = "decentral"
    group: str | None = None
    every_worker: bool = False

    def check(self) -> None:
        """Raise ConfigError if trackio is not installed."""
        require("trackio", self.name, "pip install 'decentral[trackio]'")

    def open(self, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        """Start a run in the project, or go on with it."""
        trackio = importlib.import_module("trackio")
        run = trackio.init(
            project=self.project, name=run_id, group=self.group, config=config, resume="allow", embed=False
        )
        return _Run(run, f'trackio show --project "{self.project}"  (run {run_id})')


class _Run(Sink):
    def __init__(self, run: Any, place: str) -> None:
        self._run, self.place = run, place

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self, status: str) -> None:
        self._run.finish()
