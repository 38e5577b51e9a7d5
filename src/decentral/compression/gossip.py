"""Compressed messages between neighbors and relayed over trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from decentral.compression.rows import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from decentral.compression.compressor import Encoder
    from decentral.network.network import Network
    from decentral.network.payload import Payload
    from decentral.topology.mixing_matrix import MixingMatrix


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


def send(compressor: Encoder, e: Tensor, net: Network, t: int, message: int = 0) -> Heard:
    """Send C(e_i) of each row of e [k, P] to the worker's neighbors of step t, as message number `message` of the step.

    The result is valid until the next call.
    """
    payloads = [compressor.encode(row, Address(i, t, message)) for i, row in zip(net.workers, e, strict=True)]
    compressor.measure(payloads, e, [Address(i, t, message) for i in net.workers])
    others = net.swap(payloads, t, compressor.sizes(t, e.dtype))
    return Heard(compressor, net.workers, (t, message), net.delivery.matrix(t, 0, lazy=False), payloads, others)


def relay(compressor: Encoder, y: Tensor, m: Tensor, net: Network, t: int, later: bool) -> Tensor:
    """Compute RelaySum of rounded sums: m_{i->j} <- C(y_i + sum_{l in N_i, l != j} m_{l->i}), delivered, decoded.

    y [k, P] is unchanged, m [E, ceil(P / d)] is donated; both m are indexed by the receiver. Each piece of the rows is
    encoded separately. The randomness in the message of edge e in step t is addressed by its sender, t and e. A lost
    message is zero. Besides m it allocates the payloads of one step. The compression error of a worker is measured over
    all its messages.
    """
    edges, first = net.edges, net.local_edges.start
    parts = compressor.of_pieces(net.rounds.slices(y.shape[-1]))
    local = range(len(m))
    of_edge = [parts[h] for h in edges.piece[first : first + len(m)].tolist()]
    src, dst = edges.src[first : first + len(m)].tolist(), edges.dst[first : first + len(m)].tolist()
    back = edges.reverse[first : first + len(m)].tolist()
    sums = net.outgoing(y, m)
    here = [Address(dst[e], t, back[e]) for e in local]
    payloads = [of_edge[e].encode(sums[e], at) for e, at in zip(local, here, strict=True)]
    if compressor.measures(t):
        senders = [dst[e] - net.workers.start for e in local]
        squares = {place: [0.0, 0.0, 0.0, 0.0] for place in senders}
        for part, payload, y_e, place, at in zip(of_edge, payloads, sums, senders, here, strict=True):
            found = (float(y_e.dot(y_e)), *part.squares_of_sent(payload, y_e, at))
            shares = (*found, part.density(payload) / senders.count(place))
            squares[place] = [before + more for before, more in zip(squares[place], shares, strict=True)]
        for place, of_all in squares.items():
            compressor.read(place, *of_all)
    sizes = [part.sizes(t, y.dtype) for part in parts]
    came = net.relay_payloads(payloads, t, [each for each in sizes if each is not None], later)
    for e, payload in zip(local, came, strict=True):
        row = m[e, : of_edge[e].layout.num_coordinates].zero_()
        if payload is not None:
            of_edge[e].add_decoded(payload, row, Address(src[e], t, first + e))
    return m
