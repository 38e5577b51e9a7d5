"""Workers whose class distributions are drawn from a Dirichlet distribution, as in Bohl's thesis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.partition.dirichlet_shares import dirichlet_shares
from decentral.partition.partition import Partition
from decentral.settings import setting


@dataclass
class DirichletThesis(Partition):
    """Class proportions drawn from Dir(alpha), as in Bohl's thesis (2022): its seed 0 is the one of all its runs.

    `dirichlet_shares` drawn from RandomState(seed), laid end to end and cut into slices of floor(N / n).
    Departures: the thesis always draws with seed 0, here it is the run's; it drops the last N mod n samples, here they
    go one each to the first workers, because a partition holds every sample. Within a slice the thesis shuffles once
    and keeps that order in every epoch; the order of visits is not the partition's business here.
    """

    name: str = "dirichlet_thesis"
    alpha: float = setting(0.1, above=0, hint="such as 1, 0.1 or 0.01")

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Sizes differ by at most one."""
        self.check(len(labels), num_workers)
        shares = dirichlet_shares(labels, num_workers, self.alpha, np.random.RandomState(seed % 2**32))
        together = np.concatenate(shares)
        size = len(together) // num_workers
        slices = [together[i * size : (i + 1) * size] for i in range(num_workers)]
        for i, left_over in enumerate(together[num_workers * size :]):
            slices[i] = np.append(slices[i], left_over)
        return slices
