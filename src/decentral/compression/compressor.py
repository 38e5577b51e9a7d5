"""The contract of a compressor: the configuration group `compress=`."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from decentral.compression.gossip import relay, send
from decentral.compression.rows import AcceptedCompression, Address, RowLayout, Scratch, payload_of
from decentral.host.machine import Lazy
from decentral.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from decentral.network.network import Network
    from decentral.network.payload import Payload, Sizes
else:
    torch = Lazy("torch")

MEASURED_EVERY = 10
"""How often it is measured what messages leave out, in steps: it takes some passes over memory."""


class Compressor(Settings, ABC, where="compress"):
    """What a message says instead of a dense row: a dataclass whose fields are its configuration.

    It works on rows [P] of a given layout once it is `bound`. Whatever it remembers between steps is handed to it and
    comes back, so that it is part of the algorithm's state: the residuals r [k, P] of error feedback, one row for each
    local worker, and a `memory` [M] that all workers share (PowerSGD's Q). Both start where `residual` and `memory`
    say. What it keeps otherwise is memory to work in.

    error_feedback  add what was not sent to the next gradient: e = g + r, send C(e), r <- e - C(e)
    """

    name: str
    """What `compress=` calls it; each compressor sets it in its fields."""

    fills: ClassVar[bool] = False
    """Whether every coordinate gets a number, so that what arrives is a row that is rounded, not one with holes."""

    adds: ClassVar[bool] = False
    """Whether the mean of encoded payloads, number by number, is the encoded mean: an all-reduce can carry them."""

    by_length: ClassVar[bool] = True
    """Whether how much it sends follows from how long rows are, whatever is in them and however it is cut in layers."""

    chooses: ClassVar[bool] = False
    """Whether it decides in every step by what links cost, and so needs to know that."""

    error_feedback: bool

    layout: RowLayout
    """Of the rows that it is bound to; this, and what follows, is no configuration."""

    seed: int
    steps_per_epoch: float

    scratch: Scratch
    """Memory that is used again in every step."""

    _compression_stats: Any = None
    _always = False

    @property
    def adapts(self) -> bool:
        """Whether its settings are decided on the way, by the run."""
        return False

    @classmethod
    def suits(cls, takes: AcceptedCompression) -> bool:
        """Whether an algorithm that takes these can use it."""
        return takes is AcceptedCompression.means

    def __post_init__(self) -> None:
        """Raises ConfigError for settings that make no sense."""

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """A copy for rows of this layout. Raises ConfigError if it cannot compress such rows.

        seed             everything random follows from it, and from the address of a row
        steps_per_epoch  for what is configured in epochs: steps are those that `combine` is told, one for each message
        """
        bound = copy.copy(self)
        bound.layout, bound.seed, bound.steps_per_epoch = layout, seed, steps_per_epoch
        bound.scratch = Scratch()
        return bound

    @property
    def smallest_row(self) -> int:
        """How long a row of nothing is, at least, whose message is as large a part of it as that of a long row, and has
        more than one of each number that a longer row has more of."""
        return 1000

    def residual(self, x: Tensor) -> Tensor:
        """The residuals r of the workers with the rows x [k, P] before step 0: zeros [k, P]; without error feedback
        [k, 0]."""
        return x.new_zeros(x.shape if self.error_feedback else (len(x), 0))

    def memory(self, x: Tensor, num_workers: int) -> Tensor:
        """What else it remembers between steps, the same for all n workers, before step 0: [M], by default nothing."""
        return x.new_zeros(0)

    def compression_stats(self, x: Tensor) -> Tensor:
        """What the messages of the workers with the rows x [k, P] were like when that was measured last.

        float64 [k, 3], for each ||C(e)||^2 / ||e||^2, ||e - C(e)||^2 / ||e||^2 and the share of coordinates that are
        sent: zeros before step 0, and written to in every tenth step, from step 0 on. An algorithm asks for them
        once, in `init`, and has them in its state.
        """
        self._compression_stats = x.new_zeros(len(x), 3, device="cpu").double()
        return self._compression_stats

    def measures(self, t: int) -> bool:
        """Whether the messages of step t are measured, for those who asked for `compression_stats`."""
        return self._compression_stats is not None and (self._always or t % MEASURED_EVERY == 0)

    def measure_always(self, always: bool) -> None:
        """From now on measure in every step, or as usual."""
        self._always = always

    def read(self, place: int, total: float, sent: float, left: float, density: float) -> None:
        """Note ||e||^2, ||C(e)||^2, ||e - C(e)||^2 and the share of coordinates that are sent, of local worker
        `place`; of several messages the sums, and the mean."""
        assert self._compression_stats is not None
        shares = (sent / total, left / total) if total else (1.0, 0.0)
        self._compression_stats[place] = self._compression_stats.new_tensor([*shares, density])

    def error_fed(self, g: Tensor, r: Tensor) -> Tensor:
        """e = g + r [k, P] in the memory of r, or g itself where there is no error feedback."""
        return r.add_(g) if self.error_feedback else g

    @abstractmethod
    def combine(self, g: Tensor, r: Tensor, memory: Tensor, net: Network, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of what all workers sent in step t, in place of their gradients:

            e_i = g_i + r_i,   g_i <- 1/n sum_j C(e_j),   r_i <- e_i - C(e_i)

        for rows g, r [k, P] of the local workers, donated. Returns g, r and the memory. Without error feedback e = g,
        and r [k, 0] stays as it is. Every process calls this in the same step.
        """


class Encoder(Compressor):
    """A compressor that encodes a row by itself, without hearing of the others.

    What `encode` returns lies in memory that is overwritten when the same worker's row of the same message, in another
    step, is encoded.
    """

    _of_pieces: dict[tuple[tuple[int, int, int], ...], list[Self]]

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """See `Compressor.bound`."""
        bound = super().bound(layout, seed, steps_per_epoch)
        bound._of_pieces = {}
        return bound

    def of_pieces(self, pieces: Sequence[slice]) -> list[Self]:
        """The same for each of these pieces of its rows, with the same memory to work in."""
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
        """Whatever sends payloads can use it, and what sends rows or counts senders if all coordinates get a number."""
        return takes in (AcceptedCompression.payloads, AcceptedCompression.means) or (
            takes in (AcceptedCompression.rows, AcceptedCompression.senders) and cls.fills
        )

    def squares_of_sent(self, payload: Payload, e: Tensor, at: Address) -> tuple[float, float]:
        """||C(e)||^2 and ||e - C(e)||^2 for the payload C(e) of e [P], which is left as it is."""
        sent = self.scratch.take("sent", len(e), e).zero_()
        self.add_decoded(payload, sent, at)
        square = float(sent.dot(sent))
        sent.sub_(e)
        return square, float(sent.dot(sent))

    def measure(self, payloads: Sequence[Payload], e: Tensor, here: Sequence[Address]) -> None:
        """Note what the payloads of the rows e [k, P] of the local workers leave out, in a step that is measured."""
        for place, (payload, row, at) in enumerate(zip(payloads, e, here, strict=True)):
            if self.measures(at.step) and at.message == 0:
                sent, left = self.squares_of_sent(payload, row, at)
                self.read(place, float(row.dot(row)), sent, left, self.density(payload))

    def density(self, payload: Payload) -> float:
        """The share of the coordinates that a payload has numbers for."""
        return 1.0 if self.fills else len(payload.tensors["values"]) / self.layout.num_coordinates

    @abstractmethod
    def sizes(self, step: int, dtype: torch.dtype) -> Sizes | None:
        """What every payload of this step looks like, of rows with numbers of type `dtype`; None: that depends on the
        rows."""

    @abstractmethod
    def encode(self, e: Tensor, at: Address) -> Payload:
        """C(e) of a row e [P], which is left as it is and shares no memory with the payload.

        A number in e that is infinite or no number leaves a mark in the payload: what is decoded has such a number.
        """

    @abstractmethod
    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """out <- out + weight times the row [P] that the payload of worker and step `at` stands for, in place."""

    def subtract_sent(self, payload: Payload, e: Tensor, at: Address) -> None:
        """e <- e - C(e) in place, for the payload C(e) of e [P]: what error feedback keeps."""
        self.add_decoded(payload, e, at, -1.0)

    def mix(self, x: Tensor, net: Network, t: int) -> Tensor:
        """x_i <- x_i + sum_j W_ij (C(x_j) - C(x_i)) with W of round t, in place: gossip of rounded rows [k, P].

        Where W is doubly stochastic the mean is kept whatever C does, and what is equal stays equal.
        """
        heard = send(self, x, net, t)
        return heard.add_own(heard.add_mixed(x), -1.0)

    def relay(self, y: Tensor, m: Tensor, net: Network, t: int, later: bool = False) -> Tensor:
        """m_{i->j} <- C(y_i + sum_{l in N_i, l != j} m_{l->i}), delivered: sums are rounded on every edge.

        y [k, P] is left as it is, m [E, ceil(P / d)] is donated. For those that give every coordinate a number.
        """
        return relay(self, y, m, net, t, later)

    def combine(
        self, g: Tensor, r: Tensor, memory: Tensor, net: Network, t: int, of_senders: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Compressor.combine`: by an all-reduce of the payloads' numbers if they add up, else by all-gather.

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
        """out <- out + 1/n sum_j C(e_j) [P], in place, for the payloads of all n workers in step t.

        of_senders  each number that was sent is divided by how many workers sent it, not by n: the same where every
                    coordinate gets a number
        """
        for j, payload in enumerate(payloads):
            self.add_decoded(payload, out, Address(j, t), 1 / len(payloads))

    def _mean(self, payloads: Sequence[Payload], net: Network) -> Payload:
        """The payload of the mean, by an all-reduce of the one tensor that each of them has."""
        name, like = next(iter(payloads[0].tensors.items()))
        rows = self.scratch.take("rows", len(payloads) * len(like), like).view(len(payloads), -1)
        torch.stack([payload.tensors[name] for payload in payloads], out=rows)
        return payload_of(**{name: net.mean(rows)[0]})
