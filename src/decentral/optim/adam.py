"""Adam."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, sqrt
from typing import TYPE_CHECKING

from decentral.errors import check_range
from decentral.optim.optimizer import Buffers, Optimizer, check_clip_norm

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Adam(Optimizer):
    """Adam, bias-corrected (Kingma & Ba, ICLR 2015), with L2 weight decay.

        g <- min(1, clip_norm / ||g||) g + weight_decay x
        m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
        u  = -lr / (1 - beta1^k)  m / (sqrt(v) / sqrt(1 - beta2^k) + epsilon),   k = t + 1

    The same as `torch.optim.Adam`; clipped (clip_norm, null for none) as by `torch.nn.utils.clip_grad_norm_`.
    """

    name: str = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = field(default=None, metadata={"older": None})

    def __post_init__(self) -> None:
        check_range("optim.beta1", self.beta1, 0.0, 1.0)
        check_range("optim.beta2", self.beta2, 0.0, 1.0)
        check_range("optim.epsilon", self.epsilon, 0.0, inf)
        check_range("optim.weight_decay", self.weight_decay, 0.0, inf)
        check_clip_norm(self.clip_norm)

    def init(self, x: Tensor) -> Buffers:
        """Both moments, (m, v) = (0, 0), [k, P] each."""
        return x.new_zeros(x.shape), x.new_zeros(x.shape)

    def direction(self, g: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """d = m / (sqrt(v) / sqrt(1 - beta2^k) + epsilon) / (1 - beta1^k) [k, P], k = t + 1, in the memory of g."""
        m, v = buffers
        k = t + 1
        m.lerp_(g, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        d = g.copy_(v).sqrt_().div_(sqrt(1 - self.beta2**k)).add_(self.epsilon).reciprocal_()
        return d.mul_(m).div_(1 - self.beta1**k), buffers
