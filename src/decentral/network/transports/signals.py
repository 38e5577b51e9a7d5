"""Signals between the processes of a host: bytes on sockets, without barriers or spinning."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import sys
import time
import zlib
from collections import defaultdict

import torch
import torch.distributed as dist

_GREETING_BYTES, _GREETING_S = 20, 5.0
_SIGNAL_BYTES = 4


NEW = 255
READY = 1
"""The kind of signal for "data is readable". Other kinds, up to 254, are defined by users."""


class Signals:
    """One Unix socket between every two processes of the group; all create it at once.

    Signals of a kind are counted, so none is missed or confused with another. A dead process closes its sockets, so
    waiting processes notice at once.

    Waiting raises ConnectionError if the other process is gone; TimeoutError if it sends no signal in time.
    """

    def __init__(self, timeout_s: float) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.timeout_s = timeout_s
        self.waited_s = 0.0
        """Time spent waiting for signals, in seconds."""
        self._sockets: dict[int, socket.socket] = {}
        self._come: defaultdict[tuple[int, int], int] = defaultdict(int)  # by process and kind
        self._new = 0
        self._notes: dict[tuple[int, int, int], int] = {}  # by process, kind and how many have come
        self._connect()

    def send(self, peer: int, kind: int, note: int = 0) -> None:
        """Signal `peer`, with a 24-bit note about what. If `peer` is gone, the next wait for it raises."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                try:
                    os.write(self._sockets[peer].fileno(), _signal(kind, note))  # `send` would block on a full buffer
                    return
                except BlockingIOError:  # the peer has many of our signals to receive and may be unable to send
                    if not self.receive(self.timeout_s, room_for=peer):
                        raise self._too_late(peer) from None

    def send_from_a_thread(self, peer: int, kind: int, note: int = 0) -> None:
        """`send` from a thread that must not receive, as another one does."""
        connection = self._sockets.get(peer)
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile: the next wait raises
            while connection is not None:
                try:
                    os.write(connection.fileno(), _signal(kind, note))
                    return
                except BlockingIOError:
                    if not select.select([], [connection], [], self.timeout_s)[1]:
                        return  # the receiver's timeout is over, too

    def wait(self, peer: int, kind: int, count: int, note: int = 0, what: str = "") -> None:
        """Wait until `peer` has sent `count` signals since the group was created, the last one with this note.

        Raises RuntimeError, which names `what`, for another note: the peer makes a different call.
        """
        if self._come[peer, kind] < count:
            began = time.perf_counter()
            while self._come[peer, kind] < count and self._come[peer, NEW] <= self._new:
                self._take_in(peer)
            self.waited_s += time.perf_counter() - began
        if self._come[peer, kind] < count or (note and self._notes.pop((peer, kind, count), 0) != note):
            raise RuntimeError(
                f"process {peer} of this run runs a different operation from process {self.rank}, which expects "
                f"{what} here"
            )

    def tell_of_something_new(self) -> None:
        """Announce a new kind of call; all processes call this at once, before it."""
        self._new += 1
        for peer in self._sockets:
            self.send(peer, NEW)

    def close(self) -> None:
        """Close the sockets."""
        for connection in self._sockets.values():
            connection.close()
        self._sockets.clear()

    def receive(self, wait_s: float = 0.0, room_for: int | None = None) -> bool:
        """Count received signals. If there is none, wait for one, or until one can be sent to `room_for`.

        Returns False if nothing happened.
        """
        writable = [] if room_for is None else [self._sockets[room_for]]
        ready, room, _ = select.select(list(self._sockets.values()), writable, [], wait_s)
        for peer, connection in self._sockets.items():
            if connection in ready:
                self._take_in(peer)
        return bool(ready or room)

    def _take_in(self, peer: int) -> None:
        try:
            came = self._sockets[peer].recv(256 * _SIGNAL_BYTES)
        except TimeoutError:
            raise self._too_late(peer) from None
        except ConnectionResetError:
            came = b""
        if not came:
            raise ConnectionError(f"connection closed by process {peer} of this run")
        for signal in memoryview(came).cast("I"):
            kind, note = signal & 255, signal >> 8
            self._come[peer, kind] += 1
            if note:
                self._notes[peer, kind, self._come[peer, kind]] = note

    def _too_late(self, peer: int) -> TimeoutError:
        return TimeoutError(f"timed out after {self.timeout_s:g} s of waiting for process {peer} of this run")

    def _connect(self) -> None:
        """Listen at an address chosen by the kernel, connect to lower ranks, and accept higher ones."""
        token = secrets.token_bytes(16)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.settimeout(self.timeout_s)
            listening.bind("")
            listening.listen(self.size)
            address = listening.getsockname()
            ours = torch.frombuffer(bytearray(token + bytes([len(address)]) + address.ljust(64)), dtype=torch.uint8)
            known = [torch.empty_like(ours) for _ in range(self.size)]
            dist.all_gather(known, ours)
            for peer in range(self.rank):
                packed = bytes(known[peer].tolist())
                connection = socket.socket(socket.AF_UNIX)
                connection.settimeout(self.timeout_s)
                connection.connect(packed[17 : 17 + packed[16]])
                connection.sendall(packed[:16] + self.rank.to_bytes(4, "big"))
                self._sockets[peer] = connection
            while len(self._sockets) < self.size - 1:
                connection, _ = listening.accept()
                connection.settimeout(_GREETING_S)  # anyone on this host can connect; only members send this greeting
                greeting = b""
                with contextlib.suppress(OSError):
                    greeting = connection.recv(_GREETING_BYTES, socket.MSG_WAITALL)
                if len(greeting) == _GREETING_BYTES and greeting[:16] == token:
                    connection.settimeout(self.timeout_s)
                    self._sockets[int.from_bytes(greeting[16:], "big")] = connection
                else:
                    connection.close()


def _signal(kind: int, note: int) -> bytes:
    return (kind | note << 8).to_bytes(_SIGNAL_BYTES, sys.byteorder)


def note_of(*what: object) -> int:
    """Return a nonzero 24-bit hash for a signal; collisions have a probability of one in 16 million."""
    return 1 + zlib.crc32(repr(what).encode()) % 0xFFFFFF
