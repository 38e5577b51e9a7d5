"""How the workers approach their mean, round by round: a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.compression.row_layout import RowLayout
from decentral.config.identity import component_identity
from decentral.jobs.computation import SeededComputation
from decentral.randomness import normal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ConsensusRounds(SeededComputation):
    """config.algo without gradients from x^0 [n, d], standard normal; a line of errors.jsonl for each seed.

    The error after t rounds is ||x^t - 1 mean||_F / ||1 mean||_F with the mean of x^0.
    """

    rounds: int = 100
    dimension: int = 100

    folder: ClassVar[str] = "consensus"
    lines: ClassVar[str] = "errors.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Seeds, rounds and dimension; and the topology, whatever the algorithm."""
        own = {"seeds": list(self.seeds), "rounds": self.rounds, "dimension": self.dimension}
        return {**own, "over": component_identity(self.config.topology)}

    def line(self, seed: int) -> dict[str, Any]:
        """The errors after 0, 1, ..., `rounds` rounds."""
        from decentral.training.assemble import local_network, with_rate
        from decentral.training.stepper import Stepper

        net = local_network(self.config)
        x = starts(net.n, self.dimension, seed)
        mean = x.mean(0)
        stepper = Stepper(
            with_rate(self.config, lambda t: 1.0, RowLayout.flat(self.dimension)), net, no_gradient, x.clone()
        )
        errors = [error(x, mean)]
        for _ in range(self.rounds):
            stepper.step()
            errors.append(error(stepper.models, mean))
        return {"errors": errors}


def no_gradient(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
    """Zeros like x: an oracle without a task."""
    return x.new_zeros(x.shape)


def starts(n: int, d: int, seed: int) -> Tensor:
    """The vectors of all workers at the start: [n, d], float64."""
    import torch

    return torch.from_numpy(normal(seed, "vectors to average", np.arange(n)[:, None], np.arange(d)))


def error(x: Tensor, mean: Tensor) -> float:
    """||x - 1 mean||_F / ||1 mean||_F for rows x [k, d]."""
    return float((x - mean).norm() / (mean.norm() * len(x) ** 0.5))
