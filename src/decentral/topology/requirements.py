"""What algorithms may ask of a schedule, and one sentence for each thing that can be wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from enum import Enum

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.facts import smallest_eigenvalue
from decentral.topology.graph import is_connected, is_undirected, support
from decentral.topology.schedule import Schedule

_TOLERANCE = 1e-9
_PUSH_SUM = "an algorithm with push-sum, such as algo=sgp"


class Need(Enum):
    """Properties of a schedule, checked in this order.

    - static: the same matrices in every round.
    - undirected: every edge has its opposite.
    - connected: over one period, every worker's messages can reach every other one, in every piece.
    - tree: static, undirected, connected and without cycles, in every piece (RelaySum).
    - row_stochastic: W 1 = 1, agreement stays. Pull weights have no more: repeated, they agree on a weighted mean.
    - column_stochastic: 1^T W = 1^T, the sum over workers is kept (push-sum).
    - doubly_stochastic: both, so that the mean is kept and agreement stays (gossip).
    - symmetric: W = W^T.
    - d2_spectrum: symmetric with smallest eigenvalue >= -1/3, up to 1e-9. D2's analysis wants it above -1/3; rings of
      even length with metropolis weights sit exactly there, where the RelaySGD paper runs D2: equality passes.
    """

    static = "static"
    undirected = "undirected"
    connected = "connected"
    tree = "tree"
    row_stochastic = "row_stochastic"
    column_stochastic = "column_stochastic"
    doubly_stochastic = "doubly_stochastic"
    symmetric = "symmetric"
    d2_spectrum = "d2_spectrum"


def check(schedule: Schedule, needs: AbstractSet[Need], algo: str, topology: str) -> None:
    """Refuse a schedule that does not give `algo` what it needs; one worker satisfies every need.

    Raises:
        ConfigError: says what is wrong with which values, and what to use instead.
    """
    where = f"topology={topology} with num_workers={schedule.num_workers}"
    for W in _matrices(schedule):
        if not np.isfinite(W).all():
            raise ConfigError(f"{where} has mixing weights that are not finite numbers.")
    if schedule.num_workers == 1:
        return
    for need in Need:
        if need in needs:
            problem = _CHECKS[need](schedule, where)
            if problem:
                raise ConfigError(f"algo={algo} {problem}.")


def _matrices(schedule: Schedule) -> Iterator[np.ndarray]:
    """All matrices of one period, of every round and piece."""
    return (W for round in range(schedule.period) for W in schedule.matrices(round))


def _static(schedule: Schedule, where: str) -> str | None:
    if schedule.period == 1:
        return None
    return (
        f"needs the same graph in every round, but {where} changes with the round: use a static topology, such as ring"
    )


def _undirected(schedule: Schedule, where: str) -> str | None:
    if all(is_undirected(support(W)) for W in _matrices(schedule)):
        return None
    return (
        f"needs links that go both ways, but {where} is directed: use an undirected topology, such as grid, "
        f"or {_PUSH_SUM}"
    )


def _connected(schedule: Schedule, where: str) -> str | None:
    for piece in range(schedule.num_pieces):
        union = np.logical_or.reduce([support(schedule.matrices(r)[piece]) for r in range(schedule.period)])
        if not is_connected(union):
            return f"needs all workers to hear of each other, but {where} is not connected: use another topology"
    return None


def _tree(schedule: Schedule, where: str) -> str | None:
    other = "use topology=chain, bt, dbt, star or spanning_tree"
    if schedule.period > 1:
        return f"relays over trees, but {where} changes with the round: {other}"
    for A in schedule.graphs():
        if not is_undirected(A):
            return f"relays over trees, but {where} is directed: {other}"
        if not is_connected(A):
            return f"relays over trees, but {where} is not connected: {other}"
        if A.sum() > 2 * (len(A) - 1):
            return f"relays over trees, but {where} has a cycle: {other}"
    return None


def _row_stochastic(schedule: Schedule, where: str) -> str | None:
    worst = _furthest_from_one(schedule, axis=1)
    if worst is None:
        return None
    return (
        f"needs a row-stochastic mixing matrix, but a row of {where} sums to {worst:.6g} instead of 1: "
        "use topology.weights=pull"
    )


def _column_stochastic(schedule: Schedule, where: str) -> str | None:
    worst = _furthest_from_one(schedule, axis=0)
    if worst is None:
        return None
    return (
        f"needs a column-stochastic mixing matrix, but a column of {where} sums to {worst:.6g} instead of 1: "
        "use topology.weights=uniform"
    )


def _doubly_stochastic(schedule: Schedule, where: str) -> str | None:
    metropolis = "topology.weights=metropolis on an undirected topology"
    row = _furthest_from_one(schedule, axis=1)
    if row is not None:
        return (
            f"needs a doubly stochastic mixing matrix, but a row of {where} sums to {row:.6g} instead of 1: "
            f"use {metropolis}, or {_PUSH_SUM}"
        )
    column = _furthest_from_one(schedule, axis=0)
    if column is not None:
        return (
            f"needs a doubly stochastic mixing matrix, but a column of {where} sums to {column:.6g} instead of 1, so "
            f"that the workers would agree on a wrong mean: use {metropolis}, "
            f"or topology.weights=uniform with {_PUSH_SUM}"
        )
    return None


def _furthest_from_one(schedule: Schedule, axis: int) -> float | None:
    """The sum of a row (axis 1) or column (axis 0) that is furthest from 1; none if all are 1 up to the tolerance."""
    sums = [W.sum(axis=axis) for W in _matrices(schedule)]
    worst = max((s[np.abs(s - 1).argmax()] for s in sums), key=lambda value: abs(value - 1))
    return None if abs(worst - 1) <= _TOLERANCE else float(worst)


def _symmetric(schedule: Schedule, where: str) -> str | None:
    if all(np.allclose(W, W.T, rtol=0, atol=_TOLERANCE) for W in _matrices(schedule)):
        return None
    return (
        f"needs a symmetric mixing matrix, but that of {where} is not: "
        "use topology.weights=metropolis on an undirected topology"
    )


def _d2_spectrum(schedule: Schedule, where: str) -> str | None:
    problem = _symmetric(schedule, where)
    if problem:
        return problem
    smallest = min(smallest_eigenvalue(W) for W in _matrices(schedule))
    if smallest >= -1 / 3 - _TOLERANCE:
        return None
    return (
        f"needs a mixing matrix without eigenvalues below -1/3, but the smallest eigenvalue of W is {smallest:.3f}, "
        f"below -1/3, for {where}: use algo=exact_diffusion, or topology.weights=constant with a small enough "
        f"topology.edge_weight ({_largest_edge_weight(schedule):.3g} or less)"
    )


def _largest_edge_weight(schedule: Schedule) -> float:
    """The largest c, rounded down, for which I - c L has no eigenvalue below -1/3 (L: Laplacian of a graph)."""
    graphs = [support(W).astype(np.float64) for W in _matrices(schedule)]
    largest = max(np.linalg.eigvalsh(np.diag(A.sum(axis=0)) - A)[-1] for A in graphs)
    degree = max(A.sum(axis=0).max() for A in graphs)
    bound = min(4 / (3 * largest), 1 / degree)
    digits = 2 - math.floor(math.log10(bound))  # three significant ones
    return math.floor(bound * 10**digits) / 10**digits


_CHECKS: dict[Need, Callable[[Schedule, str], str | None]] = {
    Need.static: _static,
    Need.undirected: _undirected,
    Need.connected: _connected,
    Need.tree: _tree,
    Need.row_stochastic: _row_stochastic,
    Need.column_stochastic: _column_stochastic,
    Need.doubly_stochastic: _doubly_stochastic,
    Need.symmetric: _symmetric,
    Need.d2_spectrum: _d2_spectrum,
}
