"""Compressed messages between neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from decentral.compression.address import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from decentral.compression.compressor import Encoder
    from decentral.network.network import Network
    from decentral.network.payload import Payload
    from decentral.topology.mixing_matrix import MixingMatrix


class Heard(NamedTuple):
    """What all workers have sent in a round, as far as the k local ones have heard of it, themselves included."""

    compressor: Encoder
    workers: range
    when: tuple[int, int]
    W: MixingMatrix
    own: Sequence[Payload]
    others: Sequence[dict[int, Payload]]

    def add_own(self, out: Tensor, weight: float = 1.0) -> Tensor:
        """out_i + weight C(e_i) in the memory of out [k, P]."""
        for row, i, payload in zip(out, self.workers, self.own, strict=True):
            self.compressor.add_decoded(payload, row, Address(i, *self.when), weight)
        return out

    def add_mixed(self, out: Tensor) -> Tensor:
        """out_i + sum_j W_ij C(e_j) in the memory of out [k, P]."""
        for row, i, own, others in zip(out, self.workers, self.own, self.others, strict=True):
            first, last = self.W.starts[i : i + 2]
            for j, weight in zip(self.W.src[first:last].tolist(), self.W.weight[first:last].tolist(), strict=True):
                if weight:
                    payload = own if j == i else others[j]
                    self.compressor.add_decoded(payload, row, Address(j, *self.when), weight)
        return out


def send(compressor: Encoder, e: Tensor, net: Network, t: int, message: int = 0) -> Heard:
    """Every worker i sends C(e_i) of its row of e [k, P] to its neighbours of step t, as so manieth message in it.

    What is heard can be read until the next time.
    """
    payloads = [compressor.encode(row, Address(i, t, message)) for i, row in zip(net.workers, e, strict=True)]
    compressor.measure(payloads, e, [Address(i, t, message) for i in net.workers])
    others = net.swap(payloads, t, compressor.sizes(t, e.dtype))
    return Heard(compressor, net.workers, (t, message), net.delivery.matrix(t, 0, lazy=False), payloads, others)
