"""Images per second of a training setup, relative to a baseline in the same processes at the same time."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from decentral.config.identity import identity
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.measurements.measurement import InProcesses, Measurement
from decentral.measurements.values import Labels, Value
from decentral.network.settings import Carrier
from decentral.runtime.devices import device_kind
from decentral.scheduling.job import Demand
from decentral.settings import setting

if TYPE_CHECKING:
    from decentral.network.world import World
    from decentral.training.assemble import Run

IMAGES, RATIO = "throughput (images/s)", "ratio to all-reduce"


@dataclass
class Throughput(Measurement, InProcesses):
    """Throughput of one configuration and a baseline, timed in turn, iteration by iteration, so that a slow moment of
    the machine affects both alike.

    All processes begin an iteration together, and it ends when the last process has finished on its device; the first
    process measures the time. `config.processes` sets their number; the launcher reserves the machine for the job. On
    GPUs cuDNN chooses its algorithms by their times; without `precision=`, everything is computed in float32 (no TF32).

    baseline    overrides of the baseline
    warm_up     steps before the timing
    iterations  number of timings: each is a separate value, with its number as `seed`
    steps       steps per iteration
    compares    kind of the published numbers: speed, or ratio
    """

    name: str = "throughput"
    baseline: list[str] = field(default_factory=list)
    warm_up: int = setting(10, at_least=0)
    iterations: int = setting(10, at_least=1)
    steps: int = setting(10, at_least=1)
    compares: Literal["speed", "ratio"] = "speed"
    held_against: Config | None = field(default=None, metadata={"inner": True})
    """Configuration of the baseline."""

    folder: ClassVar[str] = "throughput"
    one_per_worker: ClassVar[bool] = False
    decides: ClassVar[frozenset[str]] = frozenset()
    timed: ClassVar[frozenset[str]] = frozenset({"device", "processes", "network.transport"})

    @classmethod
    def variants(cls, base: list[str], settings: dict[str, Any]) -> dict[str, list[str]]:
        """Return the overrides of the baseline."""
        return {"held_against": settings["baseline"]}

    def check(self) -> None:
        """Check that the number of processes is given."""
        assert self.held_against is not None
        if "auto" in (self.config.processes, self.held_against.processes):
            raise ConfigError("processes=auto cannot be used, because throughput depends on it: give a number.")

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return int(self.config.processes)

    @property
    def demand(self) -> Demand:
        """Return the demand: the whole machine."""
        return Demand(self.processes, self.config.device, alone=True)

    def placed(self, processes: int) -> Throughput:
        """Return the measurement for the GPUs that are visible then."""
        return replace(self, config=replace(self.config, device=self._device))

    @property
    def _device(self) -> str:
        """Return 'cpu', 'cuda' or 'auto'."""
        return self.config.device.partition(":")[0]

    def parameters(self) -> dict[str, Any]:
        """Return what the times depend on, except the machine. The lines record the device that `auto` selected."""
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
        """Return the provenance with the devices of all processes, and their arithmetic."""
        from decentral.store.provenance import collect

        kind = device_kind(self.config)
        devices = [f"cuda:{number}" for number in range(self.processes)] if kind == "cuda" else ["cpu"]
        return collect(devices, self.processes) | _arithmetic(self.config, kind)

    def parts(self) -> list[dict[str, Any]]:
        """Return the parts, iteration by iteration."""
        return [{"iteration": number} for number in range(self.iterations)]

    @contextmanager
    def opened(self, config: Config, world: World, known: list[dict[str, Any]]) -> Iterator[tuple[Run, Run]]:
        """Yield the baseline and the run, warmed up. On a GPU, cuDNN chooses its algorithms by their times, as in the
        thesis. Raises ConfigError if another device computed some of the iterations."""
        import torch

        from decentral.training.assemble import assemble

        here = _where(config, world)["device"]
        other = {line.get("device", here) for line in known} - {here}
        if other:
            raise ConfigError(
                f"{self.directory / self.lines} has times of {' and '.join(sorted(other))}, this is {here}: continue "
                f"there, or delete {self.directory} to measure all of them here."
            )
        assert self.held_against is not None
        cudnn = torch.backends.cudnn
        before, cudnn.benchmark = cudnn.benchmark, cudnn.benchmark or world.device.type == "cuda"
        try:
            runs = assemble(prepare(self.held_against), world), assemble(prepare(config), world)
            for run in runs:
                timed(run, self.warm_up)
            yield runs
            for run in runs:
                run.close()
        finally:
            cudnn.benchmark = before

    def part(self, world: World, opened: tuple[Run, Run], iteration: int) -> dict[str, Any]:
        """Time one run, then the other; the next iteration reverses the order."""
        seconds = {place: timed(opened[place], self.steps) for place in ((0, 1) if iteration % 2 == 0 else (1, 0))}
        config = opened[1].config
        images = int(config.batch_sizes().sum()) * self.steps
        speeds = {"images_per_s": images / seconds[1], "baseline_images_per_s": images / seconds[0]}
        return {**speeds, **_where(config, world)}

    @property
    def compared(self) -> str:
        """Return the metric, speed or ratio."""
        return IMAGES if self.compares == "speed" else RATIO

    def values(self, labels: Labels) -> Iterator[Value]:
        """Yield images per second in total, and the ratio to the baseline's in the same iteration; the compared metric
        comes first."""
        for metric in sorted((IMAGES, RATIO), key=lambda metric: metric != self.compared):
            for line in self.found():
                speed, baseline = float(line["images_per_s"]), float(line["baseline_images_per_s"])
                ratio = speed / baseline if baseline > 0 else math.nan
                value = speed if metric == IMAGES else ratio
                yield Value(labels, value, metric, int(line["iteration"]), lr=self.config.lr)


def _arithmetic(config: Config, kind: str) -> dict[str, Any]:
    """Return the arithmetic on a GPU, for the records."""
    return {"tf32": config.precision is Precision.tf32, "cudnn_benchmark": True} if kind == "cuda" else {}


def timed(run: Run, steps: int) -> float:
    """Take `steps` steps; return the seconds until all processes have finished them."""
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
    """Return the hardware of the measurement."""
    import torch

    known = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine()
    return {"device": known, "processes": world.size, **_arithmetic(config, world.device.type)}
