"""A time-varying network: `cluster.network`, and the link costs of every step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from decentral.cluster.links import LinkCosts, Links
from decentral.cluster.settings import LONGEST_S, SLOWEST_GBPS, check_choice, optional, read_lines
from decentral.errors import ConfigError
from decentral.randomness import normal

_WHERE = "cluster.network"
_TRACE = "cluster.network.trace"
_PURPOSE = "cluster: network"
_HEADS = (["epoch", "latency_s", "bandwidth_gbps"], ["seconds", "latency_s", "bandwidth_gbps"])
_MOST = 10.0


class Mode(Enum):
    """The kind of change, and the settings it needs."""

    constant = ()
    steps = ("segment_epochs", "latency_s", "bandwidth_gbps")
    random_walk = ("segment_epochs", "drift")
    trace = ("trace",)


@dataclass
class NetworkChanges:
    """Changes of latency and bandwidth, the same for all links, or for all links between machines if there are
    machines. A mode needs its own keys. steps and trace set both values, and cluster.links must not.

    mode            constant: the values of cluster.links; steps: a sequence of latencies and bandwidths, the last of
                    which remain; random_walk: starting from cluster.links, the logarithms of both take a random step
                    after each segment; trace: values from a file
    segment_epochs  length of a segment, in epochs
    latency_s       latency of each segment, in seconds, such as [0.001, 0.002]
    bandwidth_gbps  bandwidth of each segment, in Gbit/s
    drift           standard deviation of a step of the walk: 0.1 is about 10 %
    most            maximum factor by which they grow or shrink
    trace           path of a CSV file: the header epoch,latency_s,bandwidth_gbps or seconds,latency_s,bandwidth_gbps,
                    and lines with the epoch or simulated second from which a latency and a bandwidth hold
    """

    mode: Mode = Mode.constant
    segment_epochs: float | None = optional(above=0, hint="epochs")
    latency_s: list[float] | None = optional(at_least=0, at_most=LONGEST_S, hint="seconds")
    bandwidth_gbps: list[float] | None = optional(at_least=SLOWEST_GBPS, finite=False, hint="Gbit/s")
    drift: float | None = optional(above=0, hint="standard deviation of a step in the logarithm, such as 0.1")
    most: float | None = optional(above=1, at_most=1e6, hint="such as 10: from a tenth to ten times the initial value")
    trace: str | None = field(default=None, metadata={"older": None, "content": True})

    def check(self) -> None:
        """Raise ConfigError for missing, misplaced or invalid settings."""
        check_choice(self, _WHERE, "mode", ("most",) if self.mode is Mode.random_walk else ())
        if self.latency_s is None or self.bandwidth_gbps is None:
            return
        if len(self.latency_s) != len(self.bandwidth_gbps):
            raise ConfigError(
                f"{_WHERE}.latency_s has {len(self.latency_s)} numbers and {_WHERE}.bandwidth_gbps "
                f"{len(self.bandwidth_gbps)}: give both of every segment."
            )
        if not self.latency_s:
            raise ConfigError(f"{_WHERE}.latency_s=[] is empty: give at least one segment, such as [0.001].")


class Link(NamedTuple):
    """The properties of a link."""

    latency_s: float
    bandwidth_gbps: float


class Segments(NamedTuple):
    """Segments of a run with constant links: their number and properties."""

    of: Callable[[float, float], int]
    """(epoch, simulated seconds) -> the segment of a step that begins there."""
    link: Callable[[int], Link]


class ChangingCosts:
    """The links between n workers (or between machines, if there are any) over the steps of a run."""

    def __init__(
        self, changes: NetworkChanges, links: Links, num_workers: int, seed: int, steps_per_epoch: float | None
    ) -> None:
        """Create the costs; `steps_per_epoch` is None without epochs.

        Raises ConfigError for missing, contradictory or invalid settings.
        """
        changes.check()
        self._links, self._n, self._steps_per_epoch = links, num_workers, steps_per_epoch
        between = "between_" if links.workers_per_machine else ""
        self._keys = f"{between}latency_s", f"{between}bandwidth_gbps"
        latency, gbps = (getattr(links, key) or 0.0 for key in self._keys)
        self._segments: Segments | None = None
        by_epochs = True
        if changes.mode is Mode.trace:
            by_epochs, self._segments = _recorded(str(changes.trace))
        elif changes.mode is not Mode.constant:
            self._segments = (_listed if changes.mode is Mode.steps else _walk)(changes, Link(latency, gbps), seed)
        if self._segments is not None:
            self._check(changes.mode, by_epochs)
        self._known: tuple[int, LinkCosts] | None = None

    @property
    def first(self) -> LinkCosts:
        """Return the costs in step 0."""
        return self._of(0)

    def at(self, step: int, seconds: float) -> LinkCosts:
        """Return the costs in a step that begins at this simulated time; the same object while nothing changes."""
        epoch = step / self._steps_per_epoch if self._steps_per_epoch is not None else 0.0
        return self._of(self._segments.of(epoch, seconds) if self._segments is not None else 0)

    def _of(self, segment: int) -> LinkCosts:
        if self._known is None or self._known[0] != segment:
            links = self._links
            if self._segments is not None:
                settings: dict[str, Any] = dict(zip(self._keys, self._segments.link(segment), strict=True))
                links = replace(links, **settings)
            self._known = segment, LinkCosts(links, self._n)
        return self._known[1]

    def _check(self, mode: Mode, by_epochs: bool) -> None:
        said = f"{_WHERE}.mode={mode.name}"
        if self._links.file is not None:
            raise ConfigError(
                f"cluster.links.file={self._links.file} sets the cost of each link, and {said} changes all links "
                "alike: leave one of them out."
            )
        for key in self._keys:
            value = getattr(self._links, key)
            if mode is not Mode.random_walk and value is not None:
                raise ConfigError(
                    f"cluster.links.{key}={value:g} has no effect with {said}, which sets it: leave it out, or set "
                    f"cluster.links.{key}=null."
                )
        if by_epochs and self._steps_per_epoch is None:
            raise ConfigError(
                f"{said} is defined in epochs, which need training: use a trace in seconds, or leave it out."
            )


def _number(epoch: float, changes: NetworkChanges) -> int:
    """Return the segment of an epoch computed from steps, corrected for rounding just below a boundary."""
    return math.floor(epoch / (changes.segment_epochs or 1.0) * (1 + 1e-12))


def _listed(changes: NetworkChanges, usual: Link, seed: int) -> Segments:
    """Return segments of equal length in epochs; the last one continues to the end."""
    links = [Link(*link) for link in zip(changes.latency_s or [], changes.bandwidth_gbps or [], strict=True)]
    return Segments(lambda epoch, seconds: min(_number(epoch, changes), len(links) - 1), links.__getitem__)


def _walk(changes: NetworkChanges, usual: Link, seed: int) -> Segments:
    """Return random walks of log latency and log bandwidth from the usual values, with a normal step after each
    segment.

    They are reflected at `most` times as large or as small as usual. Draws are addressed by (seed, segment).
    """
    drift, far = changes.drift or 0.0, math.log(changes.most or _MOST)

    def link(segment: int) -> Link:
        """Return the reflected walks, which are the free walks folded into their range."""
        steps = normal(seed, _PURPOSE, np.arange(1, segment + 1)[:, None], np.arange(2)[None, :])
        place = np.mod(drift * steps.sum(axis=0) + far, 4 * far)
        latency, bandwidth = np.exp(np.minimum(place, 4 * far - place) - far).tolist()
        return Link(usual.latency_s * latency, usual.bandwidth_gbps * bandwidth)

    return Segments(lambda epoch, seconds: _number(epoch, changes), link)


def _recorded(name: str) -> tuple[bool, Segments]:
    """Return whether the lines of a file are in epochs, and their segments: each begins at its epoch or simulated time,
    and the last one continues to the end."""
    said, lines = f"{_TRACE}={name}", read_lines(_TRACE, name)
    if not lines or lines[0].cells not in _HEADS:
        raise ConfigError(
            f"{said} has no header: start it with epoch,latency_s,bandwidth_gbps or seconds,latency_s,bandwidth_gbps."
        )
    head = lines[0].cells
    begins: list[float] = []
    links: list[Link] = []
    for line in lines[1:]:
        line.check_columns(head)
        place = line.number(0, f"a number of {head[0].removesuffix('s')}s", -math.inf)
        if begins and not place > begins[-1]:
            raise ConfigError(
                f"{line.said} begins at {place:g}, and the previous line at {begins[-1]:g}: sort the lines, and give "
                "each time once."
            )
        begins.append(place)
        links.append(Link(line.seconds(1), line.gbps(2)))
    if begins[:1] != [0]:
        raise ConfigError(f"{said} is incomplete: add the line that holds from the start, at 0.")
    by_epochs = head == _HEADS[0]
    begun = lambda epoch, seconds: bisect_right(begins, epoch if by_epochs else seconds) - 1  # noqa: E731
    return by_epochs, Segments(begun, links.__getitem__)
