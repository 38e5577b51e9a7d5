"""The configuration group `cluster=`: no simulated time, or a virtual cluster."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from decentral.cluster.compute import ComputeTimes, GradientTimes, repeated
from decentral.cluster.links import LinkCosts, Links
from decentral.cluster.network_changes import ChangingCosts, Mode, NetworkChanges
from decentral.cluster.stragglers import Stragglers
from decentral.errors import ConfigError
from decentral.network.settings import CollectiveChoice, NetworkSettings
from decentral.settings import Settings, setting


class WaitsFor(Enum):
    """The workers that a worker waits for when it exchanges rows with neighbors."""

    neighbors = "neighbors"
    everyone = "everyone"


class Cluster(Settings, ABC, where="cluster"):
    """A choice of `cluster=`. Its components are dataclasses whose fields are their configuration."""

    @abstractmethod
    def check(self, num_workers: int) -> None:
        """Raise ConfigError for anything that is missing, contradicts something or does not fit n workers."""


class VirtualCluster(Cluster):
    """A cluster with a time model, so that runs have simulated time.

    Time depends on these numbers and on the communication graph, never on computed values.
    """

    waits_for: WaitsFor
    """The workers that neighbor-based methods wait for."""
    num_parameters: int | None
    """Size of the model whose messages are timed; None: the trained one."""

    @abstractmethod
    def gradient_times(self, num_workers: int, seed: int) -> GradientTimes:
        """Return the time of each gradient of each worker."""

    @abstractmethod
    def costs(self, num_workers: int) -> LinkCosts:
        """Return the initial costs of the links between n workers."""

    @property
    def changes(self) -> str:
        """Return the setting by which links change during a run, as key=value; '' if they do not."""
        return ""

    def changing(self, num_workers: int, seed: int, steps_per_epoch: float | None) -> ChangingCosts | None:
        """Return the link costs of every step, if they change; `steps_per_epoch` is None without epochs."""
        return None


@dataclass
class NoCluster(Cluster):
    """No simulated time: only real time on this machine."""

    name: str = "none"

    def check(self, num_workers: int) -> None:
        """Accept any number of workers."""


@dataclass
class Machines(VirtualCluster):
    """A virtual cluster: a model of computation, stragglers and links of n workers, which gives a run simulated time.

    compute      time of a gradient
    stragglers   slow workers, their slow steps, and their delays
    links        cost of sending and copying
    network      changes of the links' latency and bandwidth over time
    waits_for    workers that a worker waits for when it exchanges rows with neighbors: its neighbors, or everyone, as
                 on the single global clock of D-PSGD in the WAGMA paper
    num_parameters  parameters of the model whose messages are timed and counted (null: the trained model)
    devices      path of a CSV file with the speed of each worker's machine over time (null: all alike): the header
                 worker,seconds,slowdown,up_gbps,down_gbps, and lines with the simulated second from which a gradient of
                 that worker takes `slowdown` times its time by `compute`, and its port sends and receives at these
                 speeds. Leave out links.bandwidth_gbps then. The last line of a worker holds to the end. A transfer in
                 progress continues at the new speed; a gradient keeps its slowdown

    All randomness is addressed by (seed, step, worker), so that all methods, and real processes, see the same delays.
    Missing numbers are refused, never assumed to be zero.
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
        """Return the time of each gradient of each worker. Raises ConfigError, see `check`."""
        draw, delays = self.compute.open(num_workers, seed), self.stragglers.open(num_workers)
        return GradientTimes(draw, delays, num_workers, seed, self.compute.passes or 0)

    def costs(self, num_workers: int) -> LinkCosts:
        """Return the initial costs of the links between n workers. Raises ConfigError, see `check`."""
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
        """Return the link costs of every step, if they change. Raises ConfigError, see `ChangingCosts`."""
        if not self.changes:
            return None
        return ChangingCosts(self.network, self.links, num_workers, seed, steps_per_epoch)


@dataclass(frozen=True)
class KnownCluster(VirtualCluster):
    """A cluster in which gradient t of worker i takes `table[t, i]` seconds, with given link costs."""

    table: np.ndarray
    links: LinkCosts
    waits_for: WaitsFor = WaitsFor.neighbors
    num_parameters: int | None = None

    def check(self, num_workers: int) -> None:
        """Check that the table has a column for each worker."""
        assert num_workers == self.table.shape[1] == self.links.num_workers

    def gradient_times(self, num_workers: int, seed: int) -> GradientTimes:
        """Return the times of the table, for any seed. Straggler delays are part of them, so there are no others."""
        return GradientTimes(repeated(self.table), Stragglers().open(num_workers), num_workers, seed)

    def costs(self, num_workers: int) -> LinkCosts:
        """Return the given costs."""
        return self.links


def fastest_collective(
    settings: NetworkSettings, cluster: Cluster, num_workers: int, num_processes: int
) -> Callable[[int], CollectiveChoice] | None:
    """Return the rule for `network.collective=auto`, bytes -> collective: by the cost model of limited messages between
    processes, or else of the cluster. None without either."""
    if settings.limited:
        links = Links(settings.latency_ms * 1e-3, settings.bandwidth_gbps or math.inf, copy_gbps=math.inf)
        costs: LinkCosts = LinkCosts(links, num_processes)
    elif isinstance(cluster, VirtualCluster):
        costs = cluster.costs(num_workers)
    else:
        return None
    return lambda num_bytes: CollectiveChoice[costs.fastest_all_reduce(num_processes, num_bytes)]
