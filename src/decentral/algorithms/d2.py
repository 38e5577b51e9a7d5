"""D2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.algorithms.features import Feature
from decentral.algorithms.given_events import read_draws
from decentral.algorithms.states import WithCorrections
from decentral.errors import ConfigError
from decentral.optim.rows import add, sub
from decentral.randomness import uniform
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    import numpy as np

    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class D2(WithCorrections):
    """D2: gossip averaging that corrects for heterogeneous data.

        x^{t+1} = W (x^t + u^t + c^t)
        c^{t+1} = x^{t+1} - x^t - u^t                        c^0 = 0: a correction here

    which is x^{t+1} = W (2 x^t - x^{t-1} + u^t - u^{t-1}), and stays correct with momentum and a varying learning rate
    (RelaySum paper, Algorithm 2; Tang et al., ICML 2018). W is symmetric and static with smallest eigenvalue above
    -1/3; the paper's Metropolis-Hastings ring with even n is exactly at this limit. Lost messages: weights are
    rescaled, after which D2 is known to drift (RelaySum paper, Table 5).

    With `communication.every` = H it is LED (Alghunaim, 2023, arXiv:2302.00620): H local steps, each with a part b of
    the correction, then one round of averaging. D2 is H = b = 1. On rings it is stable for b H up to about 1, with
    exact_diffusion's matrix up to about 2.5.

        x <- x + u + b c                                     H times
        x^+ = W x,   c^+ = c + x^+ - x

    With `probability` = p it is ProxSkip (Mishchenko et al., ICML 2022; Scaffnew on a graph): all workers toss the same
    coin and average after a step with probability p, so H = 1/p in expectation. The y of these papers is -c in LED,
    -b c in ProxSkip.

    dual_step    dual step size b; null: 1/H, or p (p/H, where both are given)
    probability  communication probability p; null: after each step, or each H-th one
    seed         seed of the coin
    coins        an .npz file with booleans coins [T] instead of random draws: entry t mod T in step t

    It is also exact with local steps and with local momentum, but not with a nonlinear local optimizer (Adam, Muon):
    at a fixed point the directions sum to 0, the gradients do not.
    """

    name: str = "d2"
    dual_step: float | None = setting(None, above=0, older=None)
    probability: float | None = setting(None, above=0, at_most=1, older=None)
    seed: int = setting(0, older=0)
    coins: str | None = setting(None, content=True, older=None)
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.static, Need.symmetric, Need.doubly_stochastic, Need.connected, Need.d2_spectrum}
    )
    supports = WithCorrections.supports | {Feature.local_steps}
    lazy: ClassVar[bool] = False  # mix with W, not with (W + I) / 2

    def __post_init__(self) -> None:
        if self.coins is not None and self.probability is None:
            raise ConfigError(f"algo.coins={self.coins} needs their probability: also set algo.probability.")

    def check(self, num_workers: int, optim: Any) -> None:
        """Raise ConfigError if the file of coins is invalid."""
        if self.coins is not None:
            _ = self._given

    def step(self, s: WithCorrections.State, oracle: Oracle, net: Network, t: int) -> WithCorrections.State:
        """Take one gradient and one round of averaging."""
        x, c, opt = s
        y, opt = self.local.adapt(x, oracle(x), opt, t)  # x^t + u^t
        often = (self.probability or 1.0) / net.rounds.every
        b = self.dual_step or often
        if often < 1 or b != 1:
            x = add(y, c, alpha=b)
            if not self.communicates(net, t):
                return self.State(x, c, opt)
            c = sub(c, x)
            x = net.mix(x, t, lazy=self.lazy)
            return self.State(x, add(c, x), opt)
        x = net.mix(add(c, y), t, lazy=self.lazy)  # W (x^t + u^t + c^t)
        c = sub(x, y, out=y)  # x^{t+1} - (x^t + u^t)
        return self.State(x, c, opt)

    def communicates(self, net: Network, t: int) -> bool:
        """Return whether step t ends with a round of averaging."""
        if self.probability is None or net.rounds.is_silent(t):
            return not net.rounds.is_silent(t)
        coins = None if self.coins is None else self._given
        return bool(uniform(self.seed, "coin", t) < self.probability if coins is None else coins[t % len(coins)])

    @cached_property
    def _given(self) -> np.ndarray:
        return read_draws("algo.coins", str(self.coins), "coins", ("T",))
