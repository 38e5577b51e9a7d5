"""Jobs for tests of launchers: tiny, without torch, and they do what they are told. Other processes import this."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from decentral.errors import ConfigError
from decentral.host.interrupt import Interrupt
from decentral.host.machine import num_cores
from decentral.scheduling.job import Demand, Job
from decentral.store import RunStore, Status
from decentral.terminal.progress import progress
from waiting import until


@dataclass(frozen=True)
class Toy(Job):
    """Carries out `does`, a word for each attempt; the last one counts for all further attempts."""

    folder: Path
    name: str
    does: tuple[str, ...] = ("done",)
    needs: Demand = field(default_factory=Demand)
    processes: int | None = None

    @property
    def id(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]

    @property
    def directory(self) -> Path:
        return self.folder / self.name

    @property
    def title(self) -> str:
        return self.name

    @property
    def demand(self) -> Demand:
        return self.needs if self.processes is None else self.needs._replace(processes=self.processes)

    @property
    def attempts(self) -> list[str]:
        """What was done so far: the process and the word."""
        file = self.folder / f"{self.name}.attempts"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def pid(self) -> int:
        """The process of the last attempt; waits for it."""
        until(lambda: self.attempts)
        return int(self.attempts[-1].split()[0])

    def placed(self, processes: int) -> Toy:
        return Toy(self.folder, self.name, self.does, self.needs, processes)

    def carry_out(self) -> Status:
        word = self.does[min(len(self.attempts), len(self.does) - 1)]
        with RunStore.open(self.directory, self.id, "") as store:
            with open(self.folder / f"{self.name}.attempts", "a") as file:
                file.write(f"{os.getpid()} {word}\n")
            try:
                status = self._act(word)
            except KeyboardInterrupt:
                store.set_status(Status.interrupted)
                raise
            store.set_status(status)
        return status

    def _act(self, word: str) -> Status:
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "raise":
            print("it prints", flush=True)
            raise RuntimeError("a bug")
        if word == "refuse":
            raise ConfigError("data are missing.")
        if word == "full":
            raise OSError(28, "No space left on device")
        if word == "exit":
            sys.exit(3)
        if word == "environment":
            print(*(f"{key}={os.environ.get(key)}" for key in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")), flush=True)
            print(f"cores={num_cores()}", flush=True)
            print(f"processes={self.processes} leader={os.getpgid(0) == os.getpid()}", flush=True)
        if word == "child":
            child = subprocess.Popen(["sleep", "600"])
            print(child.pid, flush=True)
            time.sleep(600)
        if word == "half":
            with progress(10, self.name) as shown:
                shown.update(5, 2.5, worst="12 %")
                time.sleep(0.6)
                shown.update(5)
                time.sleep(600)
        if word.startswith("sleep"):
            time.sleep(float(word.removeprefix("sleep")))
        return Status.diverged if word == "diverged" else Status.done


# -- Jobs without torch that count, and wait to be disturbed. Other processes import this module -----------------------


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
