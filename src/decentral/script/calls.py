"""Conversion of the arguments of an operation to messages in flight: parse, check agreement of all ranks, and post."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from decentral.errors import ConfigError
from decentral.network.neighbors import Star, Term, begin_between_machines, begin_inside_machines, begin_sums
from decentral.network.transports.posting import Message, Work, as_bytes, begin_sum, post, wait
from decentral.network.world import World
from decentral.script.agreement import Proposal, agree, agree_once, heard_by_all
from decentral.script.handle import Handle

Named = Mapping[int, float] | Sequence[int]
"""Ranks with weights, or ranks alone, whose weights are 1."""

Values = Tensor | Sequence[Tensor] | nn.Module
"""The input of operations: a tensor, several tensors, or a module, which stands for its parameters."""


class Bundle:
    """Tensors of any shape and layout as flat rows, one for each dtype and device; a row is sent as one message.

    rows      [P] each, by first appearance; of a contiguous tensor that is alone in its row, the tensor's own memory
    inplace   whether results are written into the tensors
    """

    def __init__(self, x: Values, inplace: bool = False) -> None:
        """Flatten the tensors. Raises ConfigError for other types and for no tensors."""
        self.single, self.inplace = isinstance(x, Tensor), inplace
        if not isinstance(x, Tensor | nn.Module) and not hasattr(x, "__iter__"):
            raise ConfigError(f"x is of type {type(x).__name__}: give a tensor, tensors or a module with parameters.")
        tensors = [x] if isinstance(x, Tensor) else list(x.parameters() if isinstance(x, nn.Module) else x)
        wrong = next((type(item).__name__ for item in tensors if not isinstance(item, Tensor)), "")
        if wrong or not tensors:
            found = f"{wrong} in a {type(x).__name__}" if wrong else f"an empty {type(x).__name__}"
            raise ConfigError(f"x is {found}: give a tensor, tensors or a module with parameters.")
        self.tensors = [tensor.detach() for tensor in tensors]
        groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            groups.setdefault((tensor.dtype, tensor.device), []).append(place)
        self._places = list(groups.values())
        self.rows = [self._row(places) for places in self._places]

    def _row(self, places: list[int]) -> Tensor:
        parts = [self.tensors[place].resolve_conj().resolve_neg().contiguous().view(-1) for place in places]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def content(self) -> str:
        """Return dtypes, shapes and device types as text, which all ranks must agree on."""
        return ", ".join(f"{_dtype(tensor)} {list(tensor.shape)} on {tensor.device.type}" for tensor in self.tensors)

    def writable(self, copies: bool = True) -> list[Tensor]:
        """Return the rows, or copies (or equal memory) of rows that share the memory of x, which must not change."""
        owned = [
            row.data_ptr() != self.tensors[at[0]].data_ptr() for row, at in zip(self.rows, self._places, strict=True)
        ]
        instead = torch.clone if copies else torch.empty_like
        return [row if own or self.inplace else instead(row) for row, own in zip(self.rows, owned, strict=True)]

    def restore(self, results: Sequence[Tensor]) -> Tensor | list[Tensor]:
        """Return the results [P] of the rows in the tensors' shapes: views, or the tensors themselves if in place."""
        restored = list(self.tensors)
        for places, result in zip(self._places, results, strict=True):
            sizes = [self.tensors[place].numel() for place in places]
            for place, part in zip(places, result.split(sizes), strict=True):
                shaped = part.view(self.tensors[place].shape)
                if not self.inplace:
                    restored[place] = shaped
                elif shaped.data_ptr() != restored[place].data_ptr():
                    restored[place].copy_(shaped)
        return restored[0] if self.single else restored


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def carried() -> list[str]:
    """Return the device types that the process group supports."""
    pairs = [entry.split(":") for entry in dist.get_backend_config().split(",")]
    return [kind for kind, backend in pairs if (kind, backend) in (("cpu", "gloo"), ("cpu", "mpi"), ("cuda", "nccl"))]


def bundle_of(x: Values, verb: str, weighted: bool, inplace: bool = False) -> Bundle:
    """Return the tensors as a bundle. Raise ConfigError for types that the operation or group does not support."""
    bundle = Bundle(x, inplace)
    kinds = carried()
    for tensor in bundle.tensors:
        if weighted and not (tensor.is_floating_point() or tensor.is_complex()):
            raise ConfigError(f"{verb} takes weighted means, which {_dtype(tensor)} cannot hold: use x.float().")
        if tensor.device.type not in kinds:
            raise ConfigError(
                f"x is on {tensor.device.type}, but the process group ({dist.get_backend_config()}) carries tensors on "
                f"{' and '.join(kinds)} only: move x to peers.device."
            )
    return bundle


# -- weights -----------------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """w_ii, r_ij by source and s_ji by destination; None: inferred from the ranks that name this one."""

    own: float
    sources: dict[int, float] | None
    destinations: dict[int, float] | None


