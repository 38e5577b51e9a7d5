"""One-sided communication for your own loop: neighbors write into a window without waiting for each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.windows import window as network
from decentral.network.windows.open import open_window
from decentral.network.windows.window import Edges
from decentral.registry.typed import typed
from decentral.script.agreement import Proposal, agree, heard_by_all
from decentral.script.calls import Named, rank_of, read
from decentral.script.handle import Turn, guarded, hinted
from decentral.script.peers import Peers
from decentral.topology.graph import union


def _check(t: object, transport: object) -> None:
    """Raise ConfigError if a window cannot hold this tensor or use this transport."""
    if not isinstance(t, Tensor) or t.layout is not torch.strided:
        found = f"a tensor of layout {t.layout}" if isinstance(t, Tensor) else f"{type(t).__name__}"
        raise ConfigError(f"a window needs a dense tensor, not {found}.")
    if not torch.is_floating_point(t):
        raise ConfigError(f"a window needs a floating-point tensor, not {t.dtype}: convert it first.")
    if transport not in list(Carrier.__members__):
        raise ConfigError(f"transport={transport!r} does not exist: use auto, shared_memory or torch.")


def _pairs(edges: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the caller's edges. Raise ConfigError if they are not edges between ranks."""
    try:
        named = sorted({(int(j), int(i)) for j, i in edges})
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            "edges are invalid: give pairs (source, destination) of ranks, such as [(0, 1), (1, 0)]."
        ) from None
    wrong = [(j, i) for j, i in named if i == j or not (0 <= i < size and 0 <= j < size)]
    if wrong:
        raise ConfigError(f"edges has {wrong[0]}: use pairs of two different ranks from 0 to {size - 1}.")
    return named


