"""Images per second of a training set-up, against those of a baseline in the same processes at the same time."""

from __future__ import annotations

import math
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from decentral.config.identity import identity
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.host.interrupt import Interrupt
from decentral.measurements.computation import Show, Stop
from decentral.measurements.measurement import Measurement
from decentral.measurements.values import Labels, Value
from decentral.network.settings import Carrier
from decentral.runtime.devices import device_kind
from decentral.runtime.launch import in_processes
from decentral.scheduling.job import Demand
from decentral.store import Status
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    import torch

    from decentral.network.world import World
    from decentral.training.assemble import Run

IMAGES, RATIO = "throughput (images/s)", "ratio to all-reduce"
_FOLLOW_S = 2.0  # how often to look how far other processes are


@dataclass
class Throughput(Measurement):
    """Times one configuration and a baseline in turn, iteration by iteration, so that a slow machine is slow for both.

    All processes begin an iteration together, and it ends when the last of them has finished on its device; the first
    process holds the clock. `config.processes` says how many there are; the launcher gives the job the machine.
    On GPUs cuDNN chooses its algorithms by their times; without `precision=`, all is computed in float32 (no TF32).

    baseline    overrides of what each is held against
    warm_up     steps before the clock starts
    iterations  how often the clock is read: each is a value of its own, with its number as `seed`
    steps       steps in an iteration
    compares    which of the two the published numbers are: speed, or ratio
    """

    name: str = "throughput"
    baseline: list[str] = field(default_factory=list)
    warm_up: int = 10
    iterations: int = 10
    steps: int = 10
    compares: Literal["speed", "ratio"] = "speed"
    held_against: Config | None = field(default=None, metadata={"inner": True})
    """The baseline."""

    folder: ClassVar[str] = "throughput"
    lines: ClassVar[str] = "iterations.jsonl"
    decides: ClassVar[frozenset[str]] = frozenset()
    timed: ClassVar[frozenset[str]] = frozenset({"device", "processes", "network.transport"})

    def __post_init__(self) -> None:
        if min(self.iterations, self.steps) < 1 or self.warm_up < 0:
            raise ConfigError(f"iterations={self.iterations} and steps={self.steps} have to be at least 1.")

    @classmethod
    def variants(cls, base: list[str], settings: dict[str, Any]) -> dict[str, list[str]]:
        """The baseline."""
        return {"held_against": settings["baseline"]}

    def check(self) -> None:
        """A number of processes."""
        assert self.held_against is not None
        if "auto" in (self.config.processes, self.held_against.processes):
            raise ConfigError("processes=auto cannot be used: how fast training is depends on it, give a number.")

    @property
    def processes(self) -> int:
        """How many share the workers."""
        return int(self.config.processes)

    @property
    def demand(self) -> Demand:
        """All of the machine."""
        return Demand(self.processes, self.config.device, alone=True)

    def placed(self, processes: int) -> Throughput:
        """On whichever GPUs are visible then."""
        return replace(self, config=replace(self.config, device=self._device))

    @property
    def _device(self) -> str:
        """'cpu', 'cuda' or 'auto'."""
        return self.config.device.partition(":")[0]

    def parameters(self) -> dict[str, Any]:
        """What the times depend on, less the machine. The lines say on which device an `auto` was measured."""
        assert self.held_against is not None
        carriers = [config.network.transport for config in (self.config, self.held_against)]
        transports = {} if set(carriers) == {Carrier.auto} else {"transports": [carrier.name for carrier in carriers]}
        return {
            "baseline": identity(self.held_against),
            "processes": self.processes,
            "device": self._device,
            "pace": {"warm_up": self.warm_up, "iterations": self.iterations, "steps": self.steps},
            **transports,
        }

    def provenance(self) -> dict[str, Any]:
        """With the devices of all processes, and how they compute."""
        from decentral.store.provenance import collect

        kind = device_kind(self.config)
        devices = [f"cuda:{number}" for number in range(self.processes)] if kind == "cuda" else ["cpu"]
        return collect(devices, self.processes) | _arithmetic(self.config, kind)

    def work(self, lines: LineFile, stop: Stop, show: Show) -> bool:
        """In this process, or in `processes` new ones."""
        if self.processes == 1:
            part = partial(_measure, job=self, stop=stop, show=self._shown(show))
            return in_processes(self.config, self.directory, part) is Status.done
        with self._followed(show):
            return in_processes(self.config, self.directory, partial(_measure_beside, job=self)) is Status.done

    def _shown(self, show: Show) -> Callable[[int], None]:
        return lambda done: show(done / self.iterations, f"iteration {done} of {self.iterations}")

    @contextmanager
    def _followed(self, show: Show) -> Iterator[None]:
        """Show what other processes have written, while this one waits for them."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(_FOLLOW_S):
                with suppress(OSError, ConfigError):  # it is news, no more
                    self._shown(show)(len(self.found()))

        thread = threading.Thread(target=follow, daemon=True, name="follow iterations")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def compared(self) -> str:
        """Of the two."""
        return IMAGES if self.compares == "speed" else RATIO

    def values(self, labels: Labels) -> Iterator[Value]:
        """Images per second in total, and the ratio to the baseline's in the same iteration; first what is compared."""
        for metric in sorted((IMAGES, RATIO), key=lambda metric: metric != self.compared):
            for line in self.found():
                speed, baseline = float(line["images_per_s"]), float(line["baseline_images_per_s"])
                ratio = speed / baseline if baseline > 0 else math.nan
                value = speed if metric == IMAGES else ratio
                yield Value(labels, value, metric, int(line["iteration"]), lr=self.config.lr)


