"""Posting of messages between ranks: rows of any dtype as bytes, all at once, receives first, in an order that both
ends agree on."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.kernels import headroom, wide


class Limits(NamedTuple):
    """The delay of every outgoing message of N bytes: latency_s + N seconds_per_byte."""

    latency_s: float
    seconds_per_byte: float


class Limiter:
    """The outgoing link of a process. It sends messages in order at the limited bandwidth (a token bucket of depth
    zero), and they arrive after the latency; the sender does not wait.

    A separate thread releases each message when it is due.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._free = 0.0
        self._queue: SimpleQueue[tuple[float, Callable[[], object]] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name="limiter", daemon=True)
        self._thread.start()

    def later(self, num_bytes: int, send: Callable[[], object]) -> float:
        """Schedule `send` for the arrival of a message of `num_bytes` that leaves now; return that time.

        `send` must not raise: nothing would catch it.
        """
        self._free = max(self._free, time.perf_counter()) + num_bytes * self.limits.seconds_per_byte
        due = self._free + self.limits.latency_s
        self._queue.put((due, send))
        return due

    def close(self) -> None:
        """Wait until everything has arrived."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (entry := self._queue.get()) is not None:
            due, send = entry
            time.sleep(max(0.0, due - time.perf_counter()))
            send()


_TAG = 1 << 20  # apart from the tags of scheduled rounds
_KEPT = 16


class Work(Protocol):
    """The part of torch.distributed's work handle that is used here."""

    def wait(self) -> Any:
        """Wait until it is finished; on a GPU: until the current stream may use its result."""

    def is_completed(self) -> bool:
        """Return whether it is finished."""


class Silent:
    """A message over gloo, which reports its arrival only after a wait."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._arrived = False

    def wait(self) -> None:
        """Wait until it has arrived or left; return at once the second time."""
        if not self._arrived:
            self._work.wait()
            self._arrived = True

    def is_completed(self) -> bool:
        """Return whether it was waited for."""
        return self._arrived


class Message(NamedTuple):
    """A contiguous tensor in flight to or from rank `peer`. Both ends use the same tag."""

    values: Tensor
    peer: int
    tag: int = _TAG


class Late:
    """A message that is sent when it is due to arrive."""

    def __init__(self, limiter: Limiter, message: Message) -> None:
        self._message = message
        self._gone = Event()
        self._works: list[Work] = []
        self._error: Exception | None = None
        limiter.later(message.values.numel() * message.values.element_size(), self._send)

    def wait(self) -> None:
        """Wait until it has left. Raises what torch.distributed raised."""
        self._gone.wait()
        if self._error is not None:
            raise self._error
        wait(self._works)

    def is_completed(self) -> bool:
        """Return whether it has left."""
        return self._gone.is_set()

    def _send(self) -> None:
        try:
            self._works = post([self._message], [])
        except Exception as error:
            self._error = error
        finally:
            self._gone.set()


class Spare:
    """Reusable memory for messages: fresh memory costs a fault per page, half the time of a message.

    On GPUs torch caches memory itself.
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, like: Tensor) -> Tensor:
        """Return an uninitialized flat tensor of this length and dtype."""
        for place, tensor in enumerate(self._free):
            if (tensor.numel(), tensor.dtype, tensor.device) == (like.numel(), like.dtype, like.device):
                return self._free.pop(place)
        return torch.empty_like(like)

    def give_back(self, tensors: Iterable[Tensor]) -> None:
        """Return these tensors for reuse."""
        self._free += [tensor for tensor in tensors if tensor.device.type == "cpu"]
        del self._free[:-_KEPT]


SPARE = Spare()


def as_bytes(row: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor [P]: messages are bytes, for any dtype."""
    return row.reshape(-1).view(torch.uint8)


def post(sends: Sequence[Message], receives: Sequence[Message]) -> list[Work]:
    """Begin to send and receive; complete once all works have been waited for. Empty messages are not sent.

    Between two ranks, messages of one tag, length and dtype match in posting order (over several calls, and several
    messages in one call). Receives come before sends, both by clockwise distance and then by tag: each rank sends to
    its next neighbor first, so that no rank is the first destination of all. Everything uses one communicator and, on
    GPUs, one launch: nccl, which matches by order alone, can otherwise deadlock.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    operations = [
        dist.P2POp(dist.irecv, as_bytes(message.values), message.peer, tag=_tag(message))
        for message in sorted(receives, key=lambda message: ((rank - message.peer) % size, message.tag))
        if message.values.numel()
    ]
    operations += [
        dist.P2POp(dist.isend, as_bytes(message.values), message.peer, tag=_tag(message))
        for message in sorted(sends, key=lambda message: ((message.peer - rank) % size, message.tag))
        if message.values.numel()
    ]
    works: list[Work] = []
    kinds = sorted(operations, key=lambda operation: operation.tensor.device.type)
    for kind, group in groupby(kinds, key=lambda operation: operation.tensor.device.type):
        posted = dist.batch_isend_irecv(list(group))
        works += [Silent(work) for work in posted] if kind == "cpu" else posted
    return works


def _tag(message: Message) -> int:
    """Return the tag with length and dtype: gloo accepts a shorter message silently and aborts on a longer one."""
    return message.tag ^ _fingerprint(message.values.numel(), message.values.dtype)


@lru_cache(1024)
def _fingerprint(length: int, dtype: torch.dtype) -> int:
    return zlib.crc32(f"{length} {dtype}".encode()) >> 1


def begin_sum(x: Tensor, size: int) -> tuple[Work, Tensor, float]:
    """Begin an all-reduce of x over `size` processes; return the work, the sum times a factor, and this factor.

    The factor is a power of two that keeps the sum finite. 16-bit numbers are summed in float32, in new memory.
    """
    down = headroom(size)
    total = wide(x).mul_(down)
    return dist.all_reduce(total, async_op=True), total, down


def wait(works: Sequence[Work]) -> None:
    """Wait until all of them are finished."""
    for work in works:
        work.wait()
