"""What a method's steps take in a virtual cluster, without training, and what gradients take there: jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from decentral.cluster.cluster import Machines, VirtualCluster
from decentral.config.identity import component_identity
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.jobs.computation import SeededComputation

_POINTS = 101
"""Quantiles of a distribution that are kept: the least, every hundredth, and the most."""


@dataclass(frozen=True)
class SimulatedTime(SeededComputation):
    """Time alone: `steps` steps of config.algo in config.cluster, whose delays each seed draws anew.

    A line of times.jsonl for each seed: {"seed", "step_s": seconds in which the workers take as many gradients as there
    are workers, "waiting_share": of all workers' time, "simulated_s": until the last has done its last step,
    "mb_sent": by a worker in a step (10^6 bytes), "mean_age" and "stale_share": of the contributions of methods that
    meet in groups, by how many versions they were old, and how many were so at all (null for other methods)}.
    """

    steps: int = 200

    folder: ClassVar[str] = "simulated_time"
    lines: ClassVar[str] = "times.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Seeds and steps, and the topology where the run's identity leaves it out."""
        over = component_identity(self.config.topology)
        return {"seeds": list(self.seeds), "steps": self.steps, "over": over}

    def line(self, seed: int) -> dict[str, Any]:
        """As above."""
        from decentral.training.timing import timed

        cluster = cluster_of(self.config)
        assert cluster.num_parameters is not None
        found = timed(replace(self.config, seed=seed), self.steps, cluster.num_parameters)
        contributions = sum(found.ages.values())
        stale = sum(count for age, count in found.ages.items() if age > 0)
        age = sum(age * count for age, count in found.ages.items())
        return {
            "step_s": found.step_s,
            "waiting_share": found.waiting_share,
            "simulated_s": found.simulated_s,
            "mb_sent": found.bytes_sent / found.gradients / 1e6,
            "mean_age": age / contributions if contributions else None,
            "stale_share": stale / contributions if contributions else None,
        }


@dataclass(frozen=True)
class TimesOverLinks(SeededComputation):
    """The same over how many times as long slow workers take, and over the bandwidth of the links.

    A line of times.jsonl for each seed: {"seed", "step_s": for each slowdown, the seconds for each bandwidth}.
    """

    steps: int = 100
    slowdowns: tuple[float, ...] = ()
    gbps: tuple[float, ...] = ()

    folder: ClassVar[str] = "times_over_links"
    lines: ClassVar[str] = "times.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Seeds, steps and places, and the topology where the run's identity leaves it out."""
        places = {"slowdowns": list(self.slowdowns), "gbps": list(self.gbps)}
        over = component_identity(self.config.topology)
        return {"seeds": list(self.seeds), "steps": self.steps, **places, "over": over}

    def line(self, seed: int) -> dict[str, Any]:
        """As above."""
        return {"step_s": [[self._step_s(seed, slowdown, gbps) for gbps in self.gbps] for slowdown in self.slowdowns]}

    def _step_s(self, seed: int, slowdown: float, gbps: float) -> float:
        from decentral.training.timing import timed

        cluster = cluster_of(self.config)
        if not isinstance(cluster, Machines):
            raise ConfigError("this cluster has no bandwidth and no slow workers to be changed: use cluster=machines.")
        stragglers = replace(cluster.stragglers, slowdown=slowdown)
        cluster = replace(cluster, stragglers=stragglers, links=replace(cluster.links, bandwidth_gbps=gbps))
        assert cluster.num_parameters is not None
        config = replace(self.config, seed=seed, cluster=cluster)
        return timed(config, self.steps, cluster.num_parameters).step_s


@dataclass(frozen=True)
class GradientTimeDistribution(SeededComputation):
    """How long the first `steps` gradients of all workers of config.cluster take, which are measured if it says so.

    A line of quantiles.jsonl for each seed: {"seed", "mean": seconds, "quantiles": those of 0, 0.01, ..., 1}.
    """

    steps: int = 1000

    folder: ClassVar[str] = "gradient_times"
    lines: ClassVar[str] = "quantiles.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Seeds and steps."""
        return {"seeds": list(self.seeds), "steps": self.steps}

    def line(self, seed: int) -> dict[str, Any]:
        """As above."""
        n = self.config.num_workers
        assert n is not None
        times = cluster_of(self.config).gradient_times(n, seed)
        if times.passes:
            times = times.measured(_measured(replace(self.config, seed=seed), times.passes))
        seconds = times.seconds(0, self.steps)
        quantiles = np.quantile(seconds, np.linspace(0, 1, _POINTS))
        return {"mean": float(seconds.mean()), "quantiles": quantiles.tolist()}


def _measured(config: Config, passes: int) -> np.ndarray:
    """Seconds of so many gradients of the configured task on one core of this machine, at the models it begins with."""
    import torch

    from decentral.training.measuring import measure

    assert config.num_workers is not None
    config.task.prepare(config)
    problem = config.task.open(config, range(config.num_workers), torch.device("cpu"))
    try:
        with torch.no_grad():
            return measure(problem, problem.init().repeat(config.num_workers, 1), passes)
    finally:
        problem.close()


def cluster_of(config: Config) -> VirtualCluster:
    """The cluster. Raises ConfigError if there is none."""
    if not isinstance(config.cluster, VirtualCluster):
        raise ConfigError(
            "cluster=none has no simulated time, which this study is about: choose one, such as two_delayed."
        )
    return config.cluster
