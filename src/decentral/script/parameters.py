"""The parameters of a model: the same start for all ranks, and as views of flat rows, in buckets or in one piece."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from decentral.errors import ConfigError
from decentral.models.statistics import has_mean
from decentral.network.transports.posting import as_bytes
from decentral.network.world import World
from decentral.script.bundle import Bundle
from decentral.terminal.console import warn


def broadcast(tensors: Sequence[Tensor], root: int) -> None:
    """Write the values of rank `root` into the tensors of all ranks, fused by dtype."""
    if not tensors:
        return
    bundle = Bundle(tensors)
    rows = bundle.rows()
    for row in rows:
        dist.broadcast(as_bytes(row.values), src=root)
    bundle.restore(rows, [row.values for row in rows], inplace=True)


def start(
    model: nn.Module, optimizer: Optimizer, world: World, root: int | str, resumes: bool, synchronous: bool
) -> None:
    """Give all ranks the parameters and buffers of rank `root`.

    "auto" is rank 0, unless all ranks have loaded checkpoints of their own: then each keeps what it has. That is so if
    the optimizers were decentralized before (`resumes`), or if all have a state, or have loaded an empty one, and the
    states or the weights differ. Where weights differ, rank 0 says what was done.

    synchronous    whether gradients are averaged, so that parameters that differ would do so for ever
    """
    named = dict([*model.named_parameters(), *model.named_buffers()])
    bundle = Bundle(list(named.values()))
    rows = bundle.rows()
    values = [row.values if row.owned else row.values.clone() for row in rows]
    for value in values:
        dist.broadcast(as_bytes(value), src=0 if root == "auto" else int(root))
    others = bundle.restore(rows, values, inplace=False)
    distances = [_distance(own, other) for own, other in zip(bundle.tensors, others, strict=True)]
    place = next((place for place, distance in enumerate(distances) if distance), len(named))
    line = [place, distances[place] if place < len(named) else 0.0, _has_loaded(optimizer), *_summary(optimizer)]
    lines = np.stack([np.frombuffer(each) for each in world.collect(np.array(line, dtype=np.float64).tobytes())])
    first, loaded, with_state = int(lines[:, 0].min()), bool(lines[:, 2].all()), bool(lines[:, 3].all())
    states_differ = bool((lines[:, 3:] != lines[0, 3:]).any())
    theirs = resumes or loaded or (states_differ and with_state)
    own = theirs and not (synchronous and first < len(list(model.parameters())))
    if not (root == "auto" and own):
        for tensor, other, distance in zip(bundle.tensors, others, distances, strict=True):
            if distance:
                tensor.copy_(other)
    if root != "auto" or not world.leader:
        return
    if first < len(named):
        rank = int((lines[:, 0] == first).argmax())
        done = (
            "each rank keeps its own, which came with an optimizer state of its own; broadcast_from=0 gives all those "
            "of rank 0"
            if own
            else "all start with those of rank 0; broadcast_from=None keeps each rank's own"
        )
        where = f"{list(named)[first]} of rank {rank} by {lines[rank, 1]:.2g} from rank 0"
        warn(f"weights differ between ranks at decentral.wrap ({where}): {done}")
    if states_differ and (synchronous or not with_state):
        warn(
            "optimizer states differ between ranks at decentral.wrap and stay as they are; "
            "peers.broadcast_optimizer_state(optimizer) before wrap gives all that of rank 0"
        )


def _distance(own: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors; 0 if they are equal, NaN if that is where one of them has none."""
    if torch.equal(as_bytes(own.contiguous()), as_bytes(other.contiguous())):
        return 0.0
    wide = torch.complex128 if own.is_complex() else torch.float64
    return float((own.to(wide) - other.to(wide)).abs().max()) or 1e-300  # 0 and -0, say


def _has_loaded(optimizer: Optimizer) -> bool:
    """Whether the optimizer has loaded a state, be it empty: torch puts the parameters last in its groups then."""
    return all(next(reversed(group)) == "params" for group in optimizer.param_groups)


def _summary(optimizer: Optimizer) -> list[float]:
    """How many numbers the state of an optimizer has, and two sums of them: what differs where states do."""
    entries = [entry for key, entry in optimizer.state.items() if isinstance(key, Tensor)]
    tensors = [value.double() for entry in entries for value in entry.values() if isinstance(value, Tensor)]
    return [
        float(sum(tensor.numel() for tensor in tensors)),
        sum(float(tensor.sum()) for tensor in tensors),
        sum(float(tensor.abs().sum()) for tensor in tensors),
    ]


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


