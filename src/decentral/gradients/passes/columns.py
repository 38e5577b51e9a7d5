"""Layers for several workers at once on a GPU: a convolution is one batched matrix product.

Images are [k, C, H, W, B], with the examples of a batch innermost. Whatever window a convolution takes, it reads and
writes B numbers side by side; weights [O, C, h, w] are matrices as they are stored. Grouped convolutions, the other way
for workers to share a call, leave most of a GPU idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from decentral.gradients.passes import layers
from decentral.gradients.passes.windows import fold, unfold

Pair = tuple[int, int]
_ALIGNED = 8  # numbers: products of matrices with rows of other lengths take many times as long


class Geometry(NamedTuple):
    """Geometry of a convolution, vertical and horizontal."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @classmethod
    def of(cls, layer: nn.Conv2d) -> Geometry:
        """Return the geometry of this layer."""
        kernel, stride, dilation = (cast("Pair", each) for each in (layer.kernel_size, layer.stride, layer.dilation))
        padding: Any = (0, 0) if layer.padding == "valid" else layer.padding
        if padding == "same":
            padding = tuple(d * (size - 1) // 2 for size, d in zip(kernel, dilation, strict=True))
        return cls(kernel, stride, padding, dilation)

    def outputs(self, size: Pair) -> Pair:
        """Return the vertical and horizontal output sizes for images of this size."""
        height, width = (
            (n + 2 * p - d * (kernel - 1) - 1) // s + 1 for n, kernel, s, p, d in zip(size, *self, strict=True)
        )
        return height, width


class Convolution(torch.autograd.Function):
    """A convolution with weights [k, O, C, h, w], biases [k, O] or None, and images x [k, C, H, W, B] -> [k, O, H' W'
    B]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Any:
        """Compute a product of [O, C h w] and [C h w, H' W' B] for each worker, in the precision of autocast."""
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        outputs = geometry.outputs((x.shape[2], x.shape[3]))
        columns, matrices = unfold(x.to(dtype), outputs, geometry), weight.to(dtype).flatten(2)
        if bias is None:
            y = torch.bmm(matrices, columns)
        else:
            y = torch.baddbmm(bias.to(dtype)[:, :, None], matrices, columns)
        ctx.save_for_backward(columns, matrices)
        ctx.geometry, ctx.shape, ctx.type, ctx.weight = geometry, x.shape, x.dtype, weight.detach()
        ctx.place = weight.grad if weight.is_leaf else None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients of x, weights and biases; those of weights go to `weight.grad`, if it is set."""
        (columns, matrices), g = ctx.saved_tensors, gradients[0].contiguous()
        of_x = of_bias = None
        if ctx.needs_input_grad[0]:
            parts, outputs = torch.bmm(matrices.transpose(1, 2), g), ctx.geometry.outputs(ctx.shape[2:4])
            of_x = fold(parts, ctx.shape, outputs, ctx.geometry).to(ctx.type)
        of_weights = (
            torch.empty_like(ctx.weight, memory_format=torch.contiguous_format) if ctx.place is None else ctx.place
        )
        product(g, columns.transpose(1, 2), of_weights.flatten(2))
        if ctx.needs_input_grad[2]:
            of_bias = g.sum(2, dtype=of_weights.dtype)
        return of_x, of_weights, of_bias, None


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Compute out <- a [k, m, l] b [k, l, n], summed in the precision of `out` if the device supports it."""
    if a.dtype == out.dtype:
        return torch.bmm(a, b, out=out)
    return torch.bmm(a, b, out_dtype=out.dtype, out=out) if a.is_cuda else out.copy_(torch.bmm(a, b))


class Rest(NamedTuple):
    """Additional inputs of layers."""

    draws: Iterator[Tensor]  # multipliers of the next dropout layer, [k, B, ...]
    norms: Mapping[nn.Module, Sequence[nn.BatchNorm2d]]  # batch normalization -> the workers' own modules
    compute: Callable[[nn.Module, Tensor], Tensor]  # a layer of a block


def forward(
    sequence: Sequence[nn.Module],
    x: Tensor,
    parameters: Sequence[Tensor],
    draws: Sequence[Tensor] = (),
    modules: Sequence[nn.Module] = (),
) -> Tensor:
    """Return logits [k, B, classes] for images [k, B, C, H, W] and parameters [k, *shape] each. `draws` are the dropout
    masks, [k, B, ...] each; `modules` are the workers' modules, which keep the batch statistics."""
    given = dict(zip((own for layer in sequence for own in layer.parameters()), parameters, strict=True))
    norms = zip(_norms(sequence), *(_norms([module]) for module in modules), strict=True)

    def compute(layer: nn.Module, x: Tensor) -> Tensor:
        own_way = getattr(layer, "side_by_side", None)
        if own_way:
            return cast("Tensor", own_way(x, [given[own] for own in layer.parameters()], len(x)))
        own = [given[parameter] for parameter in layer.parameters(recurse=False)]
        return LAYERS[type(layer)](layer, x, own, rest)

    rest = Rest(iter(draws), {layer: theirs for layer, *theirs in norms}, compute)
    if x.dim() == 5:
        x = x.permute(0, 2, 3, 4, 1)
    return reduce(lambda x, layer: compute(layer, x), sequence, x)


def _norms(layers: Iterable[nn.Module]) -> list[nn.BatchNorm2d]:
    return [part for layer in layers for part in layer.modules() if isinstance(part, nn.BatchNorm2d)]


def _convolution(layer: nn.Conv2d, x: Tensor, own: Sequence[Tensor], rest: Rest) -> Tensor:
    geometry, (weight, *bias), k = Geometry.of(layer), own, len(x)
    if layer.padding == "same":  # of an odd number, the last is behind
        odd = [d * (size - 1) % 2 for size, d in zip(geometry.kernel, geometry.dilation, strict=True)]
        x = F.pad(x, (0, 0, 0, odd[1], 0, odd[0]))
    height, width = geometry.outputs((x.shape[2], x.shape[3]))
    if layer.groups > 1:
        x, weight, *bias = (each.unflatten(1, (layer.groups, -1)).flatten(0, 1) for each in (x, weight, *bias))
    if x.is_cuda and weight[0, 0].numel() % _ALIGNED:  # with channels of zeros
        lacking = -x.shape[1] % _ALIGNED
        x, weight = F.pad(x, (0,) * 7 + (lacking,)), F.pad(weight, (0,) * 5 + (lacking,))
    y: Tensor = Convolution.apply(x, weight, bias[0] if bias else None, geometry)
    return y.view(k, -1, height, width, x.shape[4])


def _pooling(layer: nn.Module, x: Tensor, own: Sequence[Tensor], rest: Rest) -> Tensor:
    """Pool as images [k C, B, H, W] in the layout channels last."""
    images: Tensor = layer(x.flatten(0, 1).permute(0, 3, 1, 2))
    return images.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])


