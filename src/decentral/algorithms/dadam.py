"""Decentralized Adam."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.dpsgd import Mode
from decentral.algorithms.features import Feature
from decentral.optim.optimizer import by_taken
from decentral.optim.rows import add, copy, scale, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class DAdam(Algorithm):
    """Decentralized Adam(W): gossip averaging of the models; each worker keeps its own moments.

        mode=awc    x_i <- y_i + u_i, y_i = sum_j W_ij x_j   u of the gradient at the unmixed x_i
        mode=atc    x_i <- sum_j W_ij (x_j + u_j)

        u = -lr m^ / (sqrt(v^) + epsilon),  m^ = (m + (1 - beta1) g) / (1 - beta1^k),   k = ceil((t + 1) / s)
                                            v^ = (v + (1 - beta2) g^2) / (1 - beta2^k)
        a <- a + g / s                      and, when t + 1 is a multiple of s = `accumulate_steps`,
        m <- beta1 (m + (1 - beta1) a),   v <- beta2 (v + (1 - beta2) a^2),   a <- 0

    Wang et al., ICLR 2025 (AccumAdam; formula from the authors' code, the paper's text was not checked): awc. There s
    grows with the number of workers, 4 by default; with s = 1, as here, the local rule is Adam's. `decoupled_decay`
    makes it AdamW: it scales the model by 1 - lr decoupled_decay before adding u, in awc the mixed y_i. Departures:
    every parameter is decayed (the released code decays biases and batch-norm weights only, a bug); in awc the first
    step also mixes, which changes nothing. The optimizer's weight decay is L2, part of g (at the unmixed x_i). g is
    the output of the local optimizer: plain `optim=sgd` is the method. W is doubly stochastic, static or time-varying.
    Lost messages: as dpsgd.
    """

    name: str = "dadam"
    mode: Mode = Mode.awc
    beta1: float = setting(0.9, at_least=0, below=1)
    beta2: float = setting(0.999, at_least=0, below=1)
    epsilon: float = setting(1e-8, at_least=0)
    decoupled_decay: float = setting(0.0, at_least=0)
    accumulate_steps: int = setting(1, at_least=1)
    supports = (Algorithm.supports | {Feature.own_starts, Feature.robust_mixing}) - {Feature.plain_sgd}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models, both moments, accumulated gradients and the local optimizer."""

        x: Rows  # [k, P], and so are all others
        m: Rows
        v: Rows
        a: Rows  # [k, 0] where nothing is accumulated
        opt: Buffers

    @property
    def attends_steps(self) -> int:
        """Return the number of steps per update of the moments."""
        return self.accumulate_steps

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], m = v = a = 0, and the local optimizer before step 0."""
        a = x.new_zeros(x.shape if self.accumulate_steps > 1 else (len(x), 0))
        return self.State(x, x.new_zeros(x.shape), x.new_zeros(x.shape), a, self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient at x_i and one round of averaging."""
        x, m, v, a, opt = s
        mixing = net.begin_mix(x, t) if self.mode is Mode.awc else None
        g, opt = self.local.direction(self.local.regularised(oracle(x), x), x, opt, t)
        d, m, v, a = self.adam(g, m, v, a, t)
        y = x if mixing is None else mixing()
        lr = self.local.lr(t)
        if self.decoupled_decay:
            y = scale(y, 1 - lr * self.decoupled_decay)
        y = sub(y, d, alpha=lr)
        x = net.mix(y, t) if mixing is None else y
        return self.State(x, m, v, a, opt)

    def adam(self, g: Tensor, m: Tensor, v: Tensor, a: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return m^ / (sqrt(v^) + epsilon) [k, P] in new memory, and the updated m, v and a."""
        beta1, beta2, s, taken = self.beta1, self.beta2, self.accumulate_steps, getattr(self.local, "taken", int)(t)
        of_m = by_taken(taken, lambda t: 1 - beta1 ** -(-(t + 1) // s), g)
        of_v = by_taken(taken, lambda t: sqrt(1 - beta2 ** -(-(t + 1) // s)), g)
        d = v.addcmul(g, g, value=1 - beta2).sqrt_().div_(of_v).add_(self.epsilon)
        d = m.add(g, alpha=1 - beta1).div_(of_m).div_(d)
        if s > 1:
            a = add(a, g, alpha=1 / s)
            if (t + 1) % s:
                return d, m, v, a
            g, a = copy(a, out=g), scale(a, 0.0)
        m = scale(add(m, g, alpha=1 - beta1), beta1)
        v = scale(v.addcmul_(g, g, value=1 - beta2), beta2)
        return d, m, v, a
