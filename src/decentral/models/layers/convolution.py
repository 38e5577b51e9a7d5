"""Convolutions that start as He et al. (ICCV 2015, arXiv:1502.01852) suggest for ReLU networks."""

from __future__ import annotations

from typing import Literal

from torch import nn


def he_convolution(in_channels: int, out_channels: int, fan: Literal["fan_in", "fan_out"]) -> nn.Conv2d:
    """A 3x3 convolution that keeps the image size: weights ~ N(0, 2 / (9 * channels in or out)), bias 0."""
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)
    nn.init.kaiming_normal_(convolution.weight, mode=fan, nonlinearity="relu")
    assert convolution.bias is not None
    nn.init.zeros_(convolution.bias)
    return convolution
