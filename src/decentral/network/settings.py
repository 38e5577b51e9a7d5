"""The configuration of the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from decentral.errors import ConfigError


class Carrier(Enum):
    """What carries rows between processes: shared memory among those of one host, or torch.distributed."""

    auto = "auto"
    shared_memory = "shared_memory"
    torch = "torch"


@dataclass
class NetworkSettings:
    """Faults to inject, and the patience of the processes with each other.

    drop_probability    each directed message of each round and tree is lost with this probability, seeded by the run's
                        seed
    timeout_s           how long a process waits for another one before the run fails
    transport           what carries rows between processes: shared_memory (all on one Linux host, on CPUs), torch
                        (torch.distributed: gloo or nccl), or auto: shared memory wherever it can be
    """

    drop_probability: float = 0.0
    timeout_s: float = field(default=120.0, metadata={"volatile": True})
    transport: Carrier = field(default=Carrier.auto, metadata={"volatile": True})

    def __post_init__(self) -> None:
        if not 0 <= self.drop_probability < 1:
            raise ConfigError(
                f"network.drop_probability={self.drop_probability:g} is no probability: use 0 up to, but not "
                "including, 1."
            )
        if not 0 < self.timeout_s <= 1e6:
            raise ConfigError(f"network.timeout_s={self.timeout_s:g} has to be a number of seconds, up to 1e6.")
