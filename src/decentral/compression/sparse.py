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
    """Sends some numbers of a row, or of an orthonormal transform of it, and where they belong."""

    @classmethod
    def suits(cls, takes: AcceptedCompression) -> bool:
        """Who sent which coordinate is known."""
        return takes is AcceptedCompression.senders or super().suits(takes)

    @abstractmethod
    def sent_places(self, payload: Payload) -> Tensor:
        """Where the values of a payload belong, each place once: [m], integers."""

    def restored(self, q: Tensor) -> Tensor:
        """The row [P] whose transform is q [P]; here q is the row."""
        return q

    def add_mean(self, payloads: Sequence[Payload], out: Tensor, t: int, of_senders: bool = False) -> None:
        """See `Encoder.add_mean`: numbers are added up before the transform is undone, once."""
        q, divisors = torch.zeros_like(out), torch.full_like(out, 0 if of_senders else len(payloads))
        for payload in payloads:
            places, values = self.sent_places(payload), payload.tensors["values"]
            q.index_add_(0, places, values)
            if of_senders:
                divisors.index_add_(0, places, torch.ones_like(values))
        out.add_(self.restored(q.div_(divisors.clamp_(min=1))))

    def squares_of_sent(self, payload: Payload, e: Tensor, at: Address) -> tuple[float, float]:
        """||C(e)||^2, and ||e - C(e)||^2 = ||e||^2 - ||C(e)||^2: what is sent and what is left have no place in
        common."""
        values = payload.tensors["values"]
        sent = float(values.dot(values))
        return sent, max(0.0, float(e.dot(e)) - sent)


@dataclass
class Sparse(Placed):
    """Sends pairs (value, index): C(e) is e at the places that are sent, and 0 elsewhere.

    Error feedback is exact: what is sent leaves the residual, and all else stays in it, bit for bit.

    index_bytes  bytes per index, 4 or 8
    """

    name: str
    error_feedback: bool = True
    index_bytes: int = setting(4, choices=(4, 8))

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """See `Compressor.bound`. Raises ConfigError where indices of 4 bytes are too short."""
        check_indices(layout, self.index_bytes)
        return super().bound(layout, seed, steps_per_epoch)

    @abstractmethod
    def places(self, e: Tensor, at: Address) -> Tensor:
        """The indices that are sent of e [P], ascending, each once: [m], int64."""

    def encode(self, e: Tensor, at: Address) -> Payload:
        """The values at these places, [m], and their indices, [m], as integers of `index_bytes`."""
        places = self.places(e, at)
        values = self.scratch.take(("values", *at.place), len(places), e)
        indices = self.scratch.take(("indices", *at.place), len(places), e, index_type(self.index_bytes))
        torch.index_select(e, 0, places, out=values)
        return payload_of(values=values, indices=indices.copy_(places))

    def sent_places(self, payload: Payload) -> Tensor:
        """The indices."""
        return payload.tensors["indices"]

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """out[index] <- out[index] + weight * value for each pair: it touches no other places."""
        out.index_add_(0, payload.tensors["indices"], payload.tensors["values"], alpha=weight)

    def add_mean(self, payloads: Sequence[Payload], out: Tensor, t: int, of_senders: bool = False) -> None:
        """See `Encoder.add_mean`; it touches no other places where it can."""
        if of_senders:
            super().add_mean(payloads, out, t, of_senders)
        else:
            Encoder.add_mean(self, payloads, out, t)

    def subtract_sent(self, payload: Payload, e: Tensor, at: Address) -> None:
        """e[index] <- 0 for each pair."""
        indices = payload.tensors["indices"]
        e.index_fill_(0, self.scratch.take("wide", len(indices), e, torch.int64).copy_(indices), 0)

    def sizes_of(self, count: int, dtype: torch.dtype) -> Sizes:
        """Of a payload with so many pairs."""
        return {"values": (dtype, count), "indices": (index_type(self.index_bytes), count)}


def check_indices(layout: RowLayout, index_bytes: int) -> None:
    """Raises ConfigError where indices of so many bytes are too short."""
    if layout.num_coordinates >= 2 ** (8 * index_bytes - 1):
        raise ConfigError(f"compress.index_bytes=4 is too small for {layout.num_coordinates} parameters: set it to 8.")


def index_type(index_bytes: int) -> torch.dtype:
    """Integers of so many bytes."""
    return torch.int32 if index_bytes == 4 else torch.int64


@dataclass
class SparseRatio(Ratio, Sparse):
    """Those that send a given share of the coordinates."""

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """k pairs."""
        return self.sizes_of(self.count(self.layout.num_coordinates, step), dtype)

    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """An all-gather of the pairs."""
        from decentral.network.payload import bytes_of

        return prices.allgather_s(bytes_of(self.sizes(step, dtype)))


@dataclass
class TopK(SparseRatio):
    """The k entries of the whole row with the largest magnitude, exactly (Aji & Heafield, EMNLP 2017).

        I = the k indices with the largest |e|,   C(e) = e on I, 0 elsewhere,   k = max(1, floor(keep P))

    Bytes: k (4 + index_bytes) for float32 rows; 8 + index_bytes for float64. Of equal magnitudes those with smaller
    indices are sent. An entry that is infinite or no number is larger than all others.

    Departures: the authors of "Flexible Communication for Optimal Distributed Learning" (BigData 2023) start from an
    uninitialised residual and send indices of 8 bytes: here residuals start at 0, and `index_bytes=4`. Their padding,
    which can drop entry 0, is not needed: all payloads have the same length.
    """

    name: str = "topk"

    def places(self, e: Tensor, at: Address) -> Tensor:
        """The largest k."""
        return largest(e, self.count(len(e), at.step), self.scratch)


