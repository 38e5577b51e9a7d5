"""Before messages are sent: do all ranks mean the same? If not, every rank raises the same error instead of waiting."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from decentral.errors import ConfigError
from decentral.network.calls import difference
from decentral.network.world import World

_SHOWN = 4

T = TypeVar("T")


class Proposal(NamedTuple):
    """What one rank is about to do: `content` has to be the same everywhere, `length` need not be.

    `sources` and `destinations` are the ranks that it receives from and sends to; None: whoever names this rank.
    `problem` says why it cannot, in a sentence, so that the others hear of it.
    """

    verb: str
    content: str
    sources: Sequence[int] | None
    destinations: Sequence[int] | None
    length: int = 0
    problem: str = ""


class Agreement(NamedTuple):
    """Whom this rank receives from and sends to, ascending, and the `length` of every rank."""

    sources: list[int]
    destinations: list[int]
    lengths: list[int]


def agree(world: World, proposal: Proposal) -> Agreement:
    """One small all-gather, which all ranks take part in.

    j sends to i if j names i as a destination or i names j as a source. A rank that has named neither side of an edge
    hears of it from the other end (inference of sources from destinations and the reverse).

    Raises:
        ConfigError: on every rank, if a rank has a problem, if contents differ, or if both ends of an edge have spoken
            and do not match.
    """
    world.announce(f"{proposal.verb} of {proposal.content}", kind="what is compared first")
    table = _table(world, proposal)
    n = world.size
    problem, content, lengths, told_sources, told_destinations = table[:, :5].T
    if problem.any():
        told = _texts(world, proposal.problem)
        raise ConfigError(proposal.problem or next(f"rank {j}: {text}" for j, text in enumerate(told) if text))
    if (content != content[0]).any():
        raise ConfigError(difference(dict(enumerate(_texts(world, f"{proposal.verb} of {proposal.content}")))))
    receives = table[:, 5 : 5 + n].astype(bool)  # [i, j]: i names j as a source
    sends = table[:, 5 + n :].astype(bool).T  # [i, j]: j names i as a destination
    both = told_sources[:, None].astype(bool) & told_destinations[None].astype(bool)
    if (both & (receives != sends)).any():
        raise ConfigError(_mismatch(proposal.verb, receives & ~sends & both, sends & ~receives & both))
    edges = receives | sends
    sources, destinations = np.flatnonzero(edges[world.rank]), np.flatnonzero(edges[:, world.rank])
    return Agreement(sources.tolist(), destinations.tolist(), lengths.tolist())


def meet(
    world: World, checked: bool, prepare: Callable[[], T], propose: Callable[[T], Proposal]
) -> tuple[T, Agreement | None]:
    """Prepare a call, and agree about it if it is `checked`: then all ranks raise what `prepare` raises on one."""
    try:
        prepared = prepare()
    except (ConfigError, TypeError, ValueError, AttributeError) as error:
        if checked:
            agree(world, Proposal("", "", (), (), problem=str(error)))
        raise
    return prepared, agree(world, propose(prepared)) if checked else None


def meet_once(
    world: World,
    checked: bool,
    prepare: Callable[[], T],
    propose: Callable[[T], Proposal],
    key: Callable[[T], Hashable],
    seen: dict[Hashable, str],
) -> T:
    """The same for a verb of everybody; what has not been proposed before, by its `key`, is checked anyhow.

    So ranks that begin differently hear of it. What has been is announced, without waiting.
    """
    prepared, agreement = meet(world, checked, prepare, propose)
    if (text := seen.get(key(prepared))) is None:
        proposal = propose(prepared)
        if agreement is None:
            agree(world, proposal)
        text = seen[key(prepared)] = f"{proposal.verb} of {proposal.content}"
    world.announce(text)
    return prepared


def _table(world: World, proposal: Proposal) -> np.ndarray:
    """[n, 5 + 2 n], a line for each rank: problem, content, length, whether it names sources, destinations; the two as
    zeros and ones."""
    n = world.size
    line = np.zeros(5 + 2 * n, dtype=np.int64)
    line[:3] = bool(proposal.problem), zlib.crc32(f"{proposal.verb} {proposal.content}".encode()), proposal.length
    line[3:5] = proposal.sources is not None, proposal.destinations is not None
    for first, ranks in ((5, proposal.sources), (5 + n, proposal.destinations)):
        line[[first + j for j in ranks or ()]] = 1
    return np.stack([np.frombuffer(content, dtype=np.int64) for content in world.collect(line.tobytes())])


def _texts(world: World, text: str) -> list[str]:
    encoded = text.encode()
    (longest,) = world.largest(len(encoded))
    return [content.rstrip(b"\0").decode() for content in world.collect(encoded.ljust(longest + 1, b"\0"))]


def _mismatch(verb: str, waits: np.ndarray, lost: np.ndarray) -> str:
    """Which edges only one end has named."""
    wrong = [f"rank {i} waits for rank {j}, which does not send to it" for i, j in np.argwhere(waits)]
    wrong += [f"rank {j} sends to rank {i}, which does not receive from it" for i, j in np.argwhere(lost)]
    shown = "; ".join(wrong[:_SHOWN]) + ("" if len(wrong) <= _SHOWN else f"; and {len(wrong) - _SHOWN} more")
    return (
        f"{verb}: {shown}. Rank j has to name i as a destination exactly where i names j as a source; "
        "or give one of the two, and the other is found out."
    )