def _measure_beside(config: Config, world: World, directory: Path, *, job: Throughput) -> Status:
    """One process's part where there are several: SIGTERM stops all of them after an iteration."""
    with Interrupt() as interrupt:
        return _measure(config, world, directory, job=job, stop=lambda: interrupt.requested, show=lambda _: None)


def _measure(
    config: Config, world: World, directory: Path, *, job: Throughput, stop: Stop, show: Callable[[int], None]
) -> Status:
    """One process's part; the leader adds a line for each iteration. Raises ConfigError if another device did some of
    the iterations."""
    import torch

    from decentral.training.assemble import assemble

    assert job.held_against is not None
    with (
        torch.no_grad(),
        cudnn_by_times(world.device),
        closing(LineFile(directory / job.lines)) if world.leader else nullcontext() as lines,
    ):
        known = _known(lines, config, world) if lines is not None else 0
        runs = [assemble(job.held_against, world), assemble(config, world)]
        for run in runs:
            timed(run, job.warm_up)
        for number in range(world.agree(known), job.iterations):
            if world.any(stop())[0]:
                return Status.interrupted
            order = (0, 1) if number % 2 == 0 else (1, 0)
            seconds = {place: timed(runs[place], job.steps) for place in order}
            if lines is not None:
                images = runs[1].net.n * config.batch_size * job.steps
                speeds = {"images_per_s": images / seconds[1], "baseline_images_per_s": images / seconds[0]}
                lines.append({"iteration": number, **speeds, **_where(config, world)})
                show(number + 1)
        for run in runs:
            run.close()
    return Status.done


@contextmanager
def cudnn_by_times(device: torch.device) -> Iterator[None]:
    """On a GPU, let cuDNN choose its algorithms by their times, as the thesis did. Puts back what was before."""
    import torch

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _arithmetic(config: Config, kind: str) -> dict[str, Any]:
    """How it is computed on a GPU, for the records."""
    return {"tf32": config.precision is Precision.tf32, "cudnn_benchmark": True} if kind == "cuda" else {}


def _known(lines: LineFile, config: Config, world: World) -> int:
    """How many iterations there are already. Raises ConfigError if another device did them: times do not mix."""
    here, known = _where(config, world)["device"], lines.known
    other = {line.get("device", here) for line in known} - {here}
    if other:
        raise ConfigError(
            f"{lines.path} has times of {' and '.join(sorted(other))}, this is {here}: go on there, or delete "
            f"{lines.path.parent} to measure all of them here."
        )
    return len(known)


def timed(run: Run, steps: int) -> float:
    """Take so many steps; seconds until all processes have finished them."""
    from decentral.training.run import synchronize

    synchronize(run.world)
    run.world.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        run.stepper.step()
    synchronize(run.world)
    run.world.barrier()
    return time.perf_counter() - began


def _where(config: Config, world: World) -> dict[str, Any]:
    """What it was measured on."""
    import torch

    known = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine()
    return {"device": known, "processes": world.size, **_arithmetic(config, world.device.type)}
