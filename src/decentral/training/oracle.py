"""The stochastic gradient as an algorithm calls it, and what goes with it: `accumulate=`, stragglers that sleep, and
how long gradients take on this machine."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.cluster.compute import GradientTimes
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
"""Passes at first that are not counted."""

_ONE = np.int64(1)  # which numpy adds in half the time of a 1


class TrainLosses(NamedTuple):
    """What the last draws of some workers cost."""

    mean: Tensor
    """[k], float64 on the CPU: the loss per draw; nan where nothing was drawn."""
    drawn: Tensor
    """[k], bool: whether anything was."""


class Sleep(NamedTuple):
    """How long a worker sleeps before its gradients, in seconds: `delays` of stragglers, or all of a simulated time."""

    times: GradientTimes
    all: bool = False

    def seconds(self, workers: Sequence[int], t: int) -> float:
        """Before gradient t of these workers, who sleep at the same time."""
        found = self.times.seconds(t, t + 1) if self.all else self.times.delays(t, t + 1)
        return float(found[0, list(workers)].max(initial=0.0))


class GradientOracle:
    """`oracle(x)`: a stochastic gradient of each local worker at its row of x, and the losses for the record.

    Every call draws the *next* sample of each worker that it is for. Draws are counted per worker, so that two
    gradients in a step are gradients of two batches, and workers need not be equally far.
    """

    def __init__(
        self, problem: Problem, workers: range, device: torch.device, local_steps: LocalSteps | None = None
    ) -> None:
        """For the k local workers of `problem`, whose losses are added up on `device`.

        local_steps   of all n workers: who idles, and has the gradient 0; None: nobody does
        """
        self.local_steps = None if local_steps is None else local_steps.of(workers)
        self.steps = np.zeros(len(workers), dtype=np.int64)
        """[k]: how many steps all have taken together, where some idle or are absent."""
        self.present: np.ndarray | None = None
        """[k], bool: who takes part in a step; None: everybody, always."""
        self.problem, self.workers = problem, workers
        self.draws = np.zeros(len(workers), dtype=np.int64)
        """[k]: how many samples each local worker has drawn."""
        self.draws_before = np.zeros_like(self.draws)
        """[k]: the same at the last evaluation."""
        self.losses = torch.zeros(len(workers), dtype=torch.float64, device=device)
        """[k]: the losses since the last evaluation, added up."""
        self.early = torch.zeros_like(self.losses)
        """[k]: the losses of gradients that are computed, but not over in simulated time: see `over`."""
        self.is_early = np.zeros(len(workers), dtype=bool)
        """[k]: whose last gradient is such a one."""
        self._all = list(range(len(workers)))
        self._over: list[int] = []
        """Whose last gradient was such a one, and is over, but not counted in `losses` yet."""
        self.clock: Clock | None = None
        """Simulated time, which a gradient of all workers puts forward; None: nobody asks for it."""
        self.sleep: Sleep | None = None
        """How long the workers of this process sleep before they compute their next gradient together."""
        self.seconds = 0.0
        """How long all calls took, with the drawing of batches."""
        self.calls = 0
        """How many there were."""
        self.recorded: Operations | None = None
        """Where gradients are kept, those of all workers of this process together, or each: see `record`."""
        self._each: list[float] | None = None
        self._memory: Tensor | None = None  # of gradients, and of the models that have one: where not all do
        self.slept_s = 0.0
        """How long they slept before that."""

    def record(self, recorded: Operations, *, each: bool) -> None:
        """From now on keep what gradients take.

        each: of every worker by itself; else of all of them together, by the first. Raises ConfigError where workers
        have their gradients together, or the task cannot tell.
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
        """Grad F_i(x_i; xi_i) with the next sample xi_i of each worker: [r, P] -> [r, P].

        The rows are those of all local workers, or those of `workers`: places among the local ones, each once. What is
        returned is the caller's until the next call, and may be overwritten.
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
        """The same of some workers, whose losses count from when their gradients are `over`: [r, P] -> [r, P]."""
        self._count()
        loss, g = self._computed(x, places)
        if places == self._all:
            self.early[:] = loss
        else:
            self.early[places] = loss.to(self.early)
        self.is_early[places] = True
        return g

    def complete(self, place: int) -> None:
        """The gradient of this worker, if it was computed ahead, is over: from now on its loss counts."""
        if self.is_early[place]:
            self._over.append(place)
            self.is_early[place] = False

    def _count(self) -> None:
        """Count the losses of gradients that are over; a worker has at most one of them."""
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
        """Gradients of those that take a step, zeros of those that idle or are absent, [k, P]."""
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
        idle = torch.tensor(sorted({*range(len(x))}.difference(places)), device=x.device)
        return found.index_fill_(0, idle, 0)

    def _computed(self, x: Tensor, places: list[int]) -> tuple[Tensor, Tensor]:
        """Losses [r] and gradients [r, P]."""
        began = time.perf_counter()
        loss, g = self.problem.gradient(x, self.draws[places], places)
        self._record(places)
        self.draws[places] += _ONE
        self.seconds += time.perf_counter() - began
        self.calls += 1
        return loss, g

    def _record(self, places: list[int]) -> None:
        """Keep the gradients that these workers have just had, one after the other, if each is recorded."""
        if self.recorded is not None and self._each is not None:
            numbers = zip((self.workers[i] for i in places), self.draws[places].tolist(), strict=True)
            self.recorded.gradients(list(numbers), self._each)

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            began = time.perf_counter()
            time.sleep(seconds)
            self.slept_s += time.perf_counter() - began

    def rows(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of each local worker, [k] each: tensors that alias it."""
        self._count()
        counts = {"draws": self.draws, "draws at the last evaluation": self.draws_before}
        if self.local_steps is not None or self.present is not None:
            counts["steps"] = self.steps
        return {"losses": self.losses, **{name: torch.from_numpy(count) for name, count in counts.items()}}

    def recent_loss(self) -> float:
        """The loss per draw since the last evaluation, mean over the local workers. Waits for the device."""
        self._count()
        drawn = np.maximum(self.draws - self.is_early - self.draws_before, 1)
        return float((self.losses.cpu().numpy() / drawn).mean())

    def take_losses(self) -> TrainLosses:
        """The losses of the local workers since the last call."""
        self._count()
        counted = self.draws - self.is_early
        drawn = torch.from_numpy(counted - self.draws_before)
        mean = (self.losses / drawn.to(self.losses)).cpu()
        self.losses.zero_()
        self.draws_before[:] = counted
        return TrainLosses(mean, drawn > 0)


