"""Compressed messages that are relayed over trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decentral.compression.address import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from decentral.compression.compressor import Encoder
    from decentral.network.network import Network
    from decentral.network.payload import Payload


def relay(compressor: Encoder, y: Tensor, m: Tensor, net: Network, t: int) -> Tensor:
    """RelaySum of rounded sums: m_{i->j} <- C(y_i + sum_{l in N_i, l != j} m_{l->i}), delivered, decoded.

    y [k, P] is left as it is, m [E, ceil(P / d)] is donated; both m are indexed by the receiver. Each piece of the rows
    is encoded by itself. What is random in the message of edge e in step t is addressed by its sender, t and e. A
    message that is lost is zero. Beside m it takes the payloads of one step. What the messages of a worker leave out is
    measured over all of them.
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
        measure(compressor, of_edge, payloads, sums, [dst[e] - net.workers.start for e in local], here)
    sizes = [part.sizes(t, y.dtype) for part in parts]
    came = net.relay_payloads(payloads, t, [each for each in sizes if each is not None])
    for e, payload in zip(local, came, strict=True):
        row = m[e, : of_edge[e].layout.num_coordinates].zero_()
        if payload is not None:
            of_edge[e].add_decoded(payload, row, Address(src[e], t, first + e))
    return m


def measure(
    compressor: Encoder,
    parts: Sequence[Encoder],
    payloads: Sequence[Payload],
    sums: Sequence[Tensor],
    senders: Sequence[int],
    here: Sequence[Address],
) -> None:
    """Note what the messages C(e) of each sender, a place among the local workers, leave out of all its sums e."""
    squares = {place: [0.0, 0.0, 0.0, 0.0] for place in senders}
    for part, payload, e, place, at in zip(parts, payloads, sums, senders, here, strict=True):
        sent, left = part.squares_of_sent(payload, e, at)
        found = (float(e.dot(e)), sent, left, part.density(payload) / senders.count(place))
        squares[place] = [before + more for before, more in zip(squares[place], found, strict=True)]
    for place, of_all in squares.items():
        compressor.read(place, *of_all)
