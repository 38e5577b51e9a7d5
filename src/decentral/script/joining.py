"""Join the other processes: `decentral.join`."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from decentral.config.parsing import convert
from decentral.errors import ConfigError, suggest
from decentral.host.torchrun import Among, check_launcher, place, under_torchrun
from decentral.network import presence
from decentral.network.presence import Calls
from decentral.network.transports.shared_memory import possible
from decentral.network.world import World
from decentral.registry.typed import typed
from decentral.runtime.process_group import stay_on_this_machine, store_of_group
from decentral.script.agreement import Proposal, agree
from decentral.script.components import JOINED, chosen, has_setting, in_a_script
from decentral.script.handle import end_in_a_sentence, hinted, leave_at_the_end, refuse_a_fork
from decentral.script.peers import Peers, content
from decentral.topology.communication import Communication
from decentral.topology.requirements import check as check_needs
from decentral.topology.rounds import Need, Rounds
from decentral.topology.topology import Topology
from decentral.topology.trees import Chain

_USUAL_PATIENCE_S = 120.0


@typed("needs", "device")
@hinted()
def join(
    topology: object = "exponential",
    *,
    workers_per_machine: int = 1,
    every: int = 1,
    global_every: int | None = None,
    needs: Iterable[str | Need] = (),
    check: bool | None = None,
    device: str = "auto",
    timeout_s: float | None = None,
    **settings: Any,
) -> Peers:
    """Join the group as one worker, with mixing matrices W for every round. All ranks call this at once.

    Under torchrun the ranks are its processes, and torch.distributed is initialized (gloo for CPUs, and nccl for GPUs)
    unless it already is. Without torchrun this is a group of one.

    topology              the name of a topology, with optional `settings` (`decentral-run --help topology=ring`); a
                          function of `num_workers`, with `settings`; a `decentral.topology.topology.Topology`; a graph
                          of networkx, or of bools or integers [n, n], whose weights follow `weights=`; weights W [n, n]
                          of floats; or a list of these, one for each round of a period. W[i, j] is the weight of rank
                          j's values at rank i. Entries are at least 0; rows sum to 1 (pull), or columns do (push).
    workers_per_machine   L > 1: ranks i L to i L + L - 1 are on machine i, and the topology connects machines:
                          x_i <- sum_J W_IJ (mean of machine J)
    every                 local steps: communicate in every `every`-th round only, the last of each group (every=4: in
                          rounds 3, 7, 11, ...); in the others W = I
    global_every          in every `global_every`-th communication, the mean of all ranks instead of the topology
    needs                 requirements of your algorithm on W, by name, checked now: doubly_stochastic, row_stochastic,
                          column_stochastic, connected, undirected, static, symmetric, tree, d2_spectrum
    check                 whether operations first compare the calls of all ranks, so that a mistake is an error on
                          every rank instead of a hang: True, False, or None, which checks calls that name ranks. Costs
                          a small all-gather; each call may override it.
    device                cpu, cuda, or auto: cuda if every process of this host can have a GPU
    timeout_s             how long a rank waits for another (None: the timeout of `init_process_group`, if the script
                          called it; else 120 s)

    Raises:
        ConfigError: on every rank, for arguments that are invalid on one of them or differ between ranks.
    """
    check_launcher()
    plan, problem = None, ""
    try:
        plan = _plan(topology, settings, workers_per_machine, every, global_every, needs)
        cuda, patience_s = _wants_cuda(device), _patience(timeout_s)
    except ConfigError as error:  # must reach the other ranks
        problem, cuda, patience_s = in_a_script(str(error)), _wants_cuda("auto"), _USUAL_PATIENCE_S
    end_in_a_sentence()
    fresh = not dist.is_initialized()
    _initialize(cuda, patience_s)
    end_in_a_sentence()  # torch has set its own hook
    try:
        return _peers(plan, problem, check, patience_s)
    except BaseException:
        if fresh:
            dist.destroy_process_group()
        raise


def _peers(plan: _Plan | None, problem: str, check: bool | None, patience_s: float) -> Peers:
    """Return the group if all ranks agree."""
    on_cpu = "cpu:gloo" in dist.get_backend_config()
    device = torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())
    entered, known = dist.group.WORLD in _entered, _entered.get(dist.group.WORLD)
    world = World(dist.get_rank(), dist.get_world_size(), device, distributed=True, calls=known)
    agree(world, Proposal("join", f"{content(*plan)}, check={check}" if plan else "", (), (), problem=problem))
    assert plan is not None
    if world.size > 1 and not entered:
        presence.enter(world)
        leave_at_the_end(world.rank)
        _entered[dist.group.WORLD] = Calls(world.size) if on_cpu and possible() else None
        world = replace(world, calls=_entered[dist.group.WORLD])
    return Peers(
        world,
        plan.topology,
        plan.schedule,
        communication=plan.communication,
        check=check,
        timeout_s=patience_s,
        leaves=dist.group.WORLD in _opened,
    )


_entered: WeakKeyDictionary[object, Calls | None] = WeakKeyDictionary()
"""The process groups whose ranks check for the presence of others, with their calls if all ranks are on one host."""


class _Plan(NamedTuple):
    topology: Topology
    communication: Communication
    schedule: Rounds


def _plan(
    topology: object,
    settings: dict[str, Any],
    workers_per_machine: int,
    every: int,
    global_every: int | None,
    needs: Iterable[str | Need],
) -> _Plan:
    if workers_per_machine != 1 and has_setting(topology, "workers_per_machine"):
        settings = {**settings, "workers_per_machine": workers_per_machine}  # inner_outer_ring: the graph has machines
        workers_per_machine = 1
    communication = Communication(
        every=convert(int, every, "every"),
        global_every=convert(int | None, global_every, "global_every"),
        workers_per_machine=convert(int, workers_per_machine, "workers_per_machine"),
    )
    found, n = chosen("topology", topology, settings, JOINED), _size()
    implied = found.implied_num_workers()
    members = n // communication.workers_per_machine
    if implied is not None and implied != members:
        raise ConfigError(
            f"topology={found.name} needs {implied} workers, but there are {members} "
            f"{'ranks' if members == n else 'machines'}: start torchrun with another --nproc-per-node, or use another "
            "topology."
        )
    if n == 1:
        found = Chain()  # a single rank has no neighbors, whatever the topology
    schedule = communication.schedule(found, n)
    asked = {need.name if isinstance(need, Need) else str(need) for need in needs}
    for name in sorted(asked - Need.__members__.keys()):
        raise ConfigError(f"needs names '{name}', which does not exist.{suggest(name, Need.__members__)}")
    try:
        check_needs(schedule, {Need[name] for name in asked}, "peers", found.name)
    except ConfigError as error:
        raise ConfigError(str(error).replace("algo=peers", "your algorithm", 1)) from None
    return _Plan(found, communication, schedule)


def _patience(timeout_s: float | None) -> float:
    """Return the timeout in seconds: as given, or that of the script's own `init_process_group`."""
    if timeout_s is not None:
        number: float = convert(float, timeout_s, "timeout_s")
        if not 0 < number <= 1e6:
            raise ConfigError(f"timeout_s={number:g} is out of range; use a number of seconds > 0 and <= 1e6.")
        return number
    if not dist.is_initialized():
        return _USUAL_PATIENCE_S
    kinds = (torch.device(kind) for kind in ("cpu", "cuda") if f"{kind}:" in dist.get_backend_config())
    backends = (dist.group.WORLD._get_backend(kind) for kind in kinds)  # type: ignore[union-attr]
    waits = (getattr(getattr(backend, "options", None), "_timeout", None) for backend in backends)
    return min((timeout.total_seconds() for timeout in waits if timeout), default=_USUAL_PATIENCE_S)