class Accumulated:
    """A problem whose draw number d is the mean of the draws d m, ..., d m + m - 1 of another one: `accumulate=`.

    A gradient of batches of m times the size in the memory of one of them, where batches are of equal size; of running
    text each of the m batches has the same weight, however many tokens are in it. An epoch has 1 / m as many steps.
    All else is the other problem's.
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
        """Mean losses [r] and mean gradients [r, P] of m draws of each worker."""
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
        """Of m times as many draws."""
        return self.problem.examples(draws * self.number)

    def keep_seconds(self) -> list[float] | None:
        """Of all m draws together."""
        self._each = self.problem.keep_seconds()
        return None if self._each is None else self._seconds


def with_measured(times: GradientTimes, config: Config, problem: Problem, x: Tensor) -> GradientTimes:
    """The times, of which nothing is left to be measured; x [n, P] are the models at the beginning.

    What is measured lies in the directory of the run, if there is one, so that a run that goes on has the same times.
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
    """The times, with what the run has measured before, if it has."""
    path = run_directory(config) / _MEASURED if times.passes else None
    return times if path is None or not path.is_file() else times.measured(np.loadtxt(path, skiprows=1, ndmin=1))


class UnevenTimes(GradientTimes):
    """The times of workers with batches of their own sizes, of whom some idle: seconds by the step of the run.

    A gradient takes sizes[i] / usual as long as `times` says, in what stragglers add as before, and 0 s where a worker
    idles; what it is is addressed by the steps that the worker has taken.
    """

    def __init__(self, times: GradientTimes, scale: np.ndarray, local_steps: LocalSteps | None, start: int = 0) -> None:
        """`scale` [n]: how much longer each worker's gradients take; `start`: the step that is number 0."""
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
    """The times for what each worker does in a step: see `UnevenTimes`."""
    if config.batch_size_per_worker is None and config.steps_per_worker is None:
        return times
    given = getattr(getattr(config.cluster, "compute", None), "trace", None)  # of these very batches
    scale = np.ones(times.num_workers) if given else config.batch_sizes() / config.batch_size
    return UnevenTimes(times, scale, config.local_steps())


def measure(problem: Problem, x: Tensor, passes: int) -> np.ndarray:
    """Seconds of so many gradients, one worker after the other, each at its own model in x [n, P]: float64 [passes].

    The problem is as it was before: batches are addressed, and what workers remember is put back.
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
