"""Workers whose class distributions are drawn from a Dirichlet distribution, as in the RelaySGD paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.partition.dirichlet_shares import dirichlet_shares
from decentral.partition.partition import Partition
from decentral.settings import setting


@dataclass
class Dirichlet(Partition):
    """Class proportions drawn from Dir(alpha): the smaller `alpha`, the more heterogeneous. As in the RelaySGD paper.

    Vogels et al., NeurIPS 2021 (arXiv:2110.04175), appendix D, exactly as their code does it: the draw of
    `dirichlet_shares` from RandomState(seed + 100). The draw is uneven; with `even` (as in their runs) the shares are
    laid end to end and cut into n equal parts, so that neighbours in index order share classes. Without `even` each
    worker keeps what was drawn: at least half of its group's average.
    """

    name: str = "dirichlet"
    alpha: float = setting(0.1, above=0, hint="such as 1, 0.1 or 0.01")
    even: bool = True

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Sizes differ by at most one if `even`."""
        self.check(len(labels), num_workers)
        random = np.random.RandomState((seed + 100) % 2**32)
        shares = dirichlet_shares(labels, num_workers, self.alpha, random)
        return np.array_split(np.concatenate(shares), num_workers) if self.even else shares

    def check(self, num_train: int, num_workers: int) -> None:
        """The uneven draw can leave nobody without samples only if there are two for each worker."""
        super().check(num_train, num_workers)
        if not self.even and num_workers > num_train // 2:
            raise ConfigError(
                f"num_workers={num_workers} is too many for partition.even=false with {num_train} training samples, "
                f"two for each worker: choose num_workers <= {num_train // 2}, or partition.even=true."
            )
