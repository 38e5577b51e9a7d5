"""Bytes on their way and nothing else: what no exchange of rows can undercut over the same wires."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from decentral.jobs.timing.group import Work

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.network.world import World
    from decentral.topology.rounds import Rounds


class Message(NamedTuple):
    """`width` numbers that worker `src` sends to worker `dst`."""

    src: int
    dst: int
    width: int


def messages(rounds: Rounds, num_coordinates: int, round: int) -> Iterator[Message]:
    """Everything that must be sent in a round: a piece of the model for each entry of W that is not zero, and not on
    the diagonal."""
    pieces = [len(range(num_coordinates)[piece]) for piece in rounds.slices(num_coordinates)]
    for W, width in zip(rounds.mixing(round), pieces, strict=True):
        for src, dst in zip(W.graph.src.tolist(), W.graph.dst.tolist(), strict=True):
            yield Message(src, dst, width)


@dataclass(frozen=True)
class PointToPoint:
    """`batch_isend_irecv` of the bytes that the topology asks for, from and to memory that is there already."""

    config: Config
    num_coordinates: int

    def __call__(self, world: World) -> Work:
        """For the worker of this process."""
        assert self.config.num_workers is not None
        return _PointToPoint(self.config.rounds(), self.num_coordinates, world.rank)


class _PointToPoint(Work):
    def __init__(self, rounds: Rounds, num_coordinates: int, rank: int) -> None:
        import torch

        each_round = [list(messages(rounds, num_coordinates, round)) for round in range(rounds.period)]
        self.sends = [[(m, tag) for tag, m in enumerate(each) if m.src == rank] for each in each_round]
        self.receives = [[(m, tag) for tag, m in enumerate(each) if m.dst == rank] for each in each_round]
        self.row = torch.ones(num_coordinates)
        most = max(len(each) for each in self.receives)
        self.received = [torch.zeros(num_coordinates) for _ in range(most)]
        self.t = 0

    def __call__(self) -> None:
        import torch.distributed as dist

        sends, receives = self.sends[self.t], self.receives[self.t]
        self.t = (self.t + 1) % len(self.sends)
        operations = [
            dist.P2POp(dist.irecv, into[: m.width], m.src, tag=tag)
            for into, (m, tag) in zip(self.received, receives, strict=False)
        ]
        operations += [dist.P2POp(dist.isend, self.row[: m.width], m.dst, tag=tag) for m, tag in sends]
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()


@dataclass(frozen=True)
class Copy:
    """One copy of a row in every process at once: two passes over memory, at the speed that it has for all of them."""

    num_coordinates: int

    def __call__(self, world: World) -> Work:
        """Two rows."""
        return _Copy(self.num_coordinates)


class _Copy(Work):
    def __init__(self, num_coordinates: int) -> None:
        import torch

        self.row, self.copy = torch.ones(num_coordinates), torch.zeros(num_coordinates)

    def __call__(self) -> None:
        self.copy.copy_(self.row)


@dataclass(frozen=True)
class AllReduce:
    """One `all_reduce` of a flat tensor."""

    num_coordinates: int

    def __call__(self, world: World) -> Work:
        """For this process."""
        return _AllReduce(self.num_coordinates)


class _AllReduce(Work):
    def __init__(self, num_coordinates: int) -> None:
        import torch

        self.row = torch.zeros(num_coordinates)

    def __call__(self) -> None:
        import torch.distributed as dist

        dist.all_reduce(self.row)
