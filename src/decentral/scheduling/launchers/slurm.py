"""SLURM."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from decentral.errors import ConfigError, check_at_least
from decentral.host.packages import require
from decentral.scheduling.launchers.launcher import Launcher
from decentral.scheduling.pool import Pool
from decentral.store.files import at_home


class Where(Enum):
    """Where submitit submits jobs to."""

    slurm = "slurm"
    local = "local"


@dataclass
class Slurm(Launcher):
    """Every run a SLURM job of its own, submitted by submitit; the results have to be on a shared file system.

    A job that is preempted or reaches its time limit writes a checkpoint, goes back to the queue, and goes on from
    there. The jobs do not need this launcher: they run on when it is killed, and the next start finds them. Ctrl-C
    cancels them, after they had the time to write a checkpoint. See docs/clusters.md.

    cluster            slurm, or local to try things out: processes on this machine instead of SLURM jobs
    partition          of the cluster (null: its default)
    time_minutes       time limit of a job; what is not done by then goes on in the next one
    requeues           how often a job may reach its time limit
    grace_s            how long before the limit SLURM tells a job to write its checkpoint
    gpus               of each job
    cpus               of each job, and at least as many as the run has processes
    memory_gb          of each job (null: the cluster's default)
    max_jobs           that are in the queue or running at the same time
    setup              shell commands before each job, for example '["module load cuda"]'
    sbatch             further options of sbatch, for example '["account=abc", "exclusive"]'
    retries            how often a job that was killed is submitted again
    """

    name: str = "slurm"
    cluster: Where = Where.slurm
    partition: str | None = None
    time_minutes: int = 240
    requeues: int = 10
    grace_s: int = 120
    gpus: int = 0
    cpus: int = 4
    memory_gb: float | None = None
    max_jobs: int = 100
    setup: list[str] = field(default_factory=list)
    sbatch: list[str] = field(default_factory=list)
    retries: int = 2

    def __post_init__(self) -> None:
        least = {"time_minutes": 1, "requeues": 0, "grace_s": 1, "gpus": 0, "cpus": 1, "max_jobs": 1, "retries": 0}
        for key, lowest in least.items():
            check_at_least(f"launcher.{key}", getattr(self, key), lowest)
        if self.memory_gb is not None and not 0 < self.memory_gb < float("inf"):
            raise ConfigError(f"launcher.memory_gb={self.memory_gb:g} makes no sense: give gigabytes above 0, or null.")
        if self.grace_s >= 60 * self.time_minutes:
            raise ConfigError(
                f"launcher.grace_s={self.grace_s} is as long as launcher.time_minutes={self.time_minutes}: leave the "
                "jobs some time to compute."
            )

    def check(self) -> None:
        """Raise ConfigError if submitit is not installed, or if this machine cannot submit SLURM jobs."""
        require("submitit", "launcher=slurm", "pip install 'decentral[slurm]'")
        missing = [command for command in ("sbatch", "srun", "squeue", "scancel") if shutil.which(command) is None]
        if self.cluster is Where.slurm and missing:
            raise ConfigError(
                f"launcher=slurm finds no {missing[0]} here: start it where jobs of the cluster are submitted, or try "
                "it out with launcher.cluster=local."
            )

    def open(self, results_dir: Path) -> Pool:
        """Nothing is started yet; see `SlurmPool`."""
        from decentral.scheduling.slurm_clusters import LocalCluster, Resources, SlurmCluster
        from decentral.scheduling.slurm_pool import SlurmPool, private_folder

        folder = at_home(results_dir).absolute() / "submitted"
        private_folder(folder)
        resources = Resources(
            self.partition,
            self.time_minutes,
            self.requeues,
            self.grace_s,
            self.gpus,
            self.cpus,
            self.memory_gb,
            self.setup,
            self.sbatch,
        )
        kind = SlurmCluster if self.cluster is Where.slurm else LocalCluster
        return SlurmPool(kind(resources, folder), folder, self.max_jobs)
