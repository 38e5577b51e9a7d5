"""The configuration group `cluster=`: no simulated time, or machines that are described."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from decentral.cluster.compute import ComputeTimes, GradientTimes, repeated
from decentral.cluster.links import LinkCosts, Links
from decentral.cluster.network_changes import ChangingCosts, Mode, NetworkChanges
from decentral.cluster.stragglers import Stragglers
from decentral.errors import ConfigError
from decentral.settings import Settings, setting


class WaitsFor(Enum):
    """For whom a worker waits that exchanges rows with neighbours."""

    neighbors = "neighbors"
    everyone = "everyone"


class Cluster(Settings, ABC, where="cluster"):
    """A choice of `cluster=`. Its components are dataclasses whose fields are their configuration."""

    @abstractmethod
    def check(self, num_workers: int) -> None:
        """Raise ConfigError for anything that is missing, contradicts something or does not fit n workers."""


class VirtualCluster(Cluster):
    """One that says how long everything takes, so that runs have simulated time.

    Time follows from these numbers and from who talks to whom, never from the values that are computed.
    """

    waits_for: WaitsFor
    """For whom methods wait that talk to neighbours."""
    num_parameters: int | None
    """Of the model whose messages are timed; None: the one that is trained."""

    @abstractmethod
    def gradient_times(self, num_workers: int, seed: int) -> GradientTimes:
        """How long each gradient of each worker takes."""

    @abstractmethod
    def costs(self, num_workers: int) -> LinkCosts:
        """What the links between n workers cost, at first."""

    @property
    def changes(self) -> str:
        """What says that links change under way, as key=value; '' if they do not."""
        return ""

    def changing(self, num_workers: int, seed: int, steps_per_epoch: float | None) -> ChangingCosts | None:
        """What they cost in every step, if that changes; `steps_per_epoch` is None where there are no epochs."""
        return None


@dataclass
class NoCluster(Cluster):
    """Time is not simulated: a run takes as long as this machine takes."""

    name: str = "none"

    def check(self, num_workers: int) -> None:
        """Always possible."""


@dataclass
class Machines(VirtualCluster):
    """A virtual cluster: n workers compute, straggle and send as described, and a run has simulated time.

    compute      time of a gradient
    stragglers   which workers are slower, in which steps, and by how much
    links        cost of sending and copying
    network      changes of the links' latency and bandwidth over time
    waits_for    whom a worker waits for when it exchanges rows with neighbors: its neighbors, or everyone, as on the
                 single global clock that the WAGMA paper gives D-PSGD
    num_parameters  parameters of the model whose messages are timed and counted (null: the trained model)
    devices      path of a CSV file with the speed of each worker's machine over time (null: all alike): the header
                 worker,seconds,slowdown,up_gbps,down_gbps, and lines that say from which simulated second a gradient of
                 that worker takes `slowdown` times as long as `compute` says, and its port sends and receives at these
                 speeds; leave out links.bandwidth_gbps then. The last line of a worker holds to the end. A transfer in
                 progress continues at the new speed; a gradient keeps its slowdown

    Everything random is addressed by (seed, step, worker), so that all methods, and real processes, see the same
    delays. What is not given is refused, never taken to be zero.
    """

    name: str = "machines"
    compute: ComputeTimes = field(default_factory=ComputeTimes)
    stragglers: Stragglers = field(default_factory=Stragglers)
    links: Links = field(default_factory=Links)
    network: NetworkChanges = field(default_factory=NetworkChanges, metadata={"older": NetworkChanges()})
    waits_for: WaitsFor = WaitsFor.neighbors
    num_parameters: int | None = setting(None, at_least=1, older=None)
    devices: str | None = field(default=None, metadata={"older": None, "content": True})

    def check(self, num_workers: int) -> None:
        """Raise ConfigError for anything that is missing, contradicts something or does not fit n workers."""
        if num_workers < 1:
            raise ConfigError(f"num_workers={num_workers} is out of range: use at least one worker.")
        self.gradient_times(num_workers, seed=0)
        self.costs(num_workers)

    def gradient_times(self, num_workers: int, seed: int) -> GradientTimes:
        """How long each gradient of each worker takes. Raises ConfigError, see `check`."""
        draw, delays = self.compute.open(num_workers, seed), self.stragglers.open(num_workers)
        return GradientTimes(draw, delays, num_workers, seed, self.compute.passes or 0)

    def costs(self, num_workers: int) -> LinkCosts:
        """What the links between n workers cost, at first. Raises ConfigError, see `check`."""
        if self.devices is not None:
            if self.changes:
                raise ConfigError(
                    f"cluster.devices={self.devices} sets the speed of each port over time, and {self.changes} "
                    "changes all ports alike: leave one of them out."
                )
            return LinkCosts(self.links, num_workers, self.devices)
        return ChangingCosts(self.network, self.links, num_workers, seed=0, steps_per_epoch=1.0).first

    @property
    def changes(self) -> str:
        """See `VirtualCluster.changes`."""
        constant = self.network.mode is Mode.constant
        return "" if constant else f"cluster.network.mode={self.network.mode.name}"

    def changing(self, num_workers: int, seed: int, steps_per_epoch: float | None) -> ChangingCosts | None:
        """What they cost in every step, if that changes. Raises ConfigError, see `ChangingCosts`."""
        if not self.changes:
            return None
        return ChangingCosts(self.network, self.links, num_workers, seed, steps_per_epoch)


@dataclass(frozen=True)
class KnownCluster(VirtualCluster):
    """Gradient t of worker i takes `table[t, i]` seconds, and links cost this."""

    table: np.ndarray
    links: LinkCosts
    waits_for: WaitsFor = WaitsFor.neighbors
    num_parameters: int | None = None

    def check(self, num_workers: int) -> None:
        """The table has a column for each worker."""
        assert num_workers == self.table.shape[1] == self.links.num_workers

    def gradient_times(self, num_workers: int, seed: int) -> GradientTimes:
        """Those of the table, whatever the seed. Nobody straggles: what a worker's time is made of is not known."""
        return GradientTimes(repeated(self.table), Stragglers().open(num_workers), num_workers, seed)

    def costs(self, num_workers: int) -> LinkCosts:
        """Those that are known."""
        return self.links
