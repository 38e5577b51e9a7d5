"""Reconstruction of private values by honest-but-curious workers from the messages that they receive.

Every worker j has a private constant v_j. The attackers A follow the protocol, know the graph and W, and pool their
own values and every message to one of them. All of it is linear in v. With gossip, x^{t+1} = W_t x^t from x^0 = v, the
knowledge matrix K_T has the rows e_a of the attackers and row j of W_{t-1} ... W_0 for every j that sends to one of
them in a round t < T. Its rank grows with T and then stops. Worker j's value can be reconstructed iff e_j is in the row
space: a row of the reduced row echelon form with a single entry. Workers with equal columns are indistinguishable.

Changing gradients, noise and compression are not covered, and a value that cannot be reconstructed here is not
guaranteed to be private. El Mrini, Cyffers and Bellet, "Privacy Attacks in Decentralized Learning", ICML 2024.

Numbers are integers modulo the prime 2^61 - 1. Ranks are exact unless the prime divides a determinant of the weights,
which for n workers has a probability of about n / 2^61. In floating point, ranks would be unreliable from n ~ 20 on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.graph import breadth_first
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.requirements import is_tree
from decentral.topology.rounds import Rounds

PRIME = (1 << 61) - 1
_DENOMINATOR = 10**6
_LONGEST_PAUSE = 64


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The knowledge of some attackers once further rounds add nothing.

    attackers   numbers of the workers that pool what they see
    matrix      the reduced row echelon form of K_T modulo PRIME: uint64 [rank, n]
    rounds      T, the rounds until the rank stops growing
    heard       numbers of the workers from which they have received messages
    """

    attackers: frozenset[int]
    matrix: np.ndarray
    rounds: int
    heard: frozenset[int]

    @property
    def rank(self) -> int:
        """Return the number of known values or linearly independent combinations."""
        return len(self.matrix)

    @property
    def reconstructed(self) -> list[int]:
        """Return the other workers whose values the attackers can reconstruct, ascending."""
        single = self.matrix[np.count_nonzero(self.matrix, axis=1) == 1]
        return sorted({*single.argmax(axis=1).tolist()} - self.attackers)

    @property
    def groups(self) -> list[list[int]]:
        """Return groups of two or more indistinguishable workers."""
        by_column: dict[bytes, list[int]] = {}
        for worker, column in enumerate(np.ascontiguousarray(self.matrix.T)):
            by_column.setdefault(column.tobytes(), []).append(worker)
        return [group for group in by_column.values() if len(group) > 1]


def from_gossip(rounds: Rounds, attackers: Sequence[Collection[int]], piece: int = 0) -> list[Knowledge]:
    """Return the knowledge of each set of attackers from gossip averaging of one piece of the model.

    Exact for rounds with a period up to 64. Otherwise the attackers' knowledge counts as complete when 64 consecutive
    rounds add nothing.

    Raises:
        ConfigError: a round is not one exchange of whole models with the neighbors.
    """
    n, pause = rounds.num_workers, min(rounds.period, _LONGEST_PAUSE)
    x, weights = np.eye(n, dtype=np.uint64), dict[int, np.ndarray]()
    found = [Knowledge(frozenset(each), x[sorted(each)], 0, frozenset()) for each in attackers]
    t = 0
    while any(one.rank < n and t < one.rounds + pause for one in found):
        phases = rounds.phases(t)
        if phases and (len(phases) > 1 or not phases[0].matrices):
            raise ConfigError(
                f"round {t} of {n} workers is not one exchange with neighbors, so its privacy is unknown: leave out "
                "communication.global_every and communication.workers_per_machine."
            )
        W, key = rounds.mixing(t)[piece], t % rounds.period
        for place, one in enumerate(found):
            if one.rank < n and t < one.rounds + pause:
                senders = {j for a in one.attackers for j, _ in W.row(a)} - one.attackers
                found[place] = _having_seen(one, x[sorted(senders)], t, senders)
        if key not in weights:
            weights[key] = _residues(exact_weights(W))
        x, t = _mixed(W, weights[key], x), t + 1
    return found


def from_relaying(rounds: Rounds, attackers: Sequence[Collection[int]], piece: int = 0) -> list[Knowledge]:
    """Return the knowledge of each set of attackers from RelaySum on a tree, of one piece of the model.

    In round t, the message from a neighbor is the sum over the workers of its branch up to t hops behind it. For one
    attacker the rank is therefore 1 + the sum of the depths of its branches, and it reconstructs exactly the workers
    that are alone in their level.

    Raises:
        ConfigError: the graph is not a tree.
    """
    if not is_tree(rounds):
        raise ConfigError(
            "the privacy of relaying is known for trees only, and this graph is not a tree: use topology=bt."
        )
    n, tree, found = rounds.num_workers, rounds.graphs()[piece], []
    for each in attackers:
        known = Knowledge(frozenset(each), np.eye(n, dtype=np.uint64)[sorted(each)], 0, frozenset())
        levels: dict[tuple[int, int, int], list[int]] = {}
        for attacker in sorted(each):
            order, parent = (ends.tolist() for ends in breadth_first(tree, attacker))
            branch, depth = {attacker: attacker}, {attacker: 0}
            for worker in order[1:]:
                above = parent[worker]
                depth[worker] = depth[above] + 1
                branch[worker] = worker if above == attacker else branch[above]
                levels.setdefault((depth[worker] - 1, attacker, branch[worker]), []).append(worker)
        for (t, _, neighbor), workers in sorted(levels.items()):
            row = np.zeros((1, n), dtype=np.uint64)
            row[0, workers] = 1
            known = _having_seen(known, row, t, {neighbor} - known.attackers)
        found.append(known)
    return found


