"""Images per second of a training set-up, against those of a baseline in the same processes at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.config.identity import identity
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.jobs.computation import Computation
from decentral.network.settings import Carrier
from decentral.scheduling.job import Demand
from decentral.store import Status
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    import torch

    from decentral.network.world import World
    from decentral.training.assemble import Run


_FOLLOW_S = 2.0  # how often to look how far other processes are


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
    On GPUs cuDNN chooses its algorithms by their times; without `precision=`, all is computed in float32 (no TF32).
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
        assert self.baseline is not None
        carriers = [config.network.transport for config in (self.config, self.baseline)]
        transports = {} if set(carriers) == {Carrier.auto} else {"transports": [carrier.name for carrier in carriers]}
        return {
            "baseline": identity(self.baseline),
            "processes": self.processes,
            "device": self._device,
            "pace": self.pace._asdict(),
            **transports,
        }

    def provenance(self) -> dict[str, Any]:
        """With the devices of all processes, and how they compute."""
        from decentral.runtime.devices import device_kind
        from decentral.store.provenance import collect

        kind = device_kind(self.config)
        devices = [f"cuda:{number}" for number in range(self.processes)] if kind == "cuda" else ["cpu"]
        return collect(devices, self.processes) | _arithmetic(self.config, kind)

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """In this process, or in `processes` new ones."""
        from decentral.runtime.launch import in_processes

        assert self.baseline is not None
        settings: dict[str, Any] = {"baseline": self.baseline, "pace": self.pace, "name": self.lines}
        if self.processes == 1:
            part = partial(measure, **settings, stop=stop, show=show)
            return in_processes(self.config, self.directory, part) is Status.done
        with self._followed(show):
            return in_processes(self.config, self.directory, partial(measure_beside, **settings)) is Status.done

    @contextmanager
    def _followed(self, show: Callable[[float, str], None]) -> Iterator[None]:
        """Show what other processes have written, while this one waits for them."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(_FOLLOW_S):
                with suppress(OSError, ConfigError):  # it is news, no more
                    _show(show, len(self.found()), self.pace)

        thread = threading.Thread(target=follow, daemon=True, name="follow iterations")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def measure_beside(config: Config, world: World, directory: Path, **settings: Any) -> Status:
    """One process's part where there are several: SIGTERM stops all of them after an iteration."""
    from decentral.host.interrupt import Interrupt

    with Interrupt() as interrupt:
        return measure(config, world, directory, **settings, stop=lambda: interrupt.requested, show=lambda *_: None)


def measure(
    config: Config,
    world: World,
    directory: Path,
    *,
    baseline: Config,
    pace: Pace,
    name: str,
    stop: Callable[[], bool],
    show: Callable[[float, str], None],
) -> Status:
    """One process's part; the leader adds a line for each iteration to the file `name` in the directory.

    `stop` and `show` are those of `Computation.work`. Raises ConfigError if another device did some of the iterations.
    """
    import torch

    from decentral.training.assemble import assemble

    with (
        torch.no_grad(),
        cudnn_by_times(world.device),
        closing(LineFile(directory / name)) if world.leader else nullcontext() as lines,
    ):
        known = _known(lines, config, world) if lines is not None else 0
        baseline_run, own_run = assemble(baseline, world), assemble(config, world)
        for run in (baseline_run, own_run):
            timed(run, pace.warm_up)
        for number in range(world.agree(known), pace.iterations):
            if world.any(stop())[0]:
                return Status.interrupted
            if number % 2 == 0:
                other_s, own_s = timed(baseline_run, pace.steps), timed(own_run, pace.steps)
            else:
                own_s, other_s = timed(own_run, pace.steps), timed(baseline_run, pace.steps)
            if lines is not None:
                images = own_run.net.n * config.batch_size * pace.steps
                speeds = {"images_per_s": images / own_s, "baseline_images_per_s": images / other_s}
                lines.append({"iteration": number, **speeds, **_where(config, world)})
                _show(show, number + 1, pace)
        for run in (baseline_run, own_run):
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


def _show(show: Callable[[float, str], None], iterations: int, pace: Pace) -> None:
    show(iterations / pace.iterations, f"iteration {iterations} of {pace.iterations}")


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
    import platform

    import torch

    known = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine()
    return {"device": known, "processes": world.size, **_arithmetic(config, world.device.type)}
