"""Requirements of algorithms on the rounds of a topology, with an error message for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.facts import largest_laplacian_eigenvalue, smallest_eigenvalue
from decentral.topology.graph import is_connected, is_undirected, union
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import MEAN, Need, Rounds, all_edges, two_sides

_TOLERANCE = 1e-9
_MATRICES_REMEMBERED = 64
_CHOOSE, _GIVEN = "use topology.weights=", "give other weights"
_PUSH_SUM = "an algorithm with push-sum, such as algo=sgp"


def check(rounds: Rounds, needs: AbstractSet[Need], algo: str, topology: str, weights_given: bool = False) -> None:
    """Check that rounds satisfy the needs of `algo`; one worker satisfies every need.

    `weights_given`: the user gives the weights, so there is no rule to choose.

    Raises:
        ConfigError: names the violated need and the values, and suggests alternatives.
    """
    where = f"topology={topology} with num_workers={rounds.num_workers}"
    if not all(np.isfinite(W.weight).all() for W in _matrices(rounds)):
        raise ConfigError(f"{where} has mixing weights that are not finite numbers.")
    if rounds.num_workers == 1:
        return
    for need in Need:
        is_satisfied, problem = _CHECKS[need]
        if need in needs and not is_satisfied(rounds):
            text = problem.format(where=where) if isinstance(problem, str) else problem(rounds, where)
            if weights_given:
                text = text.replace(_CHOOSE, f"{_GIVEN}, or remove them and {_CHOOSE}", 1)
            raise ConfigError(f"algo={algo} {text}.")


def _matrices(rounds: Rounds) -> Iterator[MixingMatrix]:
    """Yield the matrices of all pieces for the rounds of one period that send something.

    Skips silent rounds and global averages: both satisfy every need except static.
    """
    seen: dict[int, MixingMatrix] = {}  # keeps them alive, so that their ids stay unique
    for round in range(rounds.period):
        if rounds.phases(round) in ([], [MEAN]):
            continue
        found = rounds.mixing(round)
        if id(found[0]) not in seen:
            if len(seen) < _MATRICES_REMEMBERED:
                seen[id(found[0])] = found[0]
            yield from found


def _is_connected(rounds: Rounds) -> bool:
    if any(rounds.phases(round) == [MEAN] for round in range(rounds.period)):
        return True
    pieces = [islice(_matrices(rounds), piece, None, rounds.num_pieces) for piece in range(rounds.num_pieces)]
    return all(is_connected(union(rounds.num_workers, (W.graph for W in matrices))) for matrices in pieces)


def is_tree(rounds: Rounds) -> bool:
    """Return whether every piece has one tree for all rounds (`Need.tree`)."""
    most = 2 * (rounds.num_workers - 1)
    return rounds.are_equal and all(is_undirected(A) and is_connected(A) and len(A) <= most for A in rounds.graphs())


def _rows_sum_to_one(rounds: Rounds) -> bool:
    return all((np.abs(W.row_sums() - 1) <= _TOLERANCE).all() for W in _matrices(rounds))


def _columns_sum_to_one(rounds: Rounds) -> bool:
    return all((np.abs(W.column_sums() - 1) <= _TOLERANCE).all() for W in _matrices(rounds))


def _is_symmetric(rounds: Rounds) -> bool:
    return all(W.is_symmetric(_TOLERANCE) for W in _matrices(rounds))


def _smallest_eigenvalue(rounds: Rounds) -> float:
    """Return the smallest eigenvalue of all matrices whose bound is not large enough."""
    open_ones = [W for W in _matrices(rounds) if _least_by_gershgorin(W) < _D2_BOUND]
    return min(map(smallest_eigenvalue, open_ones), default=_D2_BOUND)


def _d2_problem(rounds: Rounds, where: str) -> str:
    if not _is_symmetric(rounds):
        return _NOT_SYMMETRIC.format(where=where)
    return (
        "needs a mixing matrix without eigenvalues below -1/3, but the smallest eigenvalue of W is "
        f"{_smallest_eigenvalue(rounds):.3f}, below -1/3, for {where}: use algo=exact_diffusion, or, where the "
        "topology takes weights, topology.weights=constant "
        f"topology.edge_weight={_largest_edge_weight(rounds):.3g} (or less)"
    )


def _least_by_gershgorin(W: MixingMatrix) -> float:
    """Return the lower bound min_i W_ii - sum_{j != i} |W_ij| on the eigenvalues of W."""
    absolute = np.bincount(W.dst, weights=np.abs(W.weight), minlength=W.num_workers)
    return float((W.diagonal + np.abs(W.diagonal) - absolute).min())


def _largest_edge_weight(rounds: Rounds) -> float:
    """Return the largest c, rounded down, for which I - c L has no eigenvalue below -1/3 (L: graph Laplacian)."""
    graphs = [W.graph for W in _matrices(rounds)]
    largest = max(map(largest_laplacian_eigenvalue, graphs))
    degree = max(int(A.indegree.max()) for A in graphs)
    bound = min(4 / (3 * largest), 1 / degree)
    digits = 2 - math.floor(math.log10(bound))  # three significant digits
    return math.floor(bound * 10**digits) / 10**digits


_D2_BOUND = -1 / 3 - _TOLERANCE
_NOT_SYMMETRIC = (
    "needs a symmetric mixing matrix, but that of {where} is not: use topology.weights=metropolis on an undirected "
    "topology"
)
_CHECKS: dict[Need, tuple[Callable[[Rounds], bool], str | Callable[[Rounds, str], str]]] = {
    Need.whole: (
        lambda rounds: rounds.num_pieces == 1,
        "sends whole models, but {where} splits them into pieces: use a single graph, such as ring",
    ),
    Need.static: (
        lambda rounds: rounds.are_equal,
        "needs the same graph in every round, but {where} changes with the round: use a static topology, such as ring",
    ),
    Need.undirected: (
        lambda rounds: all(is_undirected(W.graph) for W in _matrices(rounds)),
        f"needs links that go both ways, but {{where}} is directed: use an undirected topology, such as grid, or "
        f"{_PUSH_SUM}",
    ),
    Need.connected: (
        _is_connected,
        "needs a strongly connected graph, but {where} is not strongly connected: use another topology "
        "(of a graph in a file, topology=networkx keeps the largest component)",
    ),
    Need.tree: (
        is_tree,
        "relays over trees, but {where} is not a tree: use topology=chain, bt, dbt, star or spanning_tree",
    ),
    Need.row_stochastic: (
        _rows_sum_to_one,
        "needs a row-stochastic mixing matrix, but rows of {where} do not sum to 1: use topology.weights=pull",
    ),
    Need.column_stochastic: (
        _columns_sum_to_one,
        "needs a column-stochastic mixing matrix, but columns of {where} do not sum to 1: use topology.weights=uniform",
    ),
    Need.doubly_stochastic: (
        lambda rounds: _rows_sum_to_one(rounds) and _columns_sum_to_one(rounds),
        f"needs a doubly stochastic mixing matrix, but rows or columns of {{where}} do not sum to 1, so the workers "
        "would converge to a wrong mean: use topology.weights=metropolis on an undirected topology, or "
        f"topology.weights=uniform with {_PUSH_SUM}",
    ),
    Need.symmetric: (_is_symmetric, _NOT_SYMMETRIC),
    Need.bipartite: (
        lambda rounds: two_sides(all_edges(rounds)) is not None,
        "needs a bipartite graph, but {where} has a cycle of odd length: use topology=ring with an even number of "
        "workers, hypercube, or a tree such as chain",
    ),
    Need.d2_spectrum: (
        lambda rounds: _is_symmetric(rounds) and _smallest_eigenvalue(rounds) >= _D2_BOUND,
        _d2_problem,
    ),
}