def _wants_cuda(device: str) -> bool:
    here = place().local_size if under_torchrun() else 1
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device='{device}' does not exist.{suggest(str(device), ('auto', 'cpu', 'cuda'))}")
    if device == "cuda" and gpus < here:
        raise ConfigError(
            f"device=cuda needs a GPU for each of the {here} processes of this host, which has {gpus}: use "
            "device=auto, or start fewer processes."
        )
    return device != "cpu" and gpus >= here


def _size() -> int:
    """Return the number of ranks, present or future."""
    if dist.is_initialized():
        return dist.get_world_size()
    return place().size if under_torchrun() else 1


_opened: WeakKeyDictionary[object, int] = WeakKeyDictionary()
"""The process groups that `join` initialized, each with the ID of the process with its connections."""


def _initialize(cuda: bool, timeout_s: float) -> None:
    """Initialize torch.distributed unless it already is."""
    if dist.is_initialized():
        return refuse_a_fork(_opened.get(dist.group.WORLD, os.getpid()), "decentral.join")
    import torch.distributed.nn.functional  # imported later, its default arguments would keep the group alive

    timeout = timedelta(seconds=timeout_s)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    rank, size, local, here, _ = place() if under_torchrun() else Among(0, 1, 0, 1, 0)
    if cuda:
        torch.cuda.set_device(local)
    if here == size:
        stay_on_this_machine()
    store = store_of_group(rank, size, timeout_s) if under_torchrun() else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    _opened[dist.group.WORLD] = os.getpid()
    atexit.register(_end)
    return None


def _end() -> None:
    """End gloo's threads before the interpreter, which they would otherwise abort. A fork has none."""
    if dist.is_initialized() and _opened.get(dist.group.WORLD) == os.getpid():
        dist.destroy_process_group()