def _dropout(layer: nn.Dropout, x: Tensor, own: Sequence[Tensor], rest: Rest) -> Tensor:
    if layer.p == 0:
        return x
    factors = next(rest.draws)
    return x * (factors.permute(0, 2, 3, 4, 1) if x.dim() == 5 else factors)


def _flatten(layer: nn.Flatten, x: Tensor, own: Sequence[Tensor], rest: Rest) -> Tensor:
    return x.flatten(1, 3).transpose(1, 2) if x.dim() == 5 else x.flatten(2)


def _alike(layer: nn.Module, x: Tensor, own: Sequence[Tensor], rest: Rest) -> Tensor:
    return cast("Tensor", layer(x))


def _batch_norm(layer: nn.BatchNorm2d, x: Tensor, own: Sequence[Tensor], rest: Rest) -> Tensor:
    """Normalize the k C channels of all workers at once; each worker's layer keeps its own statistics."""
    theirs = rest.norms[layer]
    weight, bias = (each.flatten() for each in own) if own else (None, None)
    mean = variance = None
    if layer.track_running_stats:
        mean, variance = (torch.cat([getattr(each, f"running_{what}") for each in theirs]) for what in ("mean", "var"))
    channels = x.reshape(1, len(x) * layer.num_features, -1)
    y = F.batch_norm(channels, mean, variance, weight, bias, True, layer.momentum or 0.0, layer.eps)
    if mean is not None and variance is not None:
        size = layer.num_features
        for each, its_mean, its_variance in zip(theirs, mean.split(size), variance.split(size), strict=True):
            buffers: Any = each
            buffers.running_mean.copy_(its_mean)
            buffers.running_var.copy_(its_variance)
            buffers.num_batches_tracked.add_(1)
    return y.view(x.shape)


def _sequence(block: nn.Sequential, x: Tensor, own: Sequence[Tensor], rest: Rest) -> Tensor:
    return reduce(lambda x, layer: rest.compute(layer, x), block, x)


def _residual(block: BasicBlock | Bottleneck, x: Tensor, own: Sequence[Tensor], rest: Rest) -> Tensor:
    """Return relu(y + x), with y from convolutions, each with batch normalization, all but the last with ReLU."""
    pairs = [(block.conv1, block.bn1), (block.conv2, block.bn2)]
    if isinstance(block, Bottleneck):
        pairs.append((block.conv3, block.bn3))
    y = x
    for convolution, norm in pairs:
        y = y if y is x else rest.compute(block.relu, y)
        y = rest.compute(norm, rest.compute(convolution, y))
    return rest.compute(block.relu, y + (x if block.downsample is None else rest.compute(block.downsample, x)))


def _stages(network: ResNet) -> list[nn.Module]:
    stages = network.layer1, network.layer2, network.layer3, network.layer4
    start = network.conv1, network.bn1, network.relu, network.maxpool
    return [*start, *stages, network.avgpool, nn.Flatten(), network.fc]


LAYERS: dict[type[nn.Module], layers.Layer] = {
    **layers.LAYERS,
    nn.Conv2d: _convolution,
    nn.Flatten: _flatten,
    nn.MaxPool2d: _pooling,
    layers.MaxPool2d: _pooling,
    nn.AdaptiveAvgPool2d: _pooling,
    nn.ReLU: _alike,
    nn.Tanh: _alike,
    nn.Dropout: _dropout,
    nn.BatchNorm2d: _batch_norm,
    nn.Sequential: _sequence,
    BasicBlock: _residual,
    Bottleneck: _residual,
}
WAY = layers.Way(LAYERS, (nn.Sequential, BasicBlock, Bottleneck), {ResNet: _stages}, forward)
"""The way of a GPU."""
