"""SLURM."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from decentral.errors import ConfigError
from decentral.host.machine import require
from decentral.scheduling.job import Pool
from decentral.scheduling.launchers.launcher import Launcher
from decentral.settings import setting
from decentral.store.files import at_home


class Where(Enum):
    """The target of submitit's jobs."""

    slurm = "slurm"
    local = "local"


@dataclass
class Slurm(Launcher):
    """Every run is a separate SLURM job, submitted by submitit; results must be on a shared file system.

    A preempted job, or one that reaches its time limit, writes a checkpoint, is requeued, and resumes. The jobs do not
    depend on this launcher: they continue if it is killed, and the next start finds them. Ctrl-C cancels them, after
    time to write a checkpoint. See docs/clusters.md.

    cluster            slurm; or local, for tests: processes on this machine instead of Slurm jobs
    partition          Slurm partition (null: the cluster's default)
    time_minutes       time limit of a job in minutes; an unfinished run continues in the next job
    requeues           maximum number of times that a job may reach its time limit
    grace_s            seconds before the limit at which Slurm tells a job to write its checkpoint
    gpus               GPUs per job
    cpus               CPUs per job; at least one per process of the run
    memory_gb          memory per job in GB (null: the cluster's default)
    max_jobs           maximum number of jobs queued or running at the same time
    setup              shell commands to run before each job, for example '["module load cuda"]'
    sbatch             additional sbatch options, for example '["account=abc", "exclusive"]'
    retries            maximum number of resubmissions of a killed job
    """

    name: str = "slurm"
    cluster: Where = Where.slurm
    partition: str | None = None
    time_minutes: int = setting(240, at_least=1)
    requeues: int = setting(10, at_least=0)
    grace_s: int = setting(120, at_least=1)
    gpus: int = setting(0, at_least=0)
    cpus: int = setting(4, at_least=1)
    memory_gb: float | None = setting(None, above=0)
    max_jobs: int = setting(100, at_least=1)
    setup: list[str] = field(default_factory=list)
    sbatch: list[str] = field(default_factory=list)
    retries: int = setting(2, at_least=0)

    def __post_init__(self) -> None:
        if self.grace_s >= 60 * self.time_minutes:
            raise ConfigError(
                f"launcher.grace_s={self.grace_s} uses all of launcher.time_minutes={self.time_minutes}: lower it, or "
                "raise the time limit."
            )

    def check(self) -> None:
        """Raise ConfigError if submitit is not installed, or if this machine cannot submit SLURM jobs."""
        require("submitit", "launcher=slurm", "pip install '.[slurm]'")
        missing = [command for command in ("sbatch", "srun", "sacct", "scancel") if shutil.which(command) is None]
        if self.cluster is Where.slurm and missing:
            raise ConfigError(
                f"launcher=slurm needs {missing[0]}, which is missing here: start it on a login node of the cluster, "
                "or try it with launcher.cluster=local."
            )

    def open(self, results_dir: Path) -> Pool:
        """Return the pool; nothing is started yet."""
        from decentral.scheduling.slurm_pool import SlurmPool, private_folder

        return SlurmPool(self, private_folder(at_home(results_dir).absolute() / "submitted"))
