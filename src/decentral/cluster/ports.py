"""Ports of workers: what becomes of messages that leave through them, and machines that are not alike.

A worker has a port out and a port in, or a single one for both (`cluster.links.ports`). A port carries one thing after
the other. What a worker begins to send at the same time leaves side by side, in proportion to the sizes of the
messages, so that a port is shared fairly, and waits for what the worker began to send before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decentral.cluster.settings import read_lines
from decentral.errors import ConfigError

if TYPE_CHECKING:
    from decentral.cluster.links import LinkCosts

_KEY = "cluster.devices"
_COLUMNS = ["worker", "seconds", "slowdown", "up_gbps", "down_gbps"]


class Device(NamedTuple):
    """A machine over time: from `begins` [S] on, in simulated seconds, it is as the numbers [S] say."""

    begins: list[float]
    slowdown: list[float]
    """How many times as long a gradient takes."""
    speed: dict[str, list[float]]
    """"out" and "into": bytes per second through its port."""
    carried: dict[str, list[float]]
    """How many bytes go through the port before."""

    def ends(self, way: str, begins: float, num_bytes: float) -> float:
        """When so many bytes are through the port, which they have to themselves."""
        speed, carried = self.speed[way], self.carried[way]
        k = bisect_right(self.begins, begins) - 1
        total = carried[k] + (begins - self.begins[k]) * speed[k] + num_bytes
        k = max(k, bisect_right(carried, total) - 1)
        return self.begins[k] + (total - carried[k]) / speed[k]

    def slower(self, now: float) -> float:
        """How many times as long a gradient takes that begins now."""
        return self.slowdown[bisect_right(self.begins, now) - 1]


def read_devices(name: str, num_workers: int) -> list[Device]:
    """The device of each of n workers, from lines worker,seconds,slowdown,up_gbps,down_gbps: what holds from then on.

    Lines of further workers are read, too, and left out. Raises ConfigError, with file and line, for what is missing,
    out of order or no such number.
    """
    lines = read_lines(_KEY, name)
    if not lines or lines[0].cells != _COLUMNS:
        raise ConfigError(f"{_KEY}={name} does not begin with a line {','.join(_COLUMNS)}.")
    found: defaultdict[int, Device] = defaultdict(
        lambda: Device([], [], {"out": [], "into": []}, {"out": [], "into": []})
    )
    for line in lines[1:]:
        line.check_columns(_COLUMNS)
        worker = line.integer(0, "worker")
        device, begins = found[worker], line.seconds(1)
        if begins <= device.begins[-1] if device.begins else begins != 0:
            expected = f"after {device.begins[-1]:g}" if device.begins else "at 0, its first one"
            raise ConfigError(f"{line.said} begins at {begins:g}: that of worker {worker} has to begin {expected}.")
        for place, way in ((3, "out"), (4, "into")):
            carried = device.carried[way]
            past = carried[-1] + (begins - device.begins[-1]) * device.speed[way][-1] if carried else 0.0
            carried.append(past)
            device.speed[way].append(line.gbps(place, finite=True) / 8e-9)
        device.begins.append(begins)
        device.slowdown.append(line.number(2, "a factor above 0, by which a gradient takes longer,", 1e-9, 1e9))
    for worker in range(num_workers):
        if worker not in found:
            raise ConfigError(f"{_KEY}={name} has no line of worker {worker}: give one for each of {num_workers}.")
    return [found[worker] for worker in range(num_workers)]


class Movement(NamedTuple):
    """What becomes of messages that move at the same time: float64 [n] each, seconds, but for the bytes."""

    ready: np.ndarray
    """When each worker has sent and received all of its messages."""
    begins: np.ndarray
    """When its first message leaves."""
    left: np.ndarray
    """When its last message has left."""
    opens: np.ndarray
    """When it begins to take in."""
    taken: np.ndarray
    """When it has taken in all."""
    sent: np.ndarray
    """Bytes out of its port, and into it."""
    received: np.ndarray


class Exchange:
    """Messages along the edges src -> dst, all of which may be sent at the same time."""

    def __init__(self, costs: LinkCosts, src: np.ndarray, dst: np.ndarray) -> None:
        src, dst = np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64)
        self._order = None if np.all(dst[1:] >= dst[:-1]) else np.argsort(dst, kind="stable")
        if self._order is not None:
            src, dst = src[self._order], dst[self._order]
        self._costs, self._src, self._dst = costs, src, dst
        self._latency, self._per_byte = costs.of(src, dst)
        self._starts = np.flatnonzero(np.diff(dst, prepend=-1)) if len(dst) else np.empty(0, dtype=np.int64)
        self._receivers = dst[self._starts]
        self._sends = np.bincount(src, minlength=costs.num_workers) > 0
        self._crossing = src // costs.per_machine != dst // costs.per_machine

    def move(self, now: np.ndarray, num_bytes: float | np.ndarray, out: np.ndarray, into: np.ndarray) -> Movement:
        """What becomes of the messages if worker i sends at its own time now_i, and its ports are free at out_i, into_i
        (with one port: the same array).

            b_j = max(now_j, out_j),  l_j = b_j + sent_j
            ready_i = max(now_i, l_i, max_j (l_j + latency_ij), max_j (b_j + latency_ij, into_i) + received_i)

        over all j that i hears of. sent_j and received_i: what its messages take at full speed, the sums of num_bytes
        seconds_per_byte. Messages of a worker leave side by side, in proportion to their sizes, so that all have left
        at l_j; a worker takes them in once the last of those whom it hears of has begun. With one port it takes in
        once the last message has come, and its own have left: max(l_i, max_j (l_j + latency_ij)) + received_i. Where
        a machine's workers share their way out, at least the bytes that cross the machine's border (with one port in
        both directions) at that bandwidth, for all who have a part in it.

        num_bytes   of each message: a number, or float64 [E] in the order in which the edges were given
        """
        each = np.broadcast_to(np.asarray(num_bytes, dtype=np.float64), self._src.shape)
        if self._order is not None:
            each = each[self._order]
        one, here = self._costs.ways == 2, self._receivers
        received, sent = self._loads(each)
        moved = self._sums(each)
        begins = np.where(self._sends, np.maximum(now, out), now)
        left = begins + self._costs.port_s("out", begins, moved[1], sent)
        arrived = np.maximum.reduceat(left[self._src] + self._latency, self._starts)
        opens, taken, ready = into.copy(), into.copy(), np.maximum(now, left)
        if one:
            opens[here] = np.maximum(np.maximum(into, left)[here], arrived)
        else:
            heard = np.maximum.reduceat(begins[self._src] + self._latency, self._starts)
            opens[here] = np.maximum(into[here], heard)
        taken[here] = np.maximum((opens + self._costs.port_s("into", opens, moved[0], received))[here], arrived)
        ready[here] = np.maximum(ready, taken)[here]
        return Movement(ready, begins, left, opens, taken, sent=moved[1], received=moved[0])

    def _loads(self, each: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds that each worker's port is busy with what it receives, and with what it sends: [n]."""
        received, sent = self._sums(each * self._per_byte)
        if self._costs.shared:
            across = self._sums(np.where(self._crossing, each, 0.0))
            per_machine = [self._costs.shared * one.reshape(-1, self._costs.per_machine).sum(axis=1) for one in across]
            into, out = (np.repeat(one, self._costs.per_machine) for one in per_machine)
            received = np.maximum(received, np.where(across[0] > 0, into, 0.0))
            sent = np.maximum(sent, np.where(across[1] > 0, out, 0.0))
        return received, sent

    def _sums(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sums of the values [E] over what each worker receives, and over what it sends: [n]."""
        n = self._costs.num_workers
        return np.bincount(self._dst, values, minlength=n), np.bincount(self._src, values, minlength=n)
