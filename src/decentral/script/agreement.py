"""Checks before sending that all ranks make the same call. If not, every rank raises the same error, without a hang."""

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
    """One rank's next call: `content` must be the same on all ranks, `length` may differ.

    `sources` and `destinations` are the ranks that it receives from and sends to; None: those that name this rank.
    `problem` is a sentence on why the call is impossible, for all ranks to report.
    """

    verb: str
    content: str
    sources: Collection[int] | None
    destinations: Collection[int] | None
    length: int = 0
    problem: str = ""


class Agreement(NamedTuple):
    """The ranks that this rank receives from and sends to, ascending, and the `length` of every rank."""

    sources: list[int]
    destinations: list[int]
    lengths: list[int]


def agree(world: World, proposal: Proposal) -> Agreement:
    """Compare the proposals of all ranks in one small all-gather.

    j sends to i if j names i as a destination or i names j as a source. A rank that names neither side of an edge
    learns it from the other end (inference of sources from destinations and vice versa).

    Raises:
        ConfigError: on every rank, if a rank has a problem, if contents differ, or if both ends of an edge are named
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
    """Raise on all ranks what one rank raises inside, before anything is sent, if the call is `checked`.

    The other ranks reach `agree` after the block.
    """
    try:
        yield
    except Exception as error:
        if checked:
            agree(world, Proposal("", "", (), (), problem=str(error)))
        raise


def agree_once(world: World, proposal: Proposal, checked: bool, seen: set[str]) -> None:
    """Agree if the call is `checked` or not yet `seen`, so that a first mismatch between ranks is detected.

    Calls already seen are announced without waiting.
    """
    text = f"{proposal.verb} of {proposal.content}"
    if checked or text not in seen:
        agree(world, proposal)
        seen.add(text)
    world.announce(text)


def _table(world: World, proposal: Proposal) -> np.ndarray:
    """Return [n, 5 + 2 n], a row for each rank: problem, content, length, whether it names sources, destinations; both
    as zeros and ones."""
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
