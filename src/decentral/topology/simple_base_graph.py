"""The simple Base-(k+1) graph."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.settings import setting
from decentral.topology.base_graph import rounds_of, simple
from decentral.topology.rounds import Rounds
from decentral.topology.topology import MatrixTopology


@dataclass
class SimpleBaseGraph(MatrixTopology):
    """Simple Base-(k+1) graph: exact agreement in finitely many rounds, without the blocks of topology=base_graph.

    n is written in base k + 1, k = `neighbors`, and each digit a_l that is not zero stands for a block V_l of
    a_l (k+1)^{p_l} workers. First every block agrees in itself. Then, for r = 0, 1, ..., every worker of the blocks
    after V_r exchanges with one worker of each of the a_r parts of V_r, with weight w / a_r where
    w = |V_r| / sum_{q >= r} |V_q|, and the parts average what they have got. Where the prime factors of n are at most
    k + 1 there are no blocks: one digit of a worker's number after the other is averaged over.

    Takezawa et al., NeurIPS 2023, Algorithms 1 and 2.
    """

    name: str = "simple_base_graph"
    neighbors: int = setting(1, at_least=1)

    def rounds(self, num_workers: int) -> Rounds:
        """One cycle, repeated."""
        return rounds_of(num_workers, simple(num_workers, self.neighbors))
