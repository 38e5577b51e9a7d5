"""RelaySGD as Bohl's thesis (2022) has it: `algo.fill=count`, and `algo.initial_count=1` as in its code.

    n_i = 1 + sum_{j in N_i} c_{j->i}^t
    x_i^{t+1} = 1/n_i (y_i + sum_{j in N_i} m_{j->i}^t)

Models that have not arrived are left out of the average instead of being stood in for. With initial_count=1 the counts
start at c = 1 though no message is there yet (m = 0), so the first averages are divided by too much. With zero
gradients, all weights settle at this fraction of their initial values:

    workers    chain    binary tree
    8          0.610    0.586
    16         0.566    0.534

The thesis' code also relays within the step: a message includes what arrived earlier in the same step. With initial
counts of 1 its weights settle at 0.73 (chain, 8 workers) and 0.70 (trees). Relaying within the step is not offered. It
makes a step serial along the tree (the delay of a message depends on the numbering of the workers, 0 hops toward higher
ranks), so it belongs to no closed form and has no counterpart between processes but blocking sends in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.network.network import Network


def average_of_arrived(y: Tensor, m: Tensor, n_i: Tensor, net: Network, out: Tensor) -> Tensor:
    """1/n_i (y_i + sum_j m_{j->i}) [k, P] in the memory of `out`; n_i is [n, d]."""
    return net.weigh(net.collect(m, y, out=out), 1 / n_i)
