"""From the arguments of a verb to an operation under way: what is asked, whether all ranks mean it, what is posted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from decentral.errors import ConfigError
from decentral.peers import gathering
from decentral.peers.agreement import Proposal, meet, meet_once
from decentral.peers.bundle import Bundle, Values, as_bytes
from decentral.peers.handle import Handle, Work
from decentral.peers.neighbours import Star, begin_between_machines, begin_sum, machine_of
from decentral.peers.weights import Weights, read
from decentral.world import World


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


def rank_of(key: str, given: int, size: int) -> int:
    """A rank; ConfigError, naming the argument, if it is none."""
    if not hasattr(given, "__index__") or not 0 <= int(given) < size:
        raise ConfigError(f"{key}={given!r} is no rank: ranks are numbered 0 to {size - 1}.")
    return int(given)


def begin_weighted(
    world: World,
    verb: str,
    x: Values,
    weights: Callable[[], Weights],
    checked: bool,
    inplace: bool,
    workers_per_machine: int = 1,
    factor: float = 1.0,
    integers: bool = False,
) -> Handle:
    """The weighted sum of `neighbours`, between ranks, or between machines whose sums are first taken `factor` times.

    `weights` reads what the caller gave, by rank; the sides that it left out are found out if the call is `checked`.
    `integers`: whether x may be made of them.
    """

    def prepare() -> tuple[Bundle, Weights]:
        return bundle_of(x, verb, weighted=not integers), weights()

    def propose(prepared: tuple[Bundle, Weights]) -> Proposal:
        bundle, given = prepared
        content = bundle.content + (f", {workers_per_machine} ranks per machine" if workers_per_machine > 1 else "")
        return proposal(verb, content, given)

    (bundle, given), agreement = meet(world, checked, prepare, propose)
    star = Star(given.own, given.sources or {}, given.destinations or {})
    if agreement is not None:
        sources = {j: star.sources.get(j, 1.0) for j in agreement.sources}
        star = Star(given.own, sources, {j: star.destinations.get(j, 1.0) for j in agreement.destinations})
    rows = bundle.rows()
    if workers_per_machine == 1:
        works, finish = begin_sum(rows, star)
    else:
        works, finish = begin_between_machines(rows, machine_of(world.rank, workers_per_machine), star, factor)
    return Handle(verb, works, lambda: bundle.restore(rows, finish(inplace), inplace))


def begin_neighbor_allgather(
    world: World, x: Tensor, sources: Sequence[int] | None, destinations: Sequence[int] | None, checked: bool
) -> Handle:
    """The x of the sources in the order in which they are named, ascending where they are found out."""
    verb = "neighbor_allgather"

    def prepare() -> tuple[Tensor, Weights]:
        bundle_of(ready := gathering.checked(x, verb), verb, weighted=False)
        return ready, read(0.0, sources, destinations, world.rank, world.size, key="ranks")

    def propose(prepared: tuple[Tensor, Weights]) -> Proposal:
        ready, given = prepared
        return proposal(verb, content_but_length(ready), given, len(ready))

    (ready, _), agreement = meet(world, checked, prepare, propose)
    if agreement is None:
        assert sources is not None and destinations is not None
        lengths = gathering.lengths_of(ready, sources, destinations)
        return gathering.begin_neighbours(ready, sources, destinations, lengths)
    order = agreement.sources if sources is None else [int(j) for j in sources]
    lengths = [agreement.lengths[j] for j in order]
    return gathering.begin_neighbours(ready, order, agreement.destinations, lengths)


def begin_total(world: World, x: Values, op: str, checked: bool, inplace: bool, seen: set[str]) -> Handle:
    """The sum or mean over all ranks. What is not in `seen` is checked, and is there afterwards."""

    def prepare() -> Bundle:
        check_op(op)
        return bundle_of(x, "allreduce", weighted=op == "mean")

    def propose(bundle: Bundle) -> Proposal:
        return Proposal("allreduce", f"{op} of {bundle.content}", (), ())

    bundle, _ = meet_once(world, checked, prepare, propose, seen)
    rows = bundle.rows()
    totals = [row.values if row.owned or inplace else row.values.clone() for row in rows]
    works = [dist.all_reduce(total, async_op=True) for total in totals if total.numel()]

    def finish() -> Tensor | list[Tensor]:
        if op == "mean":
            for total in totals:
                total.div_(world.size)
        return bundle.restore(rows, totals, inplace)

    return Handle("allreduce", _works(works), finish)


def begin_broadcast(world: World, x: Values, root: int, checked: bool, inplace: bool, seen: set[str]) -> Handle:
    """The values of rank `root`. What is not in `seen` is checked, and is there afterwards."""

    def prepare() -> Bundle:
        rank_of("root", root, world.size)
        return bundle_of(x, "broadcast", weighted=False)

    def propose(bundle: Bundle) -> Proposal:
        return Proposal("broadcast", f"{bundle.content} from rank {root}", (), ())

    bundle, _ = meet_once(world, checked, prepare, propose, seen)
    rows = bundle.rows()
    values = [row.values if row.owned or inplace else row.values.clone() for row in rows]
    works = [dist.broadcast(as_bytes(value), src=root, async_op=True) for value in values if value.numel()]
    return Handle("broadcast", _works(works), lambda: bundle.restore(rows, values, inplace))


def content_but_length(x: Tensor) -> str:
    """What has to be the same on all ranks whose tensors are joined along dimension 0."""
    return Bundle([x[:0]]).content.replace("[0", "[any", 1)


def proposal(verb: str, content: str, given: Weights, length: int = 0) -> Proposal:
    """To exchange messages with those whom the weights name."""
    sources, destinations = (None if side is None else list(side) for side in (given.sources, given.destinations))
    return Proposal(verb, content, sources, destinations, length)


def _works(works: Sequence[Work | None]) -> list[Work]:
    return [work for work in works if work is not None]