def read(
    own: float | None,
    sources: Named | None,
    destinations: Named | None,
    rank: int,
    size: int,
    kind: str = "rank",
    key: str = "weights",
) -> Weights:
    """Check the weights and return them. They name `size` ranks or machines (`kind`); this is number `rank`.

    `key` is the suffix of the arguments' names.

    Raises:
        ConfigError: no weight for this rank, a weight that is not finite, or a number out of range.
    """
    if own is None:
        raise ConfigError(
            "src_weights and dst_weights need self_weight, the weight of x itself: with dst_weights alone, "
            "1 - the sum of dst_weights keeps the sum over ranks; with src_weights alone, 1 - the sum of src_weights "
            "keeps agreement."
        )
    end = key if kind == "rank" else f"{kind}_{key}"
    return Weights(
        _number("self_weight", own),
        _named(f"src_{end}", sources, rank, size, kind),
        _named(f"dst_{end}", destinations, rank, size, kind),
    )


def _named(key: str, ranks: Named | None, rank: int, size: int, kind: str) -> dict[int, float] | None:
    """Return the named weights, ranks ascending."""
    if ranks is None:
        return None
    pairs = ranks.items() if isinstance(ranks, Mapping) else [(j, 1.0) for j in ranks]
    weights: dict[int, float] = {}
    for j, weight in pairs:
        if isinstance(j, bool) or not hasattr(j, "__index__") or not 0 <= int(j) < size:
            raise ConfigError(f"{key} names {kind} {j!r}: use 0 to {size - 1}.")
        if int(j) == rank:
            raise ConfigError(f"{key} names {kind} {j}, the caller itself: use self_weight.")
        if int(j) in weights:
            raise ConfigError(f"{key} names {kind} {j} twice.")
        weights[int(j)] = _number(f"{key}[{j}]", weight)
    return dict(sorted(weights.items()))


def _number(key: str, weight: float) -> float:
    try:
        number = float(weight)
    except (TypeError, ValueError):
        raise ConfigError(f"{key}={weight!r} is not a number.") from None
    if not math.isfinite(number):
        raise ConfigError(f"{key}={number} is not finite.")
    return number


def check_machines(workers_per_machine: int, size: int) -> None:
    """Raise ConfigError if the ranks do not divide into such machines."""
    if workers_per_machine < 1 or size % workers_per_machine:
        raise ConfigError(f"workers_per_machine={workers_per_machine} does not divide the {size} ranks: use a divisor.")


def of_machines(workers_per_machine: int) -> str:
    """Return the machines as text, which all ranks must agree on."""
    return f", {workers_per_machine} ranks per machine" if workers_per_machine > 1 else ""


def rank_of(key: str, named: int, size: int) -> int:
    """Return a valid rank; raise ConfigError, naming the argument, otherwise."""
    if not hasattr(named, "__index__") or not 0 <= int(named) < size:
        raise ConfigError(f"{key}={named!r} is not a rank: use 0 to {size - 1}.")
    return int(named)


# -- operations --------------------------------------------------------------------------------------------------------


def begin_weighted(
    world: World,
    verb: str,
    x: Values,
    weights: Callable[[], Weights],
    checked: bool,
    inplace: bool,
    workers_per_machine: int = 1,
) -> Handle:
    """x_i <- w_ii x_i + sum_j r_ij (s_ij x_j) between ranks, or with the means of machines between those.

    `weights` reads the caller's weights by rank; missing sides are inferred if the call is `checked`.
    """
    with heard_by_all(world, checked):
        bundle, named = bundle_of(x, verb, weighted=True, inplace=inplace), weights()
    star = Star(named.own, named.sources or {}, named.destinations or {})
    if checked:
        content = bundle.content + of_machines(workers_per_machine)
        agreement = agree(world, Proposal(verb, content, named.sources, named.destinations))
        sources = {j: star.sources.get(j, 1.0) for j in agreement.sources}
        star = Star(named.own, sources, {j: star.destinations.get(j, 1.0) for j in agreement.destinations})
    outs = bundle.writable(copies=False)
    if workers_per_machine == 1:
        works, finish = begin_sums([Term(row, star, out) for row, out in zip(bundle.rows, outs, strict=True)])
    else:
        works, finish = begin_between_machines(bundle.rows, outs, world.rank, star, workers_per_machine)
    return Handle(verb, works, finish, lambda: bundle.restore(outs))


