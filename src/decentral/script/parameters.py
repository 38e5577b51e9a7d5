"""The parameters of a model: a common start for all ranks, views of flat rows, in buckets or in one piece, and a guard
against changed parameters."""

from __future__ import annotations

import gc
import io
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from operator import is_
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.optim import Optimizer

from decentral.errors import ConfigError
from decentral.network.network import Network
from decentral.network.transports.posting import as_bytes, wait
from decentral.network.world import World
from decentral.script.agreement import Proposal, agree
from decentral.script.calls import Bundle, begin_means
from decentral.script.handle import hinted, quiet
from decentral.terminal.console import warn

_AGAIN = (
    "wrap again, on every rank, with optimizer = decentral.wrap(model, optimizer.close(), peers=optimizer.peers, "
    "broadcast_from=None)."
)
_wrapped = count()


def broadcast(tensors: Sequence[Tensor], root: int) -> None:
    """Write the values of rank `root` into the tensors of all ranks, fused by dtype."""
    if tensors:
        bundle = Bundle(tensors, inplace=True)
        for row in bundle.rows:
            dist.broadcast(as_bytes(row), src=root)
        bundle.restore(bundle.rows)


def mean(tensors: Sequence[Tensor], size: int) -> None:
    """Write the mean over all ranks into the tensors, fused by dtype."""
    if tensors:
        bundle = Bundle(tensors, inplace=True)
        works, divide = begin_means(bundle.rows, size)
        wait(works)
        divide()
        bundle.restore(bundle.rows)


def start(
    model: nn.Module, optimizer: Optimizer, world: World, root: int | str, resumes: bool, synchronous: bool
) -> dict[Tensor, Tensor] | None:
    """Give all ranks the parameters and buffers of rank `root`. Return the parameters of this rank that "auto" has
    replaced, with their new values; None if it has replaced none on any rank.

    "auto" is rank 0, unless all ranks have loaded their own checkpoints: then each keeps its parameters. That is so if
    the optimizers were decentralized before (`resumes`), or if all have a state, or have loaded an empty one, and the
    states or the weights differ. If weights differ, rank 0 reports the decision.

    synchronous    whether gradients are averaged, so that different parameters would stay different
    """
    named = dict([*model.named_parameters(), *model.named_buffers()])
    bundle = Bundle(list(named.values()))
    values = bundle.writable()
    for value in values:
        dist.broadcast(as_bytes(value), src=0 if root == "auto" else int(root))
    others = bundle.restore(values)
    distances = [_distance(own, other) for own, other in zip(bundle.tensors, others, strict=True)]
    place = next((place for place, distance in enumerate(distances) if distance), len(named))
    line = [place, distances[place] if place < len(named) else 0.0, _has_loaded(optimizer), *_summary(optimizer)]
    lines = np.stack([np.frombuffer(each) for each in world.collect(np.array(line, dtype=np.float64).tobytes())])
    first, loaded, with_state = int(lines[:, 0].min()), bool(lines[:, 2].all()), bool(lines[:, 3].all())
    states_differ = bool((lines[:, 3:] != lines[0, 3:]).any())
    theirs = resumes or loaded or (states_differ and with_state)
    own = theirs and not (synchronous and first < len(list(model.parameters())))
    replaced: dict[Tensor, Tensor] = {}
    if not (root == "auto" and own):
        for each, tensor, other, distance in zip(named.values(), bundle.tensors, others, distances, strict=True):
            if distance:
                tensor.copy_(other)
                if isinstance(each, nn.Parameter):
                    replaced[each] = other
    found = replaced if root == "auto" and not own and first < len(list(model.parameters())) else None
    if root != "auto" or not world.leader:
        return found
    if first < len(named):
        rank = int((lines[:, 0] == first).argmax())
        done = (
            "each rank keeps its own, which came with its own optimizer state; broadcast_from=0 gives all ranks "
            "those of rank 0"
            if own
            else "all ranks start with those of rank 0; broadcast_from=None keeps each rank's own"
        )
        where = f"{list(named)[first]} of rank {rank} by {lines[rank, 1]:.2g} from rank 0"
        warn(f"weights differ between ranks at decentral.wrap ({where}): {done}")
    if states_differ and (synchronous or not with_state):
        warn(
            "optimizer states differ between ranks at decentral.wrap and stay unchanged; "
            "peers.broadcast_optimizer_state(optimizer) before wrap copies that of rank 0"
        )
    return found


