"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.errors import ConfigError
from decentral.optim.optimizer import Buffers, Optimizer, Taken
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class SGD(Optimizer):
    """Stochastic gradient descent, with heavy-ball or Nesterov momentum and weight decay.

        g <- min(1, clip_norm / ||g||) g + weight_decay x          clip_norm: null for none
        m <- momentum m + g                       m^0 = 0, no dampening
        u  = -lr m                                heavy ball
        u  = -lr (g + momentum m)                 nesterov
        u  = -lr (s g + (1 - s) m)                quasi-hyperbolic: s = gradient_share > 0

    The same as `torch.optim.SGD`. "Local momentum" in the RelaySum paper is momentum=0.9 with nesterov.

    gradient_share  s, weight of the gradient relative to the undamped momentum: 1 is plain SGD
    """

    name: str = "sgd"
    momentum: float = setting(0.0, at_least=0, below=1)
    nesterov: bool = False
    weight_decay: float = setting(0.0, at_least=0)
    clip_norm: float | None = setting(None, above=0, hint="or null for no clipping", older=None)
    gradient_share: float = setting(0.0, at_least=0, at_most=1, older=0.0)
    num_buffers: ClassVar[int | None] = 1
    counts_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.gradient_share and (self.nesterov or not self.momentum):
            raise ConfigError(
                f"optim.gradient_share={self.gradient_share:g} needs heavy-ball momentum: set optim.momentum, and "
                "leave out optim.nesterov."
            )
        if self.nesterov and self.momentum == 0:
            raise ConfigError("optim.nesterov=true needs momentum: set optim.momentum, for example to 0.9.")

    def init(self, x: Tensor) -> Buffers:
        """Return the momentum m = 0 [k, P], if there is any."""
        return (x.new_zeros(x.shape),) if self.momentum else ()

    def direction(self, g: Tensor, buffers: Buffers, t: Taken) -> tuple[Tensor, Buffers]:
        """Return d = g, or with momentum m (or the class's other forms) [k, P]; in the memory of g, or m itself."""
        if not self.momentum:
            return g, buffers
        (m,) = buffers
        m.mul_(self.momentum).add_(g)
        if self.gradient_share:
            return g.lerp_(m, 1 - self.gradient_share), buffers
        return g.add_(m, alpha=self.momentum) if self.nesterov else m, buffers