def begin_total(
    world: World, x: Values, op: str, workers_per_machine: int | None, checked: bool, inplace: bool, seen: set[str]
) -> Handle:
    """Begin the sum or mean over all ranks, or over those of this machine; for sums, x may hold integers.

    Over all ranks, content that is not in `seen` is checked and added to it.
    """
    verb, L = "allreduce", workers_per_machine
    with heard_by_all(world, checked):
        if op not in ("mean", "sum"):
            raise ConfigError(f"op='{op}' does not exist: use mean or sum.")
        if L is not None:
            check_machines(L, world.size)
        bundle = bundle_of(x, verb, weighted=op == "mean", inplace=inplace)
    if L is not None:
        if checked:
            agree(world, Proposal(verb, f"{op} of {bundle.content}{of_machines(L)}", (), ()))
        outs = bundle.writable(copies=False)
        works, finish = begin_inside_machines(bundle.rows, outs, world.rank, L, op == "mean")
        return Handle(verb, works, finish, lambda: bundle.restore(outs))
    agree_once(world, Proposal(verb, f"{op} of {bundle.content}", (), ()), checked, seen)
    totals = bundle.writable()
    if op == "mean":
        works, divide = begin_means(totals, world.size)
        return Handle(verb, works, divide, lambda: bundle.restore(totals))
    reductions = [dist.all_reduce(total, async_op=True) for total in totals if total.numel()]
    return Handle(verb, reductions, lambda: bundle.restore(totals))


def begin_means(rows: Sequence[Tensor], size: int) -> tuple[list[Work], Callable[[], None]]:
    """Begin to average rows over all ranks; return the works, and a function that then writes the means to the rows."""
    underway = [(row, *begin_sum(row, size)) for row in rows if row.numel()]

    def divide() -> None:
        for row, _, total, down in underway:
            row.copy_(total.div_(size * down))

    return [work for _, work, _, _ in underway], divide


def begin_broadcast(world: World, x: Values, root: int, checked: bool, inplace: bool, seen: set[str]) -> Handle:
    """Begin to broadcast the values of rank `root`. Content that is not in `seen` is checked and added to it."""
    with heard_by_all(world, checked):
        rank_of("root", root, world.size)
        bundle = bundle_of(x, "broadcast", weighted=False, inplace=inplace)
    agree_once(world, Proposal("broadcast", f"{bundle.content} from rank {root}", (), ()), checked, seen)
    values = bundle.writable()
    works: list[Any] = [dist.broadcast(as_bytes(value), src=root, async_op=True) for value in values if value.numel()]
    return Handle("broadcast", works, lambda: bundle.restore(values))


def begin_neighbor_allgather(
    world: World, x: Tensor, sources: Sequence[int] | None, destinations: Sequence[int] | None, checked: bool
) -> Handle:
    """Begin to gather the sources' x in the named order; inferred sources are ascending."""
    verb = "neighbor_allgather"
    with heard_by_all(world, checked):
        bundle_of(x := _joinable(x, verb), verb, weighted=False)
        named = read(0.0, sources, destinations, world.rank, world.size, key="ranks")
    if checked:
        agreement = agree(world, Proposal(verb, _content_but_length(x), named.sources, named.destinations, len(x)))
        sources = agreement.sources if sources is None else [int(j) for j in sources]
        destinations, lengths = agreement.destinations, [agreement.lengths[j] for j in sources]
    else:
        assert sources is not None and destinations is not None
        own = torch.tensor([len(x)], device=x.device)
        found = [Message(torch.empty_like(own), j) for j in sources]
        wait(post([Message(own, j) for j in destinations], found))  # exchanged with neighbors only
        lengths = [int(message.values) for message in found]
    parts = [x.new_empty(length, *x.shape[1:]) for length in lengths]
    receives = [Message(part.view(-1), j) for part, j in zip(parts, sources, strict=True)]
    works = post([Message(x.view(-1), j) for j in destinations], receives)
    return Handle(verb, works, lambda: torch.cat([x[:0], *parts]))


def begin_allgather(world: World, x: Tensor) -> Handle:
    """Begin to gather the x of all ranks, padded to the longest one."""
    with heard_by_all(world):
        x = _joinable(x, "allgather")
    lengths = agree(world, Proposal("allgather", _content_but_length(x), (), (), len(x))).lengths
    padded = x.new_zeros(max(lengths), *x.shape[1:])
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in lengths]
    works: list[Any] = []
    if padded.numel():
        flat = [as_bytes(part.view(-1)) for part in parts]
        works = [dist.all_gather(flat, as_bytes(padded.view(-1)), async_op=True)]
    return Handle(
        "allgather", works, lambda: torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
    )


def _joinable(x: Tensor, verb: str) -> Tensor:
    """Return the tensor in sendable form. Raise ConfigError if it has no dimension 0."""
    if not isinstance(x, Tensor) or x.dim() == 0:
        raise ConfigError(f"{verb} concatenates along dimension 0: give x at least one dimension.")
    return x.detach().resolve_conj().resolve_neg().contiguous()


def _content_but_length(x: Tensor) -> str:
    """Return, as text, the properties that must agree for concatenation along dimension 0."""
    return Bundle([x[:0]]).content.replace("[0", "[any", 1)
