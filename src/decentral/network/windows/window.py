"""Windows: rows with slots that neighbors write into at any time, without synchronization."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network.kernels import weighted_sum
from decentral.topology.graph import Graph


class Edges:
    """The directed edges sender -> owner of a graph, each with a slot in its owner's memory.

    Slots are numbered by (owner, sender), so that those of consecutive owners are consecutive.
    """

    def __init__(self, num_workers: int, edges: Iterable[tuple[int, int]]) -> None:
        """Create them from pairs (sender, owner) of distinct workers."""
        self.num_workers = num_workers
        self.slots = sorted({(owner, sender) for sender, owner in edges})
        assert all(owner != sender and {owner, sender} <= set(range(num_workers)) for owner, sender in self.slots)
        self._number = {slot: number for number, slot in enumerate(self.slots)}
        self.senders: list[list[int]] = [[] for _ in range(num_workers)]
        """The in-neighbors of each worker."""
        self.receivers: list[list[int]] = [[] for _ in range(num_workers)]
        """The out-neighbors of each worker."""
        for owner, sender in self.slots:
            self.senders[owner].append(sender)
            self.receivers[sender].append(owner)

    @classmethod
    def of(cls, graph: Graph) -> Edges:
        """Return the edges of a graph."""
        return cls(graph.num_workers, zip(graph.src.tolist(), graph.dst.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.slots)

    def number(self, owner: int, sender: int) -> int:
        """Return the number of a slot.

        Raises:
            ConfigError: there is no such edge.
        """
        if (owner, sender) not in self._number:
            near = self.senders[owner] if 0 <= owner < self.num_workers else []
            raise ConfigError(
                f"worker {sender} does not send to worker {owner} in this window: the senders of worker {owner} are "
                f"{', '.join(map(str, near)) or 'none'}."
            )
        return self._number[owner, sender]

    def lock(self, owner: int, sender: int) -> int:
        """Return the number of a lock: that of a slot, or, if owner = sender, that of a row (numbered after all slots).

        Raises:
            ConfigError: there is no such edge, or no such worker.
        """
        if owner != sender:
            return self.number(owner, sender)
        if not 0 <= owner < self.num_workers:
            raise ConfigError(f"worker {owner} does not exist: use 0 to {self.num_workers - 1}.")
        return len(self) + owner

    def locked(self, owner: int, sender: int) -> str:
        """Describe what this lock guards."""
        return f"the row of worker {owner}" if owner == sender else f"the slot of worker {sender} at worker {owner}"

    def of_owners(self, owners: range) -> range:
        """Return the numbers of the slots of consecutive owners."""
        before = sum(len(self.senders[i]) for i in range(owners.start))
        return range(before, before + sum(len(self.senders[i]) for i in owners))


EMPTY, FULL = 0, 1


@dataclass
class Memory:
    """Registered rows t_i with their weights p_i, and slots with theirs; k workers, E slots.

    A slot marked empty counts as zero, regardless of its content: a reset only marks it, and the first accumulation
    writes instead of adding.
    """

    rows: Tensor  # [k + E, P]: t_i, then slots
    weights: Tensor  # [k + E], float64 on the CPU: p_i, then those of slots
    marks: Tensor  # [E, 2], int64 on the CPU: writes since the last update, and EMPTY or FULL
    num_workers: int  # k

    @classmethod
    def plain(cls, num_workers: int, num_slots: int, like: Tensor) -> Memory:
        """Return private memory for rows like `like` [..., P]."""
        rows = like.new_empty(num_workers + num_slots, like.shape[-1])
        weights = torch.empty(len(rows), dtype=torch.float64)
        return cls(rows, weights, torch.empty(num_slots, 2, dtype=torch.int64), num_workers)

    def begin(self, t: Tensor, owners: list[int] | None) -> None:
        """Register t [k, P] with p = 1. Slots start empty, or as a copy of their owner's row.

        `owners` has the local index of each slot's owner; None for empty slots.
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
        """Registered rows [k, P]."""
        return self.rows[: self.num_workers]

    @property
    def p(self) -> Tensor:
        """Weights of the local workers [k]."""
        return self.weights[: self.num_workers]

    def version(self, place: int) -> int:
        """Return the number of writes to a slot since the last update."""
        return int(self.marks[place, 0])

    def is_empty(self, place: int) -> bool:
        """Return whether a slot is empty."""
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

    def take(self, worker: int, self_weight: float, slots: Mapping[int, float], reset: bool) -> None:
        """(t, p) := self_weight (t, p) + the sum of weight * slot, for a local worker; resets the slots' versions, and
        with `reset` empties them."""
        full = {self.num_workers + place: weight for place, weight in slots.items() if not self.is_empty(place)}
        row = self.t[worker]
        weighted_sum([(row, self_weight), *((self.rows[place], weight) for place, weight in full.items())], row)
        self.p[worker] *= self_weight
        for place, weight in full.items():
            self.p[worker] += weight * self.weights[place]
        for place in slots:
            self.marks[place, 0] = 0
            if reset:
                self.marks[place, 1] = EMPTY

    def _written(self, place: int) -> None:
        self.marks[place, 0] += 1
        self.marks[place, 1] = FULL


