"""What a network that changes is like when: steps, random walks, and what was recorded."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from decentral.cluster.csv_file import read_rows
from decentral.cluster.settings import check_bandwidth, check_positive, check_seconds
from decentral.errors import ConfigError
from decentral.randomness import normal
from decentral.store.digests import file_digest
from decentral.store.files import at_home

_PURPOSE = "cluster: network"
_HEADS = (["epoch", "latency_s", "bandwidth_gbps"], ["seconds", "latency_s", "bandwidth_gbps"])


class Link(NamedTuple):
    """What a link is like."""

    latency_s: float
    bandwidth_gbps: float


class Schedule(ABC):
    """Segments 0, 1, ..., in each of which links are as they are."""

    changes: ClassVar[bool] = True
    says_all: ClassVar[bool] = False
    """Whether it says latency and bandwidth, so that `cluster.links` must not."""

    @property
    def by_epochs(self) -> bool:
        """Whether segments follow from epochs; else from simulated time."""
        return True

    @abstractmethod
    def check(self, where: str) -> None:
        """Raise ConfigError for settings, below the key `where`, that make no sense."""

    @abstractmethod
    def segment(self, epoch: float, seconds: float) -> int:
        """The segment of a step that begins at this epoch, and at this simulated time."""

    @abstractmethod
    def link(self, segment: int, usual: Link, seed: int) -> Link:
        """What links are like in a segment; usual: as `cluster.links` says."""


@dataclass(frozen=True)
class Constant(Schedule):
    """Always as `cluster.links` says."""

    changes = False

    def check(self, where: str) -> None:
        """Nothing can be wrong."""

    def segment(self, epoch: float, seconds: float) -> int:
        """There is one."""
        return 0

    def link(self, segment: int, usual: Link, seed: int) -> Link:
        """As usual."""
        return usual


@dataclass(frozen=True)
class Steps(Schedule):
    """Segments of so many epochs; the last one goes on to the end."""

    segment_epochs: float
    latency_s: list[float]
    bandwidth_gbps: list[float]
    says_all = True

    def check(self, where: str) -> None:
        """As many latencies as bandwidths, at least one."""
        check_positive(f"{where}.segment_epochs", self.segment_epochs, "a number of epochs")
        latencies, bandwidths = len(self.latency_s), len(self.bandwidth_gbps)
        if latencies != bandwidths:
            raise ConfigError(
                f"{where}.latency_s has {latencies} numbers and {where}.bandwidth_gbps {bandwidths}, which leaves a "
                "hole: give both of every segment."
            )
        if not latencies:
            raise ConfigError(f"{where}.latency_s=[] makes no sense: give at least one segment, such as [0.001].")
        for latency, bandwidth in zip(self.latency_s, self.bandwidth_gbps, strict=True):
            check_seconds(f"{where}.latency_s", latency)
            check_bandwidth(f"{where}.bandwidth_gbps", bandwidth)

    def segment(self, epoch: float, seconds: float) -> int:
        """That of the epoch."""
        return min(_number(epoch, self.segment_epochs), len(self.latency_s) - 1)

    def link(self, segment: int, usual: Link, seed: int) -> Link:
        """What is listed."""
        return Link(self.latency_s[segment], self.bandwidth_gbps[segment])


@dataclass(frozen=True)
class RandomWalk(Schedule):
    """log latency and log bandwidth: two walks from what is usual, with normal steps after each segment.

    They are reflected where both are `most` times as large or as small as usual. Addressed by (seed, segment).
    """

    segment_epochs: float
    drift: float
    most: float = 10.0

    def check(self, where: str) -> None:
        """Steps above 0, within a range."""
        check_positive(f"{where}.segment_epochs", self.segment_epochs, "a number of epochs")
        check_positive(f"{where}.drift", self.drift, "the standard deviation of a step in the logarithm, such as 0.1")
        if not 1 < self.most <= 1e6:
            raise ConfigError(
                f"{where}.most={self.most:g} makes no sense: it has to be above 1 and at most 1e6, such as 10 for from "
                "a tenth to ten times as much."
            )

    def segment(self, epoch: float, seconds: float) -> int:
        """That of the epoch."""
        return _number(epoch, self.segment_epochs)

    def link(self, segment: int, usual: Link, seed: int) -> Link:
        """The free walks, folded into their range, which are the reflected walks."""
        steps = normal(seed, _PURPOSE, np.arange(1, segment + 1)[:, None], np.arange(2)[None, :])
        far = math.log(self.most)
        place = np.mod(self.drift * steps.sum(axis=0) + far, 4 * far)
        latency, bandwidth = np.exp(np.minimum(place, 4 * far - place) - far).tolist()
        return Link(usual.latency_s * latency, usual.bandwidth_gbps * bandwidth)


@dataclass(frozen=True)
class Recorded(Schedule):
    """Lines of a file: from an epoch, or from a simulated time on; the last one goes on to the end."""

    trace: str
    says_all = True

    @property
    def by_epochs(self) -> bool:
        """As the first line of the file says."""
        return self._read().by_epochs

    def check(self, where: str) -> None:
        """Read it."""
        self._read()

    def segment(self, epoch: float, seconds: float) -> int:
        """The last line that has begun."""
        read = self._read()
        return bisect_right(read.begins, epoch if read.by_epochs else seconds) - 1

    def link(self, segment: int, usual: Link, seed: int) -> Link:
        """What the line says."""
        return self._read().links[segment]

    def _read(self) -> _Lines:
        path = at_home(self.trace)
        if not path.is_file():
            raise ConfigError(f"cluster.network.trace={self.trace} is not a file (looked for {path.absolute()}).")
        return _read_unchanged(self.trace, path, file_digest(path))


class _Lines(NamedTuple):
    by_epochs: bool
    begins: list[float]
    links: list[Link]


@lru_cache(maxsize=4)
def _read_unchanged(name: str, path: Path, _digest: str) -> _Lines:
    said = f"cluster.network.trace={name}"
    rows = read_rows("cluster.network.trace", name, path)
    if not rows or rows[0][1] not in _HEADS:
        raise ConfigError(
            f"{said} does not say what its columns are: its first line has to be epoch,latency_s,bandwidth_gbps or "
            "seconds,latency_s,bandwidth_gbps."
        )
    found = _Lines(rows[0][1] == _HEADS[0], [], [])
    unit = rows[0][1][0]
    if len(rows) < 2 or _cell(said, *rows[1], 0, unit) != 0:
        raise ConfigError(f"{said} has a hole: what holds from the beginning on, at 0, is missing in it.")
    for line, row in rows[1:]:
        begins, latency, gbps = (_cell(said, line, row, place, unit) for place in range(3))
        if found.begins and not begins > found.begins[-1]:
            raise ConfigError(
                f"line {line} of {said} begins at {begins:g}, and the line before it at {found.begins[-1]:g}: put "
                "them in order, each once."
            )
        check_seconds(f"line {line} of {said}: latency_s", latency)
        check_bandwidth(f"line {line} of {said}: bandwidth_gbps", gbps)
        found.begins.append(begins)
        found.links.append(Link(latency, gbps))
    return found


def _cell(said: str, line: int, row: list[str], place: int, unit: str) -> float:
    """A number of a line."""
    names = (unit, "latency_s", "bandwidth_gbps")
    if len(row) != len(names) or not row[place]:
        raise ConfigError(f"line {line} of {said} has a hole: it has to be {','.join(names)}, three numbers.")
    try:
        return float(row[place])
    except ValueError:
        raise ConfigError(f"line {line} of {said} has '{row[place]}' where {names[place]} should be.") from None


def _number(epoch: float, segment_epochs: float) -> int:
    """The segment of an epoch that follows from steps: what rounding left below a border counts as beyond it."""
    return math.floor(epoch / segment_epochs * (1 + 1e-12))
