"""Who may write to whom: the slots of a window."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from decentral.errors import ConfigError


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
    def of(cls, graph: np.ndarray) -> Edges:
        """Those of a graph, bool [n, n]: entry [i, j] says whether j sends to i."""
        owners, senders = np.nonzero(graph)
        return cls(len(graph), zip(senders.tolist(), owners.tolist(), strict=True))

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
