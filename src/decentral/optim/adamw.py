"""Adam with decoupled weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.optim.adam import Adam
from decentral.optim.rows import add, clip
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, ICLR 2019, arXiv:1711.05101).

        u = -lr (d + weight_decay x),   d as Adam has it, without weight decay

    The same as `torch.optim.AdamW`; clipped (clip_norm, null for none) as by `torch.nn.utils.clip_grad_norm_`.
    """

    name: str = "adamw"
    weight_decay: float = setting(0.01, at_least=0)

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """The gradient, clipped, in the memory of g."""
        return g if self.clip_norm is None else clip(g, self.clip_norm)

    def decayed(self, d: Tensor, x: Tensor) -> Tensor:
        """d + weight_decay x [k, P], in the memory of d."""
        return add(d, x, alpha=self.weight_decay) if self.weight_decay else d
