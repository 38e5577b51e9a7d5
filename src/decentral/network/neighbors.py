"""Weighted sums of neighbors' rows, with weights given per call, between ranks or between machines of ranks.

Each rank knows only its own neighbors and weights, so the graph may depend on data and other ranks are not involved.
Fixed rounds of a topology use `Network.mix`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from decentral.network.kernels import weighted_sum
from decentral.network.transports.posting import SPARE, Message, Work, post, wait
from decentral.topology.communication import hierarchical_phases
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Split, slices

Begun = tuple[list[Work], Callable[[], None]]
"""Messages in flight, and a function that writes the results after all have arrived."""


class Star(NamedTuple):
    """A rank's part in a call: its own weight w_ii, r_ij by source rank and s_ji by destination rank."""

    own: float
    sources: Mapping[int, float]
    destinations: Mapping[int, float]


class Term(NamedTuple):
    """A row [P] that a rank sends and mixes, with the output: the row itself, another one, or none."""

    row: Tensor
    star: Star
    out: Tensor | None


def begin_sums(terms: Sequence[Term]) -> Begun:
    """out <- w_ii x_i + sum_j r_ij (s_ij x_j), in this order with sources ascending, for every row x_i.

    Rows are scaled before sending: one buffer for all destinations if all s are equal (the row itself if they are 1),
    else one each. A result that equals the row of one source is received in place.
    """
    incoming = [_buffers(term) for term in terms]
    outgoing = [_scaled(term.row, term.star.destinations) for term in terms]
    receives = [Message(buffer, j) for buffers in incoming for j, buffer in buffers.items()]
    sends = [
        Message(scaled[s], j)
        for term, scaled in zip(terms, outgoing, strict=True)
        for j, s in term.star.destinations.items()
    ]
    works = post(sends, receives)

    def finish() -> None:
        for term, buffers, scaled in zip(terms, incoming, outgoing, strict=True):
            if term.out is not None and not _as_it_is(term):
                rest = [(buffers[j], r) for j, r in term.star.sources.items()]
                weighted_sum([(term.row, term.star.own), *rest], term.out)
                SPARE.give_back(buffers.values())
            SPARE.give_back(sent for s, sent in scaled.items() if s != 1)

    return works, finish


def begin_between_machines(rows: Sequence[Tensor], outs: Sequence[Tensor], rank: int, star: Star, L: int) -> Begun:
    """The same for machines of L ranks: out <- w_mm mean_m + sum_k r_mk (s_mk mean_k), on every rank of machine m.

    `star` has the weights between ranks at the same place of all machines. The three exchanges are those of
    `topology.machines.hierarchical_phases`, with these weights between machines: of P numbers in a row, 2 (1 - 1/L) P
    are sent within the machine and P / L to each other machine. The first exchange is in flight on return.
    """
    return _begin_hierarchical(rows, outs, rank, star, L, 1 / L)


def begin_inside_machines(rows: Sequence[Tensor], outs: Sequence[Tensor], rank: int, L: int, mean: bool) -> Begun:
    """out <- the sum or mean over the L ranks of this machine; for sums, rows may hold integers."""
    return _begin_hierarchical(rows, outs, rank, Star(1, {}, {}), L, 1 / L if mean else 1)


def _begin_hierarchical(
    rows: Sequence[Tensor], outs: Sequence[Tensor], rank: int, star: Star, L: int, weight: float
) -> Begun:
    scatter, gather, mine = *_inside(rank, L), rank % L
    shards, results = [_shards(row, L) for row in rows], [_shards(out, L) for out in outs]
    own = [parts[mine] for parts in results]  # this rank's share, which is not sent
    first = [
        Term(part, _looked_after(each, weight), total) if place == mine else Term(part, each, None)
        for parts, total in zip(shards, own, strict=True)
        for place, (part, each) in enumerate(zip(parts, scatter, strict=True))
    ]
    works, finish_first = begin_sums(first)

    def finish() -> None:
        finish_first()
        _now([Term(total, star, total) for total in own])
        _now([Term(part, each, part) for parts in results for part, each in zip(parts, gather, strict=True)])

    return works, finish


def _now(terms: Sequence[Term]) -> None:
    works, finish = begin_sums(terms)
    wait(works)
    finish()


@lru_cache(64)
def _inside(rank: int, L: int) -> tuple[list[Star], list[Star]]:
    """Return this rank's part for each shard in the first and last exchange, which stay within its machine."""
    machine, place = divmod(rank, L)
    scatter, _, gather = hierarchical_phases(MixingMatrix.identity(1), L)
    return (
        [_star(W, place, machine * L) for W in scatter.matrices],
        [_star(W, place, machine * L) for W in gather.matrices],
    )


def _star(W: MixingMatrix, place: int, first: int) -> Star:
    """Return the part of worker `place` in the matrix W of a machine whose first rank is `first`."""
    row = dict(W.row(place))
    destinations = {int(i) + first: 1 for i in W.dst[W.src == place] if i != place}
    return Star(row.pop(place, 0.0), {j + first: weight for j, weight in row.items()}, destinations)


def _looked_after(star: Star, weight: float) -> Star:
    """Return the part for the shard that this rank owns, with one weight for the whole machine."""
    return Star(weight, dict.fromkeys(star.sources, weight), star.destinations)


def _shards(row: Tensor, L: int) -> list[Tensor]:
    return [row[part] for part in slices(len(row), L, Split.contiguous)] if L > 1 else [row]


def _as_it_is(term: Term) -> bool:
    """Return whether the result is the row of a single source, or unchanged."""
    own, sources, _ = term.star
    kept = own == 1 and not sources and term.out is term.row
    received = own == 0 and list(sources.values()) == [1] and (term.out is not term.row or not term.star.destinations)
    return kept or received


def _buffers(term: Term) -> dict[int, Tensor]:
    """Return the receive buffer of each source."""
    if term.out is not None and _as_it_is(term):
        return dict.fromkeys(term.star.sources, term.out)
    return {j: SPARE.take(term.row) for j in term.star.sources}


def _scaled(row: Tensor, destinations: Mapping[int, float]) -> dict[float, Tensor]:
    """Return s x for every distinct s of the destinations; the row itself for 1."""
    factors = sorted(set(destinations.values()))
    return {s: row if s == 1 else torch.mul(row, s, out=SPARE.take(row)) for s in factors}
