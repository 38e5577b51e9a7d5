"""The same as `straggler` in a virtual cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decentral.config.schema import Config
from decentral.jobs.simulated_race import SimulatedRace
from decentral.jobs.simulated_time import cluster_of
from decentral.study.kinds.straggler import Straggler


@dataclass
class SimulatedStraggler(Straggler):
    """`straggler` without processes: seconds are simulated, and what messages cost is what `cluster.links` say."""

    name: str = "simulated_straggler"
    axis: ClassVar[str] = "simulated_s"

    def job(self, config: Config, title: str) -> SimulatedRace:
        """A race in the virtual cluster. Raises ConfigError if there is none."""
        cluster_of(config)
        return SimulatedRace(config, title, tuple(self.seeds), tuple(self.slowdowns), self.settings)
