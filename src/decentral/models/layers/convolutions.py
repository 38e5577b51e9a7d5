"""Convolutions and heads of the plain convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from decentral.gradients.passes.layers import MaxPool2d


def he_convolution(in_channels: int, out_channels: int, fan: Literal["fan_in", "fan_out"]) -> nn.Conv2d:
    """Return a 3x3 convolution that keeps the image size: weights ~ N(0, 2 / (9 * channels in or out)), bias 0."""
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)
    nn.init.kaiming_normal_(convolution.weight, mode=fan, nonlinearity="relu")
    assert convolution.bias is not None
    nn.init.zeros_(convolution.bias)
    return convolution


def convolutions(channels: int, stages: Sequence[Sequence[int]]) -> list[nn.Module]:
    """Return 3x3 convolutions with ReLU and each stage's numbers of channels; 2x2 max pooling ends a stage."""
    layers: list[nn.Module] = []
    for stage in stages:
        for next_channels in stage:
            layers += [he_convolution(channels, next_channels, "fan_out"), nn.ReLU(inplace=True)]
            channels = next_channels
        layers.append(MaxPool2d(2))
    return layers


def small_head(units: int, num_classes: int, dropout: float) -> list[nn.Module]:
    """Return dropout, `units` units and ReLU, twice, then the classes: torch's initial values."""
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Dropout(dropout), nn.Linear(units, units), nn.ReLU(inplace=True)]
    return [*layers, nn.Linear(units, num_classes)]


def large_head(features: int, units: int, num_classes: int, dropout: float) -> list[nn.Module]:
    """Return `units` units, ReLU and dropout, twice, then the classes: weights ~ N(0, 0.01^2), bias 0."""
    layers: list[nn.Module] = []
    for width in (features, units):
        layers += [nn.Linear(width, units), nn.ReLU(inplace=True), nn.Dropout(dropout)]
    layers.append(nn.Linear(units, num_classes))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return layers
