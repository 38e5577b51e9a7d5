"""The contract of a launcher (its configuration) and of the pool that it opens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from decentral.scheduling.job import Pool
from decentral.settings import Settings


class Launcher(Settings, ABC, where="launcher"):
    """A dataclass whose fields are its configuration."""

    retries: int
    """Number of retries of a job after an external failure."""

    def check(self) -> None:
        """Refuse, quickly, what cannot work here (a package that is missing, say). Raises ConfigError."""

    @abstractmethod
    def open(self, results_dir: Path) -> Pool:
        """Start what is needed to start jobs."""
