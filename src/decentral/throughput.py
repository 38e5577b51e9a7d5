"""Pictures per second of a training set-up, against those of a baseline in the same processes at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.config import Config, identity
from decentral.ensembles.job import Computation, Lines
from decentral.launch.job import Demand
from decentral.store import Status

if TYPE_CHECKING:
    from decentral.run import Run
    from decentral.world import World


class Pace(NamedTuple):
    """What is timed: `iterations` times `steps` steps, after `warm_up` steps that are not."""

    warm_up: int = 10
    iterations: int = 10
    steps: int = 10


@dataclass(frozen=True)
class Throughput(Computation):
    """Times one configuration and a baseline in turn, iteration by iteration, so that a slow machine is slow for both.

    All processes begin an iteration together, and it ends when the last of them has finished on its device; the first
    process holds the clock. `config.processes` says how many there are; the launcher gives the job the machine.
    """

    baseline: Config | None = None
    pace: Pace = field(default_factory=Pace)

    folder: ClassVar[str] = "throughput"
    lines: ClassVar[str] = "iterations.jsonl"

    @property
    def processes(self) -> int:
        """How many share the workers."""
        return int(self.config.processes)

    @property
    def demand(self) -> Demand:
        """All of the machine."""
        from decentral.launch.devices import device_kind

        return Demand(self.processes, device_kind(self.config), alone=True)

    def asked(self) -> dict[str, Any]:
        """What the times depend on, less the machine."""
        from decentral.launch.devices import device_kind

        assert self.baseline is not None
        return {
            "baseline": identity(self.baseline),
            "processes": self.processes,
            "device": device_kind(self.config),
            "pace": self.pace._asdict(),
        }

    def work(self, lines: Lines, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """In this process, or in `processes` new ones."""
        from decentral.launch.launch import in_processes

        assert self.baseline is not None
        part = partial(measure, baseline=self.baseline, pace=self.pace, name=self.lines)
        return in_processes(self.config, self.directory, part) is Status.done


def measure(config: Config, world: World, directory: Path, *, baseline: Config, pace: Pace, name: str) -> Status:
    """One process's part; the leader adds a line for each iteration to the file `name` in the directory."""
    import torch

    from decentral.run import assemble

    lines = Lines(directory / name) if world.leader else None
    with torch.no_grad():
        baseline_run, own_run = _Stepper(assemble(baseline, world)), _Stepper(assemble(config, world))
        baseline_run.time(pace.warm_up)
        own_run.time(pace.warm_up)
        for number in range(world.agree(len(lines.known) if lines else 0), pace.iterations):
            times = {}
            for run in (baseline_run, own_run) if number % 2 == 0 else (own_run, baseline_run):
                times[run] = run.time(pace.steps)
            if lines is not None:
                pictures = own_run.pictures_per_step * pace.steps
                own, other = pictures / times[own_run], pictures / times[baseline_run]
                lines.append(
                    {"iteration": number, "images_per_s": own, "baseline_images_per_s": other, **_where(world)}
                )
        for run in (baseline_run, own_run):
            run.run.problem.close()
    return Status.done


class _Stepper:
    """A run that takes steps when it is asked to."""

    def __init__(self, run: Run) -> None:
        assert run.config.num_workers is not None
        self.run, self.state, self.t = run, run.state, 0
        self.pictures_per_step = run.config.num_workers * run.config.batch_size

    def time(self, steps: int) -> float:
        """Take so many; seconds until all processes have finished them."""
        from decentral.run import synchronize

        run = self.run
        synchronize(run.world)
        run.world.barrier()
        began = time.perf_counter()
        for t in range(self.t, self.t + steps):
            self.state = run.algorithm.step(self.state, run.oracle.at(t), run.net, t)
        self.t += steps
        synchronize(run.world)
        run.world.barrier()
        return time.perf_counter() - began


def _where(world: World) -> dict[str, Any]:
    """What it was measured on."""
    import platform

    import torch

    known = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine()
    return {"device": known, "processes": world.size}
