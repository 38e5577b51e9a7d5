"""The configuration of the network."""

from __future__ import annotations

from dataclasses import dataclass, field

from decentral.errors import ConfigError


@dataclass
class NetworkSettings:
    """Faults to inject, and the patience of the processes with each other.

    drop_probability    each directed message of each round and tree is lost with this probability, seeded by the run's
                        seed
    timeout_s           how long a process waits for another one before the run fails
    """

    drop_probability: float = 0.0
    timeout_s: float = field(default=120.0, metadata={"volatile": True})

    def __post_init__(self) -> None:
        if not 0 <= self.drop_probability < 1:
            raise ConfigError(
                f"network.drop_probability={self.drop_probability:g} is no probability: use 0 up to, but not "
                "including, 1."
            )
        if not 0 < self.timeout_s <= 1e6:
            raise ConfigError(f"network.timeout_s={self.timeout_s:g} has to be a number of seconds, up to 1e6.")
