"""Which ranks are there: one that has died is noticed by those, too, that never wait for it."""

from __future__ import annotations

import fcntl
import os
import time

import torch
import torch.distributed as dist

from decentral.network.transports.shared_memory import host
from decentral.network.world import World

_GLANCE_S, _DYING_S = 0.1, 0.5
_HERE, _LEFT, _HEARD = 0, 1, 2


class Gone(ConnectionError):
    """Ranks have ended without leaving the group."""

    def __init__(self, ranks: list[int]) -> None:
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        super().__init__(
            f"connection closed by {which}, which ended without leaving the group (killed, out of memory, or by an "
            "error): see what was said last there, and start all ranks again"
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
