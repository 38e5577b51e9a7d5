"""The stochastic gradient oracle of algorithms, with gradient accumulation (`accumulate=`), sleeping stragglers, and
gradient times on this machine."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.cluster.compute import MEASURED, GradientTimes
from decentral.config.identity import run_directory
from decentral.errors import ConfigError
from decentral.store.files import csv_text, write_text
from decentral.tasks.task import Problem

if TYPE_CHECKING:
    from decentral.cluster.clock import Clock
    from decentral.config.schema import Config
    from decentral.topology.communication import LocalSteps
    from decentral.training.operations import Operations

_MEASURED = "gradient_times.csv"
_WARM_UP = 3
"""Number of initial passes not counted."""

_ONE = np.int64(1)  # numpy adds it twice as fast as a Python 1


class TrainLosses(NamedTuple):
    """The losses of some workers' recent draws."""

    mean: Tensor
    """[k], float64 on the CPU: the loss per draw; nan without draws."""
    drawn: Tensor
    """[k], bool: whether there were draws."""


class Sleep(NamedTuple):
    """The time a worker sleeps before its gradients, in seconds: a straggler's `delays`, or a whole simulated time."""

    times: GradientTimes
    all: bool = False

    def seconds(self, workers: Sequence[int], t: int) -> float:
        """Return the sleep before gradient t of these workers, which sleep simultaneously."""
        found = self.times.seconds(t, t + 1) if self.all else self.times.delays(t, t + 1)
        return float(found[0, list(workers)].max(initial=0.0))


