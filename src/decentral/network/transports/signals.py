"""How the processes of a host tell each other that something is there: bytes on sockets, no barrier, no spinning."""

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
"""The kind of signal that says: what you wait for can be read. Other kinds, up to 254, are for their users."""


class Signals:
    """One Unix socket between every two processes of the group; to be made by all of them at once.

    Signals of a kind are counted, so one is never missed and never taken for another's. A process that has died closes
    its sockets: whoever waits for it hears of that at once.

    Raises ConnectionError, when waiting, if the other process is gone; TimeoutError if it sends none in time.
    """

    def __init__(self, timeout_s: float) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.timeout_s = timeout_s
        self.waited_s = 0.0
        """How long it has waited for signals of others."""
        self._sockets: dict[int, socket.socket] = {}
        self._come: defaultdict[tuple[int, int], int] = defaultdict(int)  # by process and kind
        self._new = 0
        self._notes: dict[tuple[int, int, int], int] = {}  # by process, kind and how many have come
        self._connect()

    def send(self, peer: int, kind: int, note: int = 0) -> None:
        """Tell `peer`, with a note of 24 bits about what. Whoever waits for one that is gone hears of it then."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                try:
                    os.write(self._sockets[peer].fileno(), _signal(kind, note))  # `send` would wait for room
                    return
                except BlockingIOError:
                    self._make_room(peer)

    def send_from_a_thread(self, peer: int, kind: int, note: int = 0) -> None:
        """The same from a thread that must not listen, as another one does."""
        connection = self._sockets.get(peer)
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile: whoever waits for it hears of that
            while connection is not None:
                try:
                    os.write(connection.fileno(), _signal(kind, note))
                    return
                except BlockingIOError:
                    if not select.select([], [connection], [], self.timeout_s)[1]:
                        return  # whoever waits for this signal has no more patience either

    def wait(self, peer: int, kind: int, count: int, note: int = 0, what: str = "") -> None:
        """Until `peer` has sent `count` signals since the group was made, the last one with this note.

        Raises RuntimeError, which speaks of `what`, for another note: the peer is at something else.
        """
        if self._come[peer, kind] < count:
            began = time.perf_counter()
            while self._come[peer, kind] < count and self._come[peer, NEW] <= self._new:
                self._take_in(peer)
            self.waited_s += time.perf_counter() - began
        if self._come[peer, kind] < count or (note and self._notes.pop((peer, kind, count), 0) != note):
            raise RuntimeError(
                f"process {peer} of this run is at something else than process {self.rank}, which expects {what} here"
            )

    def tell_of_something_new(self) -> None:
        """To be called by all processes at once, before they do something that they have not done before."""
        self._new += 1
        for peer in self._sockets:
            self.send(peer, NEW)

    def close(self) -> None:
        """Close the sockets."""
        for connection in self._sockets.values():
            connection.close()
        self._sockets.clear()

    def receive(self, wait_s: float = 0.0, room_for: int | None = None) -> bool:
        """Count the signals that have come; wait for one, or for room to send one to `room_for`, if there is none.

        False if nothing happened.
        """
        writable = [] if room_for is None else [self._sockets[room_for]]
        ready, room, _ = select.select(list(self._sockets.values()), writable, [], wait_s)
        for peer, connection in self._sockets.items():
            if connection in ready:
                self._take_in(peer)
        return bool(ready or room)

    def _make_room(self, peer: int) -> None:
        """`peer` has some hundred signals of ours that it has not received; perhaps it cannot send us its own."""
        if not self.receive(self.timeout_s, room_for=peer):
            raise self._too_late(peer)

    def _take_in(self, peer: int) -> None:
        try:
            came = self._sockets[peer].recv(256 * _SIGNAL_BYTES)
        except TimeoutError:
            raise self._too_late(peer) from None
        except ConnectionResetError:
            came = b""
        if not came:
            raise self._gone(peer)
        for signal in memoryview(came).cast("I"):
            kind, note = signal & 255, signal >> 8
            self._come[peer, kind] += 1
            if note:
                self._notes[peer, kind, self._come[peer, kind]] = note

    def _too_late(self, peer: int) -> TimeoutError:
        return TimeoutError(f"timed out after {self.timeout_s:g} s of waiting for process {peer} of this run")

    def _connect(self) -> None:
        """Everybody listens at an address of the kernel's choice, calls those before it, and hears those after it."""
        token = secrets.token_bytes(16)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.settimeout(self.timeout_s)
            listening.bind("")
            listening.listen(self.size)
            address = listening.getsockname()
            known = [self._unpack(packed) for packed in _gathered(token + bytes([len(address)]) + address.ljust(64))]
            for peer in range(self.rank):
                connection = socket.socket(socket.AF_UNIX)
                connection.settimeout(self.timeout_s)
                connection.connect(known[peer][1])
                connection.sendall(known[peer][0] + self.rank.to_bytes(4, "big"))
                self._sockets[peer] = connection
            while len(self._sockets) < self.size - 1:
                connection, _ = listening.accept()
                greeting = _greeting(connection)
                if len(greeting) == _GREETING_BYTES and greeting[:16] == token:  # anybody on this host can call
                    connection.settimeout(self.timeout_s)
                    self._sockets[int.from_bytes(greeting[16:], "big")] = connection
                else:
                    connection.close()

    @staticmethod
    def _unpack(packed: bytes) -> tuple[bytes, bytes]:
        return packed[:16], packed[17 : 17 + packed[16]]

    @staticmethod
    def _gone(peer: int) -> ConnectionError:
        return ConnectionError(f"connection closed by process {peer} of this run")


def _signal(kind: int, note: int) -> bytes:
    return (kind | note << 8).to_bytes(_SIGNAL_BYTES, sys.byteorder)


def note_of(*what: object) -> int:
    """A number of 24 bits, not 0, for a signal: other things have another one, but for one in 16 million."""
    return 1 + zlib.crc32(repr(what).encode()) % 0xFFFFFF


def _greeting(connection: socket.socket) -> bytes:
    """What somebody says who calls; who says nothing for a few seconds is a stranger."""
    connection.settimeout(_GREETING_S)
    with contextlib.suppress(OSError):
        return connection.recv(_GREETING_BYTES, socket.MSG_WAITALL)
    return b""


def _gathered(content: bytes) -> list[bytes]:
    """What each process gives, of the same length on all of them."""
    ours = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    parts = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, ours)
    return [bytes(part.tolist()) for part in parts]
