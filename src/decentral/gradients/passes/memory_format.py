"""How images lie in memory: the channels of a pixel apart, or side by side."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from decentral.gradients.passes.layers import is_known
from decentral.gradients.precision import Precision

_SMALL = 1_000_000  # parameters
_PIXELS = 50_000  # of all images of a forward pass in float32 together: 48 images of 32 x 32
_LEAST_IMAGES = 4


class MemoryFormat:
    """Images as a module computes with them fastest: on a CPU, before small convolutions, channels last.

    Convolutions hand the format on to what follows. Pooling is several times faster in it, and convolutions of few
    channels a little; those of many channels are slower.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        small = sum(parameter.numel() for parameter in module.parameters()) <= _SMALL
        convolutions = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
        self.channels_last = device.type == "cpu" and small and convolutions and is_known(module)

    def __call__(self, images: Tensor) -> Tensor:
        """The same images [..., C, H, W]."""
        return channels_last(images) if self.channels_last else images


def channels_last(images: Tensor) -> Tensor:
    """The same images [..., C, H, W], with the channels of a pixel side by side in memory."""
    images = images.movedim(-3, -1).contiguous().movedim(-1, -3)
    if images.shape[-3] > 1:
        return images
    strides = list(images.stride())
    strides[-3] = 1  # a single channel's stride is arbitrary, and torch takes the layout from it
    return images.as_strided(images.shape, strides)


def forward_examples(
    module: nn.Module, batch_shape: tuple[int, ...], device: torch.device, precision: Precision = Precision.fp32
) -> int | None:
    """How many images of batches [B, C, H, W] a forward pass alone is fastest with; None: as many as there are.

    On a CPU the outputs of convolutions on more images than that leave the caches before the next layer reads them.
    (Measured on one core, time per image with 500 images of 32 x 32 against 50: `cnn` 1.9 times, VGG-11 1.3 times;
    ResNet-18 with 200 against 50: 1.4 times.) In bfloat16 they are half as large: twice as many images. Without
    convolutions, more is better.
    """
    if device.type != "cpu" or not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return None
    pixels = 2 * _PIXELS if precision is Precision.bf16 else _PIXELS
    return max(_LEAST_IMAGES, pixels // max(1, math.prod(batch_shape[2:])))
