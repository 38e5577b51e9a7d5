"""EvoNorm-S0 and the residual block around it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.resnet import BasicBlock


class EvoNormS0(nn.Module):
    """EvoNorm-S0, normalization and activation in one: Liu et al., NeurIPS 2020 (arXiv:2004.02967), table 2.

        y = gamma * x * sigmoid(v * x) / sqrt(var_group(x) + eps) + beta

    v, gamma and beta are one number per channel, at first 1, 1 and 0. The (biased) variance is over the pixels and
    channels of each group of each image; the mean is not subtracted. Nothing depends on other images of the batch.
    Without `learn_v`, v stays 1.
    """

    def __init__(self, channels: int, *, groups: int = 32, eps: float = 1e-5, learn_v: bool = True) -> None:
        super().__init__()
        assert channels % groups == 0, f"{channels} channels in {groups} groups"
        self.groups = groups
        self.eps = eps
        self.v = nn.Parameter(torch.ones(channels)) if learn_v else None
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize and activate x: [B, channels, height, width] -> the same shape."""
        activated = functional.silu(x) if self.v is None else x * torch.sigmoid(self.v[:, None, None] * x)
        groups = x.unflatten(1, (self.groups, -1))  # [B, groups, channels / groups, height, width]
        inverse_std = (groups.var(dim=(2, 3, 4), correction=0) + self.eps).rsqrt()  # [B, groups]
        scale = self.gamma * inverse_std.repeat_interleave(x.shape[1] // self.groups, dim=1)  # [B, channels]
        return torch.addcmul(self.beta[:, None, None], activated, scale[:, :, None, None])


class EvoNormBlock(BasicBlock):
    """A basic residual block: relu(bn2(conv2(evonorm(conv1(x)))) + shortcut(x)), replacing torchvision's."""

    learn_v = True

    def __init__(self, inplanes: int, planes: int, *args, **kwargs) -> None:
        super().__init__(inplanes, planes, *args, **kwargs)
        self.bn1 = EvoNormS0(planes, learn_v=self.learn_v)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block: [B, inplanes, height, width] -> [B, planes, height / stride, width / stride]."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return functional.relu(self.bn2(self.conv2(self.bn1(self.conv1(x)))) + shortcut, inplace=True)


class FixedSlopeEvoNormBlock(EvoNormBlock):
    """The same block with v = 1."""

    learn_v = False
