"""The stochastic gradient oracle of algorithms."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.tasks.task import Problem

if TYPE_CHECKING:
    from decentral.cluster.clock import Clock
    from decentral.topology.communication import LocalSteps
    from decentral.training.gradient_times import Sleep
    from decentral.training.operations import Operations

_ONE = np.int64(1)  # numpy adds it twice as fast as a Python 1


class TrainLosses(NamedTuple):
    """The losses of some workers' recent draws."""

    mean: Tensor
    """[k], float64 on the CPU: the loss per draw; nan without draws."""
    drawn: Tensor
    """[k], bool: whether there were draws."""


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
        self._all = list(range(len(workers)))
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

    def at(self, x: Tensor, samples: Tensor) -> Tensor:
        """Return the gradients [k, B, P] of given samples [k, B] of each local worker, at x [k, P]: one draw, and the
        time of one gradient."""
        if self.clock is not None:
            self.clock.gradient()
        losses, g = self.problem.at(x, samples)
        self.losses.add_(losses.mean(1))
        self.draws += _ONE
        self.calls += 1
        return g

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

    def counted(self) -> np.ndarray:
        """Return [k]: the number of draws whose losses count."""
        return self.draws

    def rows(self) -> dict[str, Tensor]:
        """Return the checkpoint content per local worker, [k] each, as tensors that alias it."""
        self.counted()
        counts = {"draws": self.draws, "draws at the last evaluation": self.draws_before}
        if self.local_steps is not None or self.present is not None:
            counts["steps"] = self.steps
        return {"losses": self.losses, **{name: torch.from_numpy(count) for name, count in counts.items()}}

    def recent_loss(self) -> float:
        """Return the loss per draw since the last evaluation, averaged over local workers. Waits for the device."""
        drawn = np.maximum(self.counted() - self.draws_before, 1)
        return float((self.losses.cpu().numpy() / drawn).mean())

    def take_losses(self) -> TrainLosses:
        """Return the losses of the local workers since the last call."""
        counted = self.counted()
        drawn = torch.from_numpy(counted - self.draws_before)
        mean = (self.losses / drawn.to(self.losses)).cpu()
        self.losses.zero_()
        self.draws_before[:] = counted
        return TrainLosses(mean, drawn > 0)
