"""The configuration of the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from decentral.errors import ConfigError
from decentral.settings import Settings, setting

SMALL_BYTES = 64
"""Of the small message of a probe."""
_MOST_PROBED = 1_000_000_000


class Carrier(Enum):
    """What carries rows between processes: shared memory among those of one host, or torch.distributed."""

    auto = "auto"
    shared_memory = "shared_memory"
    torch = "torch"


class CollectiveChoice(Enum):
    """How processes carry out an all-reduce."""

    library = "library"
    auto = "auto"
    ring = "ring"
    tree = "tree"
    recursive_doubling = "recursive_doubling"
    rabenseifner = "rabenseifner"
    star = "star"


@dataclass
class NetworkSettings(Settings, where="network"):
    """Faults to inject, and the patience of the processes with each other.

    drop_probability    each directed message of each round and tree is lost with this probability, seeded by the run's
                        seed
    timeout_s           how long a process waits for another one before the run fails
    transport           what carries rows between processes: shared_memory (all on one Linux host, on CPUs), torch
                        (torch.distributed: gloo or nccl), or auto: shared memory wherever it can be
    collective          how processes carry out an all-reduce: library is what the transport has for it; ring, tree,
                        recursive_doubling, rabenseifner or star are made of messages between two; auto takes the one
                        that a model of the network says is fastest for rows of this size, where there is one
    latency_ms          how much later than it would every message to another process arrives, in milliseconds
    bandwidth_gbps      how many Gbit/s a process sends at most, to all others together (null: as many as it can)
    measure             whether what is decided by what links cost (compress.adapt, compress=flexible, a collective that
                        is chosen) goes by probes instead of the configuration: a small and a large message from worker
                        to worker, whose time and bytes count
    measure_every_steps how often, from step 0 on
    measure_bytes       of the large message
    """

    drop_probability: float = setting(0.0, at_least=0, below=1)
    timeout_s: float = setting(120.0, above=0, at_most=1e6, volatile=True)
    transport: Carrier = field(default=Carrier.auto, metadata={"volatile": True})
    collective: CollectiveChoice = field(default=CollectiveChoice.library, metadata={"volatile": True})
    latency_ms: float = setting(0.0, at_least=0, at_most=1e6, older=0.0)
    bandwidth_gbps: float | None = setting(None, at_least=1e-9, hint="or null for as many as there are", older=None)
    measure: bool = field(default=False, metadata={"older": False})
    measure_every_steps: int = setting(10, at_least=1, older=10, when="measure")
    measure_bytes: int = setting(
        1_000_000, at_least=2 * SMALL_BYTES, at_most=_MOST_PROBED, older=1_000_000, when="measure"
    )

    @property
    def limited(self) -> str:
        """What is slower than it could be, as key=value; '' for nothing."""
        if self.bandwidth_gbps is not None:
            return f"network.bandwidth_gbps={self.bandwidth_gbps:g}"
        return f"network.latency_ms={self.latency_ms:g}" if self.latency_ms else ""

    @property
    def seconds_per_byte(self) -> float:
        """At the limited bandwidth."""
        return 0.0 if self.bandwidth_gbps is None else 8e-9 / self.bandwidth_gbps

    def check_several(self, processes: int) -> None:
        """Raises ConfigError if messages are limited and there is one process, so that there are none."""
        if self.limited and processes == 1:
            raise ConfigError(
                f"{self.limited} is for messages between processes, and in one process nothing crosses: use several, "
                "such as processes=4. (In simulated time, cluster.links says what messages cost.)"
            )
