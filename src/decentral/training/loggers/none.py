"""No logger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decentral.training.loggers.logger import Logger, Sink


@dataclass
class NoLogger(Logger):
    """Metrics go to the run directory and nowhere else."""

    name: str = "none"

    def check(self) -> None:
        """Always possible."""

    def open(self, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        """A sink that swallows everything."""
        return _Nowhere()


class _Nowhere(Sink):
    def log(self, step: int, values: dict[str, float]) -> None:
        pass

    def close(self, status: str) -> None:
        pass
