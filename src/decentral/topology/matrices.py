"""A topology from given matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.rounds import Rounds
from decentral.topology.topology import Topology

_TOLERANCE = 1e-6  # matrices may come as float32


@dataclass(eq=False)
class Matrices(Topology):
    """W [n, n] of each round of a period; W[i, j] is the weight of rank j's row at rank i.

    Weights are at least 0, and all rows sum to 1 (pull) or all columns do (push), in every round.
    """

    rounds: list[np.ndarray]
    name = "matrices"

    def implied_num_workers(self) -> int | None:
        """Return n."""
        return len(self.rounds[0]) if self.rounds and self.rounds[0].ndim == 2 else None

    def schedule(self, num_workers: int) -> Rounds:
        """Check the matrices and return them as rounds."""
        if not self.rounds:
            raise ConfigError("topology is an empty list: give at least one matrix W [n, n].")
        for round, W in enumerate(self.rounds):
            where = "W" if len(self.rounds) == 1 else f"W of round {round}"
            if W.shape != (num_workers, num_workers):
                raise ConfigError(
                    f"{where} has the shape {list(W.shape)}, but there are {num_workers} workers: use [{num_workers}, "
                    f"{num_workers}]."
                )
            for wrong, words in ((~np.isfinite(W), "not a finite number"), (W < 0, "negative")):
                for i, j in np.argwhere(wrong)[:1]:
                    raise ConfigError(
                        f"{where} has {W[i, j]:g} at [{i}, {j}], which is {words}: use finite weights >= 0."
                    )
        off = [max(abs(W.sum(axis) - 1).max() for W in self.rounds) for axis in (1, 0)]
        if min(off) > _TOLERANCE:  # row sums of one preserve consensus, column sums of one preserve the sum
            sums = (self.rounds[0].sum(axis) for axis in (1, 0))
            rows, columns = (f"[{', '.join(f'{value:.4g}' for value in each)}]" for each in sums)
            raise ConfigError(
                "the matrices are neither row-stochastic (pull) nor column-stochastic (push) in all rounds: in round "
                f"0 rows sum to {rows} and columns to {columns}. W[i, j] is the weight with which i takes from j; a "
                "matrix of booleans or integers is a graph instead."
            )
        return Rounds(num_workers, lambda round: (self.rounds[round],), period=len(self.rounds))
