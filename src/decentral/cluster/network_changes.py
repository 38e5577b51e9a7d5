"""A network that changes under way: `cluster.network`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from decentral.cluster import settings
from decentral.cluster.network_schedules import Constant, RandomWalk, Recorded, Schedule, Steps

WHERE = "cluster.network"


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
        schedule.check(WHERE)
        return schedule
