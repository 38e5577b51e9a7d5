"""A run that takes a step at each call, in this process on the CPU, and the same passes without the run."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decentral.training.assemble import Run


class Steps:
    """A configuration, assembled for one process on the CPU; calling it takes a step."""

    def __init__(self, *overrides: str) -> None:
        import torch

        from decentral.config.composition import compose
        from decentral.network.world import World
        from decentral.training.assemble import assemble

        torch.set_num_threads(1)
        config = compose([*overrides, "processes=1", "device=cpu", "progress=false"])
        config.task.prepare(config)
        with torch.no_grad():
            self.run: Run = assemble(config, World(0, 1, torch.device("cpu")))

    def __call__(self) -> None:
        """One step of all workers."""
        import torch

        with torch.no_grad():
            self.run.stepper.step()

    @property
    def num_parameters(self) -> int:
        """P."""
        return self.run.stepper.models.shape[-1]

    def close(self) -> None:
        """Release what the run holds."""
        self.run.close()


def passes(run: Run) -> Callable[[], None]:
    """n forward and backward passes of the run's model, and nothing else.

    Plain modules with parameters of their own, on batches that are there already; the gradients are computed, as
    exactly as the run's, and dropped. Nothing that trains n models one by one, in the usual layout of images, can take
    less.
    """
    import torch

    config, problem = run.config, run.problem
    inputs, targets = problem.next_batch(0)  # type: ignore[attr-defined]
    minimised = problem.loss  # type: ignore[attr-defined]
    info = config.data.inspect()
    template = config.model.build(info)
    models = [deepcopy(template) for _ in inputs]
    work = [(model, list(model.parameters()), inputs[i], targets[i]) for i, model in enumerate(models)]

    def compute() -> None:
        with torch.enable_grad():
            for model, parameters, x, y in work:
                with config.precision.forward(run.world.device):
                    loss = minimised(model(x), y)
                torch.autograd.grad(loss, parameters)

    return compute
