"""The weights of one neighbour all-reduce, as the caller gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from decentral.errors import ConfigError

Named = Mapping[int, float] | Sequence[int]
"""Ranks with weights, or ranks alone, whose weights are 1."""


class Weights(NamedTuple):
    """w_ii, r_ij by source and s_ji by destination; None: nobody is named, whoever names this rank is meant."""

    own: float
    sources: dict[int, float] | None
    destinations: dict[int, float] | None

    def renamed(self, name: Callable[[int], int]) -> Weights:
        """The same weights for `name(j)` instead of j."""
        sides = [side if side is None else {name(j): w for j, w in side.items()} for side in self[1:]]
        return Weights(self.own, *sides)


def read(
    own: float | None,
    sources: Named | None,
    destinations: Named | None,
    rank: int,
    size: int,
    kind: str = "rank",
    key: str = "weights",
) -> Weights:
    """Checked; `kind` is what is named: ranks, or machines, of which there are `size`, and this is number `rank`.

    `key` is what the arguments' names end in.

    Raises:
        ConfigError: no weight of its own, a weight that is no finite number, a number that is nobody's.
    """
    if own is None:
        raise ConfigError(
            "src_weights and dst_weights need self_weight, the weight of x itself: with dst_weights alone, "
            "1 - the sum of dst_weights keeps the sum over ranks; with src_weights alone, 1 - the sum of src_weights "
            "keeps agreement."
        )
    end = key if kind == "rank" else f"{kind}_{key}"
    return Weights(
        _number("self_weight", own),
        _named(f"src_{end}", sources, rank, size, kind),
        _named(f"dst_{end}", destinations, rank, size, kind),
    )


def _named(key: str, given: Named | None, rank: int, size: int, kind: str) -> dict[int, float] | None:
    """Ascending."""
    if given is None:
        return None
    pairs = given.items() if isinstance(given, Mapping) else [(j, 1.0) for j in given]
    weights: dict[int, float] = {}
    for j, weight in pairs:
        if isinstance(j, bool) or not hasattr(j, "__index__") or not 0 <= int(j) < size:
            raise ConfigError(f"{key} names {kind} {j!r}, but {kind}s are numbered 0 to {size - 1}.")
        if int(j) == rank:
            raise ConfigError(f"{key} names {kind} {j}, which is the caller's own: its weight is self_weight.")
        if int(j) in weights:
            raise ConfigError(f"{key} names {kind} {j} twice.")
        weights[int(j)] = _number(f"{key}[{j}]", weight)
    return dict(sorted(weights.items()))


def _number(key: str, weight: float) -> float:
    try:
        number = float(weight)
    except (TypeError, ValueError):
        raise ConfigError(f"{key}={weight!r} is no number.") from None
    if not math.isfinite(number):
        raise ConfigError(f"{key}={number} is not finite.")
    return number
