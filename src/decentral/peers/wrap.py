"""`decentral.wrap`: a training script of your own, made decentralized in a line."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from decentral.errors import ConfigError, suggest
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.rounds import Losses
from decentral.network.settings import Carrier, NetworkSettings
from decentral.peers.agreement import Proposal, agree
from decentral.peers.flat import FlatParameters, travels
from decentral.peers.joining import join
from decentral.peers.optimizer import DecentralizedOptimizer, Mode
from decentral.peers.parameters import broadcast, tensors_of
from decentral.peers.peers import Peers
from decentral.peers.wording import in_a_script
from decentral.topology.requirements import Need
from decentral.topology.requirements import check as check_needs

_MB = 1 << 20
_BUCKETS_IN_SHARED_MEMORY = 64
_USUAL = "one_peer_exponential"
_NEEDS = {
    Mode.atc: {Need.doubly_stochastic, Need.connected},
    Mode.awc: {Need.doubly_stochastic, Need.connected},
    Mode.push_sum: {Need.column_stochastic, Need.connected},
    Mode.allreduce: set[Need](),
}


def wrap(
    model: nn.Module,
    optimizer: Optimizer,
    topology: object = _USUAL,
    *,
    mode: str = "atc",
    overlap: bool | None = None,
    bucket_mb: float = 8.0,
    broadcast_from: int | None = 0,
    peers: Peers | None = None,
    **settings: Any,
) -> DecentralizedOptimizer:
    """Make a model's training decentralized: the steps of the returned optimizer also average with other ranks.

    All ranks call this at once, with the model on its device; the parameters move into flat memory, of which they are
    views from then on. What a step computes is written at `decentral.DecentralizedOptimizer`.

    topology         as in `decentral.join`, which this calls; its `settings` may follow, such as every=4,
                     global_every=20, workers_per_machine=8
    mode             atc, awc, push_sum (for directed graphs) or allreduce (the baseline)
    overlap          whether rows travel during the forward and backward passes. None: in awc, where that is always
                     right. In atc, parameters are then updated during the backward pass: gradients cannot be clipped
                     first, and `with optimizer.accumulate():` has to stand around all but the last backward of a step
    bucket_mb        how much travels together
    broadcast_from   the rank whose parameters and buffers all start with; None if they are the same already
    peers            the group, from `decentral.join`, instead of a topology; it is `peers` of what this returns

    Raises:
        ConfigError: for what makes no sense, on every rank: an unknown mode, a topology that the mode cannot use,
            parameters that the model does not have, or models that differ between ranks.
    """
    given = peers or (topology if isinstance(topology, Peers) else None)
    group = given or join(topology, **settings)
    proposal = Proposal("wrap", "", (), ())
    try:
        if given is not None and (settings or not (topology is _USUAL or topology is given)):
            raise ConfigError("topology and its settings belong to decentral.join: give wrap either those or peers=.")
        _check(model, optimizer, mode, overlap, bucket_mb, broadcast_from, group)
        content = f"{_described(model, optimizer)}, {mode=}, {overlap=}, {bucket_mb=}, {broadcast_from=}"
        proposal = proposal._replace(content=content)
    except (ConfigError, TypeError, ValueError, AttributeError) as error:  # the others have to hear of it
        proposal = proposal._replace(problem=str(error))
    agree(group.world, proposal)
    chosen = Mode[mode]
    if broadcast_from is not None:
        broadcast([tensor.data for tensor in tensors_of(model)], broadcast_from)
    trained = {parameter for each in optimizer.param_groups for parameter in each["params"]}
    flat = FlatParameters([p for p in model.parameters() if travels(p, trained)], round(bucket_mb * _MB))
    overlaps = chosen is Mode.awc if overlap is None else overlap
    return DecentralizedOptimizer(group, _network(flat, group), model, flat, optimizer, chosen, overlap=overlaps)


def _check(
    model: nn.Module,
    optimizer: Optimizer,
    mode: str,
    overlap: bool | None,
    bucket_mb: float,
    broadcast_from: int | None,
    peers: Peers,
) -> None:
    """Raise ConfigError for what is wrong on this rank."""
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        found = f"{type(model).__name__} and {type(optimizer).__name__}"
        raise ConfigError(f"wrap takes a torch.nn.Module and a torch.optim.Optimizer, not {found}.")
    if mode not in Mode.__members__:
        raise ConfigError(f"mode='{mode}' does not exist.{suggest(str(mode), Mode.__members__)}")
    if isinstance(optimizer, DecentralizedOptimizer):
        raise ConfigError("the optimizer is decentralized already: wrap the torch optimizer, once.")
    own = set(model.parameters())
    strangers = [p for group in optimizer.param_groups for p in group["params"] if p not in own]
    if strangers:
        raise ConfigError(
            f"the optimizer has {len(strangers)} parameters that the model does not have: build it from "
            "model.parameters()."
        )
    if not bucket_mb > 0:
        raise ConfigError(f"bucket_mb={bucket_mb:g} has to be a number of megabytes above 0.")
    if broadcast_from is not None and broadcast_from not in range(peers.size):
        raise ConfigError(f"broadcast_from={broadcast_from} is no rank: use 0 to {peers.size - 1}, or None.")
    if overlap and Mode[mode] not in (Mode.atc, Mode.awc):
        raise ConfigError(f"overlap=True is for mode='atc' and 'awc', not for '{mode}': leave it out.")
    if Mode[mode] is Mode.allreduce and not peers.communication.plain:
        raise ConfigError(
            "mode='allreduce' averages gradients in every step: leave out every, global_every and workers_per_machine."
        )
    try:
        check_needs(peers.schedule, _NEEDS[Mode[mode]], "wrap", peers.topology.name)
    except ConfigError as error:
        raise ConfigError(in_a_script(str(error).replace("algo=wrap", f"mode='{mode}'", 1))) from None


def _described(model: nn.Module, optimizer: Optimizer) -> str:
    """What has to be the same on all ranks: what is trained, by name, and the buffers."""
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    names = [f"{name} {list(p.shape)} {p.dtype}" for name, p in model.named_parameters() if travels(p, trained)]
    buffers = [f"{name} {list(buffer.shape)}" for name, buffer in model.named_buffers()]
    return f"a model that trains {', '.join(names)}, with the buffers {', '.join(buffers) or 'none'}"


def _network(flat: FlatParameters, peers: Peers) -> Network:
    """One that mixes where the parameters are. Shared memory keeps a place for each bucket, of which it has few."""
    from decentral.network.processes import join as join_network

    certain = Losses(0.0, 0)
    if peers.size == 1:
        return LocalNetwork(peers.schedule, certain)
    device = flat.buckets[0].row.device
    carrier = Carrier.auto if len(flat.buckets) <= _BUCKETS_IN_SHARED_MEMORY else Carrier.torch
    settings = NetworkSettings(timeout_s=peers.timeout_s, transport=carrier)
    return join_network(peers.schedule, certain, device, dist.get_rank(), peers.size, settings)
