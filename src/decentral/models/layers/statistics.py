"""Batch-norm statistics, which are not parameters: an averaged or mixed model needs its own.

An algorithm averages parameters. Running means and variances are buffers, and those of one worker do not describe the
activations of another model (nor of the average of several), so they are recomputed when needed. Other
buffers of the averaged model are means over the workers, or worker 0's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from decentral.host.torch_state import default_dtype


def has_batch_statistics(module: nn.Module) -> bool:
    """Return whether the module has layers that keep running means and variances for evaluation, and change them."""
    return bool(_layers_with_statistics(module))


def statistics_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the statistics that `recompute_batch_statistics` replaces, with the counts of batches, by name."""
    layers = _layers_with_statistics(module)
    return {
        f"{name}.{leaf}".lstrip("."): layer._buffers[leaf]
        for name, layer in module.named_modules()
        if layer in layers
        for leaf in ("running_mean", "running_var", "num_batches_tracked")
        if layer._buffers.get(leaf) is not None
    }


def is_averaged(module: nn.Module, name: str, tensor: Tensor) -> bool:
    """Return whether the averaged model uses the workers' mean of this buffer or frozen parameter; otherwise it has
    worker 0's.

    A frozen batch norm has the same statistics on all workers.
    """
    owner = module.get_submodule(name.rpartition(".")[0])
    return has_mean(module, name, tensor) and not (_has_statistics(owner) and not owner.training)


def has_mean(module: nn.Module, name: str, tensor: Tensor) -> bool:
    """Return whether this buffer or parameter has a meaningful mean.

    Counters and flags have none. Neither do the singular vectors of spectral norm, whose signs are arbitrary, and 8-bit
    floats, which torch does not add.
    """
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    hooks = [hook for hook in owner._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
    singular = {f"{hook.name}_{side}" for hook in hooks for side in "uv"}
    if isinstance(owner, _SpectralNorm):
        singular = {"_u", "_v"}
    numbers = (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_sparse and not tensor.is_quantized
    return numbers and tensor.element_size() > 1 and leaf not in singular


def recompute_batch_statistics(module: nn.Module, batches: Iterable[Tensor]) -> int:
    """Replace all running statistics by their plain average over the batches, and return the number of images used.

    Each layer gets (1 / m) sum_b mean_b and (1 / m) sum_b var_b over the m batches, where var_b is unbiased and the
    layers before it normalize with batch b's own statistics, as in training ("PreciseBN": Wu and Johnson, 2021,
    arXiv:2105.07576, section 3). Every batch weighs the same, so take batches of equal size, and large ones. Layers in
    evaluation mode keep their statistics.

    Parameters do not change, dropout is off and nothing is drawn at random; modes and momenta are restored. A module
    without statistics takes no batch. `batches` ([B, channels, height, width] each, on the module's device) must not be
    empty.
    """
    layers = _layers_with_statistics(module)
    if not layers:
        return 0
    momenta = [layer.momentum for layer in layers]
    calls = dict.fromkeys(layers, 0)

    def count(layer: Any, inputs: object) -> None:
        calls[layer] += 1
        layer.momentum = 1 / calls[layer]  # a cumulative average, of instance norm, too

    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    num_images = 0
    try:
        with evaluating(module), torch.no_grad():
            for layer in layers:
                layer.train()
                if layer.num_batches_tracked is not None:
                    layer.num_batches_tracked.zero_()
            for batch in batches:
                with default_dtype(next(module.parameters()).dtype):
                    module(batch)
                num_images += len(batch)
    finally:
        for hook in hooks:
            hook.remove()
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    assert num_images > 0, "no batches"
    return num_images


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put modules in evaluation mode within the context; afterwards every layer has its former mode."""
    modes = [(layer, layer.training) for module in modules for layer in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training


def _layers_with_statistics(module: nn.Module) -> list[Any]:
    return [layer for layer in module.modules() if layer.training and _has_statistics(layer)]


def _has_statistics(layer: nn.Module) -> bool:
    return isinstance(layer, _NormBase) and layer.running_mean is not None
