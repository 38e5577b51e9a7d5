"""What algorithms may ask of the rounds of a topology, and one sentence for each thing that can be wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from enum import Enum
from itertools import islice

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.bipartite import all_edges, two_sides
from decentral.topology.facts import largest_laplacian_eigenvalue, smallest_eigenvalue
from decentral.topology.graph import is_connected, is_undirected, union
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import MEAN, Rounds

_TOLERANCE = 1e-9
_MATRICES_REMEMBERED = 64
_CHOOSE, _GIVEN = "use topology.weights=", "give other weights"
_PUSH_SUM = "an algorithm with push-sum, such as algo=sgp"


class Need(Enum):
    """Properties of the rounds of a topology, checked in this order.

    - whole: models travel in one piece.
    - static: the same matrices in every round.
    - undirected: every edge has its opposite.
    - connected: over one period, every worker's messages can reach every other one, in every piece.
    - tree: static, undirected, connected and without cycles, in every piece (RelaySum).
    - row_stochastic: W 1 = 1, agreement stays. Pull weights have no more: repeated, they agree on a weighted mean.
    - column_stochastic: 1^T W = 1^T, the sum over workers is kept (push-sum).
    - doubly_stochastic: both, so that the mean is kept and agreement stays (gossip).
    - symmetric: W = W^T.
    - bipartite: the workers fall into two halves, and all edges, of all rounds, go from one to the other.
    - d2_spectrum: symmetric with smallest eigenvalue >= -1/3, up to 1e-9. D2's analysis wants it above -1/3; rings of
      even length with metropolis weights sit exactly there, where the RelaySGD paper runs D2: equality passes.
    """

    whole = "whole"
    static = "static"
    undirected = "undirected"
    connected = "connected"
    tree = "tree"
    row_stochastic = "row_stochastic"
    column_stochastic = "column_stochastic"
    doubly_stochastic = "doubly_stochastic"
    symmetric = "symmetric"
    bipartite = "bipartite"
    d2_spectrum = "d2_spectrum"


def check(rounds: Rounds, needs: AbstractSet[Need], algo: str, topology: str, weights_given: bool = False) -> None:
    """Refuse rounds that do not give `algo` what it needs; one worker satisfies every need.

    `weights_given`: the weights are the user's own, so that there is no rule to choose.

    Raises:
        ConfigError: says what is wrong with which values, and what to use instead.
    """
    where = f"topology={topology} with num_workers={rounds.num_workers}"
    if not all(np.isfinite(W.weight).all() for W in _matrices(rounds)):
        raise ConfigError(f"{where} has mixing weights that are not finite numbers.")
    if rounds.num_workers == 1:
        return
    for need in Need:
        if need in needs:
            problem = _CHECKS[need](rounds, where)
            if problem and weights_given:
                problem = problem.replace(_CHOOSE, f"{_GIVEN}, or remove them and {_CHOOSE}", 1)
            if problem:
                raise ConfigError(f"algo={algo} {problem}.")


def _matrices(rounds: Rounds) -> Iterator[MixingMatrix]:
    """The matrices of all pieces of the rounds of one period in which something is sent.

    Left out are rounds without exchange and those of the mean of all workers: both satisfy every need but to be static.
    """
    seen: dict[int, MixingMatrix] = {}  # keeps them alive, so that no other one gets their number
    for round in range(rounds.period):
        if rounds.phases(round) in ([], [MEAN]):
            continue
        found = rounds.mixing(round)
        if id(found[0]) not in seen:
            if len(seen) < _MATRICES_REMEMBERED:
                seen[id(found[0])] = found[0]
            yield from found


def _whole(rounds: Rounds, where: str) -> str | None:
    if rounds.num_pieces == 1:
        return None
    return f"sends whole models, but {where} cuts them in {rounds.num_pieces} pieces: use a single graph, such as ring"


def _static(rounds: Rounds, where: str) -> str | None:
    if rounds.period == 1:
        return None
    return (
        f"needs the same graph in every round, but {where} changes with the round: use a static topology, such as ring"
    )


def _undirected(rounds: Rounds, where: str) -> str | None:
    if all(is_undirected(W.graph) for W in _matrices(rounds)):
        return None
    return (
        f"needs links that go both ways, but {where} is directed: use an undirected topology, such as grid, "
        f"or {_PUSH_SUM}"
    )


def _connected(rounds: Rounds, where: str) -> str | None:
    if any(rounds.phases(round) == [MEAN] for round in range(rounds.period)):
        return None
    for piece in range(rounds.num_pieces):
        of_piece = islice(_matrices(rounds), piece, None, rounds.num_pieces)
        if not is_connected(union(rounds.num_workers, (W.graph for W in of_piece))):
            return f"needs all workers to hear of each other, but {where} is not connected: use another topology"
    return None


def _tree(rounds: Rounds, where: str) -> str | None:
    other = "use topology=chain, bt, dbt, star or spanning_tree"
    if rounds.period > 1:
        return f"relays over trees, but {where} changes with the round: {other}"
    for A in rounds.graphs():
        if not is_undirected(A):
            return f"relays over trees, but {where} is directed: {other}"
        if not is_connected(A):
            return f"relays over trees, but {where} is not connected: {other}"
        if len(A) > 2 * (A.num_workers - 1):
            return f"relays over trees, but {where} has a cycle: {other}"
    return None


def _row_stochastic(rounds: Rounds, where: str) -> str | None:
    worst = _furthest_from_one(W.row_sums() for W in _matrices(rounds))
    if worst is None:
        return None
    return (
        f"needs a row-stochastic mixing matrix, but a row of {where} sums to {worst:.6g} instead of 1: "
        "use topology.weights=pull"
    )


def _column_stochastic(rounds: Rounds, where: str) -> str | None:
    worst = _furthest_from_one(W.column_sums() for W in _matrices(rounds))
    if worst is None:
        return None
    return (
        f"needs a column-stochastic mixing matrix, but a column of {where} sums to {worst:.6g} instead of 1: "
        "use topology.weights=uniform"
    )


def _doubly_stochastic(rounds: Rounds, where: str) -> str | None:
    metropolis = "topology.weights=metropolis on an undirected topology"
    row = _furthest_from_one(W.row_sums() for W in _matrices(rounds))
    if row is not None:
        return (
            f"needs a doubly stochastic mixing matrix, but a row of {where} sums to {row:.6g} instead of 1: "
            f"use {metropolis}, or {_PUSH_SUM}"
        )
    column = _furthest_from_one(W.column_sums() for W in _matrices(rounds))
    if column is not None:
        return (
            f"needs a doubly stochastic mixing matrix, but a column of {where} sums to {column:.6g} instead of 1, so "
            f"that the workers would agree on a wrong mean: use {metropolis}, "
            f"or topology.weights=uniform with {_PUSH_SUM}"
        )
    return None


def _furthest_from_one(sums: Iterable[np.ndarray]) -> float | None:
    """The sum of a row or column that is furthest from 1; none if all are 1 up to the tolerance."""
    worst = max((s[np.abs(s - 1).argmax()] for s in sums), key=lambda value: abs(value - 1), default=1.0)
    return None if abs(worst - 1) <= _TOLERANCE else float(worst)


def _symmetric(rounds: Rounds, where: str) -> str | None:
    if all(W.is_symmetric(_TOLERANCE) for W in _matrices(rounds)):
        return None
    return (
        f"needs a symmetric mixing matrix, but that of {where} is not: "
        "use topology.weights=metropolis on an undirected topology"
    )


def _bipartite(rounds: Rounds, where: str) -> str | None:
    if two_sides(all_edges(rounds)) is not None:
        return None
    return (
        f"needs a graph of two halves with edges only from one to the other, but {where} has a cycle of odd length: "
        "use topology=ring with an even number of workers, hypercube, or a tree such as chain"
    )


def _d2_spectrum(rounds: Rounds, where: str) -> str | None:
    problem = _symmetric(rounds, where)
    if problem:
        return problem
    bound = -1 / 3 - _TOLERANCE
    open_ones = [W for W in _matrices(rounds) if _least_by_gershgorin(W) < bound]
    smallest = min(map(smallest_eigenvalue, open_ones), default=bound)
    if smallest >= bound:
        return None
    return (
        f"needs a mixing matrix without eigenvalues below -1/3, but the smallest eigenvalue of W is {smallest:.3f}, "
        f"below -1/3, for {where}: use algo=exact_diffusion, or, where the topology takes weights, "
        f"topology.weights=constant topology.edge_weight={_largest_edge_weight(rounds):.3g} (or less)"
    )


def _least_by_gershgorin(W: MixingMatrix) -> float:
    """No eigenvalue of W is smaller: min_i W_ii - sum_{j != i} |W_ij|."""
    absolute = np.bincount(W.dst, weights=np.abs(W.weight), minlength=W.num_workers)
    return float((W.diagonal + np.abs(W.diagonal) - absolute).min())


def _largest_edge_weight(rounds: Rounds) -> float:
    """The largest c, rounded down, for which I - c L has no eigenvalue below -1/3 (L: Laplacian of a graph)."""
    graphs = [W.graph for W in _matrices(rounds)]
    largest = max(map(largest_laplacian_eigenvalue, graphs))
    degree = max(int(A.indegree.max()) for A in graphs)
    bound = min(4 / (3 * largest), 1 / degree)
    digits = 2 - math.floor(math.log10(bound))  # three significant ones
    return math.floor(bound * 10**digits) / 10**digits


_CHECKS: dict[Need, Callable[[Rounds, str], str | None]] = {
    Need.whole: _whole,
    Need.static: _static,
    Need.undirected: _undirected,
    Need.connected: _connected,
    Need.tree: _tree,
    Need.row_stochastic: _row_stochastic,
    Need.column_stochastic: _column_stochastic,
    Need.doubly_stochastic: _doubly_stochastic,
    Need.symmetric: _symmetric,
    Need.bipartite: _bipartite,
    Need.d2_spectrum: _d2_spectrum,
}
