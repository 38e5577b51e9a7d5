"""`decentral.wrap`: make your own training script decentralized in one line."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import LBFGS, Optimizer

from decentral.errors import ConfigError, suggest
from decentral.models.layers.foreign import shared_memory
from decentral.network.settings import Carrier
from decentral.registry.typed import typed
from decentral.script.agreement import Proposal, agree, heard_by_all
from decentral.script.components import algorithm_from, check_setup, compression_from, in_a_script
from decentral.script.handle import hinted
from decentral.script.joining import join
from decentral.script.optimizer import KEY, DecentralizedOptimizer
from decentral.script.parameters import Guard, align, also_communicated, rows_of, start
from decentral.script.peers import Peers, content, open_network
from decentral.script.step import MODES, Method, Step

_MB = 1 << 20
_BUCKETS_IN_SHARED_MEMORY = 64
_BUCKET_MB = 8.0
_USUAL = "one_peer_exponential"


@typed("model", "optimizer", "peers")
@hinted()
def wrap(
    model: nn.Module,
    optimizer: Optimizer,
    topology: object = _USUAL,
    *,
    mode: str | None = None,
    algo: object = None,
    algo_settings: dict[str, Any] | None = None,
    compress: object = None,
    compress_settings: dict[str, Any] | None = None,
    overlap: bool | None = None,
    bucket_mb: float | None = None,
    broadcast_from: int | Literal["auto"] | None = "auto",
    peers: Peers | None = None,
    **settings: Any,
) -> DecentralizedOptimizer:
    """Make a model's training decentralized: the steps of the returned optimizer also average with other ranks.

    All ranks call this at once, with the model on its device; the parameters become views of flat memory. See
    `decentral.DecentralizedOptimizer` for the formula of a step.

    topology         as in `decentral.join`, which this calls, with optional `settings`, such as every=4
    mode             a name for an algorithm with these settings: atc (dpsgd, the default), awc (dpsgd with mode=awc),
                     push_sum (sgp, for directed graphs) or allreduce (the baseline)
    algo             instead of a mode, any algorithm of `decentral-run`, by name (relaysgd, gradient_tracking, ...), or
                     your own class or an object of it: the same steps, with `optimizer` as the local rule u = Opt(g)
    algo_settings    settings of a name or class, as in algo_settings={"fill": "previous"}
    compress         with algo=: the compressor of messages (topk, int8, powersgd, ...), by name, or a class or object
    compress_settings  settings of a name or class, such as {"keep": 0.01}; also "seed", and "steps_per_epoch" for
                     "warmup_epochs"
    overlap          whether messages overlap the forward and backward passes. None: in awc. In atc, this updates
                     parameters during the backward pass: gradients cannot be clipped first, and
                     `with optimizer.accumulate():` must surround all but the last backward of a step
    bucket_mb        size of the buckets of an overlapped atc step, in megabytes: 8 by default
    broadcast_from   the rank whose parameters and buffers all ranks start with; None: each keeps its own. "auto" is
                     rank 0, unless all ranks have loaded their own checkpoints (optimizer states that differ, or that
                     all have loaded): then each keeps its own. It warns if weights differ
    peers            the group, from `decentral.join`, instead of a topology

    Raises ConfigError on every rank for an invalid setup, such as a topology that the mode or algorithm cannot use.
    """
    joined = peers or (topology if isinstance(topology, Peers) else None)
    group = joined or join(topology, **settings)
    with heard_by_all(group.world):
        if joined is not None:
            _check_nothing_given(topology, settings, joined)
        _check_arguments(model, optimizer, broadcast_from, group)
        method = _method(mode, algo, algo_settings, compress, compress_settings, overlap, bucket_mb, group)
        if not method.synchronous and all(callable(getattr(optimizer, key, None)) for key in ("train", "eval")):
            raise ConfigError(
                f"{type(optimizer).__name__} keeps a second model in its state, which would not be averaged: use "
                "mode='allreduce', or another optimizer."
            )
        trained = {parameter for each in optimizer.param_groups for parameter in each["params"]}
        parameters = [p for p in model.parameters() if p in trained and p.requires_grad]
        dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
        if len(dtypes) > 1 and not method.mode:
            raise ConfigError(
                f"algo= needs parameters of one dtype, but the model has {' and '.join(dtypes)}: convert it with "
                "model.to(dtype), or use mode=, which supports several."
            )
        told = f"{_described(model, optimizer, parameters)}, {method}, {broadcast_from=}"
    agree(group.world, Proposal("wrap", told, (), ()))
    replaced: dict[Tensor, Tensor] | None = None
    if broadcast_from is not None:
        with torch.no_grad():
            replaced = start(model, optimizer, group.world, broadcast_from, KEY in optimizer.state, method.synchronous)
    return _laid_out(model, optimizer, parameters, method, group, replaced)


def _laid_out(
    model: nn.Module,
    optimizer: Optimizer,
    parameters: list[nn.Parameter],
    method: Method,
    group: Peers,
    replaced: dict[Tensor, Tensor] | None,
) -> DecentralizedOptimizer:
    """Flatten the parameters and create the optimizer on them, continuing from a previously loaded state."""
    rows = rows_of(parameters, method.bucket_bytes if method.updates_early else 0)
    carrier = Carrier.auto if len(rows) <= _BUCKETS_IN_SHARED_MEMORY else Carrier.torch  # it keeps a buffer per row
    opened = partial(open_network, group, group.schedule, carrier=carrier)
    guard = Guard(model, optimizer, parameters, group.world, opened(rows[0].row.device), replaced)
    told = content(group.topology, group.communication, group.schedule)
    step = Step(method, opened, rows, optimizer, model, guard, told)
    align(optimizer)
    if carried := optimizer.state.pop(KEY, None):  # type: ignore[call-overload]
        try:
            with heard_by_all(group.world):
                step.load(carried)
            agree(group.world, Proposal("wrap", "", (), ()))
        except ConfigError as error:
            step.close()
            raise ConfigError(f"{error}; optimizer.state.pop('{KEY}') before wrap starts over.") from None
    return DecentralizedOptimizer(group, model, step)


def _check_nothing_given(topology: object, settings: dict[str, Any], joined: Peers) -> None:
    """Refuse a topology or its settings together with an existing group."""
    given = [f"{key}={value!r}" for key, value in settings.items()]
    given += [] if topology is _USUAL or isinstance(topology, Peers) else ["topology"]
    if given:
        raise ConfigError(
            f"{given[0]} conflicts with peers=, whose topology and settings come from decentral.join: give either of "
            "them."
        )


def _method(
    mode: str | None,
    algo: object,
    algo_settings: dict[str, Any] | None,
    compress: object,
    compress_settings: dict[str, Any] | None,
    overlap: bool | None,
    bucket_mb: float | None,
    peers: Peers,
) -> Method:
    """Return the method. Raise ConfigError for arguments that conflict with each other or with the topology."""
    if algo is not None and mode is not None:
        raise ConfigError(
            f"mode='{mode}' and algo= conflict: give one of them. (An algorithm's own mode is "
            f"algo_settings={{'mode': 'awc'}}.)"
        )
    if algo is None:
        mode = mode or "atc"
        if mode not in MODES:
            raise ConfigError(f"mode='{mode}' does not exist.{suggest(str(mode), MODES)}")
        if compress is not None or compress_settings:
            raise ConfigError(
                "compress= needs algo=, such as algo='allreduce' or algo='choco': a mode sends uncompressed rows."
            )
        if algo_settings:
            raise ConfigError("algo_settings need an algorithm: also give algo=.")
    if bucket_mb is not None and not bucket_mb > 0:
        raise ConfigError(f"bucket_mb={bucket_mb:g} is out of range; use a number of megabytes > 0.")
    asked = f"mode='{mode}'" if mode else "algo="
    if overlap and mode not in ("atc", "awc"):
        raise ConfigError(f"overlap=True needs mode='atc' or 'awc', not {asked}: leave it out.")
    if bucket_mb is not None and algo is not None:
        raise ConfigError(f"bucket_mb={bucket_mb:g} needs mode=, not algo=, which sends whole rows: leave it out.")
    try:
        algorithm = MODES[mode] if mode else algorithm_from(algo, algo_settings)
        compression = compression_from(compress or algorithm.usual.get("compress"), compress_settings)
        compressor = compression.compressor
        check_setup(algorithm, compressor, peers.schedule, peers.communication, peers.topology)
        if compressor.chooses or compressor.adapts:
            raise ConfigError(
                f"compress={compressor.name!r} with these settings needs the costs of links, which a script does not "
                "know: use decentral-run with a cluster, or another compressor, such as 'topk'."
            )
    except ConfigError as error:
        told = str(error).replace(f"algo={algorithm.name}", asked, 1) if mode else str(error)
        raise ConfigError(in_a_script(told, algo=mode is None)) from None
    overlap = mode == "awc" if overlap is None else overlap
    return Method(algorithm, compression, mode, overlap, round((bucket_mb or _BUCKET_MB) * _MB))


def _check_arguments(model: nn.Module, optimizer: Optimizer, broadcast_from: int | str | None, peers: Peers) -> None:
    """Raise ConfigError for invalid arguments on this rank."""
    if isinstance(optimizer, DecentralizedOptimizer):
        raise ConfigError("the optimizer is already decentralized: wrap the torch optimizer once.")
    if isinstance(optimizer, LBFGS):
        raise ConfigError(
            "LBFGS computes several gradients per step, which is not supported: use an optimizer with one, such as "
            "torch.optim.SGD or AdamW."
        )
    if type(optimizer).__module__.startswith("torch.distributed"):
        raise ConfigError(
            f"{type(optimizer).__name__} communicates by itself: wrap a plain optimizer, such as torch.optim.AdamW."
        )
    if problem := also_communicated(list(model.parameters())):
        raise ConfigError(problem)
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(each) or each.is_meta:
            raise ConfigError(f"{name} has no values: initialize it before wrap, by a forward pass or to_empty.")
        expanded = each.layout is torch.strided and any(
            size > 1 and stride == 0 for size, stride in zip(each.shape, each.stride(), strict=True)
        )
        if each.layout is not torch.strided or each.is_quantized or expanded:
            raise ConfigError(f"{name} is sparse, quantized or expanded, which cannot be sent: store it dense.")
    if reason := shared_memory(model):
        raise ConfigError(f"the model cannot be sent, because {reason}.")
    own = set(model.parameters())
    strangers = [p for group in optimizer.param_groups for p in group["params"] if p not in own]
    if strangers:
        raise ConfigError(
            f"the optimizer has {len(strangers)} parameters that are not in the model: build it from "
            "model.parameters()."
        )
    if broadcast_from not in (None, "auto", *range(peers.size)):
        raise ConfigError(f"broadcast_from={broadcast_from} is not a rank: use 0 to {peers.size - 1}, None or 'auto'.")


def _described(model: nn.Module, optimizer: Optimizer, parameters: list[nn.Parameter]) -> str:
    """Return, as text, what must agree on all ranks: trained parameters by name, and the rest of the start state."""
    trained = set(parameters)
    moving = [(name, p) for name, p in model.named_parameters() if p in trained]
    others = [(name, p) for name, p in model.named_parameters() if p not in trained]
    told = [
        ", ".join(f"{name} {list(each.shape)} {each.dtype}" for name, each in some) or "none"
        for some in (moving, others, model.named_buffers())
    ]
    resumed = " and an optimizer that was decentralized" if KEY in optimizer.state else ""
    return f"a model that trains {told[0]}, has frozen {told[1]}, with the buffers {told[2]}{resumed}"
