"""The interface of a compressor: the configuration group `compress=`."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from decentral.compression.rows import AcceptedCompression, Address, RowLayout, Scratch, payload_of
from decentral.host.machine import Lazy
from decentral.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from decentral.network.network import Network
    from decentral.network.payload import Payload, Sizes
    from decentral.topology.mixing_matrix import MixingMatrix
else:
    torch = Lazy("torch")

MEASURED_EVERY = 10
"""Steps between two measurements of the compression error, each of which takes several passes over memory."""


class Compressor(Settings, ABC, where="compress"):
    """A compressor of messages: a dataclass whose fields are its configuration.

    Once `bound` it works on rows [P] of a given layout. Its memory between steps is passed in and returned, as part of
    the algorithm's state: the residuals r [k, P] of error feedback, one row per local worker, and a `memory` [M] that
    all workers share (PowerSGD's Q). `residual` and `memory` return their initial values. Everything else that it
    keeps is scratch memory.

    error_feedback  add what was not sent to the next gradient: e = g + r, send C(e), r <- e - C(e)
    """

    name: str
    """Its name for `compress=`; each compressor sets it among its fields."""

    fills: ClassVar[bool] = False
    """True if every coordinate gets a value: the decoded row is rounded, not sparse."""

    adds: ClassVar[bool] = False
    """True if the elementwise mean of payloads is the payload of the mean, so that an all-reduce works."""

    by_length: ClassVar[bool] = True
    """True if its message size depends on the row length only, not on the values or the split into layers."""

    chooses: ClassVar[bool] = False
    """True if it decides in every step by link costs, and so needs to know them."""

    error_feedback: bool

    layout: RowLayout
    """Layout of the rows it is bound to. This and the following fields are not configuration."""

    seed: int
    steps_per_epoch: float

    scratch: Scratch
    """Reusable memory."""

    _compression_stats: Any = None
    _always = False

    @property
    def adapts(self) -> bool:
        """Return whether the run adapts its settings."""
        return False

    @classmethod
    def suits(cls, takes: AcceptedCompression) -> bool:
        """Return whether an algorithm that accepts these can use it."""
        return takes is AcceptedCompression.means

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid settings."""

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """Return a copy for rows of this layout. Raise ConfigError if it cannot compress them.

        seed             determines all randomness, with the address of a row
        steps_per_epoch  converts settings in epochs; steps are those passed to `combine`, one per message
        """
        bound = copy.copy(self)
        bound.layout, bound.seed, bound.steps_per_epoch = layout, seed, steps_per_epoch
        bound.scratch = Scratch()
        return bound

    @property
    def smallest_row(self) -> int:
        """Return the smallest length of a dummy row whose message has the same relative size as a long row's, and more
        than one of each number whose count grows with the length."""
        return 1000

    def residual(self, x: Tensor) -> Tensor:
        """Return the residuals r before step 0 for the rows x [k, P]: zeros [k, P]; without error feedback [k, 0]."""
        return x.new_zeros(x.shape if self.error_feedback else (len(x), 0))

    def memory(self, x: Tensor, num_workers: int) -> Tensor:
        """Return its other memory before step 0, the same for all n workers: [M], empty by default."""
        return x.new_zeros(0)

    def compression_stats(self, x: Tensor) -> Tensor:
        """Return the last measured statistics of the messages of the rows x [k, P].

        float64 [k, 3]: ||C(e)||^2 / ||e||^2, ||e - C(e)||^2 / ||e||^2 and the share of coordinates sent. Zeros before
        step 0, then updated in place every tenth step, from step 0 on. An algorithm requests them once, in `init`, and
        keeps them in its state.
        """
        self._compression_stats = x.new_zeros(len(x), 3, device="cpu").double()
        return self._compression_stats

    def measures(self, t: int) -> bool:
        """Return whether the messages of step t are measured, if `compression_stats` was called."""
        return self._compression_stats is not None and (self._always or t % MEASURED_EVERY == 0)

    def measure_always(self, always: bool) -> None:
        """Measure in every step from now on, or as usual."""
        self._always = always

    def read(self, place: int, total: float, sent: float, left: float, density: float) -> None:
        """Record ||e||^2, ||C(e)||^2, ||e - C(e)||^2 and the share of coordinates sent by local worker `place`; for
        several messages their sums, and the mean share."""
        assert self._compression_stats is not None
        shares = (sent / total, left / total) if total else (1.0, 0.0)
        self._compression_stats[place] = self._compression_stats.new_tensor([*shares, density])

    def error_fed(self, g: Tensor, r: Tensor) -> Tensor:
        """Return e = g + r [k, P] in the memory of r, or g itself without error feedback."""
        return r.add_(g) if self.error_feedback else g

    @abstractmethod
    def combine(self, g: Tensor, r: Tensor, memory: Tensor, net: Network, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """Replace gradients by the mean of all workers' messages of step t:

            e_i = g_i + r_i,   g_i <- 1/n sum_j C(e_j),   r_i <- e_i - C(e_i)

        for rows g, r [k, P] of the local workers, donated. Returns g, r and the memory. Without error feedback e = g,
        and r [k, 0] is unchanged. Every process calls this in the same step.
        """


class Encoder(Compressor):
    """A compressor that encodes each row independently of the others.

    The result of `encode` is overwritten when the same worker's row of the same message is encoded in another step.
    """

    _of_pieces: dict[tuple[tuple[int, int, int], ...], list[Self]]

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """See `Compressor.bound`."""
        bound = super().bound(layout, seed, steps_per_epoch)
        bound._of_pieces = {}
        return bound

    def of_pieces(self, pieces: Sequence[slice]) -> list[Self]:
        """Return the same compressor for each of these pieces of its rows, with shared scratch memory."""
        if len(pieces) == 1:
            return [self]
        key = tuple(piece.indices(self.layout.num_coordinates) for piece in pieces)
        if key not in self._of_pieces:
            found = [self.bound(self.layout.cut(piece), self.seed, self.steps_per_epoch) for piece in pieces]
            for each in found:
                each.scratch = self.scratch
            self._of_pieces[key] = found
        return self._of_pieces[key]

    @classmethod
    def suits(cls, takes: AcceptedCompression) -> bool:
        """Return whether an algorithm that accepts these can use it: one that sends payloads can; one that sends rows
        or counts senders only if it `fills`."""
        return takes in (AcceptedCompression.payloads, AcceptedCompression.means) or (
            takes in (AcceptedCompression.rows, AcceptedCompression.senders) and cls.fills
        )

    def squares_of_sent(self, payload: Payload, e: Tensor, at: Address) -> tuple[float, float]:
        """Return ||C(e)||^2 and ||e - C(e)||^2 for the payload C(e) of e [P], which is unchanged."""
        sent = self.scratch.take("sent", len(e), e).zero_()
        self.add_decoded(payload, sent, at)
        square = float(sent.dot(sent))
        sent.sub_(e)
        return square, float(sent.dot(sent))

    def measure(self, payloads: Sequence[Payload], e: Tensor, here: Sequence[Address]) -> None:
        """Record the compression error of the payloads of the local rows e [k, P], in a measured step."""
        for place, (payload, row, at) in enumerate(zip(payloads, e, here, strict=True)):
            if self.measures(at.step) and at.message == 0:
                sent, left = self.squares_of_sent(payload, row, at)
                self.read(place, float(row.dot(row)), sent, left, self.density(payload))

    def density(self, payload: Payload) -> float:
        """Return the share of the coordinates in a payload."""
        return 1.0 if self.fills else len(payload.tensors["values"]) / self.layout.num_coordinates

    @abstractmethod
    def sizes(self, step: int, dtype: torch.dtype) -> Sizes | None:
        """Return the tensor types and sizes of every payload of this step, for rows of type `dtype`; None if they
        depend on the rows."""

    @abstractmethod
    def encode(self, e: Tensor, at: Address) -> Payload:
        """Return C(e) of a row e [P], which is unchanged and shares no memory with the payload.

        A non-finite number in e reaches the payload: the decoded row has one, too.
        """

    @abstractmethod
    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """Compute out <- out + weight times the decoded row [P] of the payload of worker and step `at`, in place."""

    def subtract_sent(self, payload: Payload, e: Tensor, at: Address) -> None:
        """Compute e <- e - C(e) in place, for the payload C(e) of e [P]: the residual of error feedback."""
        self.add_decoded(payload, e, at, -1.0)

    def send(self, e: Tensor, net: Network, t: int, message: int = 0) -> Heard:
        """Send C(e_i) of each row of e [k, P] to the worker's neighbors of step t, as message number `message` of the
        step.

        The result is valid until the next call.
        """
        here = [Address(i, t, message) for i in net.workers]
        payloads = [self.encode(row, at) for row, at in zip(e, here, strict=True)]
        self.measure(payloads, e, here)
        others = net.swap(payloads, t, self.sizes(t, e.dtype))
        return Heard(self, net.workers, (t, message), net.delivery.matrix(t, 0, lazy=False), payloads, others)

    def mix(self, x: Tensor, net: Network, t: int) -> Tensor:
        """Compute x_i <- x_i + sum_j W_ij (C(x_j) - C(x_i)) with W of round t, in place: gossip of rounded rows [k, P].

        If W is doubly stochastic, this preserves the mean for any C, and equal rows stay equal.
        """
        heard = self.send(x, net, t)
        return heard.add_own(heard.add_mixed(x), -1.0)

    def begin_mix(self, x: Tensor, net: Network, t: int) -> Callable[[], Tensor]:
        """Return a function that completes `mix`, and begin it if messages can be in flight meanwhile."""
        return partial(self.mix, x, net, t)

    def relay(self, y: Tensor, m: Tensor, net: Network, t: int, later: bool = False) -> Tensor:
        """Compute RelaySum of rounded sums: m_{i->j} <- C(y_i + sum_{l in N_i, l != j} m_{l->i}), delivered, decoded.

        y [k, P] is unchanged, m [E, ceil(P / d)] is donated; both m are indexed by the receiver. For compressors with
        `fills`. Each piece of the rows is encoded separately. The randomness in the message of edge e in step t is
        addressed by its sender, t and e. A lost message is zero. Besides m it allocates the payloads of one step. The
        compression error of a worker is measured over all its messages.
        """
        edges, first = net.edges, net.local_edges.start
        parts = self.of_pieces(net.rounds.slices(y.shape[-1]))
        local = range(len(m))
        of_edge = [parts[h] for h in edges.piece[first : first + len(m)].tolist()]
        src, dst = edges.src[first : first + len(m)].tolist(), edges.dst[first : first + len(m)].tolist()
        back = edges.reverse[first : first + len(m)].tolist()
        sums = net.outgoing(y, m)
        here = [Address(dst[e], t, back[e]) for e in local]
        payloads = [of_edge[e].encode(sums[e], at) for e, at in zip(local, here, strict=True)]
        if self.measures(t):
            senders = [dst[e] - net.workers.start for e in local]
            squares = {place: [0.0, 0.0, 0.0, 0.0] for place in senders}
            for part, payload, y_e, place, at in zip(of_edge, payloads, sums, senders, here, strict=True):
                found = (float(y_e.dot(y_e)), *part.squares_of_sent(payload, y_e, at))
                shares = (*found, part.density(payload) / senders.count(place))
                squares[place] = [before + more for before, more in zip(squares[place], shares, strict=True)]
            for place, of_all in squares.items():
                self.read(place, *of_all)
        sizes = [part.sizes(t, y.dtype) for part in parts]
        came = net.relay_payloads(payloads, t, [each for each in sizes if each is not None], later)
        for e, payload in zip(local, came, strict=True):
            row = m[e, : of_edge[e].layout.num_coordinates].zero_()
            if payload is not None:
                of_edge[e].add_decoded(payload, row, Address(src[e], t, first + e))
        return m

    def combine(
        self, g: Tensor, r: Tensor, memory: Tensor, net: Network, t: int, of_senders: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Compressor.combine`: by an all-reduce of the payloads if they add up (`adds`), else by all-gather.

        of_senders  see `add_mean`
        """
        e = self.error_fed(g, r)
        here = [Address(worker, t) for worker in net.workers]
        payloads = [self.encode(row, at) for row, at in zip(e, here, strict=True)]
        self.measure(payloads, e, here)
        if self.error_feedback:
            for payload, row, at in zip(payloads, e, here, strict=True):
                self.subtract_sent(payload, row, at)
        mean = g[0].zero_()
        if self.adds:
            self.add_decoded(self._mean(payloads, net), mean, here[0])
        else:
            self.add_mean(net.allgather(payloads, self.sizes(t, g.dtype)), mean, t, of_senders)
        g[1:] = mean
        return g, r, memory

    def add_mean(self, payloads: Sequence[Payload], out: Tensor, t: int, of_senders: bool = False) -> None:
        """Compute out <- out + 1/n sum_j C(e_j) [P], in place, for the payloads of all n workers in step t.

        of_senders  divide each coordinate by the number of workers that sent it, not by n; the same if every
                    coordinate gets a value
        """
        for j, payload in enumerate(payloads):
            self.add_decoded(payload, out, Address(j, t), 1 / len(payloads))

    def _mean(self, payloads: Sequence[Payload], net: Network) -> Payload:
        """Return the payload of the mean, by an all-reduce of the payloads' single tensor."""
        name, like = next(iter(payloads[0].tensors.items()))
        rows = self.scratch.take("rows", len(payloads) * len(like), like).view(len(payloads), -1)
        torch.stack([payload.tensors[name] for payload in payloads], out=rows)
        return payload_of(**{name: net.mean(rows)[0]})


class Heard(NamedTuple):
    """The messages of a round that the k local workers received, including their own."""

    compressor: Encoder
    workers: range
    when: tuple[int, int]
    W: MixingMatrix
    own: Sequence[Payload]
    others: Sequence[dict[int, Payload]]

    def add_own(self, out: Tensor, weight: float = 1.0) -> Tensor:
        """Return out_i + weight C(e_i) in the memory of out [k, P]."""
        for row, i, payload in zip(out, self.workers, self.own, strict=True):
            self.compressor.add_decoded(payload, row, Address(i, *self.when), weight)
        return out

    def add_mixed(self, out: Tensor) -> Tensor:
        """Return out_i + sum_j W_ij C(e_j) in the memory of out [k, P]."""
        for row, i, own, others in zip(out, self.workers, self.own, self.others, strict=True):
            first, last = self.W.starts[i : i + 2]
            for j, weight in zip(self.W.src[first:last].tolist(), self.W.weight[first:last].tolist(), strict=True):
                if weight:
                    payload = own if j == i else others[j]
                    self.compressor.add_decoded(payload, row, Address(j, *self.when), weight)
        return out
