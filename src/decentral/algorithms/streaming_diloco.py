"""Streaming DiLoCo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.diloco import outer_step
from decentral.algorithms.features import Feature
from decentral.errors import ConfigError
from decentral.optim.rows import add, scale, sub
from decentral.settings import setting
from decentral.topology.rounds import Split, slices

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class StreamingDiLoCo(Algorithm):
    """Streaming DiLoCo: outer steps for one part of the model at a time, with the all-reduce overlapping local steps.

        x_i <- x_i + u_i                                     the parts f = 0 .. F-1 in turn, one every H / F steps:
        D_f  = 1/n sum_j (phi_f - x_jf)                      from `delay_steps` steps ago, when its all-reduce began
        v_f <- mu v_f + D_f,  phi_f <- phi_f - outer_lr (D_f + mu v_f)
        x_if <- (1 - a) phi_f + a x_if                       a = `own_share`, with the current x_if

    H = `period_steps`: every part is synchronized every H steps. fragments=1 delay_steps=0 own_share=0 is DiLoCo.
    own_share=0, as in torchft, drops the local steps made during the delay. Douillard et al., 2025 (arXiv:2501.18512;
    formula as in torchft's code; from memory, the paper's text was not checked: own_share 0.5, delays of 1 to 5 steps,
    outer_lr 0.4, H = 100). Departures: parts are equal pieces of the row, consecutive or interleaved (`split`), not
    layers; messages are not rounded to four bits. Each part has its own outer optimizer: a single one would also move
    the other parts. The all-reduce runs in the background in simulated time; between processes it runs when its result
    is needed. A resumed run restarts an all-reduce that was in flight. Topology: not used.
    """

    name: str = "streaming_diloco"
    period_steps: int = setting(50, at_least=1, as_sgd=1)
    fragments: int = setting(5, at_least=1, as_sgd=1)
    delay_steps: int = setting(0, at_least=0)
    own_share: float = setting(0.0, at_least=0, below=1)
    outer_lr: float = setting(0.7, at_least=0, as_sgd=1)
    outer_momentum: float = setting(0.9, at_least=0, below=1, as_sgd=0)
    split: Split = Split.contiguous
    supports = Algorithm.supports - {Feature.message_loss, Feature.absence, Feature.topology}

    class State(NamedTuple):
        """Models, the last outer model, outer momentum, the part in flight, and the local optimizer."""

        x: Rows  # [k, P]
        phi: Rows  # [k, P]
        v: Rows  # [k, P]
        D: Rows  # [k, ceil(P / F)]: phi_f - x_if of each worker, before averaging
        opt: Buffers

    def __post_init__(self) -> None:
        if self.period_steps % self.fragments:
            raise ConfigError(
                f"algo.fragments={self.fragments} does not divide algo.period_steps={self.period_steps}: one fragment "
                "is synchronized every period_steps / fragments steps; use "
                f"algo.period_steps={-(-self.period_steps // self.fragments) * self.fragments}."
            )
        if self.delay_steps >= self.every:
            raise ConfigError(
                f"algo.delay_steps={self.delay_steps} is too large: use a number < {self.every}, the steps between "
                "two fragments."
            )

    @property
    def every(self) -> int:
        """Return the number of steps between two parts."""
        return self.period_steps // self.fragments

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], phi = x, v = 0, nothing in flight, and the local optimizer before step 0."""
        D = x.new_zeros(len(x), -(-x.shape[-1] // self.fragments))
        return self.State(x, x.clone(), x.new_zeros(x.shape), D, self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one local update; begin the all-reduce of a part, or end one with an outer step."""
        x, phi, v, D, opt = s
        x, opt = self.local.adapt(x, oracle(x), opt, t)
        if (t + 1 + self.delay_steps) % self.every == 0:
            part = self.part(t + self.delay_steps, x)
            sent = sub(phi[:, part], x[:, part], out=D[:, : phi[:, part].shape[-1]])
            net.begin_mean(sent)
        if (t + 1) % self.every == 0 and t >= self.delay_steps:
            part = self.part(t, x)
            sent = D[:, : phi[:, part].shape[-1]]
            outer_step(phi[:, part], v[:, part], net.end_mean(sent), self.outer_lr, self.outer_momentum)
            add(scale(x[:, part], self.own_share), phi[:, part], alpha=1 - self.own_share)
        return self.State(x, phi, v, D, opt)

    def part(self, t: int, x: Tensor) -> slice:
        """Return the coordinates that are due at the end of step t."""
        return slices(x.shape[-1], self.fragments, self.split)[t // self.every % self.fragments]
