"""Methods that name the samples of their gradients: their random numbers, and the oracle of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.algorithms.given_events import read_draws
from decentral.errors import ConfigError
from decentral.host.machine import Lazy
from decentral.randomness import numpy_generator
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network
else:
    torch = Lazy("torch")


@dataclass
class GivenSamples(Algorithm):
    """A method that draws samples, each time uniformly and with replacement, among the m of each worker.

    batch     number B of samples of a gradient
    seed      seed of the samples, which are drawn by (seed, worker, step)
    indices   an .npz file with integers indices [T, n, B] instead: entry t mod T in step t
    """

    batch: int = setting(1, at_least=1)
    seed: int = 0
    indices: str | None = setting(None, content=True)
    supports = Algorithm.supports - {Feature.batches, Feature.absence, Feature.equal_updates, Feature.plain_sgd}

    def check(self, num_workers: int, optim: Any) -> None:
        """See `Algorithm`."""
        if optim is None:
            raise ConfigError(
                f"algo={self.name} needs gradients of given samples, which a script does not give: use decentral-run "
                "with task=quadratics or task=regression."
            )

    def samples(self, net: Network, t: int) -> Tensor:
        """Return the samples [k, B] of step t of the local workers."""
        m = self.num_samples
        if self.indices is None:
            drawn = [numpy_generator(self.seed, "samples", i, t).integers(m, size=self.batch) for i in net.workers]
            return torch.from_numpy(np.array(drawn))
        given = read_draws("algo.indices", self.indices, "indices", ("T", "n", "B"), m - 1)
        return torch.from_numpy(given[t % len(given), net.workers.start : net.workers.stop])

    def all_samples(self, net: Network) -> Tensor:
        """Return the numbers of all samples, [k, m]."""
        return torch.arange(self.num_samples).expand(len(net.workers), -1)

    def at(self, oracle: Oracle, x: Tensor, samples: Tensor) -> Tensor:
        """Return the gradients [k, B, P] of samples [k, B] at x [k, P]; an oracle without samples has one for all."""
        given = getattr(oracle, "at", None)
        if given is None:
            return oracle(x)[:, None].expand(-1, samples.shape[1], -1)
        return given(x, samples.to(x.device))  # type: ignore[no-any-return]