@dataclass
class LayerwiseTopK(SparseRatio):
    """The largest entries of each parameter tensor, exactly ("LWTopk" of Tyagi & Swany, BigData 2023).

        for each parameter of P_l numbers:  k_l = max(1, floor(keep P_l)),   C(e_l) = the k_l largest of |e_l|

    Bytes: sum_l k_l (4 + index_bytes) for float32 rows. Each parameter sends at least one entry, so that many small
    ones (biases, normalisation) make it more than `topk` sends. Equal magnitudes, and what is no number: as `topk`.

    Departure: the authors gather sizes, values and indices of each layer, three collectives for every layer, with
    padding to the largest. The sizes are known here, so that all layers are one payload, with indices into the row.
    """

    name: str = "lwtopk"
    by_length: ClassVar[bool] = False

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """sum_l k_l pairs."""
        return self.sizes_of(sum(self._counts(step)), dtype)

    def places(self, e: Tensor, at: Address) -> Tensor:
        """The largest k_l of every layer, layer by layer."""
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

    Bytes: |I| (4 + index_bytes) for float32 rows, and |I| differs from worker to worker and from step to step, so
    that lengths have to travel, too. Nothing is sent where no entry is large enough: error feedback lets it grow until
    it is. An entry that is infinite or no number is always sent.
    """

    name: str = "threshold"
    threshold: float = setting(0.01, above=0, hint="such as 0.01")
    by_length: ClassVar[bool] = False

    def sizes(self, step: int, dtype: torch.dtype) -> None:
        """Not known before the row is."""

    def places(self, e: Tensor, at: Address) -> Tensor:
        """Where |e| reaches the threshold, rounded to the type of e."""
        return at_least(e, as_integer(self.threshold, e.dtype), self.scratch)[0]


@dataclass
class MSTopK(SparseRatio):
    """About the k largest entries, by bisection for a threshold (Shi et al., "MSTopk", MLSys 2021), k as `topk`.

        a = |e|,  mu = mean(a),  u = max(a);   l, r = 0, 1;   t1 unset, t2 = 0
        `samplings` times:  rho = (l + r) / 2,  t = mu + rho (u - mu),  z = #(a >= t)
            z <= k:  r = rho, and t1 = t if z is larger than before;   else:  l = rho, and t2 = t
        I = {a >= t1}, and of {t2 <= a < t1} as many as are missing, one after the other from a random place

    The place is addressed by (seed, worker, step). After 25 samplings these are the k largest but for ties and rows
    whose largest entry is very far from their mean. Bytes: k (4 + index_bytes) for float32 rows, as `topk`.

    The counts z are exact, but are not passes over the row: what lies clearly below the threshold is left out before
    the search, as in `topk`.

    Departures from the authors' code, which are mistakes there: it sends k - 1 entries where the run begins one place
    too late, the whole row for k = 0, and fails where no sampling has z <= k (equal entries, zeros). Here the run fits,
    k is at least 1, and t1 = u where it is unset, or, if more than k entries equal u, all come from {a >= t2}. A row
    whose largest entry or mean is infinite or no number is sent by `topk`, so that the entry arrives. Indices ascend.
    """

    name: str = "mstopk"
    samplings: int = setting(25, at_least=1)

    def places(self, e: Tensor, at: Address) -> Tensor:
        """See the formula."""
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

    Bytes: 4 k for float32 rows: everybody draws the indices, none is sent. Values of different workers belong to the
    same places and add up, so that an all-reduce of k numbers carries them.

    A row with an entry that is infinite or no number sends k times no number, whether it was drawn or not.

    Departures: the paper's workers draw for themselves; sharing the seed is what makes the all-reduce possible.
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
        """k numbers."""
        return {"values": (dtype, self.count(self.layout.num_coordinates, step))}

    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """An all-reduce of k numbers."""
        return prices.mean_s(self.count(self.layout.num_coordinates, step) * dtype.itemsize)

    def encode(self, e: Tensor, at: Address) -> Payload:
        """c e on I, in the order of `places`."""
        places = self.places(e, at.step)
        values = self.scratch.take(("values", *at.place), len(places), e)
        torch.index_select(e, 0, places, out=values)
        if self.unbiased:
            values.mul_(len(e) / len(places))
        low, high = torch.aminmax(e)
        return payload_of(values=values.add_(low.mul_(0) + high.mul_(0)))  # 0, or no number

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """out[I] <- out[I] + weight * values, with I of this step."""
        out.index_add_(0, self.places(out, at.step), payload.tensors["values"], alpha=weight)

    def subtract_sent(self, payload: Payload, e: Tensor, at: Address) -> None:
        """e <- 0 on I; or what the formula says, if unbiased."""
        if self.unbiased:
            super().subtract_sent(payload, e, at)
        else:
            e.index_fill_(0, self.places(e, at.step), 0)

    def places(self, like: Tensor, step: int) -> Tensor:
        """I [k], int64, in no order: drawn once in a step, on the CPU, for rows like this one."""
        size = self.layout.num_coordinates
        k, address = self.count(size, step), (self.seed, "randomk", step)
        return self.scratch.remember(
            "drawn", (step, k), lambda: distinct(size, k, address, self.scratch).to(like.device)
        )
