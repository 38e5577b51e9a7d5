"""What steps of several methods take between processes whose workers sleep instead of computing: a job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from decentral.config.identity import component_identity, identity
from decentral.config.schema import Config
from decentral.jobs.computation import BetweenProcesses, SeededComputation
from decentral.jobs.simulated_time import cluster_of


@dataclass(frozen=True)
class SleepingSteps(BetweenProcesses, SeededComputation):
    """Real processes with a worker in each, who sleeps for all of what config.cluster says that a gradient takes.

    methods   name -> the run of a method; all of them have the same cluster and number of workers
    steps     that are timed, from a pause of all workers to the next one
    warm_up   steps before that, which nobody sleeps in

    All methods take turns in the same processes, with the same delays, which each seed draws anew. A line of
    steps.jsonl for each seed: {"seed", "measured_s": {name: seconds per step}, "clock_s": {name: what the clock says of
    these very gradients}}. Rows have the size of the cluster's model.
    """

    methods: tuple[tuple[str, Config], ...] = ()
    steps: int = 20
    warm_up: int = 10

    folder: ClassVar[str] = "sleeping_steps"
    lines: ClassVar[str] = "steps.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Seeds and steps, and every method with its topology and transport."""
        methods = [
            {
                "name": name,
                "config": identity(config),
                "over": component_identity(config.topology),
                "transport": config.network.transport.name,
            }
            for name, config in self.methods
        ]
        return {"seeds": list(self.seeds), "steps": self.steps, "warm_up": self.warm_up, "methods": methods}

    def line(self, seed: int) -> dict[str, Any]:
        """As above."""
        from decentral.jobs.timing.group import Turns, in_group
        from decentral.jobs.timing.sleeping import Sleeping, Still
        from decentral.training.timing import timed

        size = cluster_of(self.config).num_parameters
        assert size is not None
        total = self.warm_up + self.steps
        configs = {name: replace(config, seed=seed, steps=total) for name, config in self.methods}
        setups = {
            name: Sleeping(replace(config, task=Still(dimension=size)), self.steps, self.warm_up)
            for name, config in configs.items()
        }
        (found,) = in_group(self.num_workers, [Turns(setups, rounds=1, warm_up=0)])
        return {
            "measured_s": {name: found.wall.median(name) / self.steps for name in configs},
            "clock_s": {
                name: timed(config, self.steps, size, after=self.warm_up).step_s for name, config in configs.items()
            },
        }
