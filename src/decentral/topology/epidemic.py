"""Epidemic Learning: every worker sends to a few others that it draws anew in every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.topology.drawn import DRAWN_ROUNDS, generator_of, targets, usual_degree
from decentral.topology.graph import Graph, directed
from decentral.topology.topology import MAX_ROUNDS, GraphTopology, Repeating
from decentral.topology.weights import Weights


@dataclass
class Epidemic(GraphTopology):
    """Directed, drawn in every round: each worker sends to `sends` others, uniformly, none of them twice (EL-Local).

    A worker averages what it has and what it gets with equal weights, W_ij = 1 / (1 + in-degree), which are the pull
    weights: agreement stays, but the mean moves, so that algo=epidemic_learning takes it and algorithms that need a
    doubly stochastic W do not (with topology.weights=uniform it is for push-sum, algo=sgp). The in-degree is
    Binomial(n - 1, s / (n - 1)) for s = `sends`, and may be 0. EL-Oracle is topology=random_regular
    topology.changing=true.

    sends         s; null: ceil(log2 n)
    seed          with the round, the only thing that draws depend on: all workers know them, none is sent
    drawn_rounds  after so many rounds the same draws come again, in the same order

    de Vos, Farhadkhani, Guerraoui, Kermarrec, Pires & Sharma, NeurIPS 2023 (paper's text not checked; from the
    authors' code, whose default sharing class weighs by the degrees of the full graph, 1/n each: not copied).
    """

    name: str = "epidemic"
    weights: Weights = Weights.pull
    sends: int | None = None
    seed: int = 0
    drawn_rounds: int = setting(DRAWN_ROUNDS, at_least=1, at_most=MAX_ROUNDS)

    def graphs(self, num_workers: int) -> Repeating:
        """Round t: i -> s others; ConfigError unless there are so many."""
        n, sends = num_workers, usual_degree(num_workers) if self.sends is None else self.sends
        if not min(1, n - 1) <= sends <= n - 1:
            raise ConfigError(
                f"topology.sends={sends} is to how many of the {n - 1} others of num_workers={n} a worker sends: use 1 "
                f"to {max(1, n - 1)}."
            )

        def graph(round: int) -> tuple[Graph, ...]:
            drawn = targets(n, sends, generator_of(self.seed, self.name, n, round))
            return (directed(n, np.arange(n)[:, None], drawn),)

        return self.repeating(n, self.drawn_rounds, graph)
