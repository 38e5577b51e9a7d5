"""The weighted sum of what neighbours send, with the weights of one call; and the same inside and between machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.kernels import weighted_sum
from decentral.peers.bundle import Row
from decentral.peers.exchange import SPARE, Message, post, wait
from decentral.peers.handle import Work


class Star(NamedTuple):
    """What this rank does in a call: w_ii, r_ij by source rank (ascending) and s_ji by destination rank."""

    own: float
    sources: Mapping[int, float]
    destinations: Mapping[int, float]


def begin_sum(rows: Sequence[Row], star: Star) -> tuple[list[Work], Callable[[bool], list[Tensor]]]:
    """x_i+ = w_ii x_i + sum_j r_ij (s_ij x_j) of every row; the second result makes the sum when the works are done.

    It is told whether the memory of the rows may be used for it. What is sent is scaled before: one buffer for all
    destinations if all s are equal (the row itself if they are 1), else one each.
    """
    incoming = [{j: SPARE.take(row.values) for j in star.sources} for row in rows]
    receives = [Message(buffer, j) for buffers in incoming for j, buffer in buffers.items()]
    outgoing = [_scaled(row.values, star.destinations) for row in rows]
    sends = [Message(scaled[s], j) for scaled in outgoing for j, s in star.destinations.items()]
    works = post(sends, receives)

    def finish(inplace: bool) -> list[Tensor]:
        results = []
        for row, buffers, scaled in zip(rows, incoming, outgoing, strict=True):
            out = row.values if row.owned or inplace else torch.empty_like(row.values)
            terms = [(row.values, star.own), *((buffers[j], r) for j, r in star.sources.items())]
            weighted_sum(terms, out)
            results.append(out)
            SPARE.give_back([*buffers.values(), *(sent for s, sent in scaled.items() if s != 1)])
        return results

    return works, finish


def _scaled(row: Tensor, destinations: Mapping[int, float]) -> dict[float, Tensor]:
    """s x for every s that some destination has; the row itself for 1."""
    factors = sorted(set(destinations.values()))
    return {s: row if s == 1 else torch.mul(row, s, out=SPARE.take(row)) for s in factors}


class Machine(NamedTuple):
    """Ranks `first`, ..., `first + size - 1`, of which this process is one."""

    first: int
    size: int

    @property
    def others(self) -> list[int]:
        """The other ranks."""
        return [rank for rank in range(self.first, self.first + self.size) if rank != dist.get_rank()]

    def shards(self, row: Tensor) -> dict[int, Tensor]:
        """The part of a row that each rank is responsible for; sizes differ by at most one."""
        bounds = [len(row) * place // self.size for place in range(self.size + 1)]
        return {self.first + place: row[bounds[place] : bounds[place + 1]] for place in range(self.size)}


def machine_of(rank: int, workers_per_machine: int) -> Machine:
    """The machine of a rank: consecutive ranks share one."""
    return Machine(rank // workers_per_machine * workers_per_machine, workers_per_machine)


def begin_between_machines(
    rows: Sequence[Row], machine: Machine, star: Star, factor: float
) -> tuple[list[Work], Callable[[bool], list[Tensor]]]:
    """The sum of `begin_sum` over machines: x_m = factor times the sum of x_i over the ranks i of machine m.

    Reduce-scatter within the machine, each shard between the ranks of one place on all machines (`star` names these),
    all-gather within the machine. A rank sends 2 (1 - 1/L) P numbers inside and P / L to each other machine. All of it
    goes point to point through the one communicator; the first phase is under way when this returns.
    """
    rank = dist.get_rank()
    own = [machine.shards(row.values)[rank] for row in rows]
    incoming = [{j: SPARE.take(shard) for j in machine.others} for shard in own]
    sends = [Message(machine.shards(row.values)[j], j) for row in rows for j in machine.others]
    works = post(sends, [Message(buffer, j) for buffers in incoming for j, buffer in buffers.items()])

    def finish(inplace: bool) -> list[Tensor]:
        means = []
        for shard, buffers in zip(own, incoming, strict=True):
            terms = buffers | {rank: shard}
            mean = terms[machine.first].clone()
            for j in range(machine.first + 1, machine.first + machine.size):
                mean.add_(terms[j])
            means.append(Row(mean if factor == 1 else mean.mul_(factor), [], owned=True))
            SPARE.give_back(buffers.values())
        between, total = begin_sum(means, star)
        wait(between)
        outs = [row.values if row.owned or inplace else torch.empty_like(row.values) for row in rows]
        _collect(machine, total(True), outs)
        return outs

    return works, finish


def _collect(machine: Machine, shards: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """Everybody's shards, on every rank of the machine."""
    for shard, out in zip(shards, outs, strict=True):
        machine.shards(out)[dist.get_rank()].copy_(shard)
    receives = [Message(machine.shards(out)[j], j) for out in outs for j in machine.others]
    wait(post([Message(shard, j) for shard in shards for j in machine.others], receives))
