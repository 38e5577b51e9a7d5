"""Trackio."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decentral.training.loggers.logger import Logger, Sink, require


@dataclass
class Trackio(Logger):
    """Trackio: all runs of a project side by side, on this machine; view them with `trackio show`.

    They are in Trackio's database, in the folder TRACKIO_DIR if that is set, else in Hugging Face's cache.
    """

    name: str = "trackio"
    project: str = "decentral"
    group: str | None = None
    every_worker: bool = False

    def check(self) -> None:
        """Raise ConfigError if trackio is not installed."""
        require("trackio", self.name, "pip install '.[trackio]'")

    def open(self, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        """Start or resume a run in the project."""
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
