"""Workers that compute nothing, but take as long as machines of a cluster would: what is left is who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.jobs.timing.group import Stepping, Work
from decentral.tasks.quadratics import Quadratics

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from decentral.config.schema import Config
    from decentral.network.world import World
    from decentral.tasks.task import Problem


@dataclass
class Still(Quadratics):
    """Rows of `dimension` numbers, with gradients that are zero and there at once."""

    name: str = "quadratics"

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The problem, for the local workers."""
        import torch

        from decentral.tasks.task import Problem as Base

        class Nothing(Base):
            metrics = ()
            steps_per_epoch = 1.0

            def __init__(self, d: int) -> None:
                self.zeros = torch.zeros(len(workers), d)

            def init(self) -> Tensor:
                return torch.ones_like(self.zeros[0])

            def gradient(
                self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None
            ) -> tuple[Tensor, Tensor]:
                return torch.zeros(len(x)), self.zeros[: len(x)]

            def worker_statistics(
                self, x: Tensor, workers: Sequence[int] | None = None, scope: object = None
            ) -> Tensor:
                return x.new_zeros(len(x), 0)

        return Nothing(self.dimension)


@dataclass(frozen=True)
class Sleeping:
    """A method between processes, whose workers sleep for all of what the cluster says that a gradient takes.

    A call is `steps` steps, from a pause to the next one. Before the first one there are `warm_up` steps without sleep.
    """

    config: Config
    steps: int
    warm_up: int

    def __call__(self, world: World) -> Work:
        """This process's part."""
        from decentral.cluster.cluster import VirtualCluster
        from decentral.training.assemble import assemble
        from decentral.training.between_processes import ThreadedStepper
        from decentral.training.sleep import Sleep

        cluster, n = self.config.cluster, self.config.num_workers
        assert isinstance(cluster, VirtualCluster) and n is not None
        run = assemble(self.config, world)
        work = _Steps(run, self.warm_up)
        work()
        work.steps = self.steps
        sleep = Sleep(cluster.gradient_times(n, self.config.seed), all=True)
        if isinstance(run.stepper, ThreadedStepper):
            run.stepper.sleep = sleep
        else:
            run.oracle.sleep = sleep
        return work


class _Steps(Stepping):
    def __init__(self, run, steps: int) -> None:  # type: ignore[no-untyped-def]
        super().__init__(run)
        self.steps = steps

    def __call__(self) -> None:
        stepper = self.run.stepper
        stepper.may_go_on_to(stepper.t + self.steps)
        for _ in range(self.steps):
            stepper.step()
        stepper.settle()
