"""How the processes of a host tell each other that something is there: bytes on sockets, no barrier, no spinning."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import time
from collections import Counter, defaultdict

import torch
import torch.distributed as dist

_GREETING_BYTES, _GREETING_S = 20, 5.0


READY = 1
"""The kind of bell that says: what you wait for can be read. Other kinds, up to 255, mean what their users agree on."""


class Doorbells:
    """One Unix socket between every two processes of the group; to be made by all of them at once.

    Bells of a kind are counted, so one is never missed and never taken for another's. A process that has died closes
    its sockets: whoever waits for it hears of that at once.

    Raises ConnectionError, when waiting, if the other process is gone; TimeoutError if it does not ring in time.
    """

    def __init__(self, timeout_s: float) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.timeout_s = timeout_s
        self.waited_s = 0.0
        """How long it has waited for others to ring."""
        self._sockets: dict[int, socket.socket] = {}
        self._heard: defaultdict[tuple[int, int], int] = defaultdict(int)  # by process and kind
        self._connect()

    def ring(self, peer: int, kind: int) -> None:
        """Tell `peer`. Whoever waits for one that is gone hears of it then."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                try:
                    os.write(self._sockets[peer].fileno(), bytes([kind]))  # `send` would wait for room
                    return
                except BlockingIOError:
                    self._make_room(peer)

    def ring_from_a_thread(self, peer: int, kind: int) -> None:
        """The same from a thread that must not listen, as another one does."""
        connection = self._sockets.get(peer)
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile: whoever waits for it hears of that
            while connection is not None:
                try:
                    os.write(connection.fileno(), bytes([kind]))
                    return
                except BlockingIOError:
                    if not select.select([], [connection], [], self.timeout_s)[1]:
                        return  # whoever waits for this bell has no more patience either

    def wait(self, peer: int, kind: int, count: int) -> None:
        """Until `peer` has rung `count` times since the group was made."""
        if self._heard[peer, kind] >= count:
            return
        began = time.perf_counter()
        while self._heard[peer, kind] < count:
            self._listen(peer)
        self.waited_s += time.perf_counter() - began

    def close(self) -> None:
        """Hang up."""
        for connection in self._sockets.values():
            connection.close()
        self._sockets.clear()

    def hear(self, wait_s: float = 0.0, room_for: int | None = None) -> bool:
        """Count the bells that have been rung; wait for one, or for room to ring process `room_for`, if there is none.

        False if nothing happened.
        """
        writable = [] if room_for is None else [self._sockets[room_for]]
        heard, room, _ = select.select(list(self._sockets.values()), writable, [], wait_s)
        for peer, connection in self._sockets.items():
            if connection in heard:
                self._listen(peer)
        return bool(heard or room)

    def _make_room(self, peer: int) -> None:
        """`peer` has some hundred bells of ours that it has not heard; perhaps because it cannot ring ours."""
        if not self.hear(self.timeout_s, room_for=peer):
            raise self._too_late(peer)

    def _listen(self, peer: int) -> None:
        try:
            rung = self._sockets[peer].recv(256)
        except TimeoutError:
            raise self._too_late(peer) from None
        except ConnectionResetError:
            rung = b""
        if not rung:
            raise self._gone(peer)
        for kind, times in Counter(rung).items():
            self._heard[peer, kind] += times

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
