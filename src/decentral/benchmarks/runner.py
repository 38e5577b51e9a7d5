"""A run that takes steps when it is asked to, in this process, and the same passes without the run."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decentral.run import Run


class Steps:
    """A configuration, assembled for one process on the CPU; calling it takes a step."""

    def __init__(self, *overrides: str) -> None:
        import torch

        from decentral.composition import compose
        from decentral.run import assemble
        from decentral.world import World

        torch.set_num_threads(1)
        config = compose([*overrides, "processes=1", "device=cpu", "progress=false"])
        config.task.prepare(config)
        with torch.no_grad():
            self.run: Run = assemble(config, World(0, 1, torch.device("cpu")))
        self.state: Any = self.run.state
        self.t = 0

    def __call__(self) -> None:
        """One step of all workers."""
        import torch

        with torch.no_grad():
            self.state = self.run.algorithm.step(self.state, self.run.oracle.at(self.t), self.run.net, self.t)
        self.t += 1

    @property
    def num_parameters(self) -> int:
        """P."""
        return int(self.run.algorithm.models(self.state).shape[-1])

    def close(self) -> None:
        """Release what the run holds."""
        self.run.close()


def passes(run: Run) -> Callable[[], None]:
    """n forward and backward passes of the run's model, and nothing else.

    Plain modules with parameters of their own, on batches that are there already; the gradients are computed and
    dropped. Nothing that trains n models one by one, in the usual layout of pictures, can take less.
    """
    import torch
    import torch.nn.functional as F

    config, problem = run.config, run.problem
    images, labels = problem.next_batch(0)  # type: ignore[attr-defined]
    info = config.data.inspect()
    template = config.model.build(info.image_shape, int(problem.data.num_classes))  # type: ignore[attr-defined]
    models = [deepcopy(template) for _ in images]
    work = [(model, list(model.parameters()), images[i], labels[i]) for i, model in enumerate(models)]

    def compute() -> None:
        with torch.enable_grad():
            for model, parameters, x, y in work:
                torch.autograd.grad(F.cross_entropy(model(x), y), parameters)

    return compute
