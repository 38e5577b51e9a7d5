"""Workers in several processes: rows that leave the process travel over torch.distributed, point to point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network import kernels
from decentral.network.network import Network
from decentral.network.rounds import Losses
from decentral.topology.schedule import Schedule


def split_workers(num_workers: int, num_processes: int) -> list[range]:
    """The workers of each process: consecutive, sizes differ by at most one, the larger ones first."""
    size, larger = divmod(num_workers, num_processes)
    starts = [p * size + min(p, larger) for p in range(num_processes + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


@dataclass(frozen=True)
class _Transfer:
    """A row that crosses between this process and `peer`. Both sides enumerate a round's transfers in the same
    order."""

    peer: int
    tag: int


class ProcessNetwork(Network):
    """This process hosts some of the n workers; needs an initialised process group (gloo or nccl).

    In every verb, all receives are posted first, then all sends, then everything is waited for: one message for each
    row that another process needs (mix) or for each link that is cut (relay). `wire_bytes` and `wire_messages` count
    what this process really sends; with one worker per process their sum is `bytes_sent` and `messages_sent`
    (all-reduce apart, and where no message is lost: a lost one is counted, but mixing does not send it).
    """

    def __init__(self, schedule: Schedule, losses: Losses, device: torch.device) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self.layout = split_workers(schedule.num_workers, size)
        super().__init__(schedule, self.layout[rank], losses)
        self.owner = [p for p, workers in enumerate(self.layout) for _ in workers]
        self.rank = rank
        self.device = device
        self.wire_bytes = 0
        self.wire_messages = 0
        self._spare: dict[tuple[torch.Size, torch.dtype], Tensor] = {}

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all workers on every process, on the CPU."""
        largest = len(self.layout[0])
        padded = rows.new_zeros(largest, *rows.shape[1:], device=self.device)
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in self.layout]
        dist.all_gather(parts, padded)
        return torch.cat([part[: len(workers)] for part, workers in zip(parts, self.layout, strict=True)]).cpu()

    def average(self, x: Tensor) -> Tensor:
        """1/n sum_j x_j: [k, P] -> [P]."""
        total = x.sum(0)
        dist.all_reduce(total)
        return total.div_(self.n)

    def _mean(self, x: Tensor) -> Tensor:
        return x.copy_(self.average(x))

    def _mix(self, x: Tensor, pieces: list[slice], round: int, lazy: bool) -> Tensor:
        rows = self.rounds.rows(round, lazy)
        received: list[dict[int, Tensor]] = []
        sends: list[tuple[Tensor, _Transfer]] = []
        receives: list[tuple[Tensor, _Transfer]] = []
        tag = 0
        for piece, weights in zip(pieces, rows, strict=True):
            remote: dict[int, Tensor] = {}
            for j, peer in self._crossings(weights):
                if self.owner[j] == self.rank:
                    sends.append((x[j - self.workers.start][..., piece].contiguous(), _Transfer(peer, tag)))
                elif peer == self.rank:
                    remote[j] = x.new_empty(x[0][..., piece].shape)
                    receives.append((remote[j], _Transfer(self.owner[j], tag)))
                tag += 1
            received.append(remote)
        self._transfer(sends, receives)
        for piece, weights, remote in zip(pieces, rows, received, strict=True):
            local = weights[self.workers.start : self.workers.stop]
            kernels.mix(x[..., piece], local, remote, self.workers.start)
        return x

    def _crossings(self, weights: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, int]]:
        """(worker j, process p), sorted, for each row j that another process p needs."""
        return sorted(
            {(j, self.owner[i]) for i, terms in enumerate(weights) for j, _ in terms if self.owner[j] != self.owner[i]}
        )

    def _relay(self, y: Tensor, m: Tensor) -> Tensor:
        """The messages to other processes are written over the old ones and sent from there; the new ones go to a
        spare."""
        if not len(m):
            return m
        first, pieces, widths = (
            self.local_links.start,
            self.schedule.slices(y.shape[-1]),
            self.piece_widths(y.shape[-1]),
        )
        fresh = self._other_buffer(m)
        sends: list[tuple[Tensor, _Transfer]] = []
        receives: list[tuple[Tensor, _Transfer]] = []
        destinations: list[Tensor] = []
        for e in self.local_links:
            width, back = widths[self.links.piece[e]], int(self.links.reverse[e])
            peer = self.owner[int(self.links.src[e])]
            if peer == self.rank:
                destinations.append(fresh[back - first, :width])
                continue
            destinations.append(m[e - first, :width])
            sends.append((m[e - first, :width], _Transfer(peer, back)))
            receives.append((fresh[e - first, :width], _Transfer(peer, e)))
        for i, h, edges in self.local_stars:
            source = y[i, pieces[h]]
            for columns in kernels.blocks(len(source), 2 * len(edges) + 1, m):
                before = m[edges[0] : edges[-1] + 1, columns].clone()
                outgoing = [destinations[e][columns] for e in edges]
                block = source[columns]
                kernels.relay_from(block, list(before[:, : len(block)]), outgoing, torch.empty_like(block))
        self._transfer(sends, receives)
        return fresh

    def _other_buffer(self, m: Tensor) -> Tensor:
        """A buffer like m that is not m: the one that held the messages of the step before, once there is one."""
        key = m.shape, m.dtype
        fresh = self._spare.get(key)
        if fresh is None or fresh.data_ptr() == m.data_ptr():
            fresh = torch.zeros_like(m)
        self._spare[key] = m
        return fresh

    def _transfer(
        self, sends: Sequence[tuple[Tensor, _Transfer]], receives: Sequence[tuple[Tensor, _Transfer]]
    ) -> None:
        """One round: every receive is posted, then every send, then all are waited for."""
        operations = [dist.P2POp(dist.irecv, row, to.peer, tag=to.tag) for row, to in self._ordered(receives)]
        operations += [dist.P2POp(dist.isend, row, to.peer, tag=to.tag) for row, to in self._ordered(sends)]
        if not operations:
            return
        for row, _ in sends:
            self.wire_bytes += row.numel() * row.element_size()
        self.wire_messages += len(sends)
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    @staticmethod
    def _ordered(transfers: Sequence[tuple[Tensor, _Transfer]]) -> list[tuple[Tensor, _Transfer]]:
        """Both ends go through their common transfers by ascending tag: nccl matches by order."""
        return sorted(transfers, key=lambda transfer: transfer[1].tag)
