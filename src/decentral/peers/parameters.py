"""The same start for everybody: parameters and optimizer states from one rank, or averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from decentral.peers.bundle import Bundle, as_bytes
from decentral.world import World


def broadcast(tensors: Sequence[Tensor], root: int) -> None:
    """Write the values of rank `root` into the tensors of all ranks, fused by dtype."""
    if not tensors:
        return
    bundle = Bundle(tensors)
    rows = bundle.rows()
    for row in rows:
        dist.broadcast(as_bytes(row.values), src=root)
    bundle.restore(rows, [row.values for row in rows], inplace=True)


def mean(tensors: Sequence[Tensor], size: int) -> None:
    """Write the mean over all ranks into the tensors, fused by dtype."""
    if not tensors:
        return
    bundle = Bundle(tensors)
    rows = bundle.rows()
    for row in rows:
        dist.all_reduce(row.values)
        row.values.div_(size)
    bundle.restore(rows, [row.values for row in rows], inplace=True)


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [*module.parameters(), *module.buffers()]


def averageable(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers of which there is a mean: a counter of batches, say, is none."""
    return [tensor for tensor in tensors_of(module) if tensor.is_floating_point() or tensor.is_complex()]


class _Place(NamedTuple):
    """Where a tensor was in a state that is sent without its tensors."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_device: bool


def broadcast_optimizer(optimizer: Optimizer, world: World, root: int) -> None:
    """Load the state of rank `root`'s optimizer everywhere: its settings, such as the learning rate, and its moments.

    The other ranks' optimizers may have no state yet. What is no tensor (None, counters, flags) travels as it is.
    """
    tensors: list[Tensor] = []
    content: list[Any] = [_without_tensors(optimizer.state_dict(), tensors) if world.rank == root else None]
    dist.broadcast_object_list(content, src=root, device=world.device)
    if world.rank != root:
        state = _with_tensors(content[0], tensors, _device(optimizer))
    broadcast(tensors, root)
    if world.rank != root:
        optimizer.load_state_dict(state)


def _device(optimizer: Optimizer) -> torch.device:
    return next(parameter.device for group in optimizer.param_groups for parameter in group["params"])


def _without_tensors(state: Any, tensors: list[Tensor]) -> Any:
    """The same with a place for each tensor, which is added to `tensors`."""
    if isinstance(state, Tensor):
        tensors.append(state)
        return _Place(len(tensors) - 1, tuple(state.shape), state.dtype, state.device.type != "cpu")
    if isinstance(state, dict):
        return {key: _without_tensors(value, tensors) for key, value in state.items()}
    if isinstance(state, list):
        return [_without_tensors(value, tensors) for value in state]
    return state


def _with_tensors(state: Any, tensors: list[Tensor], device: torch.device) -> Any:
    """The same with new tensors at their places, which are added to `tensors`."""
    if isinstance(state, _Place):
        tensors.append(torch.empty(state.shape, dtype=state.dtype, device=device if state.on_device else "cpu"))
        return tensors[-1]
    if isinstance(state, dict):
        return {key: _with_tensors(value, tensors, device) for key, value in state.items()}
    if isinstance(state, list):
        return [_with_tensors(value, tensors, device) for value in state]
    return state
