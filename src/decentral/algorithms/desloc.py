"""DES-LOC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.algorithms.states import OnlyModels
from decentral.errors import ConfigError
from decentral.settings import setting

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class DESLOC(OnlyModels):
    """DES-LOC: local steps; the models and each buffer of the local optimizer are averaged, each with its own period.

        x_i, s_i <- Opt(x_i, s_i, g_i)                       s = (s_1, s_2, ...), Adam's (m, v)
        x_i <- 1/n sum_j x_j                                 when t + 1 is a multiple of K_x = `period_steps`
        s_ih <- 1/n sum_j s_jh                               when t + 1 is a multiple of K_h

    Iacob et al., 2025 (arXiv:2505.22549; formula and order from the first author's code: everything is averaged after
    the step. In the paper's Algorithm 1, of which a summary was read, it is before the update). Counters, for Adam's
    bias correction, are the same everywhere and not sent. All periods K: local Adam; K_h = 0 for all: `local_sgd` with
    this optimizer inside. With `optim.gradient_share` it is MT-DAO (arXiv:2510.05361). Topology: not used.

    period_steps   K_x
    state_factors  K_h / K_x of the first buffers; 0: never; the last holds for all further ones
    state_periods  K_h in steps instead, where it is not empty
    """

    name: str = "desloc"
    period_steps: int = setting(32, at_least=1)
    state_factors: list[int] = setting([3, 6], at_least=0)
    state_periods: list[int] = setting([], at_least=0)
    survives_loss: ClassVar[bool] = False
    uses_topology: ClassVar[bool] = False
    as_sgd: ClassVar[dict[str, Any] | None] = {"period_steps": 1}

    def check_optimizer(self, optim: Any) -> None:
        """See `Algorithm`."""
        known = getattr(optim, "num_buffers", None)
        if known is None:
            whose = "a torch optimizer" if optim is None else f"optim={optim.name}"
            raise ConfigError(
                f"algo=desloc averages what the local optimizer remembers, and does not know what {whose} does: use "
                "optim=adam, adamw, adopt or sgd of decentral-run, or algo=local_sgd."
            )
        if len(self.state_periods) > known:
            raise ConfigError(
                f"algo.state_periods={self.state_periods} has more numbers than optim={optim.name} remembers rows: "
                f"give at most {known}."
            )

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """One local update, and an all-reduce of everything whose period ends."""
        x, opt = s
        x, opt = self.local.adapt(x, oracle(x), opt, t)
        if (t + 1) % self.period_steps == 0:
            x = net.mean(x)
        periods = self.state_periods or [self.period_steps * factor for factor in self.state_factors] or [0]
        for K, buffer in zip([*periods, *periods[-1:] * len(opt)], opt, strict=False):
            if K and (t + 1) % K == 0:
                net.mean(buffer)  # where it lies
        return self.State(x, opt)
