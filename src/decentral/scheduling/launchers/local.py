"""This machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from decentral.errors import ConfigError
from decentral.host import machine
from decentral.scheduling.job import Pool
from decentral.scheduling.launchers.launcher import Launcher
from decentral.settings import setting


@dataclass
class Local(Launcher):
    """Parallel runs on the cores and GPUs of this machine.

    Each is its own process group, forked from a warm server with PyTorch loaded. A CPU run takes a slot per process;
    with processes=auto it gets one, or more if there are fewer runs than slots. A GPU run shares its GPU with others
    while there is memory; processes=2 takes two GPUs.

    slots              processes at the same time (auto: one per core)
    runs_per_gpu       runs that share a GPU (auto: as many as fit its memory, estimated from earlier runs)
    retries            maximum number of restarts of a run that was killed or lost a process
    """

    name: str = "local"
    slots: str = "auto"
    runs_per_gpu: str = "auto"
    retries: int = setting(2, at_least=0)

    def __post_init__(self) -> None:
        for key in ("slots", "runs_per_gpu"):
            value = getattr(self, key)
            if value != "auto" and not (value.isdigit() and int(value) >= 1):
                raise ConfigError(f"launcher.{key}={value} is not valid: use a whole number >= 1, or auto.")

    def open(self, results_dir: Path) -> Pool:
        """Return the pool; no process starts before the first job."""
        from decentral.scheduling.local_pool import LocalPool, Slots

        slots = machine.num_cores() if self.slots == "auto" else int(self.slots)
        per_gpu = None if self.runs_per_gpu == "auto" else int(self.runs_per_gpu)
        return LocalPool(Slots(slots, machine.visible_gpus(), per_gpu, machine.free_gpu_memory))
