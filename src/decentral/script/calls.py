"""From the arguments of a verb to an operation under way: what is asked, whether all ranks mean it, what is posted."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network.neighbors import Star, Term, begin_between_machines, begin_inside_machines, begin_sums
from decentral.network.transports.posting import Message, Work, as_bytes, post, wait
from decentral.network.world import World
from decentral.script.agreement import Proposal, meet, meet_once
from decentral.script.bundle import Bundle, Row, Values
from decentral.script.handle import Handle

Named = Mapping[int, float] | Sequence[int]
"""Ranks with weights, or ranks alone, whose weights are 1."""


class Weights(NamedTuple):
    """w_ii, r_ij by source and s_ji by destination; None: nobody is named, whoever names this rank is meant."""

    own: float
    sources: dict[int, float] | None
    destinations: dict[int, float] | None

    def renamed(self, name: Callable[[int], int]) -> Weights:
        """The same weights for `name(j)` instead of j."""
        sides = [side if side is None else {name(j): w for j, w in side.items()} for side in self[1:]]
        return Weights(self.own, *sides)


def read(
    own: float | None,
    sources: Named | None,
    destinations: Named | None,
    rank: int,
    size: int,
    kind: str = "rank",
    key: str = "weights",
) -> Weights:
    """Checked; `kind` is what is named: ranks, or machines, of which there are `size`, and this is number `rank`.

    `key` is what the arguments' names end in.

    Raises:
        ConfigError: no weight of its own, a weight that is no finite number, a number that is nobody's.
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
    """Ascending."""
    if ranks is None:
        return None
    pairs = ranks.items() if isinstance(ranks, Mapping) else [(j, 1.0) for j in ranks]
    weights: dict[int, float] = {}
    for j, weight in pairs:
        if isinstance(j, bool) or not hasattr(j, "__index__") or not 0 <= int(j) < size:
            raise ConfigError(f"{key} names {kind} {j!r}, but {kind}s are numbered 0 to {size - 1}.")
        if int(j) == rank:
            raise ConfigError(f"{key} names {kind} {j}, which is the caller's own: its weight is self_weight.")
        if int(j) in weights:
            raise ConfigError(f"{key} names {kind} {j} twice.")
        weights[int(j)] = _number(f"{key}[{j}]", weight)
    return dict(sorted(weights.items()))


def _number(key: str, weight: float) -> float:
    try:
        number = float(weight)
    except (TypeError, ValueError):
        raise ConfigError(f"{key}={weight!r} is no number.") from None
    if not math.isfinite(number):
        raise ConfigError(f"{key}={number} is not finite.")
    return number


def carried() -> list[str]:
    """Kinds of device whose tensors the process group carries from rank to rank."""
    pairs = [entry.split(":") for entry in dist.get_backend_config().split(",")]
    return [kind for kind, backend in pairs if (kind, backend) in (("cpu", "gloo"), ("cpu", "mpi"), ("cuda", "nccl"))]


def bundle_of(x: Values, verb: str, weighted: bool) -> Bundle:
    """The tensors; ConfigError for what this verb or the process group cannot take."""
    bundle = Bundle(x)
    if weighted:
        bundle.require_numbers(verb)
    kinds = carried()
    for tensor in bundle.tensors:
        if tensor.device.type not in kinds:
            raise ConfigError(
                f"x is on {tensor.device.type}, but the process group ({dist.get_backend_config()}) carries tensors on "
                f"{' and '.join(kinds)} only: move x to peers.device."
            )
    return bundle


def check_machines(workers_per_machine: int, size: int) -> None:
    """Refuse machines that the ranks cannot be dealt to."""
    if workers_per_machine < 1 or size % workers_per_machine:
        raise ConfigError(
            f"workers_per_machine={workers_per_machine} does not divide the {size} ranks: all machines have as many."
        )


def check_op(op: str) -> None:
    """Refuse what is neither a mean nor a sum."""
    if op not in ("mean", "sum"):
        raise ConfigError(f"op='{op}' does not exist: it is mean or sum.")


