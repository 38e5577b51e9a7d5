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
from decentral.network.settings import NetworkSettings
from decentral.peers.agreement import Proposal, agree
from decentral.peers.joining import join
from decentral.peers.optimizer import DecentralizedOptimizer, Mode
from decentral.peers.parameters import broadcast, tensors_of
from decentral.peers.peers import Peers
from decentral.topology.requirements import Need
from decentral.topology.requirements import check as check_needs

_MB = 1 << 20
_NEEDS = {
    Mode.atc: {Need.doubly_stochastic, Need.connected},
    Mode.awc: {Need.doubly_stochastic, Need.connected},
    Mode.push_sum: {Need.column_stochastic, Need.connected},
    Mode.allreduce: set[Need](),
}


def wrap(
    model: nn.Module,
    optimizer: Optimizer,
    topology: object = "one_peer_exponential",
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
    views from then on. What a step computes is written at `DecentralizedOptimizer`.

    topology         as in `decentral.join`, which this calls; its `settings` may follow, such as every=4,
                     global_every=20, workers_per_machine=8
    mode             atc, awc, push_sum (for directed graphs) or allreduce (the baseline)
    overlap          whether rows travel during the forward and backward passes. None: in awc, where that is always
                     right. In atc, parameters are then updated during the backward pass: gradients cannot be clipped
                     first, and `with optimizer.accumulate():` has to stand around all but the last backward of a step
    bucket_mb        how much travels together
    broadcast_from   the rank whose parameters and buffers all start with; None if they are the same already
    peers            the group, from `decentral.join`, instead of a topology

    Raises:
        ConfigError: for what makes no sense, on every rank: an unknown mode, a topology that the mode cannot use,
            parameters that the model does not have, or models that differ between ranks.
    """
    given = settings or topology != "one_peer_exponential"
    group = join(topology, **settings) if peers is None else peers
    problem = "topology and its settings belong to decentral.join: give wrap either those or peers=."
    if peers is None or not given:
        problem = _problem(model, optimizer, mode, overlap, bucket_mb, group)
    shapes = ", ".join(f"{name} {list(p.shape)} {p.dtype}" for name, p in model.named_parameters() if p.requires_grad)
    agree(group.world, Proposal("wrap", f"a model with {shapes}, mode={mode}", (), (), problem=problem))
    chosen = Mode[mode]
    if broadcast_from is not None:
        broadcast([tensor.data for tensor in tensors_of(model)], broadcast_from)
    return DecentralizedOptimizer(
        _network(model, group),
        model,
        optimizer,
        chosen,
        overlap=chosen is Mode.awc if overlap is None else overlap,
        bucket_bytes=round(bucket_mb * _MB),
    )


def _problem(
    model: nn.Module, optimizer: Optimizer, mode: str, overlap: bool | None, bucket_mb: float, peers: Peers
) -> str:
    """What is wrong on this rank, in a sentence."""
    if mode not in Mode.__members__:
        return f"mode='{mode}' does not exist.{suggest(str(mode), Mode.__members__)}"
    if isinstance(optimizer, DecentralizedOptimizer):
        return "the optimizer is decentralized already: wrap the torch optimizer, once."
    own = set(model.parameters())
    strangers = [p for group in optimizer.param_groups for p in group["params"] if p not in own]
    if strangers:
        return (
            f"the optimizer has {len(strangers)} parameters that the model does not have: build it from "
            "model.parameters()."
        )
    if not bucket_mb > 0:
        return f"bucket_mb={bucket_mb:g} has to be a number of megabytes above 0."
    if overlap and Mode[mode] not in (Mode.atc, Mode.awc):
        return f"overlap=True is for mode='atc' and 'awc', not for '{mode}': leave it out."
    try:
        check_needs(peers.schedule, _NEEDS[Mode[mode]], "wrap", peers.topology.name)
    except ConfigError as error:
        return str(error).replace("algo=wrap", f"mode='{mode}'", 1)
    return ""


def _network(model: nn.Module, peers: Peers) -> Network:
    """One that mixes where the model's parameters are."""
    from decentral.network.processes import join as join_network

    certain = Losses(0.0, 0)
    if peers.size == 1:
        return LocalNetwork(peers.schedule, certain)
    device = next(model.parameters()).device
    settings = NetworkSettings(timeout_s=peers.timeout_s)
    return join_network(peers.schedule, certain, device, dist.get_rank(), peers.size, settings)
