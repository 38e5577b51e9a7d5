"""Who may write to whom in a window, and what it keeps for the workers of one process: rows and slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.topology.graph import Graph


class Edges:
    """The directed edges sender -> owner of a graph, each with a slot at its owner.

    Slots are numbered by (owner, sender), so that those of consecutive owners are consecutive.
    """

    def __init__(self, num_workers: int, edges: Iterable[tuple[int, int]]) -> None:
        """`edges` are pairs (sender, owner) of different workers."""
        self.num_workers = num_workers
        self.slots = sorted({(owner, sender) for sender, owner in edges})
        assert all(owner != sender and {owner, sender} <= set(range(num_workers)) for owner, sender in self.slots)
        self._number = {slot: number for number, slot in enumerate(self.slots)}
        self._senders: list[list[int]] = [[] for _ in range(num_workers)]
        self._receivers: list[list[int]] = [[] for _ in range(num_workers)]
        for owner, sender in self.slots:
            self._senders[owner].append(sender)
            self._receivers[sender].append(owner)

    @classmethod
    def of(cls, graph: Graph) -> Edges:
        """Those of a graph."""
        return cls(graph.num_workers, zip(graph.src.tolist(), graph.dst.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.slots)

    def senders(self, owner: int) -> list[int]:
        """The in-neighbours of a worker."""
        return self._senders[owner]

    def receivers(self, sender: int) -> list[int]:
        """The out-neighbours of a worker."""
        return self._receivers[sender]

    def number(self, owner: int, sender: int) -> int:
        """The number of a slot.

        Raises:
            ConfigError: there is no such edge.
        """
        if (owner, sender) not in self._number:
            near = self._senders[owner] if 0 <= owner < self.num_workers else []
            raise ConfigError(
                f"worker {sender} does not send to worker {owner} in this window: the senders of worker {owner} are "
                f"{', '.join(map(str, near)) or 'none'}."
            )
        return self._number[owner, sender]

    def lock(self, owner: int, sender: int) -> int:
        """The number of a lock: that of a slot, or where both are the same, after those of all slots, of a row.

        Raises:
            ConfigError: there is no such edge, or no such worker.
        """
        if owner != sender:
            return self.number(owner, sender)
        if not 0 <= owner < self.num_workers:
            raise ConfigError(f"worker {owner} does not exist: the workers are numbered 0 to {self.num_workers - 1}.")
        return len(self) + owner

    def locked(self, owner: int, sender: int) -> str:
        """What such a lock guards, in words."""
        return f"the row of worker {owner}" if owner == sender else f"the slot of worker {sender} at worker {owner}"

    def of_owners(self, owners: range) -> range:
        """The numbers of the slots of consecutive owners."""
        before = sum(len(self._senders[i]) for i in range(owners.start))
        return range(before, before + sum(len(self._senders[i]) for i in owners))


EMPTY, FULL = 0, 1


@dataclass
class Memory:
    """Registered rows t_i with their weights p_i, and slots with theirs; k workers, E slots.

    A slot that is marked empty counts as zero, whatever lies in it: to reset it is to mark it, and the first
    accumulation writes instead of adding.
    """

    rows: Tensor  # [k + E, P]: t_i, then slots
    weights: Tensor  # [k + E], float64 on the CPU: p_i, then those of slots
    marks: Tensor  # [E, 2], int64 on the CPU: writes since the last update, and EMPTY or FULL
    num_workers: int  # k

    @classmethod
    def plain(cls, num_workers: int, num_slots: int, like: Tensor) -> Memory:
        """Memory that no other process sees, for rows like `like` [..., P]."""
        rows = like.new_empty(num_workers + num_slots, like.shape[-1])
        weights = torch.empty(len(rows), dtype=torch.float64)
        return cls(rows, weights, torch.empty(num_slots, 2, dtype=torch.int64), num_workers)

    def begin(self, t: Tensor, owners: list[int] | None) -> None:
        """Register t [k, P] with p = 1. All slots are empty, or else hold a copy of what their owner has registered.

        `owners` are the local numbers of the owners of the slots, None for empty slots.
        """
        self.t.copy_(t)
        self.weights.zero_()
        self.p.fill_(1)
        self.marks.zero_()
        for place, owner in enumerate(owners or ()):
            self.put(place, self.t[owner], 1.0, 1.0)
            self.marks[place, 0] = 0

    @property
    def t(self) -> Tensor:
        """The registered rows [k, P]."""
        return self.rows[: self.num_workers]

    @property
    def p(self) -> Tensor:
        """Their weights [k]."""
        return self.weights[: self.num_workers]

    def version(self, place: int) -> int:
        """How often a slot was written since the last update."""
        return int(self.marks[place, 0])

    def is_empty(self, place: int) -> bool:
        """Whether a slot is zero."""
        return int(self.marks[place, 1]) == EMPTY

    def put(self, place: int, row: Tensor, p: float, weight: float) -> None:
        """slot := weight * (row, p)."""
        torch.mul(row, weight, out=self.rows[self.num_workers + place])
        self.weights[self.num_workers + place] = weight * p
        self._written(place)

    def accumulate(self, place: int, row: Tensor, p: float, weight: float) -> None:
        """slot += weight * (row, p)."""
        if self.is_empty(place):
            return self.put(place, row, p, weight)
        self.rows[self.num_workers + place].add_(row, alpha=weight)
        self.weights[self.num_workers + place] += weight * p
        return self._written(place)

    def scale(self, worker: int, weight: float) -> None:
        """(t, p) *= weight, for a local worker."""
        if weight != 1:
            self.t[worker].mul_(weight)
            self.p[worker] *= weight

    def take(self, worker: int, place: int, weight: float, reset: bool) -> None:
        """(t, p) += weight * slot, for a local worker; the slot has been seen, and is empty after a reset."""
        if not self.is_empty(place):
            self.t[worker].add_(self.rows[self.num_workers + place], alpha=weight)
            self.p[worker] += weight * self.weights[self.num_workers + place]
        self.marks[place, 0] = 0
        if reset:
            self.marks[place, 1] = EMPTY

    def _written(self, place: int) -> None:
        self.marks[place, 0] += 1
        self.marks[place, 1] = FULL
