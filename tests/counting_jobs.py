"""Jobs without torch that count, and wait to be disturbed. Other processes import this module."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from decentral.errors import ConfigError
from decentral.host.interrupt import Interrupt
from decentral.scheduling import slurm_clusters
from decentral.scheduling.job import Demand, Job
from decentral.store import RunStore, Status
from waiting import PATIENCE_S, until


@dataclass(frozen=True)
class Counting(Job):
    """Writes the numbers up to `steps` to a file, one in 0.02 s, and goes on where it was stopped.

    What becomes of it, `fate`:

    done, refused, error, killed     at its end
    held                             half-way it waits until it may go on (`let_go`)
    preempted, slow to stop          half-way it waits for a signal; then it lingers until there was another one, or
                                     does not stop before it may go on
    """

    folder: str
    steps: int = 10
    fate: str = "done"
    alone: bool = False

    @property
    def demand(self) -> Demand:
        return Demand(alone=self.alone)

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.steps} {self.fate}".encode()).hexdigest()[:12]

    @property
    def directory(self) -> Path:
        return Path(self.folder) / self.id

    @property
    def title(self) -> str:
        return f"{self.fate} at {self.steps}"

    @property
    def written(self) -> list[int]:
        return [int(line) for line in (self.directory / "numbers").read_text().split()]

    def let_go(self) -> None:
        """It may go on, now and whenever it is carried out again."""
        (self.directory / "go").touch()

    def _may_go(self) -> bool:
        return (self.directory / "go").exists()

    def carry_out(self) -> Status:
        with RunStore.open(self.directory, self.id, "") as store, Interrupt() as interrupt:
            first = int((RunStore.peek(self.directory) or {})["step"])
            store.set_status(Status.running, step=first)
            if self.fate == "preempted":
                slurm_clusters._LINGER_S = PATIENCE_S  # in this process
            for step in range(first, self.steps):
                time.sleep(0.02)
                with open(self.directory / "numbers", "a") as file:
                    print(step, file=file)
                if step == self.steps // 2 and self.fate == "held":
                    until(lambda: self._may_go() or interrupt.requested)
                if step == self.steps // 2 and first == 0 and self.fate in ("preempted", "slow to stop"):
                    until(lambda: interrupt.requested)
                if interrupt.requested:
                    if self.fate == "slow to stop":
                        until(self._may_go)
                    store.set_status(Status.interrupted, step=step + 1)
                    return Status.interrupted
            if self.fate == "refused":
                raise ConfigError("steps=10 is refused.")
            if self.fate == "error":
                raise ArithmeticError("1 is not 2")
            if self.fate == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            store.set_status(Status.done, step=self.steps)
            return Status.done
