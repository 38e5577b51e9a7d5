"""The configuration of the network."""

from __future__ import annotations

import math
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
    stragglers          numbers of workers whose process sleeps before each round of communication
    straggler_delay_s   for how long
    """

    drop_probability: float = 0.0
    timeout_s: float = field(default=120.0, metadata={"volatile": True})
    transport: Carrier = field(default=Carrier.auto, metadata={"volatile": True})
    stragglers: list[int] = field(default_factory=list, metadata={"older": []})
    straggler_delay_s: float = field(default=0.0, metadata={"older": 0.0})

    def __post_init__(self) -> None:
        if not 0 <= self.drop_probability < 1:
            raise ConfigError(
                f"network.drop_probability={self.drop_probability:g} is no probability: use 0 up to, but not "
                "including, 1."
            )
        if not 0 < self.timeout_s <= 1e6:
            raise ConfigError(f"network.timeout_s={self.timeout_s:g} has to be a number of seconds, up to 1e6.")
        self._check_stragglers()

    def _check_stragglers(self) -> None:
        if not (math.isfinite(self.straggler_delay_s) and 0 <= self.straggler_delay_s <= 1e6):
            raise ConfigError(
                f"network.straggler_delay_s={self.straggler_delay_s:g} has to be a number of seconds from 0 to 1e6."
            )
        if bool(self.stragglers) != bool(self.straggler_delay_s):
            raise ConfigError(
                f"network.stragglers={self.stragglers} and network.straggler_delay_s={self.straggler_delay_s:g} belong "
                "together: name workers, such as [3], and for how many seconds they sleep in each round."
            )

    def check_workers(self, num_workers: int) -> None:
        """Raises ConfigError if a straggler is none of so many workers."""
        for worker in self.stragglers:
            if not 0 <= worker < num_workers:
                raise ConfigError(
                    f"network.stragglers={self.stragglers} names worker {worker}, but with num_workers={num_workers} "
                    f"they are numbered 0 to {num_workers - 1}."
                )

    def delay_s(self, workers: range) -> float:
        """How long a process that hosts these workers sleeps before each round."""
        return self.straggler_delay_s if any(worker in workers for worker in self.stragglers) else 0.0
