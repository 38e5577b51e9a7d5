"""How long workers take until their models are good enough: real ones, and those that the clock predicts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.cluster.cluster import VirtualCluster
from decentral.config.identity import identity
from decentral.config.schema import Config
from decentral.errors import ConfigError, check_at_least
from decentral.measurements.validation.observed import ObservedRuns

if TYPE_CHECKING:
    from decentral.network.world import World
    from decentral.training.assemble import Run


@dataclass(frozen=True)
class Target:
    """When models are good enough.

    accuracy       what the test accuracy of the workers has to be on average, a fraction of 1
    every_steps    after how many steps that is looked at: then all real workers wait for each other
    at_most_steps  who has not reached it by then never does
    """

    accuracy: float = 0.9
    every_steps: int = 20
    at_most_steps: int = 200

    def __post_init__(self) -> None:
        if not 0 < self.accuracy <= 1:
            raise ConfigError(f"target.accuracy={self.accuracy:g} makes no sense: it has to be above 0 and at most 1.")
        check_at_least("target.every_steps", self.every_steps)
        check_at_least("target.at_most_steps", self.at_most_steps, self.every_steps)


@dataclass
class ObservedTargets(ObservedRuns):
    """Trains with each method between processes with one worker each, until the target is reached.

    Stragglers sleep, and gradients are computed. A line of reached.jsonl for each method and round, with seed + r in
    round r: {"method", "round", "seconds": of training, without evaluations; null for never}.
    """

    target: Target = Target()

    folder: ClassVar[str] = "observed_targets"
    lines: ClassVar[str] = "reached.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Methods and the target."""
        return {
            "methods": [[name, identity(config), config.network.transport.name] for name, config in self.methods],
            "target": list(vars(self.target).values()),
            "rounds": self.rounds,
        }

    def part(self, world: World, method: str, round: int) -> dict[str, Any]:
        """How long it trained."""
        from decentral.training.assemble import assemble

        run = assemble(_limited(self.config_of(method), round, self.target), world)
        run.oracle.clock = run.net.clock = None  # the real one counts
        try:
            return {"seconds": trained_s(run, self.target)}
        finally:
            run.close()

    def seconds(self, method: str) -> list[float]:
        """Of each round; nan for never."""
        found = [line["seconds"] for line in self.found() if line["method"] == method]
        return [math.nan if one is None else float(one) for one in found]


def simulated_s(config: Config, number: int, cluster: VirtualCluster, target: Target) -> float:
    """Simulated seconds to the target with a method in this cluster; nan for never."""
    import torch

    from decentral.network.world import World
    from decentral.training.assemble import assemble

    alone = replace(_limited(config, number, target), processes="1", cluster=cluster, record_operations=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        run = assemble(alone, World(0, 1, torch.device("cpu")))
        try:
            found = trained_s(run, target)
        finally:
            run.close()
            torch.set_num_threads(threads)
    return math.nan if found is None else found


def trained_s(run: Run, target: Target) -> float | None:
    """Train until the target is reached: how many seconds that took, simulated ones where time is; None for never."""
    from decentral.training.evaluation import evaluate

    stepper, world, spent_s = run.stepper, run.world, 0.0
    for first in range(0, target.at_most_steps, target.every_steps):
        steps = min(target.every_steps, target.at_most_steps - first)
        world.barrier()
        began = time.monotonic_ns()
        stepper.may_go_on_to(first + steps)
        for _ in range(steps):
            stepper.step()
        took = time.monotonic_ns() - began
        stepper.flush()
        spent_s += max(int.from_bytes(one, "big") for one in world.collect(took.to_bytes(8, "big"))) * 1e-9
        found = evaluate(run.problem, stepper.models, run.net, run.oracle.take_losses(), world.rank, world.size)
        if found.metrics[0].name != "accuracy":
            raise ConfigError(f"a target for the accuracy is given, but task={run.config.task.name} has none.")
        if found.workers[:, 0].mean() >= target.accuracy:
            return spent_s if stepper.simulated_s is None else stepper.simulated_s
    return None


def _limited(config: Config, number: int, target: Target) -> Config:
    return replace(config, seed=config.seed + number, steps=target.at_most_steps)
