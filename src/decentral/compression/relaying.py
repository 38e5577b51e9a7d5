"""Compressed messages that are relayed over trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decentral.compression.address import Address

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.compression.compressor import Encoder
    from decentral.network.network import Network


def relay(compressor: Encoder, y: Tensor, m: Tensor, net: Network, t: int) -> Tensor:
    """RelaySum of rounded sums: m_{i->j} <- C(y_i + sum_{l in N_i, l != j} m_{l->i}), delivered, decoded.

    y [k, P] is left as it is, m [E, ceil(P / d)] is donated; both m are indexed by the receiver. Each piece of the rows
    is encoded by itself. What is random in the message of edge e in step t is addressed by its sender, t and e. A
    message that is lost is zero. Beside m it takes the payloads of one step.
    """
    edges, first = net.edges, net.local_edges.start
    parts = compressor.of_pieces(net.rounds.slices(y.shape[-1]))
    local = range(len(m))
    of_edge = [parts[h] for h in edges.piece[first : first + len(m)].tolist()]
    src, dst = edges.src[first : first + len(m)].tolist(), edges.dst[first : first + len(m)].tolist()
    back = edges.reverse[first : first + len(m)].tolist()
    sums = net.outgoing(y, m)
    payloads = [of_edge[e].encode(sums[e], Address(dst[e], t, back[e])) for e in local]
    sizes = [part.sizes(t, y.dtype) for part in parts]
    came = net.relay_payloads(payloads, t, [each for each in sizes if each is not None])
    for e, payload in zip(local, came, strict=True):
        row = m[e, : of_edge[e].layout.num_coordinates].zero_()
        if payload is not None:
            of_edge[e].add_decoded(payload, row, Address(src[e], t, first + e))
    return m
