"""DES-LOC."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from decentral.algorithms.features import Feature
from decentral.algorithms.states import OnlyModels
from decentral.errors import ConfigError
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle
    from decentral.network.network import Network


class Order(Enum):
    """The position of averaging in a step: after the update, or before it."""

    after = "after"
    before = "before"


@dataclass
class DESLOC(OnlyModels):
    """DES-LOC: local steps; models and each buffer of the local optimizer are averaged, each with its own period.

        x_i, s_i <- Opt(x_i, s_i, g_i)                       s = (s_1, s_2, ...), Adam's (m, v)
        x_i <- 1/n sum_j x_j                                 when t + 1 is a multiple of K_x = `period_steps`
        s_ih <- 1/n sum_j s_jh                               when t + 1 is a multiple of K_h

    Iacob et al., 2025 (arXiv:2505.22549; formula and order from the first author's code, the paper only from a
    summary). Counters for Adam's bias correction are the same on all workers and not sent. All periods K: local Adam;
    K_h = 0 for all: `local_sgd` with this local optimizer. With `optim.gradient_share` it is MT-DAO (arXiv:2510.05361).
    Topology: not used.

    period_steps   K_x
    state_factors  K_h / K_x of the first buffers; 0: never; the last one applies to all further buffers
    state_periods  K_h in steps instead, unless empty
    order          after: as above; before, as in the paper's Algorithm 1: when t is a multiple, between the gradient,
                   taken at the model as it was, and the update
    """

    name: str = "desloc"
    period_steps: int = setting(32, at_least=1, as_sgd=1)
    state_factors: list[int] = setting([3, 6], at_least=0)
    state_periods: list[int] = setting([], at_least=0)
    order: Order = Order.after
    supports = OnlyModels.supports - {Feature.message_loss, Feature.absence, Feature.topology}

    def check(self, num_workers: int, optim: Any) -> None:
        """See `Algorithm`."""
        known = getattr(optim, "num_buffers", None)
        if known is None:
            whose = "a torch optimizer" if optim is None else f"optim={optim.name}"
            raise ConfigError(
                f"algo=desloc averages the state of the local optimizer, but does not know that of {whose}: use "
                "optim=adam, adamw, adopt or sgd of decentral-run, or algo=local_sgd."
            )
        if len(self.state_periods) > known:
            raise ConfigError(
                f"algo.state_periods={self.state_periods} has more numbers than optim={optim.name} has state rows: "
                f"give at most {known}."
            )

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """Take one local update, then all-reduce everything that is due."""
        x, opt = s
        g = oracle(x)
        if self.order is Order.before:
            self.average(x, opt, net, t)
        x, opt = self.local.adapt(x, g, opt, t)
        if self.order is Order.after:
            self.average(x, opt, net, t + 1)
        return self.State(x, opt)

    def average(self, x: Tensor, opt: Buffers, net: Network, t: int) -> None:
        """Average in place everything whose period divides t."""
        periods = self.state_periods or [self.period_steps * factor for factor in self.state_factors] or [0]
        for K, rows in zip([self.period_steps, *periods, *periods[-1:] * len(opt)], [x, *opt], strict=False):
            if K and t % K == 0:
                rows.copy_(net.mean(rows))
