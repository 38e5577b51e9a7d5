"""The configuration of the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from decentral.errors import ConfigError
from decentral.settings import Settings, setting

SMALL_BYTES = 64
"""Size of a probe's small message."""
_MOST_PROBED = 1_000_000_000


class Carrier(Enum):
    """The transport between processes: shared memory on one host, or torch.distributed."""

    auto = "auto"
    shared_memory = "shared_memory"
    torch = "torch"


class CollectiveChoice(Enum):
    """The all-reduce algorithm between processes."""

    library = "library"
    auto = "auto"
    ring = "ring"
    tree = "tree"
    recursive_doubling = "recursive_doubling"
    rabenseifner = "rabenseifner"
    star = "star"


@dataclass
class NetworkSettings(Settings, where="network"):
    """Faults to inject, timeouts, and communication between processes.

    drop_probability    each directed message of each round and tree is lost with this probability, seeded by the run's
                        seed
    timeout_s           seconds that a process waits for another one before the run fails
    transport           transport of rows between processes: shared_memory (all on one Linux host, on CPUs), torch
                        (torch.distributed: gloo or nccl), or auto: shared memory wherever possible
    collective          all-reduce between processes: library is the transport's own; ring, tree, recursive_doubling,
                        rabenseifner or star consist of point-to-point messages; auto takes the fastest one for rows of
                        this size by a model of the network, if there is one
    latency_ms          additional delay of every message to another process, in milliseconds
    bandwidth_gbps      maximum rate at which a process sends to all others together, in Gbit/s (null: no limit)
    measure             whether decisions that depend on the costs of links (compress.adapt, compress=flexible, a chosen
                        collective) use probes instead of the configuration: a small and a large message from worker to
                        worker, whose time and bytes count
    measure_every_steps how often, from step 0 on
    measure_bytes       size of the large message in bytes
    """

    drop_probability: float = setting(0.0, at_least=0, below=1)
    timeout_s: float = setting(120.0, above=0, at_most=1e6, volatile=True)
    transport: Carrier = field(default=Carrier.auto, metadata={"volatile": True})
    collective: CollectiveChoice = field(default=CollectiveChoice.library, metadata={"volatile": True})
    latency_ms: float = setting(0.0, at_least=0, at_most=1e6, older=0.0)
    bandwidth_gbps: float | None = setting(None, at_least=1e-9, hint="or null for no limit", older=None)
    measure: bool = field(default=False, metadata={"older": False})
    measure_every_steps: int = setting(10, at_least=1, older=10, when="measure")
    measure_bytes: int = setting(
        1_000_000, at_least=2 * SMALL_BYTES, at_most=_MOST_PROBED, older=1_000_000, when="measure"
    )

    @property
    def limited(self) -> str:
        """Return the artificial limits as key=value; '' for none."""
        if self.bandwidth_gbps is not None:
            return f"network.bandwidth_gbps={self.bandwidth_gbps:g}"
        return f"network.latency_ms={self.latency_ms:g}" if self.latency_ms else ""

    @property
    def seconds_per_byte(self) -> float:
        """Return the seconds per byte at the limited bandwidth."""
        return 0.0 if self.bandwidth_gbps is None else 8e-9 / self.bandwidth_gbps

    def check_several(self, processes: int, has_clock: bool = False) -> None:
        """Raise ConfigError if messages are limited or measured but a single process sends none.

        In simulated time, `has_clock`, a single process measures links, too.
        """
        if processes > 1:
            return
        if self.measure and not has_clock:
            raise ConfigError(
                "network.measure=true has no links to measure within one process: use several, such as processes=4, or "
                "simulated time, such as cluster=slow_network."
            )
        if self.limited:
            raise ConfigError(
                f"{self.limited} needs messages between processes, and a single process has none: use several, such "
                "as processes=4. (In simulated time, cluster.links sets the cost of messages.)"
            )
