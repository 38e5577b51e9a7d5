"""What decides how fast passes are: the sizes of calls of layers, and how images lie in memory."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from decentral.gradients.passes.layers import is_known, misfit, refusal, sequence
from decentral.gradients.precision import Precision

if TYPE_CHECKING:
    from decentral.gradients.execution import Workload

_CONVOLUTION, _PRODUCT = 6e6, 1e6
"""Multiplications in a layer's call for one worker from which on a CPU computes workers as fast one by one as together:
below, setting up a convolution, or any call, takes as long as the arithmetic."""
_BAG = 3e6
"""The same of a mean of embeddings, in multiplications of the product that workers side by side take for it."""
_LEAST_ROWS = 32  # a product of so few rows or fewer takes as long as reading its weights
_CPU_BYTES, _GPU_BYTES = 1.25e6, 256e6
"""What the largest tensor of workers side by side should take: what a core's cache holds; little of a GPU's memory."""
_LEAST_WORKERS = {True: 4, False: 2}  # with convolutions, and without


class CallSizes(NamedTuple):
    """How large the calls of a plain sequence of layers are, for one worker and its batch."""

    load: float  # mean over the layers with parameters: multiplications over the number from which on loops are better
    largest_bytes: int  # of the largest activation or all parameters
    convolutions: bool

    def batched_is_faster(self, num_workers: int) -> bool:
        """Whether workers are computed faster side by side than one by one."""
        return num_workers >= _LEAST_WORKERS[self.convolutions] and self.load <= 1

    def workers_at_once(self, device: torch.device) -> int:
        """How many workers to compute in one call, at most: so that the largest tensor stays in the cache."""
        room = _CPU_BYTES if device.type == "cpu" else _GPU_BYTES
        return max(_LEAST_WORKERS[self.convolutions], int(room / self.largest_bytes))


def _from_which_on(layer: nn.Module) -> float:
    """So many multiplications for one worker are as fast in a call of their own."""
    if isinstance(layer, nn.Conv2d):
        return _CONVOLUTION
    return _BAG if isinstance(layer, nn.EmbeddingBag) else _PRODUCT


def shared(workload: Workload) -> tuple[list[nn.Module], CallSizes] | str:
    """The layers of workers that can be computed side by side, and how large their calls are; or why they cannot be.

    From one forward pass of one example of a batch, (B, C, H, W) of images, through copies of the layers. It takes as
    long as an example does. Torch's `meta` device would compute nothing, but its first product imports torch's
    compiler, which takes longer than a small run.
    """
    layers, reason = sequence(workload.models.modules[0]), refusal(workload.models.modules[0])
    if layers is None or reason is not None:
        return str(reason)
    batch_size, *shape = workload.batch_shape
    tokens = isinstance(layers[0], nn.EmbeddingBag)
    x = torch.zeros((1, *shape), dtype=torch.int64 if tokens else torch.float32)
    loads, largest = [], batch_size * x.numel()
    parameters = 0
    for layer in layers:
        if (reason := misfit(layer, x.shape)) is not None:
            return reason
        weights = sum(p.numel() for p in layer.parameters())
        try:
            with torch.no_grad():
                x = deepcopy(layer).to("cpu", torch.float32).eval()(x)
        except RuntimeError as error:
            return f"its {type(layer).__name__} fails: {error}"
        largest, parameters = max(largest, batch_size * x.numel()), parameters + weights
        if weights:
            convolution = isinstance(layer, nn.Conv2d)
            pixels = x[0, 0].numel()
            rows = batch_size * pixels if convolution else max(batch_size, _LEAST_ROWS)
            loads.append(rows * weights / _from_which_on(layer))
    if x.dim() == 4 and not hasattr(type(layers[-1]), "side_by_side"):
        return "its outputs are images"
    return layers, CallSizes(
        sum(loads) / max(1, len(loads)),
        max(largest, parameters) * workload.precision.dtype.itemsize,
        any(isinstance(layer, nn.Conv2d) for layer in layers),
    )


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
