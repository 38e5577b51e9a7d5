"""How the times of gradients are distributed in a virtual cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from decentral.cluster.cluster import VirtualCluster
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.measurements.measurement import Measurement
from decentral.measurements.values import Curve, Labels, Point, Value
from decentral.settings import setting

SHARE = "gradients that take no longer (%)"
_QUANTILES = {"median (s)": 50, "95 % take at most (s)": 95, "least (s)": 0, "most (s)": 100}
_POINTS = 101
"""Quantiles of a distribution that are kept: the least, every hundredth, and the most."""


@dataclass
class GradientTimes(Measurement):
    """How long the first `steps` gradients of all workers of config.cluster take, which are measured if it says so.

    A line for each seed: {"seed", "mean": seconds, "quantiles": those of 0, 0.01, ..., 1}.
    """

    name: str = "gradient_times"
    seeds: list[int] = field(default_factory=lambda: [1])
    steps: int = setting(1000, at_least=1)

    folder: ClassVar[str] = "gradient_times"
    lines: ClassVar[str] = "quantiles.jsonl"

    def check(self) -> None:
        """There has to be a cluster."""
        cluster_of(self.config)

    def parameters(self) -> dict[str, Any]:
        """Seeds and steps."""
        return {"seeds": self.seeds, "steps": self.steps}

    def line(self, seed: int) -> dict[str, Any]:
        """As above."""
        times = cluster_of(self.config).gradient_times(self.n, seed)
        if times.passes:
            times = times.measured(_measured(replace(self.config, seed=seed), times.passes))
        seconds = times.seconds(0, self.steps)
        quantiles = np.quantile(seconds, np.linspace(0, 1, _POINTS))
        return {"mean": float(seconds.mean()), "quantiles": quantiles.tolist()}

    def values(self, labels: Labels) -> Iterator[Value]:
        """Median, high quantile, range and mean in seconds."""
        for line in self.found():
            for metric, percent in _QUANTILES.items():
                yield Value(labels, line["quantiles"][percent], metric, line["seed"])
            yield Value(labels, line["mean"], "mean (s)", line["seed"])

    def curves(self, labels: Labels) -> Iterator[Curve]:
        """The share that takes no longer, over seconds."""
        for line in self.found():
            points = [Point(float(p), {"simulated_s": seconds}) for p, seconds in enumerate(line["quantiles"])]
            yield Curve(labels, SHARE, "", line["seed"], points)


def _measured(config: Config, passes: int) -> np.ndarray:
    """Seconds of so many gradients of the configured task on one core of this machine, at the models it begins with."""
    import torch

    from decentral.training.oracle import measure

    assert config.num_workers is not None
    config.task.prepare(config)
    problem = config.task.open(config, range(config.num_workers), torch.device("cpu"))
    try:
        with torch.no_grad():
            return measure(problem, problem.init().repeat(config.num_workers, 1), passes)
    finally:
        problem.close()


def cluster_of(config: Config, sized: bool = False) -> VirtualCluster:
    """The cluster. Raises ConfigError if there is none, or, where it has to be `sized`, if it does not say how large
    the model is whose messages take time."""
    if not isinstance(config.cluster, VirtualCluster):
        raise ConfigError(
            "cluster=none has no simulated time, which this study is about: choose one, such as two_delayed."
        )
    if sized and config.cluster.num_parameters is None:
        raise ConfigError(
            "cluster.num_parameters is not given: nothing is trained here, say how large the model is whose messages "
            "are timed."
        )
    return config.cluster