def share_given_away(found: Sequence[Knowledge]) -> float:
    """Return the share of other workers' values that attackers reconstruct, averaged over the sets of attackers."""
    others = sum(one.matrix.shape[1] - len(one.attackers) for one in found)
    return sum(len(one.reconstructed) for one in found) / others if others else 0.0


# -- weights -----------------------------------------------------------------------------------------------------------


def exact_weights(W: MixingMatrix) -> list[Fraction]:
    """Return the weights as fractions, so that rows or columns that sum to one do so exactly.

    Off-diagonal entries use the smallest denominators up to 10^6; the diagonal is the rest of the row (or column). If
    these fractions disagree with the floating-point numbers (see `recovered`), the result has the floating-point
    numbers as binary fractions.
    """
    return _recovered(W) or [Fraction(weight) for weight in W.weight.tolist()]


def recovered(rounds: Rounds, piece: int = 0) -> bool:
    """Return whether the weights of a period's first 64 rounds are recovered as the fractions behind the floats."""
    return all(_recovered(rounds.mixing(t)[piece]) for t in range(min(rounds.period, _LONGEST_PAUSE)))


def _recovered(W: MixingMatrix) -> list[Fraction] | None:
    near = {weight: Fraction(weight).limit_denominator(_DENOMINATOR) for weight in set(W.weight.tolist())}
    weights, src, dst = [near[weight] for weight in W.weight.tolist()], W.src.tolist(), W.dst.tolist()
    sums = ((W.row_sums(), dst), (W.column_sums(), src))
    sides = [ends for found, ends in sums if np.allclose(found, 1, rtol=0, atol=1e-9)]
    for number, ends in enumerate(sides):
        rest = [Fraction(1)] * W.num_workers
        for entry, (i, j) in enumerate(zip(dst, src, strict=True)):
            if i != j:
                rest[ends[entry]] -= weights[entry]
        for entry, (i, j) in enumerate(zip(dst, src, strict=True)):
            if i == j and number == 0:
                weights[entry] = rest[i]
            if i == j:
                rest[i] -= weights[entry]
        if any(rest):
            return None
    differences = np.abs(np.array([float(weight) for weight in weights]) - W.weight)
    tolerances = np.where(W.src == W.dst, 1e-12, 1e-15)  # the diagonal was rounded more than once
    return weights if sides and (differences <= tolerances).all() else None


def _residues(weights: Sequence[Fraction]) -> np.ndarray:
    """Return fractions modulo PRIME: uint64 [E]."""
    known = {weight: weight.numerator * pow(weight.denominator, -1, PRIME) % PRIME for weight in set(weights)}
    return np.array([known[weight] for weight in weights], dtype=np.uint64)


# -- linear algebra modulo PRIME ---------------------------------------------------------------------------------------

_PRIME, _LOW, _HALF, _MOST = (np.uint64(number) for number in (PRIME, (1 << 31) - 1, 31, 30))
_LOW_MOST = np.uint64((1 << 30) - 1)


def _having_seen(known: Knowledge, rows: np.ndarray, t: int, senders: Collection[int]) -> Knowledge:
    """Add the messages of a round, uint64 [messages, n], to the knowledge."""
    matrix = known.matrix
    for row in rows:
        if len(matrix):
            pivots = (matrix != 0).argmax(axis=1)
            row = (row + _PRIME - _sum(_times(row[pivots][:, None], matrix))[0]) % _PRIME
        if row.any():
            pivot = int((row != 0).argmax())
            row = _times(row, np.uint64(pow(int(row[pivot]), -1, PRIME)))
            matrix = (matrix + _times(_PRIME - matrix[:, pivot, None], row)) % _PRIME
            matrix = np.vstack([matrix, row])
    rounds = t + 1 if len(matrix) > known.rank else known.rounds
    return Knowledge(known.attackers, matrix, rounds, known.heard.union(senders))


def _mixed(W: MixingMatrix, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return W x for x [n, n]."""
    heard = np.flatnonzero(np.diff(W.starts))
    mixed = np.zeros_like(x)
    mixed[heard] = _sum(_times(weights[:, None], x[W.src]), W.starts[heard])
    return mixed


def _times(a: np.ndarray, b: np.ndarray | np.uint64) -> np.ndarray:
    """Multiply numbers up to PRIME modulo PRIME, in halves of 31 bits: 2^61 is 1."""
    a_high, a_low, b_high, b_low = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    middle = a_high * b_low + a_low * b_high
    products = (a_high * b_high << np.uint64(1)) + (middle >> _MOST) + ((middle & _LOW_MOST) << _HALF) + a_low * b_low
    return np.asarray(products % _PRIME)


def _sum(x: np.ndarray, starts: Sequence[int] | np.ndarray = (0,)) -> np.ndarray:
    """Return the sums modulo PRIME of the rows from each start up to the next one: uint64 [starts, n]."""
    low, high = (np.add.reduceat(half, starts, axis=0) for half in (x & _LOW, x >> _HALF))
    return np.asarray((low + _times(high, np.uint64(1 << 31))) % _PRIME)