class GradientOracle:
    """`oracle(x)`: a stochastic gradient of each local worker at its row of x, and the losses for the record.

    Each call draws the *next* sample of every worker concerned. Draws are counted per worker, so two gradients in a
    step use two batches, and workers may progress at different rates.
    """

    def __init__(
        self, problem: Problem, workers: range, device: torch.device, local_steps: LocalSteps | None = None
    ) -> None:
        """Create the oracle of the k local workers of `problem`; losses accumulate on `device`.

        local_steps   of all n workers: idle ones have the gradient 0; None: no worker idles
        """
        self.local_steps = None if local_steps is None else local_steps.of(workers)
        self.steps = np.zeros(len(workers), dtype=np.int64)
        """[k]: the common number of steps, if some workers idle or are absent."""
        self.present: np.ndarray | None = None
        """[k], bool: the present workers; None: all, always."""
        self.problem, self.workers = problem, workers
        self.draws = np.zeros(len(workers), dtype=np.int64)
        """[k]: number of samples drawn by each local worker."""
        self.draws_before = np.zeros_like(self.draws)
        """[k]: the same at the last evaluation."""
        self.losses = torch.zeros(len(workers), dtype=torch.float64, device=device)
        """[k]: the sum of losses since the last evaluation."""
        self.early = torch.zeros_like(self.losses)
        """[k]: the losses of gradients computed ahead of simulated time: see `over`."""
        self.is_early = np.zeros(len(workers), dtype=bool)
        """[k]: whether a worker's last gradient was computed ahead."""
        self._all = list(range(len(workers)))
        self._over: list[int] = []
        """Workers whose gradient was computed ahead and is complete, but not yet counted in `losses`."""
        self.clock: Clock | None = None
        """Simulated time, advanced by a gradient of all workers; None: not simulated."""
        self.sleep: Sleep | None = None
        """The sleep of this process's workers before their next common gradient."""
        self.seconds = 0.0
        """Total time of all calls, including drawing batches."""
        self.calls = 0
        """Number of calls."""
        self.recorded: Operations | None = None
        """The record of gradients, of this process's workers together or of each: see `record`."""
        self._each: list[float] | None = None
        self._memory: Tensor | None = None  # of gradients, and of the models that have one: where not all do
        self.slept_s = 0.0
        """Total time asleep."""

    def record(self, recorded: Operations, *, each: bool) -> None:
        """Record the time of gradients from now on.

        each: of every worker separately; else of all together, under the first. Raises ConfigError if workers compute
        gradients together, or the task cannot measure them.
        """
        self.recorded = recorded
        if each:
            self._each = self.problem.keep_seconds()
            if self._each is None:
                raise ConfigError(
                    "record_operations=true with several workers in a process needs gradients computed one worker at "
                    f"a time: add execution=loop, or processes={len(self.workers)}."
                )

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """Return grad F_i(x_i; xi_i) with the next sample xi_i of each worker: [r, P] -> [r, P].

        The rows belong to all local workers, or to `workers`: distinct local indices. The caller may overwrite the
        result, which is valid until the next call.
        """
        if workers is None and self.recorded is not None and self._each is None:
            number, began_ns = int(self.draws[0]), time.monotonic_ns()
            g = self._of_all(x)
            self.recorded.note(self.workers.start, "gradient", number, began_ns)
            return g
        if workers is None:
            return self._of_all(x)
        places = list(workers)
        if self.sleep is not None:
            draws = ((self.workers[place], int(self.draws[place])) for place in places)
            self._sleep(max((self.sleep.seconds(range(i, i + 1), t) for i, t in draws), default=0.0))
        loss, g = self._computed(x, places)
        self.losses[places] += loss
        return g

    def prefetch(self, x: Tensor, places: list[int]) -> Tensor:
        """Compute some workers' gradients ahead; their losses count once these are `over`: [r, P] -> [r, P]."""
        self._count()
        loss, g = self._computed(x, places)
        if places == self._all:
            self.early[:] = loss
        else:
            self.early[places] = loss.to(self.early)
        self.is_early[places] = True
        return g

    def complete(self, place: int) -> None:
        """Mark this worker's gradient, if it was computed ahead, as complete: its loss counts from now on."""
        if self.is_early[place]:
            self._over.append(place)
            self.is_early[place] = False

    def _count(self) -> None:
        """Count the losses of completed gradients; a worker has at most one of them."""
        if len(self._over) == len(self.workers):
            self.losses += self.early
        elif self._over:
            self.losses[self._over] += self.early[self._over]
        self._over.clear()

    def _of_all(self, x: Tensor) -> Tensor:
        if self.local_steps is not None or self.present is not None:
            return self._of_active(x)
        if self.sleep is not None:
            self._sleep(self.sleep.seconds(self.workers, int(self.draws[0])))
        began = time.perf_counter()
        if self.clock is not None:
            self.clock.gradient()
        loss, g = self.problem.gradient(x, self.draws)
        self.losses.add_(loss)
        self._record(self._all)
        self.draws += _ONE
        self.seconds += time.perf_counter() - began
        self.calls += 1
        return g

    def _of_active(self, x: Tensor) -> Tensor:
        """Return gradients [k, P] of the stepping workers, zeros for idle or absent ones."""
        t = int(self.steps[0])
        self.steps += _ONE
        active = np.ones(len(x), dtype=bool) if self.present is None else self.present
        if self.sleep is not None:
            self._sleep(self.sleep.seconds([self.workers[i] for i in np.flatnonzero(active)], t))
        if self.clock is not None:
            self.clock.gradient()
        places = np.flatnonzero(active if self.local_steps is None else active & self.local_steps.active(t)).tolist()
        if len(places) == len(x):
            losses, g = self._computed(x, places)
            self.losses += losses
            return g
        if self._memory is None or self._memory.shape != (2, *x.shape) or self._memory.dtype != x.dtype:
            self._memory = x.new_empty(2, *x.shape)
        found, chosen = self._memory
        if places:
            index = torch.tensor(places, device=x.device)
            losses, g = self._computed(torch.index_select(x, 0, index, out=chosen[: len(places)]), places)
            found.index_copy_(0, index, g)
            self.losses[places] += losses
            if self.problem.writes:
                x.index_copy_(0, index, chosen[: len(places)])
        idle = torch.tensor(sorted({*range(len(x))}.difference(places)), device=x.device)
        return found.index_fill_(0, idle, 0)

    def _computed(self, x: Tensor, places: list[int]) -> tuple[Tensor, Tensor]:
        """Return losses [r] and gradients [r, P]."""
        began = time.perf_counter()
        loss, g = self.problem.gradient(x, self.draws[places], places)
        self._record(places)
        self.draws[places] += _ONE
        self.seconds += time.perf_counter() - began
        self.calls += 1
        return loss, g

    def _record(self, places: list[int]) -> None:
        """Record the latest gradients of these workers, computed in sequence, if each is recorded."""
        if self.recorded is not None and self._each is not None:
            numbers = zip((self.workers[i] for i in places), self.draws[places].tolist(), strict=True)
            self.recorded.gradients(list(numbers), self._each)

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            began = time.perf_counter()
            time.sleep(seconds)
            self.slept_s += time.perf_counter() - began

    def rows(self) -> dict[str, Tensor]:
        """Return the checkpoint content per local worker, [k] each, as tensors that alias it."""
        self._count()
        counts = {"draws": self.draws, "draws at the last evaluation": self.draws_before}
        if self.local_steps is not None or self.present is not None:
            counts["steps"] = self.steps
        return {"losses": self.losses, **{name: torch.from_numpy(count) for name, count in counts.items()}}

    def recent_loss(self) -> float:
        """Return the loss per draw since the last evaluation, averaged over local workers. Waits for the device."""
        self._count()
        drawn = np.maximum(self.draws - self.is_early - self.draws_before, 1)
        return float((self.losses.cpu().numpy() / drawn).mean())

    def take_losses(self) -> TrainLosses:
        """Return the losses of the local workers since the last call."""
        self._count()
        counted = self.draws - self.is_early
        drawn = torch.from_numpy(counted - self.draws_before)
        mean = (self.losses / drawn.to(self.losses)).cpu()
        self.losses.zero_()
        self.draws_before[:] = counted
        return TrainLosses(mean, drawn > 0)