def averageable(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers of which there is a mean: a counter of batches, say, is none."""
    named = dict([*module.named_parameters(), *module.named_buffers()])
    return [tensor for name, tensor in named.items() if has_mean(module, name, tensor)]


class _Place(NamedTuple):
    """Where a tensor was in a state that is sent without its tensors."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_device: bool


def broadcast_optimizer(optimizer: Optimizer, world: World, root: int) -> None:
    """Load the state of rank `root`'s optimizer everywhere: its settings, such as the learning rate, and its moments.

    The other ranks' optimizers may have no state yet. What is no tensor (None, counters, flags) travels as it is.

    Raises ConfigError, on all ranks, if there is something else in it than tensors and plain values.
    """
    tensors: list[Tensor] = []
    content = io.BytesIO()
    cannot = ConfigError(
        f"the state of {type(optimizer).__name__} cannot be sent, because it holds more than tensors, numbers and "
        "text: let every rank load a checkpoint of it instead."
    )
    if world.rank == root:
        try:
            torch.save(_without_tensors(optimizer.state_dict(), tensors), content)
        except (pickle.PicklingError, AttributeError, TypeError):  # what pickle raises for a lambda, a lock, ...
            content = io.BytesIO()
    (size,) = world.largest(len(content.getvalue()))
    if not size:
        raise cannot
    shared = torch.frombuffer(bytearray(content.getvalue() or size), dtype=torch.uint8).to(world.device)
    dist.broadcast(shared, src=root)
    try:
        with torch.serialization.safe_globals([_Place]):
            received = torch.load(io.BytesIO(shared.cpu().numpy().tobytes()), weights_only=True)
    except pickle.UnpicklingError as error:
        raise cannot from error
    if world.rank != root:
        state = _with_tensors(received, tensors, _device(optimizer))
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


def travels(parameter: nn.Parameter, trained: set[nn.Parameter]) -> bool:
    """Whether a parameter changes in training: the optimizer has it, and it is not frozen."""
    return parameter in trained and parameter.requires_grad


class Bucket:
    """Some consecutive parameters of one flat row: what travels together."""

    def __init__(self, row: Tensor, parameters: Sequence[nn.Parameter]) -> None:
        self.row = row  # [1, P']: the memory of the parameters
        self.ordered = list(parameters)[::-1]  # as in the model
        self.parameters = set(parameters)


class FlatParameters:
    """Moves parameters into flat rows, one for each dtype, of which they are views afterwards.

    Buckets hold whole parameters, `bucket_bytes` of them or a little more, the last parameters first: backward passes
    give gradients in about that order.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], bucket_bytes: int) -> None:
        """Raises ConfigError for parameters on several devices, and for none at all."""
        _check_devices(parameters)
        self.buckets: list[Bucket] = []
        self._places: list[tuple[nn.Parameter, int]] = []
        for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
            self._lay([p for p in reversed(parameters) if p.dtype == dtype], bucket_bytes)

    def _lay(self, parameters: Sequence[nn.Parameter], bucket_bytes: int) -> None:
        first = parameters[0]
        row = first.data.new_empty(sum(parameter.numel() for parameter in parameters))
        start, bucket_start, members = 0, 0, []
        for parameter in parameters:
            stop = start + parameter.numel()
            row[start:stop].view(parameter.shape).copy_(parameter.data)
            parameter.data = row[start:stop].view(parameter.shape)
            self._places.append((parameter, parameter.data_ptr()))
            members.append(parameter)
            if (stop - bucket_start) * row.element_size() >= bucket_bytes or stop == len(row):
                self.buckets.append(Bucket(row[bucket_start:stop].view(1, -1), members))
                bucket_start, members = stop, []
            start = stop

    def in_place(self) -> bool:
        """False if a parameter has been given other memory since (by `model.to(...)`, say)."""
        return all(parameter.data_ptr() == place for parameter, place in self._places)


class ParameterRow:
    """The parameters as one row [1, P], in the order of the model: what an algorithm works on.

    The row may lie elsewhere after every step (`move_to`); the parameters are always views of it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Raises ConfigError for parameters on several devices or of several dtypes, and for none at all."""
        _check_devices(parameters)
        dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
        if len(dtypes) > 1:
            raise ConfigError(
                f"algo= trains parameters of one dtype, but the model has {' and '.join(dtypes)}: convert it with "
                "model.to(dtype), or use mode=, which takes any."
            )
        self.parameters = list(parameters)
        self._sizes = [parameter.numel() for parameter in parameters]
        self.row = torch.cat([parameter.data.reshape(-1) for parameter in parameters]).view(1, -1)
        self._gradient = torch.empty_like(self.row)
        self._lay()

    def move_to(self, row: Tensor) -> None:
        """Let the parameters be views of this row [1, P], with what is in it."""
        if row.data_ptr() != self.row.data_ptr():
            self.row = row
            self._lay()

    def gradient(self) -> Tensor:
        """The gradients that the backward passes have left: a row [1, P], zero where there is none.

        It is a copy, in memory that is used again in the next step.
        """
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self.parameters]
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=self._gradient.view(-1))
        return self._gradient

    @contextmanager
    def with_gradient(self, g: Tensor) -> Iterator[None]:
        """Inside, the parameters have the gradients g [1, P]; afterwards their own again."""
        own = [parameter.grad for parameter in self.parameters]
        for parameter, part in zip(self.parameters, g.view(-1).split(self._sizes), strict=True):
            parameter.grad = part.view(parameter.shape)
        try:
            yield
        finally:
            for parameter, gradient in zip(self.parameters, own, strict=True):
                parameter.grad = gradient

    def in_place(self) -> bool:
        """False if a parameter has been given other memory since."""
        parts = self.row.view(-1).split(self._sizes)
        pairs = zip(self.parameters, parts, strict=True)
        return all(p.dtype == part.dtype and p.data_ptr() == part.data_ptr() for p, part in pairs)

    def _lay(self) -> None:
        for parameter, part in zip(self.parameters, self.row.view(-1).split(self._sizes), strict=True):
            parameter.data = part.view(parameter.shape)


def _check_devices(parameters: Sequence[nn.Parameter]) -> None:
    devices = {parameter.device for parameter in parameters}
    if not devices:
        raise ConfigError("the optimizer has no parameters that require a gradient: there is nothing to train.")
    if len(devices) != 1:
        raise ConfigError(
            f"the parameters are on {len(devices)} devices ({', '.join(sorted(map(str, devices)))}): put the model "
            "on one, and wrap it afterwards."
        )
