"""A run of `decentral-run` as a job of a sweep or a study."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from decentral.algorithms.features import Feature
from decentral.config.prepared import Prepared, prepare
from decentral.config.schema import Config
from decentral.scheduling.job import Demand, Job
from decentral.store import Status


def run_command(overrides: Sequence[str], config_dir: str | None = None) -> str:
    """Return the user's command for just this run."""
    folder = ["--config-dir", config_dir] if config_dir else []
    return shlex.join(["decentral-run", *overrides, *folder])


def written(directory: Path) -> int | None:
    """Return the version of the status in a run's directory; None if there is none."""
    with suppress(OSError):
        return (directory / "status.json").stat().st_mtime_ns
    return None


@dataclass(frozen=True)
class TrainingRun(Job):
    """One run of `decentral-run`."""

    config: Config
    name: str = ""
    afterwards: Callable[[Path], object] | None = None
    """Function that is called with the directory when the run is over, in the process that carried it out; it can be
    pickled."""
    command: str = ""
    stale: int | None = None
    """With `rerun=true`, the result of `written` for the directory at the start of the sweep. A run with a newer status
    is finished."""

    @cached_property
    def prepared(self) -> Prepared:
        """The run with its ID, directory and kind."""
        return prepare(self.config)

    @property
    def id(self) -> str:  # type: ignore[override]
        """The run's id."""
        return self.prepared.id

    @property
    def directory(self) -> Path:  # type: ignore[override]
        """The run's directory."""
        return self.prepared.directory

    @property
    def title(self) -> str:
        """Return the settings that distinguish the run from the others."""
        return self.name or self.id

    @cached_property
    def demand(self) -> Demand:  # type: ignore[override]
        """Return the configured number of processes, on the configured device; one if time is simulated, or steps are
        too short for more."""
        config = self.config
        processes = None if config.processes == "auto" else int(config.processes)
        if processes is None and (self.prepared.kind.in_one_process or self.prepared.useful_processes <= 1):
            processes = 1
        return Demand(processes, config.device)

    @property
    def modules(self) -> tuple[str, ...]:
        """Return PyTorch, and the modules of `afterwards`, which draws figures."""
        if self.afterwards is None:
            return super().modules
        return (*super().modules, self.afterwards.__module__, "matplotlib.backends.backend_agg", "matplotlib.figure")

    def placed(self, processes: int) -> TrainingRun:
        """Return the job with this number of processes, but no more than there are workers, on the GPUs that are
        visible then.

        If the number is part of the ID, it remains as configured: `auto` then uses the available cores or GPUs.
        """
        config = replace(self.config, device=self.config.device.partition(":")[0])
        assert config.num_workers is not None
        if Feature.synchrony in config.algo.supports:
            config = replace(config, processes=str(min(processes, config.num_workers)))
        return replace(self, config=config)

    def finished(self) -> Status | None:
        """Return done or diverged if the run has ended so; with `rerun=true`, only since the sweep began."""
        ended = super().finished()
        return None if ended is not None and self.config.rerun and written(self.directory) == self.stale else ended

    def carry_out(self) -> Status:
        """Launch the run here."""
        from decentral.runtime.launch import launch

        outcome = launch(self.prepared)
        if self.afterwards is not None and outcome.status is not Status.interrupted and not outcome.done_before:
            self.afterwards(outcome.directory)
        return outcome.status
