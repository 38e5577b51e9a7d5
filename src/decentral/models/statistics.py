"""Batch-norm statistics, which are no parameters: a model that was averaged or mixed needs its own.

An algorithm averages parameters. Running means and variances are buffers, and those of one worker do not describe the
activations of another model (nor of the average of several), so they are computed anew where they are needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


def has_batch_statistics(module: nn.Module) -> bool:
    """Whether the module has layers that keep running means and variances for evaluation."""
    return bool(_layers_with_statistics(module))


def recompute_batch_statistics(module: nn.Module, batches: Iterable[Tensor]) -> int:
    """Replace all running statistics by their plain average over the batches, and return the number of images used.

    Each layer gets (1 / m) sum_b mean_b and (1 / m) sum_b var_b over the m batches, where var_b is unbiased and the
    layers before it normalize with batch b's own statistics, as in training ("PreciseBN": Wu and Johnson, 2021,
    arXiv:2105.07576, section 3). Every batch weighs the same, so take batches of equal size, and large ones.

    Parameters do not change, dropout is off and nothing is drawn at random; modes and momenta are put back. A module
    without statistics takes no batch. `batches` ([B, channels, height, width] each, on the module's device) must not be
    empty.
    """
    import torch

    from decentral.host.caller import default_dtype

    layers = _layers_with_statistics(module)
    if not layers:
        return 0
    modes = [(child, child.training) for child in module.modules()]
    momenta = [layer.momentum for layer in layers]
    module.eval()
    for layer in layers:
        layer.train()
        layer.momentum = None  # a cumulative average
        layer.reset_running_stats()
    num_images = 0
    try:
        with torch.no_grad():
            for batch in batches:
                with default_dtype(next(module.parameters()).dtype):
                    module(batch)
                num_images += len(batch)
    finally:
        for child, training in modes:
            child.training = training
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    assert num_images > 0, "no batches"
    return num_images


def _layers_with_statistics(module: nn.Module) -> list[Any]:
    return [layer for layer in module.modules() if getattr(layer, "running_mean", None) is not None]
