"""A RelaySGD step in the way of the thesis: one neighbour after the other, everything packed and copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.jobs.timing.group import Work

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.config.schema import Config
    from decentral.network.world import World


_USUAL_BYTES, _NEVER = 32 << 20, (1 << 31) - 1  # 32 MiB is where malloc's own threshold ends up
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def give_back_from(size: int) -> None:
    """Let malloc map blocks of at least so many bytes apart, and give them back when they are freed (glibc only)."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, size)
        mallopt(_M_TRIM_THRESHOLD, min(2 * size, _NEVER))


@dataclass(frozen=True)
class ThesisRelay:
    """SGD on separate tensors, then relaying with blocking messages (Bohl 2022; Vogels et al., Algorithm 1).

    In every step all parameters are concatenated into a new flat tensor; each tree takes every d-th coordinate of it;
    the model and the number of models in it are two messages; neighbours are served in turn, the one with the smaller
    rank sends last; the average is a new tensor, and is copied back tensor by tensor.

    Large tensors that are freed go back to the system, and cost page faults when they come again, as in any program
    that does not tell malloc otherwise; with `keeps_memory` they do not, as in ours, where the launcher has told it.
    """

    config: Config
    shapes: tuple[tuple[int, ...], ...]
    keeps_memory: bool = False

    def __call__(self, world: World) -> Work:
        """For the worker of this process."""
        return _ThesisRelay(self, world.rank)


class _ThesisRelay(Work):
    def __init__(self, setup: ThesisRelay, rank: int) -> None:
        import torch

        config, shapes = setup.config, setup.shapes
        assert config.num_workers is not None
        self.rank, self.keeps_memory = rank, setup.keeps_memory
        graphs = config.topology.schedule(config.num_workers).graphs()
        self.neighbours = [graph.senders()[rank].tolist() for graph in graphs]
        self.parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
        for parameter in self.parameters:
            parameter.grad = torch.ones_like(parameter)
        self.optimizer = torch.optim.SGD(self.parameters, lr=config.lr)
        size = sum(parameter.numel() for parameter in self.parameters)
        d = len(graphs)
        self.received: list[dict[int, Tensor]] = []
        for h, neighbours in enumerate(self.neighbours):
            self.received.append({j: torch.zeros(len(range(h, size, d))) for j in neighbours})
        self.counts = [{j: torch.zeros(1) for j in neighbours} for neighbours in self.neighbours]

    def __call__(self) -> None:
        if self.keeps_memory:
            self._step()
            return
        give_back_from(_USUAL_BYTES)
        self._step()
        give_back_from(_NEVER)

    def _step(self) -> None:
        import torch

        self.optimizer.step()
        packed = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        d = len(self.neighbours)
        for h in range(d):
            packed[h::d] = self._relayed(packed[h::d], h)
        start = 0
        for parameter in self.parameters:
            parameter.detach().copy_(packed[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()

    def _relayed(self, x: Tensor, h: int) -> Tensor:
        """The average over the models that have arrived in this piece."""
        received, counts = self.received[h], self.counts[h]
        for j in self.neighbours[h]:
            if j < self.rank:
                self._send(x, h, j)
                self._receive(h, j)
            else:
                self._receive(h, j)
                self._send(x, h, j)
        return (x + sum(received.values())) / (1 + sum(counts.values()))

    def _send(self, x: Tensor, h: int, j: int) -> None:
        import torch
        import torch.distributed as dist

        others = [k for k in self.neighbours[h] if k != j]
        dist.send((x + sum(self.received[h][k] for k in others)).contiguous(), j)
        dist.send(torch.ones(1) + sum(self.counts[h][k] for k in others), j)

    def _receive(self, h: int, j: int) -> None:
        import torch.distributed as dist

        dist.recv(self.received[h][j], j)
        dist.recv(self.counts[h][j], j)