def rank_of(key: str, named: int, size: int) -> int:
    """A rank; ConfigError, naming the argument, if it is none."""
    if not hasattr(named, "__index__") or not 0 <= int(named) < size:
        raise ConfigError(f"{key}={named!r} is no rank: ranks are numbered 0 to {size - 1}.")
    return int(named)


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

    `weights` reads what the caller gave, by rank; the sides that it left out are found out if the call is `checked`.
    """

    def prepare() -> tuple[Bundle, Weights]:
        return bundle_of(x, verb, weighted=True), weights()

    def propose(prepared: tuple[Bundle, Weights]) -> Proposal:
        bundle, named = prepared
        return proposal(verb, bundle.content + _machines(workers_per_machine), named)

    (bundle, named), agreement = meet(world, checked, prepare, propose)
    star = Star(named.own, named.sources or {}, named.destinations or {})
    if agreement is not None:
        sources = {j: star.sources.get(j, 1.0) for j in agreement.sources}
        star = Star(named.own, sources, {j: star.destinations.get(j, 1.0) for j in agreement.destinations})
    rows, outs = _rows(bundle, inplace)
    values = [row.values for row in rows]
    if workers_per_machine == 1:
        works, finish = begin_sums([Term(row, star, out) for row, out in zip(values, outs, strict=True)])
    else:
        works, finish = begin_between_machines(values, outs, world.rank, star, workers_per_machine)
    return Handle(verb, works, lambda: _restored(bundle, rows, outs, inplace, finish))


def begin_machine_total(world: World, x: Values, op: str, L: int, checked: bool, inplace: bool) -> Handle:
    """The sum or mean over the L ranks of this machine; of sums, x may hold integers."""
    verb = "allreduce"

    def prepare() -> Bundle:
        check_op(op)
        check_machines(L, world.size)
        return bundle_of(x, verb, weighted=op == "mean")

    def propose(bundle: Bundle) -> Proposal:
        return Proposal(verb, f"{op} of {bundle.content}{_machines(L)}", (), ())

    bundle, _ = meet(world, checked, prepare, propose)
    rows, outs = _rows(bundle, inplace)
    works, finish = begin_inside_machines([row.values for row in rows], outs, world.rank, L, op == "mean")
    return Handle(verb, works, lambda: _restored(bundle, rows, outs, inplace, finish))


def _rows(bundle: Bundle, inplace: bool) -> tuple[list[Row], list[Tensor]]:
    """The rows of the tensors, and where their results go."""
    rows = bundle.rows()
    return rows, [row.values if row.owned or inplace else torch.empty_like(row.values) for row in rows]


def _restored(
    bundle: Bundle, rows: Sequence[Row], outs: Sequence[Tensor], inplace: bool, finish: Callable[[], None]
) -> Tensor | list[Tensor]:
    finish()
    return bundle.restore(rows, outs, inplace)


def _machines(workers_per_machine: int) -> str:
    return f", {workers_per_machine} ranks per machine" if workers_per_machine > 1 else ""


def begin_neighbor_allgather(
    world: World, x: Tensor, sources: Sequence[int] | None, destinations: Sequence[int] | None, checked: bool
) -> Handle:
    """The x of the sources in the order in which they are named, ascending where they are found out."""
    verb = "neighbor_allgather"

    def prepare() -> tuple[Tensor, Weights]:
        bundle_of(ready := joinable(x, verb), verb, weighted=False)
        return ready, read(0.0, sources, destinations, world.rank, world.size, key="ranks")

    def propose(prepared: tuple[Tensor, Weights]) -> Proposal:
        ready, named = prepared
        return proposal(verb, content_but_length(ready), named, len(ready))

    (ready, _), agreement = meet(world, checked, prepare, propose)
    if agreement is None:
        assert sources is not None and destinations is not None
        lengths = _lengths_of(ready, sources, destinations)
        return _begin_from(ready, sources, destinations, lengths)
    order = agreement.sources if sources is None else [int(j) for j in sources]
    lengths = [agreement.lengths[j] for j in order]
    return _begin_from(ready, order, agreement.destinations, lengths)


def begin_total(world: World, x: Values, op: str, checked: bool, inplace: bool, seen: dict[Hashable, str]) -> Handle:
    """The sum or mean over all ranks. What is not in `seen` is checked, and is there afterwards."""

    def prepare() -> Bundle:
        check_op(op)
        return bundle_of(x, "allreduce", weighted=op == "mean")

    def propose(bundle: Bundle) -> Proposal:
        return Proposal("allreduce", f"{op} of {bundle.content}", (), ())

    bundle = meet_once(world, checked, prepare, propose, lambda bundle: ("allreduce", op, bundle.key), seen)
    rows = bundle.rows()
    totals = [row.values if row.owned or inplace else row.values.clone() for row in rows]
    works = [dist.all_reduce(total, async_op=True) for total in totals if total.numel()]

    def finish() -> Tensor | list[Tensor]:
        if op == "mean":
            for total in totals:
                total.div_(world.size)
        return bundle.restore(rows, totals, inplace)

    return Handle("allreduce", _works(works), finish)


def begin_broadcast(
    world: World, x: Values, root: int, checked: bool, inplace: bool, seen: dict[Hashable, str]
) -> Handle:
    """The values of rank `root`. What is not in `seen` is checked, and is there afterwards."""

    def prepare() -> Bundle:
        rank_of("root", root, world.size)
        return bundle_of(x, "broadcast", weighted=False)

    def propose(bundle: Bundle) -> Proposal:
        return Proposal("broadcast", f"{bundle.content} from rank {root}", (), ())

    bundle = meet_once(world, checked, prepare, propose, lambda bundle: ("broadcast", root, bundle.key), seen)
    rows = bundle.rows()
    values = [row.values if row.owned or inplace else row.values.clone() for row in rows]
    works = [dist.broadcast(as_bytes(value), src=root, async_op=True) for value in values if value.numel()]
    return Handle("broadcast", _works(works), lambda: bundle.restore(rows, values, inplace))


def content_but_length(x: Tensor) -> str:
    """What has to be the same on all ranks whose tensors are joined along dimension 0."""
    return Bundle([x[:0]]).content.replace("[0", "[any", 1)


def proposal(verb: str, content: str, named: Weights, length: int = 0) -> Proposal:
    """To exchange messages with those whom the weights name."""
    sources, destinations = (None if side is None else list(side) for side in (named.sources, named.destinations))
    return Proposal(verb, content, sources, destinations, length)


def _works(works: Sequence[Work | None]) -> list[Work]:
    return [work for work in works if work is not None]


def joinable(x: Tensor, verb: str) -> Tensor:
    """The tensor as it can be sent; ConfigError for what has no dimension 0."""
    if not isinstance(x, Tensor) or x.dim() == 0:
        raise ConfigError(f"{verb} joins tensors along dimension 0, so x has to be a tensor with one.")
    return x.detach().resolve_conj().resolve_neg().contiguous()


def _begin_from(x: Tensor, sources: Sequence[int], destinations: Sequence[int], lengths: Sequence[int]) -> Handle:
    """The x of the sources, in their order; `lengths` are those of their dimension 0."""
    parts = [x.new_empty(length, *x.shape[1:]) for length in lengths]
    receives = [Message(part.view(-1), j) for part, j in zip(parts, sources, strict=True)]
    works = post([Message(x.view(-1), j) for j in destinations], receives)
    return Handle("neighbor_allgather", works, lambda: torch.cat([x[:0], *parts]))


def _lengths_of(x: Tensor, sources: Sequence[int], destinations: Sequence[int]) -> list[int]:
    """The length of dimension 0 of each source's x, asked of nobody else."""
    own = torch.tensor([len(x)], dtype=torch.int64, device=x.device)
    parts = [torch.empty_like(own) for _ in sources]
    receives = [Message(part, j) for part, j in zip(parts, sources, strict=True)]
    wait(post([Message(own, j) for j in destinations], receives))
    return [int(part) for part in parts]


def begin_allgather(x: Tensor, lengths: Sequence[int]) -> Handle:
    """The x of all ranks; they travel as long as the longest one."""
    padded = x.new_zeros(max(lengths), *x.shape[1:])
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in lengths]
    works = []
    if padded.numel():
        flat = [as_bytes(part.view(-1)) for part in parts]
        works = [dist.all_gather(flat, as_bytes(padded.view(-1)), async_op=True)]

    def finish() -> Tensor:
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    return Handle("allgather", works, finish)
