"""Operations over all ranks, without a topology."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal, Self, TypeVar
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from decentral.models.layers.statistics import has_mean
from decentral.network import presence
from decentral.network.world import World
from decentral.registry.typed import typed
from decentral.script import calls, parameters
from decentral.script.calls import Values
from decentral.script.handle import Handle, Turn, guarded, verb

T = TypeVar("T")

_NO_MORE: Any = object()

_LEAVING: WeakSet[Group] = WeakSet()
"""The groups on the process group of `decentral.join`; the last one to close destroys it."""


class Group:
    """This process as rank `rank` of `size`."""

    def __init__(self, world: World, check: bool | None, leaves: bool) -> None:
        """Create the group. `leaves`: `close` destroys torch.distributed's process group if no other group needs it."""
        self.rank, self.size = world.rank, world.size
        self.world = world
        self._check, self.turn = check, Turn(f"rank {self.rank}", by_thread=True)
        if world.calls is not None:
            self.turn.difference = world.calls.difference
        self._seen: set[str] = set()
        self._leaves = leaves
        if leaves:
            _LEAVING.add(self)
        if self.device.type == "cuda":  # nccl needs all ranks in the first call
            dist.all_reduce(torch.zeros(1, device=self.device))

    @property
    def device(self) -> torch.device:
        """The preferred device of tensors: this process's GPU if the group supports GPUs, else the CPU."""
        return torch.device("cuda", torch.cuda.current_device()) if "cuda" in calls.carried() else torch.device("cpu")

    # -- tensors -------------------------------------------------------------------------------------------------------

    @verb
    def allreduce(
        self,
        x: Values,
        op: Literal["mean", "sum"] = "mean",
        *,
        workers_per_machine: int | None = None,
        inplace: bool = False,
        check: bool | None = None,
        async_op: bool = False,
    ) -> Handle:
        """Return 1/n sum_j x_j, or sum_j x_j, over all ranks, or, with `workers_per_machine`, over this machine's."""
        checked = self._checks(check, self.world.blind)
        return calls.begin_total(self.world, x, op, workers_per_machine, checked, inplace, self._seen)

    @verb
    def broadcast(
        self, x: Values, root: int = 0, *, inplace: bool = False, check: bool | None = None, async_op: bool = False
    ) -> Handle:
        """Return x of rank `root` on every rank; the others pass tensors of the same shapes and dtypes."""
        return calls.begin_broadcast(self.world, x, root, self._checks(check, self.world.blind), inplace, self._seen)

    @verb
    def allgather(self, x: Tensor, *, async_op: bool = False) -> Handle:
        """Concatenate the x of all ranks along dimension 0, in which lengths may differ."""
        return calls.begin_allgather(self.world, x)

    @guarded
    def barrier(self) -> None:
        """Wait for all ranks."""
        self.world.announce("barrier")
        self.world.barrier()

    # -- models --------------------------------------------------------------------------------------------------------

    @typed("module")
    def broadcast_parameters(self, module: nn.Module, root: int = 0) -> None:
        """Give every rank the parameters and buffers of rank `root`'s module, in place."""
        if tensors := [*module.parameters(), *module.buffers()]:
            self.broadcast(tensors, root, inplace=True)

    @typed("optimizer")
    @guarded
    def broadcast_optimizer_state(self, optimizer: Optimizer, root: int = 0) -> None:
        """Give every rank the state of rank `root`'s optimizer, and its settings such as the learning rate.

        The other optimizers may have no state yet.
        """
        with torch.no_grad():
            self.world.announce(f"broadcast_optimizer_state from rank {root}")
            parameters.broadcast_optimizer(optimizer, self.world, root)

    @typed("module")
    def allreduce_parameters(self, module: nn.Module) -> None:
        """Set parameters and buffers to their mean over all ranks, in place. Integer counters are unchanged."""
        named = dict([*module.named_parameters(), *module.named_buffers()])
        if tensors := [tensor for name, tensor in named.items() if has_mean(module, name, tensor)]:
            self.allreduce(tensors, inplace=True)

    @typed("batches")
    def equally(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield as many batches of this rank as the rank with the fewest has, so that all ranks step equally often.

        All ranks call it at once. If each rank's batches have a length (a list, most DataLoaders), the ranks compare
        these once; otherwise before every batch, by a small all-reduce. Extra batches are dropped; with reshuffling in
        every epoch, no example is dropped for good.
        """
        try:
            own = len(batches)  # type: ignore[arg-type]
        except TypeError:  # a generator, or a DataLoader without length
            own = -1
        less_the_fewest, unknown = self._equally(-own, int(own < 0))
        if not unknown:
            yield from islice(batches, -less_the_fewest)
            return
        rest = iter(batches)
        while True:
            batch = next(rest, _NO_MORE)
            (ended,) = self._equally(int(batch is _NO_MORE))
            if ended:
                return
            yield batch

    # -- around them ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave together with all ranks, and close everything opened here. No operation is possible afterwards."""
        self._close(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._close(wait=kind is None)  # after a failure, do not wait for ranks that wait for this one

    def _close(self, wait: bool) -> None:
        if self.turn.over or self.turn.forked:  # the connections belong to another process
            return
        left = False
        try:
            if wait:
                presence.look(now=True)
            if self._leaves and wait and dist.is_initialized():
                self.barrier()  # no rank leaves while another still communicates
            left = wait
        finally:
            self.turn.over = "after the group was closed: call decentral.join again"
            self._release()
            if not dist.is_initialized():
                presence.leave(left)

    def _release(self) -> None:
        _LEAVING.discard(self)
        if self._leaves and not _LEAVING and dist.is_initialized():
            dist.destroy_process_group()

    def _checks(self, check: bool | None, default: bool) -> bool:
        """Return whether to check a call: by its argument, else the group's, else the default."""
        return next(choice for choice in (check, self._check, default) if choice is not None)

    @guarded
    def _equally(self, *values: int) -> tuple[int, ...]:
        self.world.announce(f"equally, number {len(values)}")
        with torch.no_grad():
            return self.world.largest(*values)
