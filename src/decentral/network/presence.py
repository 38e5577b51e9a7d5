"""Liveness and next calls of a script's ranks, so that all ranks notice a death or a mismatch, even without waiting."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from decentral.errors import ConfigError
from decentral.network.transports.shared_memory import Segments, host
from decentral.network.world import World

_GLANCE_S, _DYING_S = 0.1, 0.5
_HERE, _LEFT, _HEARD = 0, 1, 2
_KEPT, _TEXT_BYTES = 4096, 256
_SHOWN, _ITEMS, _LONG = 4, 8, 400
"""Limits of messages: groups of ranks, items of a group, and characters that all ranks share."""


class Gone(ConnectionError):
    """Ranks ended without leaving the group."""

    def __init__(self, ranks: list[int]) -> None:
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        super().__init__(
            f"connection closed by {which}, which ended without leaving the group (killed, out of memory, or an "
            "error): see its last output, and restart all ranks"
        )


class Presence:
    """An unnamed file: byte r is the status of rank r in the group, and rank r locks it.

    The kernel releases the lock when the rank's process ends for any reason, even if children survive.
    Sees the ranks of its own host. All ranks create it at once.
    """

    def __init__(self, world: World) -> None:
        self.rank, self.heard = world.rank, False
        """True if this rank learned that others are gone or late."""
        self._next_s, self._others = 0.0, list[int]()
        ours = host()
        self._file = os.memfd_create("decentral") if ours else -1
        place = torch.tensor([ours, os.getpid(), self._file], device=world.device)
        places = [torch.empty_like(place) for _ in range(world.size)]
        dist.all_gather(places, place)
        hosts, pids, files = torch.stack(places).T.tolist()
        first = hosts.index(ours)
        if ours:
            if first != world.rank:
                os.close(self._file)
                self._file = os.open(f"/proc/{pids[first]}/fd/{files[first]}", os.O_RDWR)
            os.pwrite(self._file, bytes([_HERE]), world.rank)
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, world.rank)
            self._others = [rank for rank, at in enumerate(hosts) if at == ours and rank != world.rank]
        dist.all_reduce(place)  # every rank has locked its byte

    def look(self, now: bool = False) -> None:
        """Raise Gone if a rank has died. Checks at most ten times a second, unless `now`."""
        if now or time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _GLANCE_S
            of_themselves, because_of_others = self._gone()
            if ranks := of_themselves or because_of_others:
                self.hear()
                raise Gone(ranks)

    def named(self, error: Exception) -> Exception:
        """Return the connection error, or Gone if a rank died, which may take a moment to show."""
        deadline = time.monotonic() + (_DYING_S if isinstance(error, ConnectionError) else 0)
        while not (ranks := self._gone()[0]) and time.monotonic() < deadline:
            time.sleep(_GLANCE_S / 10)
        self.hear()
        return Gone(ranks) if ranks else error

    def hear(self) -> None:
        """Record that other ranks are the reason if this rank ends now."""
        self.heard = True
        self._mark(_HEARD)

    def leave(self, properly: bool) -> None:
        """Leave the group; the others are told unless it is `properly` done."""
        if properly and not self.heard:
            self._mark(_LEFT)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._others = -1, []

    def _mark(self, how: int) -> None:
        if self._file >= 0:
            os.pwrite(self._file, bytes([how]), self.rank)

    def _gone(self) -> tuple[list[int], list[int]]:
        """Return the ranks that ended on their own without leaving, and those that ended because of others."""
        ended = [rank for rank in self._others if self._is_free(rank)]
        marks = os.pread(self._file, max(ended) + 1, 0) if ended else b""
        return [r for r in ended if marks[r] == _HERE], [r for r in ended if marks[r] == _HEARD]

    def _is_free(self, rank: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, rank)
        except (BlockingIOError, PermissionError):  # either may mean: held by another process
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return True


_here: list[Presence] = []
"""The presence in the latest process group, while this process is in it."""


def enter(world: World) -> Presence:
    """Register this rank as present; all ranks at once."""
    leave(properly=True)
    _here.append(Presence(world))
    return _here[0]


def look(now: bool = False) -> None:
    """See `Presence.look`."""
    for presence in _here:
        presence.look(now)


def named(error: Exception) -> Exception:
    """See `Presence.named`."""
    return _here[0].named(error) if _here else error


def leave(properly: bool) -> None:
    """See `Presence.leave`."""
    while _here:
        _here.pop().leave(properly)


class Calls:
    """The ordered calls of all ranks; all ranks of a host create it at once.

    Before a call, a rank writes its number and checksum and compares those of the others, so the later of two ranks
    with different calls notices. Costs a microsecond and never waits.
    """

    def __init__(self, size: int) -> None:
        self._rank, self._count, self._broken = dist.get_rank(), 0, ""
        texts = Segments([(_TEXT_BYTES,)] * size, torch.uint8).tensors
        words = Segments([(_KEPT,)] * size, torch.int64).tensors
        self._texts = [text.numpy().data for text in texts]
        self._words = [word.numpy().data for word in words]
        self._fence = threading.Lock()

    def announce(self, text: str, kind: str | None = None) -> None:
        """Announce the next collective call of this rank; others must make the same, or one of the same kind if given.

        Raises ConfigError if another rank makes a different call; then and ever after, as the others may be stuck.
        """
        if self._broken:
            raise ConfigError(self._broken)
        encoded = text.encode()
        checksum, packed = zlib.crc32((kind or text).encode()), encoded[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
        self._count += 1
        self._texts[self._rank][:] = packed
        self._words[self._rank][self._count % _KEPT] = self._count << 32 | checksum
        with self._fence:  # the reads below happen after this write
            pass
        if difference := self.difference():
            self._broken = difference
            raise ConfigError(difference)

    def difference(self) -> str:
        """Describe which rank makes which call, if another rank's latest call differs from this one; else ""."""
        place, count = self._count % _KEPT, self._count
        said = [words[place] for words in self._words]  # read once: others continue meanwhile
        own = said[self._rank]
        for word in said:
            if word != own and word >> 32 >= count > 0:
                come = [rank for rank, word in enumerate(said) if word >> 32 >= count]
                texts = {rank: bytes(self._texts[rank]).rstrip(b"\0") for rank in come}
                return difference({rank: text.decode(errors="ignore") for rank, text in texts.items()})
        return ""


def difference(contents: dict[int, str]) -> str:
    """Describe which ranks make which call."""
    ranks: dict[str, list[int]] = {}
    for rank, content in contents.items():
        ranks.setdefault(content, []).append(rank)
    items = [re.split(r", (?![^\[]*\])", content) for content in ranks]  # not in shapes, which have commas, too
    shared = set.intersection(*map(set, items)) if max(map(len, ranks)) > _LONG else set()
    own = [[item for item in each if item not in shared] for each in items]
    words = [", ".join(each[:_ITEMS]) + (", ..." if len(each) > _ITEMS else "") for each in own]
    told = "; ".join(f"{_named(who)}: {what}" for what, who in list(zip(words, ranks.values(), strict=True))[:_SHOWN])
    return f"the ranks disagree about the next operation: {told}."


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