LEAST_P = 1e-3
"""A push-sum weight below this raises an alarm: x / p is dominated by rounding."""

_TOLERANCE = 1e-9


class LostMass(RuntimeError):
    """The push-sum weights of all workers and slots no longer have their initial sum."""


class SmallWeight(RuntimeWarning):
    """A worker's push-sum weight is too small for a meaningful x / p."""


class Window:
    """A row t_i [P] with a number p_i for each of n workers, and for each directed edge j -> i a slot at worker i.

    p_i is a float64 that starts at 1 and receives the same operations as t_i, so that t_i / p_i is the push-sum
    estimate; a slot is a row with its p as well. Any process may host worker i; a process calls the operations of its
    own workers, from one thread. They never wait for a call of another process, only for the lock of a slot, which is
    held while a row is written or read. Concurrent accumulation and collection of a slot lose nothing and count nothing
    twice.

    A version is the number of writes into a slot since its last `update`. Locks: `mutex(i, j)` guards the slot of edge
    j -> i, `mutex(i, i)` guards t_i. Lock order: slots in ascending order of j, then the row.

    This implementation maps the memory of all processes and accesses it directly; a single process needs no locks.
    """

    def __init__(self, edges: Edges, layout: Sequence[range], rank: int, memories: Mapping[int, Memory]) -> None:
        """Create the window of `rank`; `layout` has the workers of each process, `memories` the needed memories."""
        self.edges, self.layout, self.rank = edges, layout, rank
        self.workers = layout[rank]
        self.wire_bytes = 0
        self.wire_messages = 0
        self._memories, self._memory = memories, memories[rank]
        self._first_slots = [edges.of_owners(workers).start for workers in layout]
        self._process = [process for process, workers in enumerate(layout) for _ in workers]
        self.note: Callable[[int, str, list[int]], object] | None = None
        """Called with (worker, push, receivers of its shares) or (worker, take, senders of the taken shares)."""
        self._mass = float("nan")
        self._alarmed = False

    def _begin(self, t: Tensor, zero_init: bool) -> None:
        """Register t [k, P]; returns once all processes have done so."""
        owners = [i - self.workers.start for i in self.workers for _ in self.edges.senders[i]]
        self._memory.begin(t, None if zero_init else owners)
        self._mass = float(self.edges.num_workers + (0 if zero_init else len(self.edges)))
        self.barrier()

    @property
    def t(self) -> Tensor:
        """The registered rows of the local workers [k, P]; they may change while no `get` can arrive."""
        return self._memory.t

    @property
    def p(self) -> Tensor:
        """p of the local workers [k], float64 on the CPU."""
        return self._memory.p

    # -- operations of worker j, on slots elsewhere --------------------------------------------------------------------

    def put(self, sender: int, weights: Mapping[int, float], self_weight: float = 1.0) -> None:
        """slot_ij := w_i (t_j, p_j) for every out-neighbor i in `weights`; then (t_j, p_j) *= self_weight."""
        self._write_all(sender, weights, self_weight, add=False)

    def accumulate(self, sender: int, weights: Mapping[int, float], self_weight: float = 1.0) -> None:
        """slot_ij += w_i (t_j, p_j) for every out-neighbor i in `weights`; then (t_j, p_j) *= self_weight.

        If the weights and self_weight sum to one, mass is conserved.
        """
        self._write_all(sender, weights, self_weight, add=True)

    def push(self, sender: int, weights: Mapping[int, float], self_weight: float) -> None:
        """`accumulate`, but a sender keeps a share while the receiver has not taken the previous one.

        So no worker gives all its mass to slower or stopped ones.
        """
        welcome = {i: weight for i, weight in weights.items() if self.vacant(i, sender)}
        kept = sum(weight for i, weight in weights.items() if i not in welcome)
        self.accumulate(sender, welcome, self_weight + kept)
        if self.note is not None:
            self.note(sender, "push", list(welcome))

    def get(self, owner: int, weights: Mapping[int, float]) -> None:
        """slot_ij := w_j (t_j, p_j) for every in-neighbor j in `weights`: worker i reads j's registered row."""
        for sender in weights:
            self.edges.number(owner, sender)
        for sender, weight in weights.items():
            self._fetch(owner, sender, weight)

    def _write_all(self, sender: int, weights: Mapping[int, float], self_weight: float, add: bool) -> None:
        for owner in weights:
            self.edges.number(owner, sender)
        for owner, weight in weights.items():
            self._deliver(owner, sender, weight, add)
        if self_weight != 1:
            with self.mutex(sender, sender):
                self._memory.scale(sender - self.workers.start, self_weight)

    # -- operations of worker i, on its own slots ----------------------------------------------------------------------

    def update(self, owner: int, weights: Mapping[int, float], self_weight: float, reset: bool = False) -> None:
        """(t_i, p_i) := self_weight (t_i, p_i) + sum_j w_j slot_ij over the in-neighbors j in `weights`.

        Resets the versions of these slots to zero, and with `reset` the slots, too.
        """
        places = {sender: self._place(owner, sender) for sender in sorted(weights)}
        own = owner - self.workers.start
        with ExitStack() as held:
            for sender in (*places, owner):
                held.enter_context(self.mutex(owner, sender))
            self._memory.take(own, self_weight, {place: weights[j] for j, place in places.items()}, reset)
        if reset:
            for sender in places:
                self._taken(owner, sender)

    def collect(self, owner: int) -> None:
        """(t_i, p_i) += sum_j slot_ij, slot_ij := 0: takes everything that has arrived."""
        waiting = [j for j in self.edges.senders[owner] if not self._memory.is_empty(self._place(owner, j))]
        if waiting:
            self.update(owner, dict.fromkeys(waiting, 1.0), 1.0, reset=True)
            if self.note is not None:
                self.note(owner, "take", waiting)
        self._watch(owner)

    def versions(self, owner: int) -> dict[int, int]:
        """Return in-neighbor j -> the number of writes to slot_ij since the last update."""
        return {j: self._memory.version(self._place(owner, j)) for j in self.edges.senders[owner]}

    def vacant(self, owner: int, sender: int) -> bool:
        """Return whether a local sender's slot is empty, as far as this process knows."""
        return self._memories[self._process[owner]].is_empty(self._place(owner, sender))

    def mutex(self, owner: int, sender: int) -> AbstractContextManager[None]:
        """Lock slot_{owner,sender}, or t_owner if both are equal; others wait. Reentrant."""
        self.edges.lock(owner, sender)
        return nullcontext()

    # -- the end -------------------------------------------------------------------------------------------------------

    def fence(self) -> None:
        """Wait for all processes; all their earlier writes are visible on return."""
        self._flush()
        self.barrier()

    def drain(self) -> None:
        """Deliver everything in flight; all processes call this at once, after they stopped pushing.

        Waits for all of them, collects for every worker, and checks that no mass was lost. Afterwards all slots are
        empty.

        Raises:
            LostMass: the sum of all p differs from the initial one (n for empty slots) by more than 1e-9: a process
                died while writing, or operations other than collect and accumulate with weights that sum to one were
                used.
        """
        self.fence()
        for owner in self.workers:
            self.collect(owner)
        self._flush()  # all senders know that their slots are empty
        total = float(self._total(self.p.sum()))
        if not abs(total - self._mass) <= _TOLERANCE * self._mass:
            raise LostMass(
                f"the push-sum weights of all workers (ranks) add up to {total:.12g} instead of {self._mass:g}: a "
                "message has been lost, or weights do not sum to one"
            )

    def barrier(self) -> None:
        """Wait for all processes."""
        self._total(torch.zeros((), dtype=torch.float64))

    def close(self) -> None:
        """Release all resources; the window must not be used afterwards."""

    # -- how -----------------------------------------------------------------------------------------------------------

    def _deliver(self, owner: int, sender: int, weight: float, add: bool) -> None:
        """Write weight (t_j, p_j) of a local worker to its slot at `owner`, or add it."""
        own, peer = sender - self.workers.start, self._process[owner]
        with self.mutex(owner, sender):
            write = self._memories[peer].accumulate if add else self._memories[peer].put
            write(self._place(owner, sender), self.t[own], float(self.p[own]), weight)
        if peer != self.rank:
            self._count(self.t[own])

    def _fetch(self, owner: int, sender: int, weight: float) -> None:
        """Write weight (t_j, p_j) to the slot of a local owner."""
        peer = self._process[sender]
        memory, at = self._memories[peer], sender - self.layout[peer].start
        with self.mutex(owner, sender), self.mutex(sender, sender):
            self._memory.put(self._place(owner, sender), memory.t[at], float(memory.p[at]), weight)
        if peer != self.rank:
            self._count(memory.t[at])

    def _taken(self, owner: int, sender: int) -> None:
        """Handle the emptying of a local owner's slot."""

    def _flush(self) -> None:
        """Wait until all writes of this process have arrived."""

    def _total(self, value: Tensor) -> Tensor:
        """Return the sum of a CPU float64 over processes; waits for all of them."""
        return value

    def _place(self, owner: int, sender: int) -> int:
        """Return the index of a slot in the memory of its owner's process."""
        return self.edges.number(owner, sender) - self._first_slots[self._process[owner]]

    def _count(self, row: Tensor) -> None:
        """Count a row with its p that left this process."""
        self.wire_bytes += row.numel() * row.element_size() + 8
        self.wire_messages += 1

    def _watch(self, owner: int) -> None:
        p = float(self.p[owner - self.workers.start])
        if p < LEAST_P and not self._alarmed:
            self._alarmed = True
            warnings.warn(
                f"the push-sum weight of worker (rank) {owner} has fallen to {p:.3g}, below {LEAST_P:g}: its estimate "
                "x / p is unreliable; the worker sends more than it receives, because others are slower or have "
                "stopped",
                SmallWeight,
                stacklevel=2,
            )