class Window:
    """A tensor t_i of each rank i with a number p_i, and for each edge j -> i a slot at rank i that rank j writes into.

        put             slot_ij := s_ij (t_j, p_j) for out-neighbors i; then (t_j, p_j) *= self_weight
        accumulate      slot_ij += s_ij (t_j, p_j) for out-neighbors i; then (t_j, p_j) *= self_weight
        push            accumulate, by default in equal shares, to slots whose last share was taken
        get             slot_ij := r_ij (t_j, p_j) for in-neighbors j of rank i, with j's current values
        update          (t_i, p_i) := self_weight (t_i, p_i) + sum_j r_ij slot_ij
        collect         (t_i, p_i) += sum_j slot_ij;  slot_ij := 0

    No call waits for a call of another rank, only for the lock of a slot, which is held while it is written or read.
    p_i starts at 1 and receives the same operations as t_i, in float64: t_i / p_i is the push-sum estimate.
    Asynchronous push-sum (Ying et al., "BlueFog", 2021, (19) to (21)):

        with decentral.Window(x, peers, zero_init=True) as window:
            for _ in range(100):
                window.push()
                window.collect()
            window.drain()
            mean = window.estimate

    Between ranks of one Linux host, slots of CPU tensors are shared memory; otherwise a thread of the receiving rank
    handles messages. All ranks create, `drain`, `fence` and `free` a window at once.

    Waiting calls raise TimeoutError if a rank does not respond within the `timeout_s` of `decentral.join`, and
    ConnectionError if one is gone. All calls raise RuntimeError after `free`.
    """

    @typed("peers")
    def __init__(
        self,
        t: Tensor,
        peers: Peers,
        edges: Iterable[tuple[int, int]] | None = None,
        *,
        zero_init: bool = False,
        transport: str = "auto",
    ) -> None:
        """Register a copy of t as `Window.t`, with the shape, floating dtype and device of t.

        edges       pairs (source, destination), the same on all ranks; None: all edges of the topology of `peers` that
                    carry messages in any round
        zero_init   slots start at zero, as push-sum needs; otherwise each holds a copy of its owner's t and p
        transport   shared_memory, torch (messages), or auto: shared memory wherever possible

        Raises:
            ConfigError: on every rank: tensors that differ in shape or dtype or are not floating-point, edges that
                differ or have invalid ranks, or unavailable shared memory.
        """
        self._rank, self._size = peers.rank, peers.size
        schedule = peers.schedule

        with hinted():
            with heard_by_all(peers.world):
                _check(t, transport)
                if edges is None:
                    used = union(peers.size, (W.graph for r in range(schedule.period) for W in schedule.mixing(r)))
                    named = sorted(zip(used.src.tolist(), used.dst.tolist(), strict=True))
                else:
                    named = _pairs(edges, peers.size)
            told = f"a tensor {list(t.shape)} {t.dtype} with edges {named}, {zero_init=}, {transport=}"
            agree(peers.world, Proposal("Window", told, (), ()))
            self._edges = Edges(peers.size, named)
            self._weights: tuple[float, dict[int, float]] | None = None  # W_ii and the W_ij, if there is one matrix
            if edges is None and schedule.period == schedule.num_pieces == 1:
                row = dict(schedule.mixing(0)[0].row(peers.rank))
                self._weights = row.get(peers.rank, 0.0), {j: row[j] for j in self._edges.senders[peers.rank]}
            settings = NetworkSettings(timeout_s=peers.timeout_s, transport=Carrier[transport])
            layout = [range(i, i + 1) for i in range(peers.size)]
            self._opened = open_window(settings, self._edges, layout, t.detach().reshape(1, -1), zero_init)
        self._shape, self.turn = t.shape, Turn("this window", by_thread=False)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def t(self) -> Tensor:
        """This rank's tensor in the window's memory; read it and change it in place between calls.

        Others may `get` it at any time, except inside `with window.mutex():`.
        """
        return self._asked("t").t[0].view(self._shape)

    @property
    def p(self) -> float:
        """The push-sum weight of t."""
        return float(self._asked("p").p[0])

    @property
    def estimate(self) -> Tensor:
        """t / p, as a new tensor."""
        window = self._asked("estimate")
        return window.t[0].view(self._shape) / float(window.p[0])

    @property
    def version(self) -> dict[int, int]:
        """Number of writes to each in-neighbor's slot here since the last `update` or `collect`."""
        return self._asked("version").versions(self._rank)

    @property
    def in_neighbors(self) -> list[int]:
        """The ranks with slots here."""
        return list(self._edges.senders[self._rank])

    @property
    def out_neighbors(self) -> list[int]:
        """The ranks where this one has slots."""
        return list(self._edges.receivers[self._rank])

    # -- one-sided operations ------------------------------------------------------------------------------------------

    @guarded
    def put(self, dst_weights: Named | None = None, self_weight: float = 1.0) -> None:
        """slot_ij := s_ij (t_j, p_j) at the destinations i, by default all with weight 1; then t_j, p_j *= self_weight.

        Raises ConfigError for a rank that is no out-neighbor, TimeoutError or ConnectionError if one hangs or is gone.
        """
        self._opened.put(self._rank, *self._outgoing(dst_weights, self_weight))

    @guarded
    def accumulate(self, dst_weights: Named | None = None, self_weight: float = 1.0) -> None:
        """slot_ij += s_ij (t_j, p_j) at the destinations i, by default all with weight 1; then t_j, p_j *= self_weight.

        Preserves the sum of all t and slots if self_weight and the weights sum to one. Raises as `put` does.
        """
        self._opened.accumulate(self._rank, *self._outgoing(dst_weights, self_weight))

    @guarded
    def push(self, dst_weights: Named | None = None, self_weight: float | None = None) -> None:
        """`accumulate` for push-sum: by default 1 / (out-degree + 1) for every destination and for this rank.

        A share stays here while its receiver has not taken the previous one, so a rank that is faster than its
        neighbors keeps its mass; with `accumulate` its p would go to zero. Raises as `put` does.
        """
        equal = 1 / (1 + len(self.out_neighbors))
        weights = dict.fromkeys(self.out_neighbors, equal) if dst_weights is None else dst_weights
        own = equal if self_weight is None else self_weight
        self._opened.push(self._rank, *self._outgoing(weights, own))

    @guarded
    def get(self, src_weights: Named | None = None) -> None:
        """slot_ij := r_ij (t_j, p_j) for the sources j, by default all with weight 1. Raises as `put` does.

        The sources do not participate, but across hosts this waits for their answer.
        """
        weights = self.in_neighbors if src_weights is None else src_weights
        self._opened.get(self._rank, read(1.0, weights, None, self._rank, self._size).sources or {})

    @guarded
    def update(
        self, self_weight: float | None = None, src_weights: Named | None = None, *, reset: bool = False
    ) -> Tensor:
        """(t_i, p_i) := self_weight (t_i, p_i) + sum_j r_ij slot_ij in place; returns t.

        The default weights are those of the topology if it is static, otherwise 1 / (in-degree + 1) for all. Resets the
        versions of the slots used to 0, and with `reset` the slots, too. Raises as `put` does.
        """
        if self_weight is None and src_weights is None:
            uniform = 1 / (1 + len(self.in_neighbors))
            own, weights = self._weights or (uniform, dict.fromkeys(self.in_neighbors, uniform))
        else:
            found = read(self_weight, src_weights, None, self._rank, self._size)
            own, weights = found.own, found.sources or {}
        self._opened.update(self._rank, weights, own, reset)
        return self.t

    @guarded
    def collect(self) -> Tensor:
        """(t_i, p_i) += sum_j slot_ij, slot_ij := 0 with everything that has arrived; returns t.

        Warns once, with SmallWeight, if p falls below 0.001. Raises as `put` does.
        """
        self._opened.collect(self._rank)
        return self.t

    @guarded
    def mutex(self, owner: int | None = None, sender: int | None = None) -> AbstractContextManager[None]:
        """Lock the slot of rank j at rank i, `with window.mutex(i, j):`; others wait. Without ranks: this rank's t.

        Nesting is allowed: slots of an owner in ascending order, and t last. If this rank dies, shared memory releases
        the lock. With messages it stays locked: waiting ranks get ConnectionError (rank i) or TimeoutError. Raises as
        `put` does.
        """
        at = self._rank if owner is None else rank_of("owner", owner, self._size)
        return self._held(self._opened.mutex(at, at if sender is None else rank_of("sender", sender, self._size)))

    @contextmanager
    def _held(self, lock: AbstractContextManager[None]) -> Iterator[None]:
        self.turn.take("mutex")
        try:
            with hinted():
                lock.__enter__()
            try:
                yield
            finally:
                with hinted():
                    lock.__exit__(None, None, None)
        finally:
            self.turn.give_back()

    # -- all ranks at once ---------------------------------------------------------------------------------------------

    @guarded
    def fence(self) -> None:
        """Wait for all ranks; all their earlier writes are visible on return."""
        self._opened.fence()

    @guarded
    def drain(self) -> Tensor:
        """Deliver everything in flight, after all ranks stopped pushing: a fence, and a last `collect`. Returns t.

        Raises:
            LostMass: the sum of all p differs from the initial one by more than 1e-9: something was lost, or operations
                other than collect and accumulate with weights that sum to one were used.
        """
        self._opened.drain()
        return self.t

    def free(self) -> None:
        """Fence and release the window, even if the fence fails. Has no effect the second time."""
        if self.turn.over or self.turn.forked:
            return
        try:
            self.fence()
        finally:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.free()
        else:
            self._close()  # without synchronizing with the others

    def _asked(self, what: str) -> network.Window:
        """Return the underlying window, unless it was freed."""
        if self.turn.over:
            raise RuntimeError(f"{what} {self.turn.over}")
        return self._opened

    def _close(self) -> None:
        if not (self.turn.over or self.turn.forked):
            self.turn.over = "after the window was freed: create a new decentral.Window"
            self._opened.close()

    def _outgoing(self, weights: Named | None, self_weight: float) -> tuple[Mapping[int, float], float]:
        found = read(self_weight, None, self.out_neighbors if weights is None else weights, self._rank, self._size)
        return found.destinations or {}, found.own
