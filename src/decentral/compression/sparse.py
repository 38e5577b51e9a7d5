"""Compressors that send some coordinates: the largest, those above a threshold, or random ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from decentral.compression.compressor import Encoder
from decentral.compression.ratio import Ratio
from decentral.compression.rows import AcceptedCompression, payload_of
from decentral.compression.selection import as_integer, at_least, distinct, largest, moments, sampled
from decentral.errors import ConfigError
from decentral.host.machine import Lazy
from decentral.randomness import numpy_generator
from decentral.settings import setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from decentral.cluster.links import Prices
    from decentral.compression.rows import Address, RowLayout
    from decentral.network.payload import Payload, Sizes
else:
    torch = Lazy("torch")


class Placed(Encoder):
    """An encoder that sends some entries of a row, or of an orthonormal transform of it, and their positions."""

    @classmethod
    def suits(cls, takes: AcceptedCompression) -> bool:
        """Return whether an algorithm that accepts these can use it; it also supports counting senders."""
        return takes is AcceptedCompression.senders or super().suits(takes)

    @abstractmethod
    def sent_places(self, payload: Payload) -> Tensor:
        """Return the distinct positions of the values of a payload: [m], integers."""

    def restored(self, q: Tensor) -> Tensor:
        """Return the row [P] whose transform is q [P]; here q itself."""
        return q

    def add_mean(self, payloads: Sequence[Payload], out: Tensor, t: int, of_senders: bool = False) -> None:
        """See `Encoder.add_mean`: coefficients are summed before a single inverse transform."""
        q, divisors = torch.zeros_like(out), torch.full_like(out, 0 if of_senders else len(payloads))
        for payload in payloads:
            places, values = self.sent_places(payload), payload.tensors["values"]
            q.index_add_(0, places, values)
            if of_senders:
                divisors.index_add_(0, places, torch.ones_like(values))
        out.add_(self.restored(q.div_(divisors.clamp_(min=1))))

    def squares_of_sent(self, payload: Payload, e: Tensor, at: Address) -> tuple[float, float]:
        """Return ||C(e)||^2 and ||e - C(e)||^2 = ||e||^2 - ||C(e)||^2: sent and remaining entries are disjoint."""
        values = payload.tensors["values"]
        sent = float(values.dot(values))
        return sent, max(0.0, float(e.dot(e)) - sent)


@dataclass
class Sparse(Placed):
    """An encoder that sends pairs (value, index): C(e) is e at these indices, and 0 elsewhere.

    Error feedback is exact: sent entries leave the residual, all others stay in it, bit for bit.

    index_bytes  bytes per index, 4 or 8
    """

    name: str
    error_feedback: bool = True
    index_bytes: int = setting(4, choices=(4, 8))

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """See `Compressor.bound`. Raise ConfigError if 4-byte indices are too short."""
        check_indices(layout, self.index_bytes)
        return super().bound(layout, seed, steps_per_epoch)

    @abstractmethod
    def places(self, e: Tensor, at: Address) -> Tensor:
        """Return the distinct indices of e [P] to send, ascending: [m], int64."""

    def encode(self, e: Tensor, at: Address) -> Payload:
        """Return the values [m] at the selected indices, and the indices [m] as integers of `index_bytes`."""
        places = self.places(e, at)
        values = self.scratch.take(("values", *at.place), len(places), e)
        indices = self.scratch.take(("indices", *at.place), len(places), e, index_type(self.index_bytes))
        torch.index_select(e, 0, places, out=values)
        return payload_of(values=values, indices=indices.copy_(places))

    def sent_places(self, payload: Payload) -> Tensor:
        """Return the indices."""
        return payload.tensors["indices"]

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """Compute out[index] <- out[index] + weight * value for each pair, without touching other entries."""
        out.index_add_(0, payload.tensors["indices"], payload.tensors["values"], alpha=weight)

    def add_mean(self, payloads: Sequence[Payload], out: Tensor, t: int, of_senders: bool = False) -> None:
        """See `Encoder.add_mean`; touches no other entries if possible."""
        if of_senders:
            super().add_mean(payloads, out, t, of_senders)
        else:
            Encoder.add_mean(self, payloads, out, t)

    def subtract_sent(self, payload: Payload, e: Tensor, at: Address) -> None:
        """Compute e[index] <- 0 for each pair."""
        indices = payload.tensors["indices"]
        e.index_fill_(0, self.scratch.take("wide", len(indices), e, torch.int64).copy_(indices), 0)

    def sizes_of(self, count: int, dtype: torch.dtype) -> Sizes:
        """Return the sizes of a payload with `count` pairs."""
        return {"values": (dtype, count), "indices": (index_type(self.index_bytes), count)}


def check_indices(layout: RowLayout, index_bytes: int) -> None:
    """Raise ConfigError if indices of `index_bytes` bytes are too short."""
    if layout.num_coordinates >= 2 ** (8 * index_bytes - 1):
        raise ConfigError(f"compress.index_bytes=4 is too small for {layout.num_coordinates} parameters: set it to 8.")


def index_type(index_bytes: int) -> torch.dtype:
    """Return the integer type of `index_bytes` bytes."""
    return torch.int32 if index_bytes == 4 else torch.int64


@dataclass
class SparseRatio(Ratio, Sparse):
    """Sparse compressors that send a given share of the coordinates."""

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """Return k pairs."""
        return self.sizes_of(self.count(self.layout.num_coordinates, step), dtype)

    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """Return the time of an all-gather of the pairs."""
        from decentral.network.payload import bytes_of

        return prices.allgather_s(bytes_of(self.sizes(step, dtype)))


@dataclass
class TopK(SparseRatio):
    """The k entries of the whole row with the largest magnitude, exactly (Aji & Heafield, EMNLP 2017).

        I = the k indices with the largest |e|,   C(e) = e on I, 0 elsewhere,   k = max(1, floor(keep P))

    Bytes: k (4 + index_bytes) for float32 rows; 8 + index_bytes for float64. Ties go to the smaller index. A non-finite
    entry is larger than all others.

    Departures: the authors of "Flexible Communication for Optimal Distributed Learning" (BigData 2023) start from an
    uninitialized residual and send indices of 8 bytes: here residuals start at 0, and `index_bytes=4`. Their padding,
    which can drop entry 0, is unnecessary: all payloads have the same length.
    """

    name: str = "topk"

    def places(self, e: Tensor, at: Address) -> Tensor:
        """Return the largest k."""
        return largest(e, self.count(len(e), at.step), self.scratch)


@dataclass
class LayerwiseTopK(SparseRatio):
    """The largest entries of each parameter tensor, exactly ("LWTopk" of Tyagi & Swany, BigData 2023).

        for each parameter of P_l numbers:  k_l = max(1, floor(keep P_l)),   C(e_l) = the k_l largest of |e_l|

    Bytes: sum_l k_l (4 + index_bytes) for float32 rows. Each parameter sends at least one entry, so many small ones
    (biases, normalization) send more than `topk`. Ties and NaN: as `topk`.

    Departure: the authors gather sizes, values and indices of each layer, three collectives per layer, with padding to
    the largest. Here the sizes are known, so all layers form one payload, with indices into the row.
    """

    name: str = "lwtopk"
    by_length: ClassVar[bool] = False

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """Return sum_l k_l pairs."""
        return self.sizes_of(sum(self._counts(step)), dtype)

    def places(self, e: Tensor, at: Address) -> Tensor:
        """Return the largest k_l of every layer, layer by layer."""
        counts, start = self._counts(at.step), 0
        found = self.scratch.take("layers", sum(counts), e, torch.int64)
        for part, k in zip(self.layout.slices, counts, strict=True):
            torch.add(largest(e[part], k, self.scratch), part.start, out=found[start : start + k])
            start += k
        return found

    def _counts(self, step: int) -> list[int]:
        sizes = (part.stop - part.start for part in self.layout.slices)
        return [self.count(size, step) if size else 0 for size in sizes]


@dataclass
class Threshold(Sparse):
    """All entries whose magnitude reaches a threshold (Strom, Interspeech 2015; Dutta et al., AAAI 2020).

        I = {i: |e_i| >= threshold},   C(e) = e on I, 0 elsewhere

    threshold  in units of the gradient

    Bytes: |I| (4 + index_bytes) for float32 rows. |I| differs between workers and steps, so lengths are sent, too.
    Nothing is sent if no entry is large enough: with error feedback, entries accumulate until they are. A non-finite
    entry is always sent.
    """

    name: str = "threshold"
    threshold: float = setting(0.01, above=0, hint="such as 0.01")
    by_length: ClassVar[bool] = False

    def sizes(self, step: int, dtype: torch.dtype) -> None:
        """Return None: sizes depend on the row."""

    def places(self, e: Tensor, at: Address) -> Tensor:
        """Return the indices where |e| reaches the threshold, rounded to the type of e."""
        return at_least(e, as_integer(self.threshold, e.dtype), self.scratch)[0]


@dataclass
class MSTopK(SparseRatio):
    """About the k largest entries, by bisection for a threshold (Shi et al., "MSTopk", MLSys 2021), k as `topk`.

        a = |e|,  mu = mean(a),  u = max(a);   l, r = 0, 1;   t1 unset, t2 = 0
        `samplings` times:  rho = (l + r) / 2,  t = mu + rho (u - mu),  z = #(a >= t)
            z <= k:  r = rho, and t1 = t if z is larger than before;   else:  l = rho, and t2 = t
        I = {a >= t1}, and the missing entries from {t2 <= a < t1}, consecutive from a random start

    The start is addressed by (seed, worker, step). After 25 samplings these are the k largest, except for ties and rows
    whose largest entry is very far from their mean. Bytes: k (4 + index_bytes) for float32 rows, as `topk`.

    The counts z are exact, but do not take passes over the row: entries clearly below the threshold are excluded before
    the search, as in `topk`.

    Departures from the authors' code, which are bugs there: it sends k - 1 entries if the run begins one position too
    late, the whole row for k = 0, and fails if no sampling has z <= k (equal entries, zeros). Here the run fits, k is
    at least 1, and t1 = u if it is unset, or, if more than k entries equal u, all come from {a >= t2}. A row whose
    largest entry or mean is non-finite is sent by `topk`, so that the entry arrives. Indices ascend.
    """

    name: str = "mstopk"
    samplings: int = setting(25, at_least=1)

    def places(self, e: Tensor, at: Address) -> Tensor:
        """Return I of the class formula."""
        k = self.count(len(e), at.step)
        mean, most = moments(e, self.scratch)
        if k == len(e) or not (math.isfinite(mean) and math.isfinite(most)):
            return largest(e, k, self.scratch)
        generator = numpy_generator(self.seed, "mstopk", *at)
        return sampled(e, k, (mean, most), self.samplings, generator, self.scratch)


@dataclass
class RandomK(Ratio, Encoder):
    """k coordinates drawn without replacement, the same for all workers in a step (Stich et al., NeurIPS 2018).

        I = k of the P indices, by (seed, step),   C(e) = c e on I, 0 elsewhere,   c = 1, or P / k if unbiased

    unbiased  c = P / k, so that E C(e) = e: for runs without error feedback. With c = 1 it is a contraction,
              E ||C(e) - e||^2 = (1 - k / P) ||e||^2, as error feedback and CHOCO need it.

    Bytes: 4 k for float32 rows: all workers draw the same indices, so none is sent. Values of all workers have the same
    positions and add up, so an all-reduce of k numbers suffices.

    A row with a non-finite entry sends NaN k times, whether the entry was drawn or not.

    Departures: the paper's workers draw independently; the shared seed makes the all-reduce possible.
    """

    name: str = "randomk"
    unbiased: bool = False
    adds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unbiased and self.error_feedback:
            raise ConfigError(
                "compress.unbiased=true sends P / k times the value, which error feedback cannot correct: set "
                "compress.error_feedback=false with it."
            )

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """Return k numbers."""
        return {"values": (dtype, self.count(self.layout.num_coordinates, step))}

    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """Return the time of an all-reduce of k numbers."""
        return prices.mean_s(self.count(self.layout.num_coordinates, step) * dtype.itemsize)

    def encode(self, e: Tensor, at: Address) -> Payload:
        """Return c e on I, in the order of `places`."""
        places = self.places(e, at.step)
        values = self.scratch.take(("values", *at.place), len(places), e)
        torch.index_select(e, 0, places, out=values)
        if self.unbiased:
            values.mul_(len(e) / len(places))
        low, high = torch.aminmax(e)
        return payload_of(values=values.add_(low.mul_(0) + high.mul_(0)))  # 0 or NaN

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """Compute out[I] <- out[I] + weight * values, with I of this step."""
        out.index_add_(0, self.places(out, at.step), payload.tensors["values"], alpha=weight)

    def subtract_sent(self, payload: Payload, e: Tensor, at: Address) -> None:
        """Compute e <- 0 on I; if unbiased, e <- e - C(e) by the formula."""
        if self.unbiased:
            super().subtract_sent(payload, e, at)
        else:
            e.index_fill_(0, self.places(e, at.step), 0)

    def places(self, like: Tensor, step: int) -> Tensor:
        """Return I [k], int64, unordered: drawn once per step, on the CPU, for rows like this one."""
        size = self.layout.num_coordinates
        k, address = self.count(size, step), (self.seed, "randomk", step)
        return self.scratch.remember(
            "drawn", (step, k), lambda: distinct(size, k, address, self.scratch).to(like.device)
        )
