"""Ports of workers, the timing of messages through them, and heterogeneous machines.

A worker has an output and an input port, or a single one for both (`cluster.links.ports`). A port processes batches
sequentially. Messages that a worker begins to send simultaneously share the port fairly, in proportion to their sizes,
after all earlier ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decentral.cluster.settings import read_lines
from decentral.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from decentral.cluster.links import LinkCosts

_KEY = "cluster.devices"
_COLUMNS = ["worker", "seconds", "slowdown", "up_gbps", "down_gbps"]


class Device(NamedTuple):
    """A machine over time: values [S] that hold from `begins` [S] on, in simulated seconds."""

    begins: list[float]
    slowdown: list[float]
    """Slowdown factors of gradients."""
    speed: dict[str, list[float]]
    """"out" and "into": bytes per second through its port."""

    def ends(self, way: str, begins: float, num_bytes: float) -> float:
        """Return when `num_bytes` have passed the otherwise idle port."""
        k, speed = bisect_right(self.begins, begins) - 1, self.speed[way]
        for until in self.begins[k + 1 :]:
            carried = (until - begins) * speed[k]
            if carried >= num_bytes:
                break
            num_bytes, begins, k = num_bytes - carried, until, k + 1
        return begins + num_bytes / speed[k]

    def slower(self, now: float) -> float:
        """Return the slowdown factor of a gradient that begins now."""
        return self.slowdown[bisect_right(self.begins, now) - 1]


def read_devices(name: str, num_workers: int) -> list[Device]:
    """Read the device of each of n workers from lines worker,seconds,slowdown,up_gbps,down_gbps, valid from then on.

    Lines of further workers are validated and ignored. Raises ConfigError, with file and line, for missing, unordered
    or invalid values.
    """
    lines = read_lines(_KEY, name)
    if not lines or lines[0].cells != _COLUMNS:
        raise ConfigError(f"{_KEY}={name} has no header: start it with {','.join(_COLUMNS)}.")
    devices: defaultdict[int, Device] = defaultdict(lambda: Device([], [], {"out": [], "into": []}))
    for line in lines[1:]:
        line.check_columns(_COLUMNS)
        worker = line.integer(0, "worker")
        device, begins = devices[worker], line.seconds(1)
        if begins <= device.begins[-1] if device.begins else begins != 0:
            expected = f"after {device.begins[-1]:g}" if device.begins else "at 0, its first one"
            raise ConfigError(f"{line.said} begins at {begins:g}: let worker {worker}'s line begin {expected}.")
        for place, way in ((3, "out"), (4, "into")):
            device.speed[way].append(line.gbps(place, finite=True) / 8e-9)
        device.begins.append(begins)
        device.slowdown.append(line.number(2, "a slowdown factor > 0", 1e-9, 1e9))
    for worker in range(num_workers):
        if worker not in devices:
            raise ConfigError(
                f"{_KEY}={name} has no line for worker {worker}: give one for each of the {num_workers} workers."
            )
    return [devices[worker] for worker in range(num_workers)]


class Border:
    """The shared uplink or downlink of a machine's workers. It carries one transfer at a time."""

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.ends: list[float] = []
        """Its busy intervals, ascending and disjoint."""

    def carry(self, begins: float, seconds: float) -> float:
        """Return when it completes a transfer of this duration, available from `begins` on, in its idle intervals."""
        first = k = bisect_right(self.ends, begins)
        ends = begins
        while k < len(self.begins) and (gap := max(0.0, self.begins[k] - ends)) < seconds:
            seconds, ends, k = seconds - gap, self.ends[k], k + 1
        ends += seconds
        since = min(begins, *self.begins[first:k]) if first < k else begins
        self.begins[first:k], self.ends[first:k] = [since], [ends]
        return ends