def _distance(own: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors; 0 if they are equal, NaN if only one has a NaN somewhere."""
    if torch.equal(as_bytes(own.contiguous()), as_bytes(other.contiguous())):
        return 0.0
    wide = torch.complex128 if own.is_complex() else torch.float64
    return float((own.to(wide) - other.to(wide)).abs().max()) or 1e-300  # such as 0 and -0


def _has_loaded(optimizer: Optimizer) -> bool:
    """Return whether the optimizer loaded a state, even an empty one: torch then puts parameters last in groups."""
    return all(next(reversed(group)) == "params" for group in optimizer.param_groups)


def _summary(optimizer: Optimizer) -> list[float]:
    """Return the size of an optimizer's state and two checksums, which differ between different states."""
    entries = [entry for key, entry in optimizer.state.items() if isinstance(key, Tensor)]
    tensors = [value.double() for entry in entries for value in entry.values() if isinstance(value, Tensor)]
    return [
        float(sum(tensor.numel() for tensor in tensors)),
        sum(float(tensor.sum()) for tensor in tensors),
        sum(float(tensor.abs().sum()) for tensor in tensors),
    ]


def broadcast_optimizer(optimizer: Optimizer, world: World, root: int) -> None:
    """Load the state of rank `root`'s optimizer on all ranks: its settings, such as the learning rate, and its moments.

    The other ranks' optimizers may have no state yet.

    Raises ConfigError, on all ranks, if it contains anything but tensors and plain values.
    """
    content = io.BytesIO()
    if world.rank == root:
        try:
            torch.save(optimizer.state_dict(), content)
        except (pickle.PicklingError, AttributeError, TypeError):  # pickle raises these for a lambda, a lock, ...
            content = io.BytesIO()
    (size,) = world.largest(len(content.getvalue()))
    shared = torch.frombuffer(bytearray(content.getvalue() or max(1, size)), dtype=torch.uint8).to(world.device)
    dist.broadcast(shared, src=root)
    try:
        state = torch.load(io.BytesIO(shared.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError) as error:
        raise ConfigError(
            f"the state of {type(optimizer).__name__} cannot be sent, because it holds more than tensors, numbers and "
            "text: load a checkpoint of it on every rank instead."
        ) from error
    if world.rank != root:
        _OF_ROOT.add(root)
        try:
            optimizer.load_state_dict(state)
        finally:
            _OF_ROOT.clear()


_OF_ROOT: set[int] = set()
"""The rank whose optimizer state is being loaded here."""


def align(optimizer: Optimizer) -> None:
    """Give gradients and state the strides of their parameters, as fused optimizers assume; wrap changes the latter
    if they were in channels_last memory."""
    for parameter in chain.from_iterable(group["params"] for group in optimizer.param_groups):
        if parameter.grad is not None:
            parameter.grad = _like(parameter, parameter.grad)
        entry = optimizer.state.get(parameter, {})
        entry.update({key: _like(parameter, value) for key, value in entry.items()})


def _like(parameter: Tensor, value: Any) -> Any:
    """Return a tensor of the parameter's shape with its strides; anything else unchanged."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.shape != parameter.shape:
        return value
    if value.stride() == parameter.stride():
        return value
    return torch.empty_strided(value.shape, parameter.stride(), dtype=value.dtype, device=value.device).copy_(value)


class ParameterRow:
    """Parameters as one row [1, P], of which they become views.

    The row may move with every step (`move_to`); the parameters are always views of it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Flatten parameters of one dtype and device, in this order."""
        self.parameters = list(parameters)
        self.share: Tensor | None = None
        """The share of ranks with a gradient of each parameter, if gradients are averaged over ranks."""
        self._unread = False
        self.flatten()

    def flatten(self) -> None:
        """Copy the parameters into a new row, of their dtype and on their device, and make them views of it."""
        self._sizes = [parameter.numel() for parameter in self.parameters]
        self.row = torch.cat([parameter.data.reshape(-1) for parameter in self.parameters]).view(1, -1)
        self._gradient = torch.empty_like(self.row)
        self._lay()

    def split(self, row: Tensor) -> Sequence[Tensor]:
        """Return the parts of a row [1, P] that belong to the parameters, as views [P_p]."""
        return row.view(-1).split(self._sizes)

    def move_to(self, row: Tensor) -> None:
        """Make the parameters views of this row [1, P], with its values."""
        if row.data_ptr() != self.row.data_ptr():
            self.row = row
            self._lay()

    def gradient(self, unread: bool = False) -> Tensor:
        """Return the accumulated gradients as a row [1, P], zero for missing ones.

        It is a copy, in memory that the next step reuses. `unread`: the algorithm only hands it on to the optimizer,
        which takes the parameters' own gradients instead, so the row is not filled.
        """
        self._unread = unread
        if unread:
            return self._gradient
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self.parameters]
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=self._gradient.view(-1))
        return self._gradient

    def has_gradients(self) -> Tensor:
        """Return, as a row [1, parameters], 1 for each parameter with a gradient and 0 for the others."""
        return self.row.new_tensor([[float(parameter.grad is not None) for parameter in self.parameters]])

    @contextmanager
    def with_gradient(self, g: Tensor) -> Iterator[None]:
        """Give the parameters the gradients g [1, P]; restore their own on exit.

        A parameter without a gradient gets none if no rank has one (`share`) or its part of g is zero, so that the
        optimizer skips it, as in torch. A sparse gradient with the values of g stays, for optimizers that need one.
        """
        if self._unread:
            yield
            return
        before, parts = [parameter.grad for parameter in self.parameters], self.split(g)
        reasons = parts if self.share is None else self.share.unbind(1)
        for parameter, part, reason in zip(self.parameters, parts, reasons, strict=True):
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse and torch.equal(gradient.to_dense().view(-1), part):
                continue
            parameter.grad = part.view(parameter.shape) if gradient is not None or reason.any() else None
        try:
            yield
        finally:
            for parameter, gradient in zip(self.parameters, before, strict=True):
                parameter.grad = gradient

    def in_place(self) -> bool:
        """Return False if a parameter has other memory by now (for example, after `model.to(...)`)."""
        pairs = zip(self.parameters, self.split(self.row), strict=True)
        return all(p.dtype == part.dtype and p.data_ptr() == part.data_ptr() for p, part in pairs)

    def _lay(self) -> None:
        for parameter, part in zip(self.parameters, self.split(self.row), strict=True):
            parameter.data = part.view(parameter.shape)


def rows_of(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[ParameterRow]:
    """Flatten parameters into one row for each dtype; or, if `bucket_bytes` > 0, into buckets of whole parameters of
    that size or a little more. The last ones come first then, which is about the order of gradients in a backward pass.

    Raises ConfigError for several devices and for no parameters.
    """
    devices = {parameter.device for parameter in parameters}
    if not devices:
        raise ConfigError("the optimizer has no parameters that require a gradient: add some to train.")
    if len(devices) != 1:
        raise ConfigError(
            f"the parameters are on {len(devices)} devices ({', '.join(sorted(map(str, devices)))}): put the model "
            "on one, and wrap it afterwards."
        )
    groups: list[list[nn.Parameter]] = []
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        alike = [parameter for parameter in parameters if parameter.dtype == dtype]
        if not bucket_bytes:
            groups.append(alike)
            continue
        size = bucket_bytes
        for parameter in reversed(alike):
            if size >= bucket_bytes:
                groups.append([])
                size = 0
            groups[-1].append(parameter)
            size += parameter.numel() * parameter.element_size()
    return [ParameterRow(group) for group in groups]


def also_communicated(parameters: Sequence[nn.Parameter]) -> str:
    """Say what else averages or shards these parameters or their gradients between ranks; "" if nothing does.

    DistributedDataParallel leaves no mark on the module that it wraps, so this looks at every living instance,
    unless the rank is alone.
    """
    kinds: list[type] = [nn.parallel.DistributedDataParallel]
    if loaded := sys.modules.get("torch.distributed.fsdp"):
        kinds.append(loaded.FullyShardedDataParallel)
    types = {each for kind in kinds for each in (kind, *kind.__subclasses__())}
    name = "DTensor" if any(hasattr(each, "device_mesh") for each in parameters) else ""
    if dist.get_world_size() > 1 and not types.isdisjoint(map(type, gc.get_objects())):
        gc.collect()  # unused instances may still be alive
        living = [each for each in gc.get_objects() if type(each) in types and each.process_group.size() > 1]
        names = [type(each).__name__ for each in living if not set(parameters).isdisjoint(each.parameters())]
        name = next(iter(names), name)
    return name and (
        f"{name} already averages or shards these parameters or their gradients, so the ranks would not train models "
        "of their own: leave it out, and give decentral.wrap the plain module. Trainers add it unless set otherwise: "
        "in Lightning and Fabric, strategy=SingleDeviceStrategy(peers.device); in Accelerate, do not prepare the "
        "model; for the Hugging Face Trainer, args.distributed_state as in docs/own_script.md."
    )


class Guard:
    """A guard that refuses, on every rank, to average parameters other than those of `decentral.wrap`.

    A refusal on one rank closes its network. The waiting ranks read the reason from the store of the group.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        parameters: Sequence[nn.Parameter],
        world: World,
        net: Network,
        replaced: Mapping[Tensor, Tensor] | None,
    ) -> None:
        """Guard the averaged `parameters`, which `net` sends. All ranks create their guards in one order.

        replaced  see `start`
        """
        self._model, self._optimizer, self.rank, self.net = model, optimizer, world.rank, net
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._trained = self._in_groups()
        self._still = [parameter for parameter in self._trained if parameter not in set(parameters)]
        self._is_new = True
        self._key = f"decentral refused {next(_wrapped)}"
        self._stepping = False
        self._hooks = [optimizer.register_step_pre_hook(self._only_here)]
        self._world, self.replaced, self.resumed = world, replaced, False
        if replaced:
            self._hooks.append(optimizer.register_load_state_dict_post_hook(self._loaded))

    def _loaded(self, _: Optimizer) -> None:
        self.resumed = 0 not in _OF_ROOT

    def step(self) -> None:
        """Take a step of the optimizer, which refuses any other until `close`."""
        self._stepping, self.replaced = True, None
        try:
            self._optimizer.step()
        finally:
            self._stepping = False

    def _only_here(self, *_: object) -> None:
        if not self._stepping:
            self.require(
                "the step() of the optimizer that was wrapped does not communicate: call step() of the one that "
                "decentral.wrap returned."
            )

    def close(self) -> None:
        """Let the optimizer be what it was, and close the network."""
        for hook in self._hooks:
            hook.remove()
        self.net.close()

    def require(self, problem: str) -> None:
        """Raise ConfigError on all ranks if there is a problem."""
        if problem:
            with suppress(Exception):  # without a store the others only notice that this rank is gone
                store = _get_default_store()
                store.set(self._key, f"rank {self.rank}: {problem}")
                store.check([self._key])  # set() does not wait until the others can read it
            self.net.close()
            raise ConfigError(problem)

    @contextmanager
    def hears(self) -> Iterator[None]:
        """Replace an error of the transport by another rank's refusal, if there is one; refuse a step with a number too
        large for the parameters' type, which torch rejects."""
        try:
            with hinted():
                yield
        except (RuntimeError, OSError) as error:
            if "without overflow" in str(error):
                self.require(self._largest())
            told = ""
            with suppress(Exception), quiet():
                store = _get_default_store()
                told = store.get(self._key).decode() if store.check([self._key]) else ""
            if not told:
                raise
            self.net.close()  # waiting ranks notice, too
            raise ConfigError(told) from error

    def compare(self, in_place: bool, layout: str, problem: str) -> bool:
        """Compare all ranks before the first step. Return whether the parameters of any have moved since wrap.

        Raises ConfigError on all ranks if one has a `problem`, if their layouts differ, or if one has loaded only the
        optimizer's state since wrap has replaced its weights.
        """
        replaced = (self.replaced or {}).items()
        still = all(torch.equal(parameter, value.to(parameter)) for parameter, value in replaced)
        if self.replaced is not None and self.resumed and still:
            problem = (
                "the optimizer has loaded a state, but decentral.wrap has replaced the weights that this rank had "
                "before by those of rank 0: load both before wrap or both after it, or choose with broadcast_from= "
                "(None: each rank's own weights; 0: those of rank 0)."
            )
        told = Proposal("step", layout, (), (), length=int(not in_place), problem=problem)
        return any(agree(self._world, told).lengths)

    def change(self, in_place: bool) -> str:
        """Describe a change of the model; "" if there is none. `in_place`: whether the parameters kept their memory."""
        if not in_place:
            return (
                "the parameters have moved since decentral.wrap: call model.to(...), .half() and the like before the "
                "first step, for all parameters at once, and write new values with p.data.copy_(...)."
            )
        trained = self._in_groups()
        if len(trained) != len(self._trained) or not all(map(is_, trained, self._trained)):
            return f"the optimizer's param_groups have changed; {_AGAIN}"
        for parameter in self._still:
            if parameter.requires_grad or parameter.grad is not None:
                return f"{self._names[parameter]} is trained now, but was frozen; {_AGAIN}"
        if self._is_new:
            self._is_new = False
            if problem := also_communicated(self._trained):  # since wrap
                return problem
        new = [name for name, parameter in self._model.named_parameters() if parameter not in self._names]
        return f"the model has new parameters ({', '.join(new)}); {_AGAIN}" if new else ""

    def _largest(self) -> str:
        numbers = (one for group in self._optimizer.param_groups for one in group.items() if type(one[1]) is float)
        key, value = max(numbers, key=lambda one: abs(one[1]))
        return f"{key}={value:g} makes parameters overflow their dtype, so training diverges: lower it."

    def _in_groups(self) -> list[nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
