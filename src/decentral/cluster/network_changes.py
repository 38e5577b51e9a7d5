"""A network that changes under way: `cluster.network`, and what links cost in every step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.cluster import settings
from decentral.cluster.costs import LinkCosts
from decentral.cluster.csv_file import check_columns, csv_path, gbps, number, read_lines, seconds
from decentral.cluster.settings import LONGEST_S, SLOWEST_GBPS
from decentral.errors import ConfigError
from decentral.randomness import normal
from decentral.settings import Settings, setting
from decentral.store.digests import file_digest

if TYPE_CHECKING:
    from decentral.cluster.links import Links

WHERE = "cluster.network"
_TRACE = "cluster.network.trace"
_PURPOSE = "cluster: network"
_HEADS = (["epoch", "latency_s", "bandwidth_gbps"], ["seconds", "latency_s", "bandwidth_gbps"])


class Link(NamedTuple):
    """What a link is like."""

    latency_s: float
    bandwidth_gbps: float


class Schedule(Settings, ABC, where=WHERE):
    """Segments 0, 1, ..., in each of which links are as they are."""

    changes: ClassVar[bool] = True
    says_all: ClassVar[bool] = False
    """Whether it says latency and bandwidth, so that `cluster.links` must not."""

    @property
    def by_epochs(self) -> bool:
        """Whether segments follow from epochs; else from simulated time."""
        return True

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

    def segment(self, epoch: float, seconds: float) -> int:
        """There is one."""
        return 0

    def link(self, segment: int, usual: Link, seed: int) -> Link:
        """As usual."""
        return usual


@dataclass(frozen=True)
class Steps(Schedule):
    """Segments of so many epochs; the last one goes on to the end."""

    segment_epochs: float = setting(above=0, hint="a number of epochs")
    latency_s: list[float] = setting(at_least=0, at_most=LONGEST_S, hint="a number of seconds")
    bandwidth_gbps: list[float] = setting(at_least=SLOWEST_GBPS, finite=False, hint="a number of Gbit/s")
    says_all = True

    def __post_init__(self) -> None:
        latencies, bandwidths = len(self.latency_s), len(self.bandwidth_gbps)
        if latencies != bandwidths:
            raise ConfigError(
                f"{WHERE}.latency_s has {latencies} numbers and {WHERE}.bandwidth_gbps {bandwidths}, which leaves a "
                "hole: give both of every segment."
            )
        if not latencies:
            raise ConfigError(f"{WHERE}.latency_s=[] makes no sense: give at least one segment, such as [0.001].")

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

    segment_epochs: float = setting(above=0, hint="a number of epochs")
    drift: float = setting(above=0, hint="the standard deviation of a step in the logarithm, such as 0.1")
    most: float = setting(10.0, above=1, at_most=1e6, hint="such as 10 for from a tenth to ten times as much")

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

    def __post_init__(self) -> None:
        self._read()

    @property
    def by_epochs(self) -> bool:
        """As the first line of the file says."""
        return self._read().by_epochs

    def segment(self, epoch: float, seconds: float) -> int:
        """The last line that has begun."""
        read = self._read()
        return bisect_right(read.begins, epoch if read.by_epochs else seconds) - 1

    def link(self, segment: int, usual: Link, seed: int) -> Link:
        """What the line says."""
        return self._read().links[segment]

    def _read(self) -> _Recording:
        path = csv_path(_TRACE, self.trace)
        return _read_unchanged(self.trace, path, file_digest(path))


class _Recording(NamedTuple):
    by_epochs: bool
    begins: list[float]
    links: list[Link]


@lru_cache(maxsize=4)
def _read_unchanged(name: str, path: Path, _digest: str) -> _Recording:
    said, lines = f"{_TRACE}={name}", read_lines(_TRACE, name, path)
    if not lines or lines[0].cells not in _HEADS:
        raise ConfigError(
            f"{said} does not say what its columns are: its first line has to be epoch,latency_s,bandwidth_gbps or "
            "seconds,latency_s,bandwidth_gbps."
        )
    head = lines[0].cells
    found = _Recording(head == _HEADS[0], [], [])
    for line in lines[1:]:
        check_columns(line, head)
        begins = number(line, line.cells[0], f"a number of {head[0].removesuffix('s')}s", -math.inf)
        if found.begins and not begins > found.begins[-1]:
            raise ConfigError(
                f"{line.said} begins at {begins:g}, and the line before it at {found.begins[-1]:g}: put them in order, "
                "each once."
            )
        found.begins.append(begins)
        found.links.append(Link(seconds(line, line.cells[1]), gbps(line, line.cells[2])))
    if found.begins[:1] != [0]:
        raise ConfigError(f"{said} has a hole: what holds from the beginning on, at 0, is missing in it.")
    return found


def _number(epoch: float, segment_epochs: float) -> int:
    """The segment of an epoch that follows from steps: what rounding left below a border counts as beyond it."""
    return math.floor(epoch / segment_epochs * (1 + 1e-12))


class Mode(Enum):
    """How it changes."""

    constant = Constant
    steps = Steps
    random_walk = RandomWalk
    trace = Recorded


@dataclass
class NetworkChanges:
    """How latency and bandwidth change, of all links alike; between machines where there are machines. A mode needs its
    own keys. In steps and trace it says both, and cluster.links does not.

    mode            constant: as cluster.links says; steps: one latency and one bandwidth after the other, of which the
                    last ones stay; random_walk: from what cluster.links says, the logarithms of both go a step after
                    each segment; trace: as a file says
    segment_epochs  how long each of them lasts, in epochs
    latency_s       of the segments, in seconds, such as [0.001, 0.002]
    bandwidth_gbps  of the segments, in Gbit/s
    drift           standard deviation of a step of a walk: 0.1 for about a tenth
    most            how many times as large or as small as at first they become at most
    trace           path of a CSV file: a line epoch,latency_s,bandwidth_gbps or seconds,latency_s,bandwidth_gbps, and
                    below it from when on, of epochs or of simulated seconds, a latency and a bandwidth hold
    """

    mode: Mode = Mode.constant
    segment_epochs: float | None = field(default=None, metadata={"older": None})
    latency_s: list[float] | None = field(default=None, metadata={"older": None})
    bandwidth_gbps: list[float] | None = field(default=None, metadata={"older": None})
    drift: float | None = field(default=None, metadata={"older": None})
    most: float | None = field(default=None, metadata={"older": None})
    trace: str | None = field(default=None, metadata={"older": None, "content": True})

    def open(self) -> Schedule:
        """The schedule. Raises ConfigError for what is missing, out of place or makes no sense."""
        schedule: Schedule = settings.chosen(self.mode.value, self, WHERE, "mode")
        return schedule


class ChangingCosts:
    """The links between n workers over the steps of a run; between machines where there are machines."""

    def __init__(
        self, changes: NetworkChanges, links: Links, num_workers: int, seed: int, steps_per_epoch: float | None
    ) -> None:
        """`steps_per_epoch`: None where there are no epochs.

        Raises ConfigError for what is missing, contradicts something, or makes no sense.
        """
        self.schedule, self._links, self._n, self._seed = changes.open(), links, num_workers, seed
        self._steps_per_epoch = steps_per_epoch
        between = "between_" if links.workers_per_machine else ""
        self._keys = f"{between}latency_s", f"{between}bandwidth_gbps"
        self._mode = f"{WHERE}.mode={changes.mode.name}"
        if self.schedule.changes:
            self._check()
        usual = (getattr(links, key) for key in self._keys)
        self._usual = Link(*(0.0 if value is None else value for value in usual))
        self._known: tuple[int, LinkCosts] | None = None

    @property
    def first(self) -> LinkCosts:
        """In step 0."""
        return self._of(0)

    def at(self, step: int, seconds: float) -> LinkCosts:
        """In a step that begins at this simulated time; the same object as long as nothing changes."""
        epoch = step / self._steps_per_epoch if self._steps_per_epoch is not None else 0.0
        return self._of(self.schedule.segment(epoch, seconds))

    def _of(self, segment: int) -> LinkCosts:
        if self._known is None or self._known[0] != segment:
            links = self._links
            if self.schedule.changes:
                link = self.schedule.link(segment, self._usual, self._seed)
                settings: dict[str, Any] = dict(zip(self._keys, link, strict=True))
                links = replace(links, **settings)
            self._known = segment, LinkCosts(links.open(self._n), self._n)
        return self._known[1]

    def _check(self) -> None:
        if self._links.file is not None:
            raise ConfigError(
                f"cluster.links.file={self._links.file} gives links costs of their own, and {self._mode} changes all "
                "alike: leave one of them out."
            )
        for key in self._keys:
            value = getattr(self._links, key)
            if self.schedule.says_all and value is not None:
                raise ConfigError(
                    f"cluster.links.{key}={value:g} has no meaning with {self._mode}, which says it: leave it out, or "
                    f"set cluster.links.{key}=null."
                )
        if self.schedule.by_epochs and self._steps_per_epoch is None:
            raise ConfigError(
                f"{self._mode} goes by epochs, of which there are none without training: use a trace by seconds, or "
                "leave it out."
            )
