"""MoTEF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.algorithms.beer import BEER
from decentral.algorithms.features import Feature
from decentral.optim.rows import add, copy, scale
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class MoTEF(BEER):
    """MoTEF: BEER with momenta instead of gradients, which reduces the effect of gradient noise.

        m^{t+1} = (1 - lam) m^t + lam g^{t+1},   v^{t+1} = v^t + gamma (W p^t - p^t) + m^{t+1} - m^t

    from m^0 = v^0 = g^0; otherwise as `beer`, which is lam = 1. Islamov, Gao & Stich, ICLR 2025. Its noise floor falls
    with the number of workers; BEER's does not. (The authors' released class starts with m = 0 and v = g^0, so the mean
    of v never equals that of m; their solver for synthetic problems is correct.)

    lam     weight of the new gradient, above 0 and at most 1; the authors' scripts have 0.001 to 0.1
    """

    name: str = "motef"
    lam: float = setting(0.1, above=0, at_most=1)
    supports = BEER.supports - {Feature.plain_sgd}

    def momentum(self, g: Tensor, m: Tensor, t: int) -> Tensor:
        """Return m^t = (1 - lam) m^{t-1} + lam g^t, from m^0 = g^0."""
        return add(scale(m, 1 - self.lam), g, self.lam) if t else copy(g, out=m)
