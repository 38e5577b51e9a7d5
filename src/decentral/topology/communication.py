"""How often the workers of any topology communicate, how often all of them agree, and whether machines stand in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.settings import Settings, setting

if TYPE_CHECKING:
    from decentral.topology.rounds import Rounds
    from decentral.topology.topology import Topology


@dataclass
class Communication(Settings, where="communication"):
    """What is done with the rounds of a topology, for every algorithm alike (Ying et al. 2021, sections III and V).

    every                 local steps: communicate in rounds every, 2 every, ... only
    global_every          periodic global averaging: every so many communications, the mean of all workers (null: never)
    workers_per_machine   L > 1: workers i L to i L + L - 1 are on machine i, and the topology connects machines, not
                          workers: x_i <- sum_J W_IJ (mean of machine J)
    """

    every: int = setting(1, at_least=1, older=1)
    global_every: int | None = setting(None, at_least=1, older=None)
    workers_per_machine: int = setting(1, at_least=1, older=1)

    @property
    def plain(self) -> bool:
        """Whether the rounds are those of the topology."""
        return self == Communication()

    def schedule(self, topology: Topology, num_workers: int) -> Rounds:
        """The rounds of the topology with this done to them.

        Raises:
            ConfigError: the topology does not exist for so many workers or machines, or cannot be one of machines.
        """
        from decentral.topology.machines import on_machines
        from decentral.topology.periodic import now_and_then

        rounds = (
            topology.schedule(num_workers)
            if self.workers_per_machine == 1
            else on_machines(topology, num_workers, self.workers_per_machine)
        )
        if self.every == 1 and self.global_every is None:
            return rounds
        return now_and_then(rounds, self.every, self.global_every, topology.name)
