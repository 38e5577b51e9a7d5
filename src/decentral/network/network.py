"""The communication interface of algorithms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from decentral.network.arithmetic import RowArithmetic
from decentral.network.payload import PayloadVerbs
from decentral.network.traffic import WEIGHT_BYTES, Traffic
from decentral.topology.delivery import Delivery, Exchange, Losses, exchange
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds, Split, mean_delay, slices

if TYPE_CHECKING:
    from decentral.cluster.links import Prices
    from decentral.network.collectives import Fastest


class Network(PayloadVerbs, RowArithmetic, ABC):
    """Communication operations on the rows of the local workers; `PayloadVerbs` has those on other data.

    Rows are [k, ..., P]: the last dimension is that of the model, cut into d pieces by the topology; dimensions in
    between share a message. An operation owns the rows it receives and may return them (donation). Messages on edges
    are rows [E, ceil(P / d)], one for each edge into a local worker; a shorter piece leaves the last column unused.

    `traffic` records bytes and time of messages: one for each nonzero off-diagonal W_ij (mix) or each edge (relay).
    Communication for evaluation only is not counted.
    """

    def __init__(self, rounds: Rounds, workers: range, losses: Losses) -> None:
        super().__init__(rounds, workers)
        self.traffic = Traffic(self.n)
        self.delivery = Delivery(rounds, losses)
        self.reliable = losses.probability == 0
        self.combine: Callable[..., None] | None = None
        """A replacement for W in `mix`, called with the round and the arguments of `Exchange.combine`."""
        self.fastest: Fastest | None = None
        """The network model that decides `network.collective=auto`, the same on all processes."""
        self.flushed = True
        """True if no share is in flight, so that `drain` has no work; the same on all processes."""
        self._mean_delays: dict[bool, float] = {}
        self._collected: tuple[Tensor, Tensor] | None = None  # the last counts, and their sums
        self._settled: Tensor | None = None  # counts that relaying does not change

    @property
    def waited_s(self) -> float:
        """Return the time that this process has waited for messages of other processes, in seconds."""
        return 0.0

    @property
    def prices(self) -> Prices | None:
        """Return the known costs of collectives; None if unknown."""
        return self.traffic.prices

    def attend(self, present: np.ndarray | None) -> None:
        """Set the present workers, bool [n], at least one; None: all.

        Absent workers keep their rows, are in no mean, and neither send nor receive: messages on their edges are zero.
        """
        self.delivery.present = None if present is None or present.all() else present
        self.traffic.n = self.n if present is None else int(present.sum())
        if self.traffic.clock is not None:
            self.traffic.clock.present = self.delivery.present

    def move(self, x: Tensor, A: MixingMatrix) -> Tensor:
        """x_i <- sum_j A_ij x_j for all workers, present or not: the handover when workers leave or return."""
        return self._begin_all(x, [exchange((A,), Split.contiguous)])()

    # -- operations that communicate -----------------------------------------------------------------------------------

    def ping(self, num_bytes: int) -> float:
        """Return the one-way time in seconds of a message of `num_bytes`, the slowest of simultaneous ones.

        Pairs of workers (in real time: processes) exchange messages: first 0 and 1, 2 and 3, ..., then 1 and 2, ...,
        and the last one and 0 if their number is even. Uses simulated time if there is any.
        """
        if self.traffic.clock is None:
            return self._ping(num_bytes)
        slowest = 0.0
        for pairs in pairings(self.n):
            src, dst = np.array(pairs, dtype=np.int64).T
            slowest = max(slowest, self.traffic.clock.ping(src, dst, num_bytes))
            self.traffic.count(2 * len(pairs), num_bytes)
        return slowest

    def mix(self, x: Tensor, round: int, lazy: bool = False) -> Tensor:
        """x_i <- sum_j W_ij x_j with the matrices of this round, or with (W + I) / 2. [k, ..., P] -> the same.

        The rows are given away: the result may be in their memory. To use them afterwards, give `x.clone()`.
        """
        return self.begin_mix(x, round, lazy)()

    def begin_mix(self, x: Tensor, round: int, lazy: bool = False) -> Callable[[], Tensor]:
        """Begin `mix` in the background and return a function that completes it, once, with the mixed rows.

        Until then x may be read but must not change. Several may be in flight; all processes begin them in the same
        order. In a round of several exchanges, only the first is in the background.
        """
        halve = lazy and self.delivery.in_several(round)
        planned = self.delivery.planned(round, lazy)
        if self.combine is not None:
            planned = [replace(each, combine=partial(self.combine, round)) for each in planned]
        return self._begin_all(x, planned, halve)

    def mix_with(self, x: Tensor, W: MixingMatrix | np.ndarray) -> Tensor:
        """x_i <- sum_j W_ij x_j with a data-dependent matrix, possibly dense [n, n], the same on all processes."""
        return self.move(x, self.delivery.among(MixingMatrix.of(W)))

    def mean(self, x: Tensor) -> Tensor:
        """x_i <- 1/n sum_j x_j, exactly: an all-reduce. [k, ..., P] -> the same, perhaps in their memory."""
        with self.traffic.collective("all_reduce", self._row_bytes(x)):
            return self._mean(x)

    def mean_at(self, x: Tensor, count: int, places: Callable[[], np.ndarray]) -> Tensor:
        """x_i <- 1/n sum_j x_j at `count` distinct coordinates, the same on all processes: an all-reduce of `count`
        numbers. [k, P] -> the same.

        Coordinates refer to the true row length, see `row_length`; placeholder rows are unchanged.
        """
        stands_in = x.shape[-1] in self.traffic.stands_for
        scale = 1.0 if stands_in else self.traffic.scale
        with self.traffic.collective("all_reduce", count * x.element_size() * scale):
            if not stands_in:
                columns = torch.from_numpy(places()).to(x.device)
                x.index_copy_(1, columns, self._mean(x[:, columns]))
            return x

    def row_length(self, x: Tensor) -> int:
        """Return P of the rows x [k, P], or of the rows they represent."""
        return self._true(x.shape[-1])[0]

    def begin_mean(self, x: Tensor) -> None:
        """Begin the `mean` of these rows, in the background in simulated time, and count it. They may be read but must
        not change until `end_mean`, which computes it."""
        self.traffic.begin_collective("all_reduce", self._row_bytes(x), later=True)

    def end_mean(self, x: Tensor) -> Tensor:
        """Complete `begin_mean` for these rows: x_i <- 1/n sum_j x_j. [k, ..., P] -> the same."""
        self.traffic.arrive()
        return self._mean(x)

    def push(self, x: Tensor, p: Tensor, round: int) -> tuple[Tensor, Tensor]:
        """Asynchronous push-sum: write shares into the receivers' slots, and collect the arrived ones.

            slot_ji += W_ji (x_i, p_i) for all j != i, (x_i, p_i) <- W_ii (x_i, p_i);  (x_i, p_i) += sum_j slot_ij,
            slot_ij := 0

        with W of this round, column-stochastic. x [k, P] and the push-sum weights p [k, d] (float64, on the CPU) are
        donated. In one process, all push before any collects: x <- W x, p <- W p. Between processes only the sums of x
        and p over workers plus slots are preserved; see `drain`. For any W, a share stays with its sender if it is lost
        or if its receiver has not taken the previous one. A message is a share of a row, and 8 bytes for that of p; a
        share that stays is counted, too.
        """
        shares = self.delivery.shares(round)
        num_bytes = self._piece_bytes(shares, x)
        self.traffic.count_pieces(shares.num_messages, num_bytes, extra=WEIGHT_BYTES)
        self.traffic.begin(shares, num_bytes, extra=WEIGHT_BYTES)()
        return self._push(x, p, shares)

    def drain(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Deliver all shares of `push` in flight: all processes call this after the same round.

        Raises LostMass if the p of all workers do not sum to n.
        """
        return x, p

    def relay(self, y: Tensor, m: Tensor, round: int, later: bool = False) -> Tensor:
        """RelaySum: m_{i->j} <- y_i + sum_{l in N_i, l != j} m_{l->i}, delivered. y [k, P] is unchanged, m is donated.
        `later`: in simulated time messages are in flight until `arrive`.

        Both m are indexed by the receiver: row e holds the last message over edge e = (i -> j) to a local j.
        """
        length, scale = self._true(y.shape[-1])
        sizes = [width * y.element_size() * scale for width in self.piece_widths(length)]
        self._send_over_edges(sizes, later)
        m = self._relay(y, m)
        for e in self.delivery.undelivered(self.edges, round).tolist():
            if e in self.local_edges:
                m[e - self.local_edges.start].zero_()
        return m

    def arrive(self) -> None:
        """Wait, in simulated time, for the messages that `relay` or `relay_payloads` sent with `later`."""
        self.traffic.arrive()

    # -- local arithmetic; `collect` and `outgoing`: see `RowArithmetic` -----------------------------------------------

    def weigh(self, x: Tensor, a: Tensor) -> Tensor:
        """Piece h of x_i <- a[i, h] times it: [k, ..., P], [n, d] -> [k, ..., P]."""
        return self.scale(x, a[self.workers.start : self.workers.stop])

    def scale(self, x: Tensor, a: Tensor) -> Tensor:
        """Piece h of x_i <- a[i, h] times it, for the local workers: [k, ..., P], [k, d] -> [k, ..., P].

        Skips the pass over memory if all factors are 1 in the precision of x.
        """
        a = a.to(x.dtype)
        if bool((a == 1).all()):
            return x
        factors = a.to(x.device).view(len(a), *[1] * (x.dim() - 2), -1)
        for h, piece in enumerate(self.rounds.slices(x.shape[-1])):
            x[..., piece].mul_(factors[..., h : h + 1])
        return x

    def no_messages(self, x: Tensor) -> Tensor:
        """Return zero messages on all local edges for rows like x [k, P]: [E, ceil(P / d)]."""
        return x.new_zeros(len(self.local_edges), max(self.piece_widths(x.shape[-1])))

    # -- small numbers that every process computes for all workers, so they are never sent ------------------------

    def known_ones(self) -> Tensor:
        """Return ones [n, d], float64 on the CPU: the initial push-sum weights."""
        return torch.ones(self.n, self.rounds.num_pieces, dtype=torch.float64)

    def mix_known(self, w: Tensor, round: int) -> Tensor:
        """w_i <- sum_j W_ij w_j for numbers [n, d] known to all processes, with the losses of this round."""
        return torch.from_numpy(self.delivery.apply(w.numpy(), round))

    def no_counts(self) -> Tensor:
        """Return zero counts on the edges of all workers: float64 on the CPU."""
        return torch.zeros(len(self.edges), dtype=torch.float64)

    def relay_counts(self, c: Tensor, round: int) -> Tensor:
        """c_{i->j} <- 1 + sum_{l in N_i, l != j} c_{l->i}, delivered, with the losses of this round; for all edges."""
        undelivered = self.delivery.undelivered(self.edges, round)
        if not len(undelivered) and self._settled is not None and torch.equal(c, self._settled):
            return c
        edges = self._edge_tensors
        at_source = self.collect_counts(c)[edges["src"], edges["piece"]]
        delivered = 1 + at_source - c[edges["reverse"]]
        delivered[torch.from_numpy(undelivered)] = 0
        if not len(undelivered) and torch.equal(delivered, c):  # every model has arrived everywhere
            self._settled = delivered.clone()
        return delivered

    def collect_counts(self, c: Tensor) -> Tensor:
        """Return sum_{j in N_i} c_{j->i} for all workers and pieces: [edges] -> [n, d]."""
        if self._collected is None or not torch.equal(c, self._collected[0]):
            at = self._edge_tensors["dst"], self._edge_tensors["piece"]
            self._collected = c.clone(), torch.zeros_like(self.known_ones()).index_put_(at, c, accumulate=True)
        return self._collected[1]

    def mean_delay(self, overlap: bool) -> float:
        """Return mean_ij max(tau_ij - 1, 0), or with overlap mean_ij tau_ij (RelaySum paper, appendix D.1)."""
        if overlap not in self._mean_delays:
            self._mean_delays[overlap] = mean_delay(self.rounds, overlap)
        return self._mean_delays[overlap]

    # -- for the run, not for algorithms -------------------------------------------------------------------------------

    @abstractmethod
    def gather(self, rows: Tensor) -> Tensor:
        """Gather the rows of all workers on every process's CPU: [k, ...] -> [n, ...]. For evaluation; not counted."""

    @abstractmethod
    def average(self, x: Tensor) -> Tensor:
        """Return 1/n sum_j x_j as one new row: [k, P] -> [P]. For evaluation; not counted."""

    # -- for implementations -----------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, x: Tensor, exchange: Exchange) -> Callable[[], object]:
        """Begin to mix x in place; return a function that completes it."""

    def _mean(self, x: Tensor) -> Tensor:
        """Average the rows of the present workers."""
        present = self.delivery.present
        if present is None:
            return self._mean_of_all(x)
        away = np.flatnonzero(~present[self.workers.start : self.workers.stop])
        kept = x[away]
        x[away] = 0
        x = self._mean_of_all(x).mul_(self.n / int(present.sum()))
        x[away] = kept
        return x

    @abstractmethod
    def _mean_of_all(self, x: Tensor) -> Tensor: ...

    def _ping(self, num_bytes: int) -> float:
        """`ping` in real time; 0 within a process."""
        return 0.0

    @abstractmethod
    def _push(self, x: Tensor, p: Tensor, shares: Exchange) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def _relay(self, y: Tensor, m: Tensor) -> Tensor: ...

    @property
    def facts(self) -> dict[str, str]:
        """Return how it carries rows, for the run's records."""
        return {}

    def close(self) -> None:
        """Release all resources; the network must not be used afterwards."""

    def _begin_all(self, x: Tensor, exchanges: Sequence[Exchange], halve: bool = False) -> Callable[[], Tensor]:
        """Run the exchanges of a round in order; `halve`: return (x + the result) / 2 instead of the result."""
        own, first = x.clone() if halve else None, [self._begin_observed(x, each) for each in exchanges[:1]]

        def finish() -> Tensor:
            for each in first:
                each()
            for later in exchanges[1:]:
                self._begin_observed(x, later)()
            return x if own is None else x.add_(own).mul_(0.5)

        return finish

    def _begin_observed(self, x: Tensor, exchange: Exchange) -> Callable[[], object]:
        """`_begin` with counting and simulated time."""
        finish = self._begin(x, exchange)
        if exchange.pieces:
            num_bytes = self._piece_bytes(exchange, x)
            self.traffic.count_pieces(exchange.num_messages, num_bytes)
            wait = self.traffic.begin(exchange, num_bytes)
        else:
            wait = self.traffic.begin_collective("all_reduce", self._row_bytes(x))

        def finish_in_time() -> None:
            wait()
            finish()

        return finish_in_time

    def _row_bytes(self, x: Tensor) -> float:
        """Return the bytes of a worker's row of x [k, ..., P], or of the row it represents."""
        length, scale = self._true(x.shape[-1])
        return math.prod(x.shape[1:-1]) * length * x.element_size() * scale

    def _piece_bytes(self, exchange: Exchange, x: Tensor) -> list[float]:
        """Return the bytes of each piece of a worker's row, or of the row it represents."""
        length, scale = self._true(x.shape[-1])
        between = math.prod(x.shape[1:-1]) * x.element_size() * scale
        pieces = slices(length, len(exchange.pieces), exchange.split)
        return [len(range(length)[piece]) * between for piece in pieces]

    def _true(self, length: int) -> tuple[int, float]:
        """Return the true length of rows of this length, and the remaining scale factor."""
        stands_for, scale = self.traffic.stands_for, self.traffic.scale
        return (stands_for[length], 1.0) if length in stands_for else (length, scale)


def pairings(n: int) -> list[list[tuple[int, int]]]:
    """Pair workers with consecutive numbers, each in at most one pair; then those between these pairs."""
    first = [(i, i + 1) for i in range(0, n - 1, 2)]
    second = [(i, i + 1) for i in range(1, n - 1, 2)] + [(n - 1, 0)] * (n > 2 and n % 2 == 0)
    return [pairs for pairs in (first, second) if pairs]
