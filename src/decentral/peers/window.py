"""One-sided communication for your own loop: neighbours write into a window, and need not wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.windows.choose import open_window
from decentral.network.windows.edges import Edges
from decentral.peers.agreement import Proposal, agree
from decentral.peers.peers import Peers
from decentral.peers.weights import Named, read
from decentral.topology.graph import support


class Window:
    """A tensor t_i of each rank i with a number p_i, and for each edge j -> i a slot at rank i that rank j writes into.

        put             slot_ij := s_ij (t_j, p_j) for out-neighbours i; then (t_j, p_j) *= self_weight
        accumulate      slot_ij += s_ij (t_j, p_j) for out-neighbours i; then (t_j, p_j) *= self_weight
        get             slot_ij := r_ij (t_j, p_j) for in-neighbours j of rank i, from what j has by now
        update          (t_i, p_i) := self_weight (t_i, p_i) + sum_j r_ij slot_ij
        collect         (t_i, p_i) += sum_j slot_ij;  slot_ij := 0

    No call waits for a call of another rank, only for the lock of a slot, which is held while it is written or read.
    p_i starts at 1 and undergoes what t_i undergoes, in float64: t_i / p_i is the push-sum estimate. Asynchronous
    push-sum (Ying et al., "BlueFog", 2021, (19) to (21)), for d out-neighbours:

        with decentral.Window(x, peers, zero_init=True) as window:
            for _ in range(100):
                window.accumulate(dst_weights=dict.fromkeys(window.out_neighbors, 1 / (d + 1)), self_weight=1 / (d + 1))
                window.collect()
            window.drain()
            mean = window.estimate

    Between ranks of one Linux host slots are shared memory, for tensors on the CPU; otherwise messages that a thread of
    the receiving rank carries out. All ranks make, `drain`, `fence` and `free` a window at once.
    """

    def __init__(
        self,
        t: Tensor,
        peers: Peers,
        edges: Iterable[tuple[int, int]] | None = None,
        *,
        zero_init: bool = False,
        transport: str = "auto",
    ) -> None:
        """Register a copy of t, which is `Window.t` from then on: shape, floating dtype and device are those of t.

        edges       pairs (source, destination), the same on all ranks; None: wherever the topology of `peers` sends
                    something in some round
        zero_init   slots start at zero, as push-sum needs it; otherwise each holds a copy of its owner's t and p
        transport   shared_memory, torch (messages), or auto: shared memory wherever it can be

        Raises:
            ConfigError: on every rank: tensors that differ in shape or dtype or are not floating-point, edges that
                differ or name no rank, shared memory that cannot be had.
        """
        self._rank, n = peers.rank, peers.size
        named, problem = _edges_of(peers) if edges is None else _pairs(edges, n)
        content = f"a tensor {list(t.shape)} {t.dtype} with edges {named}, zero_init={zero_init}, transport={transport}"
        agree(peers.world, Proposal("Window", content, (), (), problem=_problem(t, transport) or problem))
        self._edges, self._size = Edges(n, named), n
        self._weights = _weights_of(peers, self._rank, self._edges) if edges is None else None
        settings = NetworkSettings(timeout_s=peers.timeout_s, transport=Carrier[transport])
        layout = [range(i, i + 1) for i in range(n)]
        self._window = open_window(settings, self._edges, layout, t.detach().reshape(1, -1), zero_init)
        self._shape = t.shape

    # -- what is there -------------------------------------------------------------------------------------------------

    @property
    def t(self) -> Tensor:
        """This rank's tensor, where the window keeps it: yours to read and to change in place between calls.

        Others may `get` it at any time; `with window.mutex():` they do not while you change it.
        """
        return self._window.t[0].view(self._shape)

    @property
    def p(self) -> float:
        """The push-sum weight of t."""
        return float(self._window.p[0])

    @property
    def estimate(self) -> Tensor:
        """t / p, as a new tensor."""
        return self.t / self.p

    @property
    def version(self) -> dict[int, int]:
        """In-neighbour -> how often its slot here was written since the last `update` or `collect` of it."""
        return self._window.versions(self._rank)

    @property
    def in_neighbors(self) -> list[int]:
        """The ranks that have slots here."""
        return list(self._edges.senders(self._rank))

    @property
    def out_neighbors(self) -> list[int]:
        """The ranks at which this one has slots."""
        return list(self._edges.receivers(self._rank))

    # -- one-sided operations ------------------------------------------------------------------------------------------

    def put(self, dst_weights: Named | None = None, self_weight: float = 1.0) -> None:
        """slot_ij := s_ij (t_j, p_j) at the destinations i, by default all with weight 1; then t_j, p_j *= self_weight.

        Raises ConfigError for a rank that is no out-neighbour, TimeoutError or ConnectionError if one is stuck or gone.
        """
        self._window.put(self._rank, *self._outgoing(dst_weights, self_weight))

    def accumulate(self, dst_weights: Named | None = None, self_weight: float = 1.0) -> None:
        """slot_ij += s_ij (t_j, p_j) at the destinations i, by default all with weight 1; then t_j, p_j *= self_weight.

        The sum of all t and slots is kept where self_weight and the weights add up to one. Raises as `put` does.
        """
        self._window.accumulate(self._rank, *self._outgoing(dst_weights, self_weight))

    def get(self, src_weights: Named | None = None) -> None:
        """slot_ij := r_ij (t_j, p_j) for the sources j, by default all with weight 1. Raises as `put` does.

        The sources take no part, but across hosts this waits for their answer.
        """
        self._window.get(self._rank, self._incoming(src_weights))

    def update(
        self, self_weight: float | None = None, src_weights: Named | None = None, *, reset: bool = False
    ) -> Tensor:
        """(t_i, p_i) := self_weight (t_i, p_i) + sum_j r_ij slot_ij in place; returns t.

        Without weights, those of the topology if it is the same in all rounds, otherwise 1 / (in-degree + 1) for all.
        Versions of the slots used go back to 0, and with `reset` the slots too. Raises as `put` does.
        """
        if self_weight is None and src_weights is None:
            uniform = 1 / (1 + len(self.in_neighbors))
            own, weights = self._weights or (uniform, dict.fromkeys(self.in_neighbors, uniform))
        else:
            found = read(self_weight, src_weights, None, self._rank, self._size)
            own, weights = found.own, found.sources or {}
        self._window.update(self._rank, weights, own, reset)
        return self.t

    def collect(self) -> Tensor:
        """(t_i, p_i) += sum_j slot_ij, slot_ij := 0 with what is there by now; returns t.

        Warns once, with SmallWeight, if p falls below 0.001. Raises as `put` does.
        """
        self._window.collect(self._rank)
        return self.t

    def mutex(self, owner: int | None = None, sender: int | None = None) -> AbstractContextManager[None]:
        """`with window.mutex(i, j):` hold the slot of rank j at rank i, so that others wait; without ranks: one's owt.

        May be nested: the slots of an owner in ascending order, and t last. Released if this rank dies.
        """
        owner = self._rank if owner is None else owner
        return self._window.mutex(owner, owner if sender is None else sender)

    # -- all ranks at once ---------------------------------------------------------------------------------------------

    def fence(self) -> None:
        """Wait for all ranks: what any of them wrote before is there when this returns."""
        self._window.fence()

    def drain(self) -> Tensor:
        """Bring home what is on its way, when all ranks have stopped pushing: a fence, and a last `collect`. Returns t.

        Raises:
            LostMass: the p of all ranks do not add up to what they were at first, up to 1e-9: something was lost, or
                other operations were used than accumulate, with weights that add up to one, and collect.
        """
        self._window.drain()
        return self.t

    def free(self) -> None:
        """A fence, and the end of the window."""
        self._window.fence()
        self._window.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.free()
        else:
            self._window.close()  # the others may be anywhere

    def _outgoing(self, weights: Named | None, self_weight: float) -> tuple[Mapping[int, float], float]:
        found = read(self_weight, None, self.out_neighbors if weights is None else weights, self._rank, self._size)
        return found.destinations or {}, found.own

    def _incoming(self, weights: Named | None) -> Mapping[int, float]:
        found = read(1.0, self.in_neighbors if weights is None else weights, None, self._rank, self._size)
        return found.sources or {}


def _edges_of(peers: Peers) -> tuple[list[tuple[int, int]], str]:
    """(source, destination) wherever some round has an edge."""
    rounds = range(peers.schedule.period)
    union = np.logical_or.reduce([support(W) for r in rounds for W in peers.schedule.matrices(r)])
    return sorted((int(j), int(i)) for i, j in np.argwhere(union)), ""


def _weights_of(peers: Peers, rank: int, edges: Edges) -> tuple[float, dict[int, float]] | None:
    """W_ii and the W_ij of a topology with one matrix."""
    if peers.schedule.period > 1 or peers.schedule.num_pieces > 1:
        return None
    row = peers.schedule.matrices(0)[0][rank]
    return float(row[rank]), {j: float(row[j]) for j in edges.senders(rank)}


def _pairs(edges: Iterable[tuple[int, int]], size: int) -> tuple[list[tuple[int, int]], str]:
    """The edges that a caller gives, and what is wrong with them, in a sentence."""
    try:
        named = sorted({(int(j), int(i)) for j, i in edges})
    except (TypeError, ValueError):
        return [], "edges has to be pairs (source, destination) of ranks, such as [(0, 1), (1, 0)]."
    wrong = [(j, i) for j, i in named if i == j or not (0 <= i < size and 0 <= j < size)]
    if wrong:
        return named, f"edges has {wrong[0]}, but an edge leads from one of the ranks 0 to {size - 1} to another one."
    return named, ""


def _problem(t: Tensor, transport: str) -> str:
    """What is wrong on this rank with the rest, in a sentence."""
    if not torch.is_floating_point(t):
        return f"a window takes a floating-point tensor, not one of {t.dtype}: convert it first."
    if transport not in Carrier.__members__:
        return f"transport='{transport}' does not exist: use auto, shared_memory or torch."
    return ""
