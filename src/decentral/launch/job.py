"""What a scheduler carries out: a piece of work with a directory of its own."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from decentral.config import Config
from decentral.identity import run_directory, run_id
from decentral.store import RunStore, Status


class Demand(NamedTuple):
    """What a job occupies while it runs."""

    processes: int | None = 1
    """Processes with a core (or a GPU) each; None leaves the choice to the launcher."""

    device: str = "cpu"
    """'cpu', 'cuda', a certain GPU ('cuda:1'), or 'auto': a GPU where there are some."""

    alone: bool = False
    """Whether nothing else may run on the machine meanwhile: it takes times."""


class Job(ABC):
    """A dataclass that can be pickled. Whoever carries it out may be killed at any moment: the next one goes on."""

    command: str = ""
    """What a user types to carry out just this job, if there is such a thing."""

    @property
    @abstractmethod
    def id(self) -> str:
        """12 hexadecimal digits: what is computed, whatever the device and the paths."""

    @property
    @abstractmethod
    def directory(self) -> Path:
        """A run directory (see `decentral.store`): its status.json says how far the job is."""

    @property
    @abstractmethod
    def title(self) -> str:
        """A few words for a line of a table."""

    @property
    def demand(self) -> Demand:
        """What the job occupies."""
        return Demand()

    @property
    def modules(self) -> tuple[str, ...]:
        """What takes long to import: the process from which jobs are started has it in memory."""
        return ("decentral.launch.worker",)

    def placed(self, processes: int) -> Job:
        """The same job with the number of processes that the launcher has chosen for it, if `demand` left it open."""
        return self

    @abstractmethod
    def carry_out(self) -> Status:
        """Do the work, or what is left of it, in this process, and record it in the directory."""

    def finished(self) -> Status | None:
        """done or diverged, if that is how this very job has ended before. Reads a small file."""
        return RunStore.finished(self.directory, self.id)


def run_command(overrides: Sequence[str], config_dir: str | None = None) -> str:
    """What a user types to carry out just this run."""
    folder = ["--config-dir", config_dir] if config_dir else []
    return shlex.join(["decentral-run", *overrides, *folder])


@dataclass(frozen=True)
class TrainingRun(Job):
    """One run of `decentral-run`."""

    config: Config
    name: str = ""
    pictures: bool = False
    """Whether to draw the run's learning curves when it is done."""
    command: str = ""

    @cached_property
    def id(self) -> str:  # type: ignore[override]
        """The run's id."""
        return run_id(self.config)

    @cached_property
    def directory(self) -> Path:  # type: ignore[override]
        """The run's directory."""
        return run_directory(self.config)

    @property
    def title(self) -> str:
        """What makes the run different from the others beside it."""
        return self.name or self.id

    @property
    def demand(self) -> Demand:
        """The configured number of processes, on the configured device; one where steps are too short for more."""
        processes = None if self.config.processes == "auto" else int(self.config.processes)
        if processes is None and not self.config.task.worth_processes(self.config):
            processes = 1
        return Demand(processes, self.config.device)

    @property
    def modules(self) -> tuple[str, ...]:
        """PyTorch, and what draws."""
        drawing = ("matplotlib.backends.backend_agg", "matplotlib.figure")
        return (*super().modules, *(drawing if self.pictures else ()))

    def placed(self, processes: int) -> TrainingRun:
        """With so many processes, but no more than there are workers, on whichever GPUs are visible then."""
        config = self.config
        assert config.num_workers is not None
        processes = min(processes, config.num_workers)
        return replace(self, config=replace(config, processes=str(processes), device=config.device.partition(":")[0]))

    def carry_out(self) -> Status:
        """Launch it here."""
        from decentral.launch.launch import launch

        outcome = launch(self.config)
        if self.pictures and outcome.status is not Status.interrupted and not outcome.done_before:
            from decentral.report.pictures import draw

            draw(outcome.directory)
        return outcome.status
