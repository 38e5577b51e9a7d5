"""RelaySGD. The class `RelaySGD` has the paper's formula; this is the thesis variant.

Bohl's thesis (2022) uses `algo.fill=count`, with `algo.initial_count=1` in its code:

    n_i = 1 + sum_{j in N_i} c_{j->i}^t
    x_i^{t+1} = 1/n_i (y_i + sum_{j in N_i} m_{j->i}^t)

The average omits models that have not arrived instead of substituting them. With initial_count=1 the counts start at
c = 1 although no message has arrived (m = 0), so the first averages are divided by too much. With zero gradients, all
weights converge to this fraction of their initial values:

    workers    chain    binary tree
    8          0.610    0.586
    16         0.566    0.534

The thesis' code also relays within the step: a message includes messages received earlier in the same step. With
initial counts of 1 its weights converge to 0.73 (chain, 8 workers) and 0.70 (trees). Relaying within the step is not
offered. It makes a step serial along the tree (the delay of a message depends on the numbering of the workers, 0 hops
toward higher ranks). So it has no closed form, and processes could implement it only by blocking sends in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.compression.rows import AcceptedCompression
from decentral.errors import ConfigError
from decentral.optim.rows import add, copy
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, EdgeRows, Oracle, Rows, Shared
    from decentral.network.network import Network


class Fill(Enum):
    """The substitute for models that have not arrived."""

    auto = "auto"
    initial = "initial"
    previous = "previous"
    own = "own"
    count = "count"


@dataclass
class RelaySGD(Algorithm):
    """RelaySGD: sums of models are relayed through a tree, so every average weights each model by exactly 1/n.

        y_i = x_i^t + u_i
        m_{i->j}^t = y_i + sum_{l in N_i, l != j} m_{l->i}^{t-1}          sent over every edge of the tree
        c_{i->j}^t = 1   + sum_{l in N_i, l != j} c_{l->i}^{t-1}          models in that message
                                                                          m = 0, c = 0 at the start
        n_i = 1 + sum_{j in N_i} c_{j->i}^t
        x_i^{t+1} = 1/n (y_i + sum_{j in N_i} m_{j->i}^t + (n - n_i) fill_i)

    Vogels et al., NeurIPS 2021 (arXiv:2110.04175), Algorithm 1. The topology is a tree, or a tree for each piece of the
    model (`dbt`). Closed form, for tau_ij hops:  x_i^{t+1} = 1/n sum_j y_j^{t - max(tau_ij - 1, 0)}

    overlap        use the messages of the previous step, so that communication overlaps with the gradient: delay
                   tau_ij, the paper's formula (its code's default is tau_ij - 1, as here).
    fill           substitute for the n - n_i missing models: `initial` x^0 (the code's default), `previous` x_i^t (the
                   paper's equation (1), used for Table 5), `own` y_i (the README's version). After the tree's diameter
                   they agree, unless messages are lost. `auto` is `initial`, but `previous` if messages can be lost,
                   since x^0 would otherwise keep pulling the models back. `count` (the thesis): divide by n_i instead.
    correct_lr     multiply the learning rate by 1 + mean_ij max(tau_ij - 1, 0) (overlap: mean tau_ij), appendix D.1 in
                   closed form: a change of one worker then has the same total effect as with all-reduce.
    initial_count  initial value of the counts c: 1 with fill=count matches the thesis' code, although no message has
                   arrived yet. This shrinks all weights in the first steps (see the head of this file).

    With `communication.every` = H workers relay in every H-th step only, and train locally in between, x_i <- x_i +
    u_i. Counts stay constant meanwhile, and delays count relays:  x_i^{t+1} = 1/n sum_j y_j^{t - H max(tau_ij - 1, 0)}
    for t + 1 = H, 2H, ... This is RelaySGD whose updates are the sums of H local ones, as in local SGD. On
    heterogeneous data it is biased; the error decreases with smaller H and learning rate.

    Lost messages (and their counts) are zero, both in the average and when relayed. The counts follow from the tree
    and the losses, so every process computes them and they are not sent.

    With `compress=` (bf16, int8, sign) sums are sent rounded; the receiver relays the decoded sum:

        m_{i->j}^t = C(y_i + sum_{l in N_i, l != j} m_{l->i}^{t-1})

    A model is rounded once per edge, in a sum as large as the models in it. These errors are never corrected: a
    worker's average is off by their total. Signs preserve little of a model.
    """

    name: str = "relaysgd"
    fill: Fill = Fill.auto
    overlap: bool = False
    correct_lr: bool = False
    initial_count: int = setting(0, choices=(0, 1))
    needs: ClassVar[frozenset[Need]] = frozenset({Need.tree})
    supports = Algorithm.supports | {Feature.local_steps, Feature.own_steps}
    takes = AcceptedCompression.rows

    class State(NamedTuple):
        """Models, the last messages with their counts, the common initial model, rounding residuals, and the local
        optimizer."""

        x: Rows
        m: EdgeRows  # [E, ceil(P / d)]
        c: Shared  # [edges of all workers]
        x0: Shared  # [1, P]
        compression_stats: Rows
        opt: Buffers

    def __post_init__(self) -> None:
        if self.initial_count and self.fill is not Fill.count:
            raise ConfigError("algo.initial_count=1 needs algo.fill=count, as in the thesis: add it, or leave it out.")

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], x^0 (any of them, as all are equal), m = 0 and c = initial_count."""
        c = net.no_counts() + self.initial_count
        return self.State(
            x, net.no_messages(x), c, x[:1].clone(), self.compressor.compression_stats(x), self.local.init(x)
        )

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and send one message over every edge in each direction, unless the round is silent."""
        x, m, c, x0, compression_stats, opt = s
        lr = self.local.lr(t) * (1 + net.mean_delay(overlap=self.overlap)) if self.correct_lr else None
        g = oracle(x)
        if net.rounds.is_silent(t):
            x, opt = self.local.adapt(x, g, opt, t, lr=lr)
            return s._replace(x=x, opt=opt)
        y, opt = self.local.adapt(x, g, opt, t, out=g, lr=lr)  # y_i = x_i^t + u_i
        if self.overlap:
            net.arrive()  # the messages of the previous step
            x = self.average(y, m, c, s, net)
        m, c = self.compressor.relay(y, m, net, t, later=self.overlap), net.relay_counts(c, t)
        if not self.overlap:
            x = self.average(y, m, c, s, net)
        return self.State(x, m, c, x0, compression_stats, opt)

    def average(self, y: Tensor, m: Tensor, c: Tensor, s: State, net: Network) -> Tensor:
        """Return x^{t+1} = 1/n (y_i + sum_j m_{j->i} + (n - n_i) fill_i) [k, P], in the memory of s.x."""
        n_i = 1 + net.collect_counts(c)  # [n, d]
        if self.fill is Fill.count:
            return net.weigh(net.collect(m, y, out=s.x), 1 / n_i)  # 1/n_i (y_i + sum_j m_{j->i})
        missing = net.n - n_i
        if missing.any():
            usual = s.x0 if net.reliable else s.x
            fill = {Fill.auto: usual, Fill.initial: s.x0, Fill.previous: s.x, Fill.own: y}[self.fill]
            y = add(net.weigh(copy(fill, out=s.x), missing), y)  # y_i + (n - n_i) fill_i
        return net.collect(m, y, weight=1 / net.n, out=s.x)
