"""Double binary trees of the RelaySGD authors."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.errors import ConfigError
from decentral.topology.bt import binary_tree
from decentral.topology.graph import Graph, undirected
from decentral.topology.rounds import Rounds, Split
from decentral.topology.topology import GraphTopology


@dataclass
class DoubleBinaryTrees(GraphTopology):
    """Two binary trees for the two halves of the model: `bt`, and its mirror image w -> n-1-w.

    A worker that is internal in one tree is (for even n) a leaf in the other, so everybody sends about two models a
    step. `split` says which coordinates form a half. contiguous: the first half on `bt` and the second on the mirror;
    interleaved: the even and the odd ones, as in the authors' code, the same algorithm up to a permutation of the
    coordinates, and slower (memory is read in steps of two). Vogels et al., NeurIPS 2021 (authors' code). This is not
    the construction of Sanders et al. that NCCL uses.
    """

    name: str = "dbt"
    split: Split = Split.contiguous

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """bt and its mirror image; ConfigError for n = 1."""
        if num_workers < 2:
            raise ConfigError(
                f"topology=dbt with num_workers={num_workers} has no trees to double: use num_workers=2 or more, "
                "or topology=bt."
            )
        tree = binary_tree(num_workers)
        mirrored = undirected(num_workers, num_workers - 1 - tree.src, num_workers - 1 - tree.dst)
        return [(tree, mirrored)]

    def schedule(self, num_workers: int) -> Rounds:
        """The rounds for `num_workers` workers, the coordinates cut as `split` says."""
        rounds = super().schedule(num_workers)
        rounds.split = self.split
        return rounds
