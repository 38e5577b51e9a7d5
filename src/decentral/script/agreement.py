"""Before messages are sent: do all ranks mean the same? If not, every rank raises the same error instead of waiting."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from decentral.errors import ConfigError
from decentral.network.presence import difference
from decentral.network.world import World

_SHOWN = 4


class Proposal(NamedTuple):
    """What one rank is about to do: `content` has to be the same everywhere, `length` need not be.

    `sources` and `destinations` are the ranks that it receives from and sends to; None: whoever names this rank.
    `problem` says why it cannot, in a sentence, so that the others hear of it.
    """

    verb: str
    content: str
    sources: Collection[int] | None
    destinations: Collection[int] | None
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
        waits, lost = np.argwhere(receives & ~sends & both), np.argwhere(sends & ~receives & both)
        wrong = [f"rank {i} waits for rank {j}, which does not send to it" for i, j in waits]
        wrong += [f"rank {j} sends to rank {i}, which does not receive from it" for i, j in lost]
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ConfigError(
            f"{proposal.verb}: {'; '.join(wrong[:_SHOWN])}{more}. Rank j must name i as a destination exactly where i "
            "names j as a source; or give only one of the two, and the other is derived."
        )
    edges = receives | sends
    sources, destinations = np.flatnonzero(edges[world.rank]), np.flatnonzero(edges[:, world.rank])
    return Agreement(sources.tolist(), destinations.tolist(), lengths.tolist())


@contextmanager
def heard_by_all(world: World, checked: bool = True) -> Iterator[None]:
    """What one rank raises inside, before anything is sent, all ranks raise, if the call is `checked`.

    The others come to `agree` after the block.
    """
    try:
        yield
    except Exception as error:
        if checked:
            agree(world, Proposal("", "", (), (), problem=str(error)))
        raise


def agree_once(world: World, proposal: Proposal, checked: bool, seen: set[str]) -> None:
    """Agree if the call is `checked`, and about what has not been `seen`: so ranks that begin differently hear of it.

    What has been seen is announced, without waiting.
    """
    text = f"{proposal.verb} of {proposal.content}"
    if checked or text not in seen:
        agree(world, proposal)
        seen.add(text)
    world.announce(text)


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