def borders_of(costs: LinkCosts, num_workers: int) -> dict[str, list[Border]]:
    """Return "out" and "into": a border for each machine; with one port, the same border for both."""
    out = [Border() for _ in range(num_workers // costs.per_machine)]
    return {"out": out, "into": out if costs.ways == 2 else [Border() for _ in out]}


class Movement(NamedTuple):
    """The timing of simultaneous messages: float64 [n] each, in seconds, except the bytes."""

    ready: np.ndarray
    """Time when each worker has sent and received all its messages."""
    begins: np.ndarray
    """Time when its first message leaves."""
    left: np.ndarray
    """Time when its last message has left."""
    opens: np.ndarray
    """Time when it begins to receive."""
    taken: np.ndarray
    """Time when it has received everything."""
    sent: np.ndarray
    """Bytes out of its port, and into it."""
    received: np.ndarray


class Exchange:
    """Messages along the edges src -> dst, which may be simultaneous."""

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

    def move(
        self,
        now: np.ndarray,
        num_bytes: float | np.ndarray,
        out: np.ndarray,
        into: np.ndarray,
        borders: Mapping[str, Sequence[Border]],
    ) -> Movement:
        """Return the timing of the messages if worker i sends at its own time now_i, and its ports are free at out_i,
        into_i (with one port: the same array).

            b_j = max(now_j, out_j),  l_j = b_j + sent_j
            ready_i = max(now_i, l_i, max_j (l_j + latency_ij), max_j (b_j + latency_ij, into_i) + received_i)

        Here j are all senders to i, and sent_j and received_i are the times of their messages at full speed, the sums
        of num_bytes seconds_per_byte. Messages of a worker leave in parallel, in proportion to their sizes, so that all
        have left at l_j. A worker receives them once its last sender has begun. With one port it receives once the last
        message has arrived and its own have left: max(l_i, max_j (l_j + latency_ij)) + received_i. If a machine's
        workers share their uplink, messages have left, or have been received, once they have also crossed the machine's
        border.

        num_bytes   size of each message: a number, or float64 [E] in the order of the given edges
        borders     "out" and "into": the borders of each machine; with one port the same
        """
        each = np.broadcast_to(np.asarray(num_bytes, dtype=np.float64), self._src.shape)
        if self._order is not None:
            each = each[self._order]
        one, here = self._costs.ways == 2, self._receivers
        received, sent = self._sums(each * self._per_byte)
        moved = self._sums(each)
        begins = np.where(self._sends, np.maximum(now, out), now)
        left = begins + self._costs.port_s("out", begins, moved[1], sent)
        across = self._sums(np.where(self._crossing, each, 0.0)) if self._costs.shared else None
        if across is not None:
            left = np.maximum(left, self._crossed(borders["out"], begins, across[1]))
        arrived = np.maximum.reduceat(left[self._src] + self._latency, self._starts)
        opens, taken, ready = into.copy(), into.copy(), np.maximum(now, left)
        if one:
            opens[here] = np.maximum(np.maximum(into, left)[here], arrived)
        else:
            heard = np.maximum.reduceat(begins[self._src] + self._latency, self._starts)
            opens[here] = np.maximum(into[here], heard)
        taken[here] = np.maximum((opens + self._costs.port_s("into", opens, moved[0], received))[here], arrived)
        if across is not None:
            taken[here] = np.maximum(taken, self._crossed(borders["into"], opens, across[0]))[here]
        ready[here] = np.maximum(ready, taken)[here]
        return Movement(ready, begins, left, opens, taken, sent=moved[1], received=moved[0])

    def _crossed(self, borders: Sequence[Border], begins: np.ndarray, num_bytes: np.ndarray) -> np.ndarray:
        """Return when the bytes of each worker, float64 [n], which start at `begins`, have crossed the border of its
        machine. Bytes of one machine that start together cross in parallel."""
        costs, ends = self._costs, begins.copy()
        groups: defaultdict[tuple[float, int], list[int]] = defaultdict(list)
        for i in np.flatnonzero(num_bytes).tolist():
            groups[float(begins[i]), i // costs.per_machine].append(i)
        for (now, machine), workers in sorted(groups.items()):
            ends[workers] = borders[machine].carry(now, float(num_bytes[workers].sum()) * costs.shared)
        return ends

    def _sums(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of the values [E] over each worker's received messages, and over its sent messages: [n]."""
        n = self._costs.num_workers
        return np.bincount(self._dst, values, minlength=n), np.bincount(self._src, values, minlength=n)