class Accumulated:
    """Gradient accumulation (`accumulate=`): draw d is the mean of the draws d m, ..., d m + m - 1 of another problem.

    For batches of equal size this is the gradient of a batch m times as large in the memory of one; for running text
    the m batches have equal weights regardless of their tokens. An epoch has 1 / m as many steps. Everything else is
    delegated to the other problem.
    """

    def __init__(self, problem: Problem, number: int) -> None:
        self.problem, self.number = problem, number
        self.steps_per_epoch = problem.steps_per_epoch / number
        self._sum = torch.empty(0)
        self._each: list[float] | None = None
        self._seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def prove(self, x: Tensor, draws: np.ndarray) -> None:
        """See `Problem`."""
        self.problem.prove(x, draws * self.number)

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return mean losses [r] and mean gradients [r, P] over m draws of each worker."""
        if self._sum.shape != x.shape:
            self._sum = torch.empty_like(x)
        first = draws * self.number
        losses, g = self.problem.gradient(x, first, workers)
        losses, total = losses.clone(), self._sum.copy_(g)
        self._seconds[:] = self._each or []
        for more in range(1, self.number):
            loss, g = self.problem.gradient(x, first + more, workers)
            losses += loss
            total += g
            self._seconds[:] = map(sum, zip(self._seconds, self._each or [], strict=True))
        return losses.div_(self.number), total.div_(self.number)

    def examples(self, draws: np.ndarray) -> list[int]:
        """Return the examples of m times as many draws."""
        return self.problem.examples(draws * self.number)

    def keep_seconds(self) -> list[float] | None:
        """Return the seconds of all m draws together."""
        self._each = self.problem.keep_seconds()
        return None if self._each is None else self._seconds


def with_measured(times: GradientTimes, config: Config, problem: Problem, x: Tensor) -> GradientTimes:
    """Return the times after any measurement they need; x [n, P] are the initial models.

    Measurements are stored in the run's directory, if there is one, so that a resumed run has the same times.
    """
    times = kept(times, config)
    if not times.passes:
        return times
    seconds = measure(problem, x, times.passes)
    directory = run_directory(config)
    if directory.is_dir():
        write_text(directory / _MEASURED, csv_text(["seconds"], [[repr(value)] for value in seconds.tolist()]))
    return times.measured(seconds)


def kept(times: GradientTimes, config: Config) -> GradientTimes:
    """Return the times with the run's stored measurements, if any."""
    path = run_directory(config) / _MEASURED if times.passes else None
    return times if path is None or not path.is_file() else times.measured(np.loadtxt(path, skiprows=1, ndmin=1))


class UnevenTimes(GradientTimes):
    """The gradient times of workers with different batch sizes, accumulated gradients and idle steps, in seconds by the
    step of the run.

    The m accumulated gradients of a step take m sizes[i] / usual times the time of `times`, plus unscaled straggler
    delays, and 0 s for an idle worker; their draw is addressed by the steps that the worker has taken.
    """

    def __init__(self, times: GradientTimes, scale: np.ndarray, local_steps: LocalSteps | None, start: int = 0) -> None:
        """`scale` [n]: factor on each worker's gradient time; `start`: the step that counts as 0."""
        self.times, self.scale, self.local_steps, self.start = times, scale, local_steps, start
        self.num_workers, self.passes = times.num_workers, times.passes

    def seconds(self, first: int, last: int) -> np.ndarray:
        """See `GradientTimes`."""
        delays = self.delays(first, last)
        return (self._steps(first, last, 0) - delays) * self.scale + delays

    def after(self, number: int) -> UnevenTimes:
        """See `GradientTimes`."""
        return UnevenTimes(self.times, self.scale, self.local_steps, self.start + number)

    def _steps(self, first: int, last: int, which: int) -> np.ndarray:
        read = (self.times.seconds, self.times.delays)[which]
        steps = np.arange(first + self.start, last + self.start)[:, None]
        if self.local_steps is None or not len(steps):
            return read(first + self.start, last + self.start)
        taken = self.local_steps.taken(steps)
        table = read(int(taken.min()), int(taken.max()) + 1)
        found = table[taken - taken.min(), np.arange(self.num_workers)]
        return np.where(self.local_steps.active(steps), found, 0.0)


def uneven(times: GradientTimes, config: Config) -> GradientTimes:
    """Return the times of a step's gradients for each worker's batches and steps: see `UnevenTimes`."""
    if config.batch_size_per_worker is None and config.steps_per_worker is None and config.accumulate == 1:
        return times
    of_steps = getattr(getattr(config.cluster, "compute", None), "distribution", None) in MEASURED
    scale = np.ones(times.num_workers) if of_steps else config.accumulate * config.batch_sizes() / config.batch_size
    return UnevenTimes(times, scale, config.local_steps())


def measure(problem: Problem, x: Tensor, passes: int) -> np.ndarray:
    """Return the seconds of `passes` gradients, by workers in turn, each at its model in x [n, P]: float64 [passes].

    The problem is unchanged: batches are addressed, and the workers' state is restored.
    """
    remembered = copy.deepcopy(problem.state())
    seconds = []
    for number in range(_WARM_UP + passes):
        worker = number % len(x)
        began = time.perf_counter()
        loss, _ = problem.gradient(x[worker : worker + 1], np.full(1, number // len(x)), [worker])
        loss.sum().item()  # waits for the device
        seconds.append(time.perf_counter() - began)
    if remembered:
        problem.load_state(remembered)
    return np.array(seconds[_WARM_UP:])
