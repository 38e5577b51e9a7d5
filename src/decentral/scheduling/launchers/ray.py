"""Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from decentral.errors import ConfigError
from decentral.host.packages import require
from decentral.scheduling.launchers.launcher import Launcher
from decentral.scheduling.pool import Pool
from decentral.settings import setting


@dataclass
class Ray(Launcher):
    """Every run a task of a Ray cluster, in a process of its own; the results have to be on a shared file system.

    Ray decides where and when a run starts. The runs end with this launcher: after a restart they go on from their last
    checkpoints. See docs/clusters.md.

    address    local: start Ray on this machine; auto: the cluster that this machine belongs to; or HOST:PORT, or
               ray://HOST:10001
    cpus       of each run, and at least as many as it has processes
    gpus       of each run; 0.25 puts four runs on a GPU (null: one for each process if the cluster has GPUs)
    max_jobs   that Ray has at the same time
    retries    how often a run that was killed is started again
    """

    name: str = "ray"
    address: str = "auto"
    cpus: int = setting(1, at_least=1)
    gpus: float | None = setting(None, at_least=0)
    max_jobs: int = setting(100, at_least=1)
    retries: int = setting(2, at_least=0)

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus > 1 and self.gpus != int(self.gpus):
            raise ConfigError(
                f"launcher.gpus={self.gpus:g} makes no sense: give a whole number, or a part of a GPU such as 0.25."
            )
        if not self.address:
            raise ConfigError("launcher.address= is empty: use local, auto, HOST:PORT or ray://HOST:10001.")

    def check(self) -> None:
        """Raise ConfigError if Ray is not installed."""
        require("ray", "launcher=ray", "pip install 'decentral[ray]'")

    def open(self, results_dir: Path) -> Pool:
        """Start Ray, or connect to it. Raises ConfigError if there is nothing at the address."""
        from decentral.scheduling.ray_pool import RayPool

        return RayPool(self.address, self.cpus, self.gpus, self.max_jobs)
