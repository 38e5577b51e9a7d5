"""Adam, Adam with decoupled weight decay, and ADOPT."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar

from decentral.errors import ConfigError
from decentral.optim.optimizer import Buffers, Optimizer, Taken, by_taken
from decentral.optim.rows import add, clip
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Adam(Optimizer):
    """Adam, bias-corrected (Kingma & Ba, ICLR 2015), with L2 weight decay.

        g <- min(1, clip_norm / ||g||) g + weight_decay x
        m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
        u  = -lr / (1 - beta1^k)  m / (sqrt(v) / sqrt(1 - beta2^k) + epsilon),   k = t + 1

    The same as `torch.optim.Adam`; clipped (clip_norm, null for none) as by `torch.nn.utils.clip_grad_norm_`.
    Quasi-hyperbolic (Ma & Yarats, ICLR 2019, and MT-DAO, arXiv:2510.05361) with s = gradient_share above 0: the
    numerator m / (1 - beta1^k) becomes s g + (1 - s) m / (1 - beta1^k).

    epsilon_hat     add epsilon to sqrt(v) before the division by sqrt(1 - beta2^k): the paper's efficient form, used by
                    TensorFlow and Dion; MuLoCo's code has torch's form, without it
    gradient_share  s, the weight of the gradient beside the momentum; MT-DAO's w is 1 - s
    """

    name: str = "adam"
    beta1: float = setting(0.9, at_least=0, below=1)
    beta2: float = setting(0.999, at_least=0, below=1)
    epsilon: float = setting(1e-8, at_least=0)
    epsilon_hat: bool = setting(False, older=False)
    weight_decay: float = setting(0.0, at_least=0)
    clip_norm: float | None = setting(None, above=0, hint="or null for no clipping", older=None)
    gradient_share: float = setting(0.0, at_least=0, at_most=1, older=0.0)
    num_buffers: ClassVar[int | None] = 2
    counts_rows: ClassVar[bool] = True

    def init(self, x: Tensor) -> Buffers:
        """Return both moments, (m, v) = (0, 0), [k, P] each."""
        return x.new_zeros(x.shape), x.new_zeros(x.shape)

    def direction(self, g: Tensor, buffers: Buffers, t: Taken) -> tuple[Tensor, Buffers]:
        """Return d = m / (sqrt(v) / sqrt(1 - beta2^k) + epsilon) / (1 - beta1^k) [k, P], k = t + 1, in the memory of g;
        see the class for the quasi-hyperbolic form."""
        m, v = buffers
        of_m = by_taken(t, lambda t: 1 - self.beta1 ** (t + 1), g)
        of_v = by_taken(t, lambda t: sqrt(1 - self.beta2 ** (t + 1)), g)
        m.lerp_(g, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        top = m.div(of_m).lerp_(g, self.gradient_share) if self.gradient_share else None
        d = g.copy_(v).sqrt_()
        d = d.add_(self.epsilon).div_(of_v) if self.epsilon_hat else d.div_(of_v).add_(self.epsilon)
        d = d.reciprocal_()
        return (d.mul_(m).div_(of_m) if top is None else d.mul_(top)), buffers


@dataclass
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, ICLR 2019, arXiv:1711.05101).

        u = -lr (d + weight_decay x),   d as in Adam, without weight decay

    The same as `torch.optim.AdamW`; clipped (clip_norm, null for none) as by `torch.nn.utils.clip_grad_norm_`.
    """

    name: str = "adamw"
    weight_decay: float = setting(0.01, at_least=0)

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """Return the clipped gradient, in the memory of g."""
        return g if self.clip_norm is None else clip(g, self.clip_norm)

    def decayed(self, d: Tensor, x: Tensor) -> Tensor:
        """Return d + weight_decay x [k, P], in the memory of d."""
        return add(d, x, alpha=self.weight_decay) if self.weight_decay else d


@dataclass
class ADOPT(AdamW):
    """ADOPT: Adam that normalizes the gradient by the previous second moment (Taniguchi et al., NeurIPS 2024).

        z  = clip(g / max(sqrt(v), epsilon), -c, c),   c = t^(1/4);   m <- beta1 m + (1 - beta1) z
        u  = -lr (m + weight_decay x);   then v <- beta2 v + (1 - beta2) g^2

    In step 0 v = g^2, and m stays 0. arXiv:2411.02853; clipping as in the authors' code, which has no weight decay in
    step 0. With `gradient_share` = s the direction is s z + (1 - s) m (QHADOPT of MT-DAO, w = 1 - s). DES-LOC's
    authors use beta1=0.95 and clip_norm=1.
    """

    name: str = "adopt"
    beta2: float = setting(0.9999, at_least=0, below=1)
    epsilon: float = setting(1e-6, above=0)
    weight_decay: float = setting(0.0, at_least=0)

    def __post_init__(self) -> None:
        if self.epsilon_hat:
            raise ConfigError("optim.epsilon_hat=true needs a bias correction, and optim=adopt has none: leave it out.")

    def direction(self, g: Tensor, buffers: Buffers, t: Taken) -> tuple[Tensor, Buffers]:
        """Return d = m, or s z + (1 - s) m [k, P], in the memory of g."""
        m, v = buffers
        if t == 0:
            v.addcmul_(g, g)
            return g.zero_(), buffers
        c, weight = by_taken(t, lambda t: t**0.25, g), by_taken(t, lambda t: 1 - self.beta2 if t else 1.0, g)
        square = g.square()
        z = g.div_(v.sqrt().clamp_(min=self.epsilon)).clamp_(-c, c)
        m.lerp_(z, 1 - self.beta1)
        v.mul_(self.beta2)
        v = v.add_(square, alpha=weight) if isinstance(t, int) else v.addcmul_(square, weight)
        return z.lerp_(m, 1 - self.gradient_share), buffers
