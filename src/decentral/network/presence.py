"""Which ranks of a script are there, and what they are about to do: a death or a mistake is noticed by those, too, that
never wait for it."""

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
"""Groups of ranks, items of a group, and how many characters may be shown that all ranks share."""


class Gone(ConnectionError):
    """Ranks have ended without leaving the group."""

    def __init__(self, ranks: list[int]) -> None:
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        super().__init__(
            f"connection closed by {which}, which ended without leaving the group (killed, out of memory, or an "
            "error): see its last output, and restart all ranks"
        )


class Presence:
    """A file without a name: byte r says how rank r stands to the group, and rank r locks it.

    The kernel releases the lock when the process of the rank ends, however it ends, and whatever children it has.
    Sees the ranks of its own host. To be made by all ranks at once.
    """

    def __init__(self, world: World) -> None:
        self.rank, self.heard = world.rank, False
        """Whether this rank was told that others are gone or late."""
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
        dist.all_reduce(place)  # everybody has locked its byte

    def look(self, now: bool = False) -> None:
        """Raise Gone if a rank has died. Unless it has to be `now`, that is looked at ten times a second at most."""
        if now or time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _GLANCE_S
            of_themselves, because_of_others = self._gone()
            if ranks := of_themselves or because_of_others:
                self.hear()
                raise Gone(ranks)

    def named(self, error: Exception) -> Exception:
        """An error of a connection; or Gone if a rank has died, which may take it a moment."""
        deadline = time.monotonic() + (_DYING_S if isinstance(error, ConnectionError) else 0)
        while not (ranks := self._gone()[0]) and time.monotonic() < deadline:
            time.sleep(_GLANCE_S / 10)
        self.hear()
        return Gone(ranks) if ranks else error

    def hear(self) -> None:
        """Others are the reason if this rank ends now."""
        self.heard = True
        self._mark(_HEARD)

    def leave(self, properly: bool) -> None:
        """Go away; the others hear of it unless it is done `properly`."""
        if properly and not self.heard:
            self._mark(_LEFT)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._others = -1, []

    def _mark(self, how: int) -> None:
        if self._file >= 0:
            os.pwrite(self._file, bytes([how]), self.rank)

    def _gone(self) -> tuple[list[int], list[int]]:
        """The ranks that have ended of themselves without leaving, and those that did because of others."""
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
"""That of the latest process group, as long as this process is in it."""


def enter(world: World) -> Presence:
    """Be present from now on; all ranks at once."""
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
    """The calls of all ranks, in their order; to be made by all ranks of a host at once.

    A rank writes number and checksum of its call before it takes part in it, and looks at those of the others, so that
    of two ranks that do different things the later one notices. Costs a microsecond and never waits.
    """

    def __init__(self, size: int) -> None:
        self._rank, self._count, self._broken = dist.get_rank(), 0, ""
        texts = Segments([(_TEXT_BYTES,)] * size, torch.uint8).tensors
        words = Segments([(_KEPT,)] * size, torch.int64).tensors
        self._texts = [text.numpy().data for text in texts]
        self._words = [word.numpy().data for word in words]
        self._fence = threading.Lock()

    def announce(self, text: str, kind: str | None = None) -> None:
        """Say what this rank is about to do with all the others, who do the same, or the same kind of thing if given.

        Raises ConfigError if another rank is at something else; then, and ever after, as the others may be stuck.
        """
        if self._broken:
            raise ConfigError(self._broken)
        encoded = text.encode()
        checksum, packed = zlib.crc32((kind or text).encode()), encoded[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
        self._count += 1
        self._texts[self._rank][:] = packed
        self._words[self._rank][self._count % _KEPT] = self._count << 32 | checksum
        with self._fence:  # what is read below is read after this has been written
            pass
        if difference := self.difference():
            self._broken = difference
            raise ConfigError(difference)

    def difference(self) -> str:
        """Who is at what, if another rank has said something else than this one for the latest call; else ""."""
        place, count = self._count % _KEPT, self._count
        said = [words[place] for words in self._words]  # read once: others go on meanwhile
        own = said[self._rank]
        for word in said:
            if word != own and word >> 32 >= count > 0:
                come = [rank for rank, word in enumerate(said) if word >> 32 >= count]
                texts = {rank: bytes(self._texts[rank]).rstrip(b"\0") for rank in come}
                return difference({rank: text.decode(errors="ignore") for rank, text in texts.items()})
        return ""


def difference(contents: dict[int, str]) -> str:
    """Which ranks are about to do what."""
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
