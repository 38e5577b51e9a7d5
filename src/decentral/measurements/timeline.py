"""Speed of methods in a virtual cluster, and duration of its gradients: time alone, without training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np

from decentral.cluster.cluster import VirtualCluster
from decentral.cluster.timeline import write_spans
from decentral.config.identity import component_identity
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest
from decentral.measurements.measurement import Computation, Measurement, check_losses
from decentral.measurements.values import Labels, Meaning, Row, Value, curve
from decentral.scheduling.job import Job
from decentral.settings import setting
from decentral.store.files import csv_text, write_text

THROUGHPUT, STEP, WAITING = "throughput (steps/s)", "time per step (s)", "waiting share (%)"
STALE, AGE, SENT = "stale contributions (%)", "mean age of a contribution (versions)", "MB sent per worker and step"


@dataclass
class Timeline(Measurement):
    """`steps` steps of config.algo in config.cluster, in simulated time alone.

    A line for each seed: {"seed", "step_s": seconds in which the workers take as many gradients as there are workers,
    "waiting_share": share of all workers' time, "simulated_s": time of the last worker's last step, "mb_sent": sent by
    a worker per step (10^6 bytes), "mean_age" and "stale_share": mean age in versions of the contributions to group
    averages, and share of stale ones (null for methods without groups)}.

    baseline   method that each row is compared with in the same column, under the same delays: its speed-up is the
               row's time per step divided by its own
    seeds      seeds of the delays
    steps      steps of every run; the time per step averages over all of them
    compares   metric of the published numbers, which comes first: speed-up, or throughput
    """

    name: str = "timeline"
    baseline: str = ""
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    steps: int = setting(200, at_least=1)
    compares: Literal["speed-up", "throughput"] = "speed-up"
    reference: Timeline | None = field(default=None, metadata={"inner": True})
    """Baseline at the same column."""

    folder: ClassVar[str] = "simulated_time"

    def check(self) -> None:
        """Check that times and the size of messages are known."""
        check_losses(self.config)
        cluster_of(self.config, sized=True)

    def beside(self, column: Sequence[Self]) -> Self:
        """Return the measurement with its baseline."""
        return replace(self, reference=baseline_of(self.baseline, column))

    def parameters(self) -> dict[str, Any]:
        """Return the seeds and steps, and the topology if the run's identity leaves it out."""
        over = component_identity(self.config.topology)
        return {"seeds": self.seeds, "steps": self.steps, "over": over}

    def line(self, seed: int) -> dict[str, Any]:
        """Return the simulated times."""
        from decentral.training.timing import timed

        num_parameters = cluster_of(self.config).num_parameters
        assert num_parameters is not None
        times = timed(prepare(replace(self.config, seed=seed)), self.steps, num_parameters)
        contributions = sum(times.ages.values())
        stale = sum(count for age, count in times.ages.items() if age > 0)
        age = sum(age * count for age, count in times.ages.items())
        return {
            "step_s": times.step_s,
            "waiting_share": times.waiting_share,
            "simulated_s": times.simulated_s,
            "mb_sent": times.bytes_sent / times.gradients / 1e6,
            "mean_age": age / contributions if contributions else None,
            "stale_share": stale / contributions if contributions else None,
        }

    def jobs(self) -> list[Job]:
        """Return its own job, and the baseline's, which the speed-up needs."""
        assert self.reference is not None
        return [self] if self.reference.id == self.id else [self, self.reference]

    @property
    def speed_up(self) -> str:
        """Return the name of the metric."""
        return f"speed-up of {self.baseline}"

    @property
    def compared(self) -> str:
        """Return the metric, speed-up or throughput."""
        return THROUGHPUT if self.compares == "throughput" else self.speed_up

    @property
    def meanings(self) -> dict[str, Meaning]:  # type: ignore[override]
        """Return the meanings: a larger speed-up is better for the baseline, and neither better nor worse for the
        row."""
        return {
            THROUGHPUT: Meaning(True, "1/s"),
            STEP: Meaning(False, "s"),
            WAITING: Meaning(False, "%"),
            STALE: Meaning(None, "%"),
            AGE: Meaning(None, "versions"),
            SENT: Meaning(False, "MB"),
            self.speed_up: Meaning(None, "x"),
        }

    def values(self, labels: Labels) -> Iterator[Value]:
        """Yield for each seed the compared metric, then the others."""
        assert self.reference is not None
        theirs = {line["seed"]: line for line in self.reference.found()}
        for line in self.found():
            numbers = {
                self.speed_up: line["step_s"] / theirs[line["seed"]]["step_s"],
                THROUGHPUT: 1 / line["step_s"],
                STEP: line["step_s"],
                WAITING: 100 * line["waiting_share"],
                SENT: line["mb_sent"],
            }
            if line["stale_share"] is not None:
                numbers |= {STALE: 100 * line["stale_share"], AGE: line["mean_age"]}
            for metric in sorted(numbers, key=lambda metric: metric != self.compared):
                yield Value(labels, numbers[metric], metric, line["seed"])


M = TypeVar("M", bound=Measurement)


def baseline_of(baseline: str, column: Sequence[M]) -> M:
    """Return the row of a column whose method is the baseline. Raises ConfigError if there is none, or if two have its
    name."""
    by_method = {row.labels["method"]: row for row in column}
    if baseline not in by_method:
        raise ConfigError(f"baseline={baseline} is not the method of a row.{suggest(baseline, map(str, by_method))}")
    if len(by_method) < len(column):
        raise ConfigError(f"rows: two have the same method, of {', '.join(map(str, by_method))}: give each its own.")
    return by_method[baseline]


@dataclass
class SimulatedTimeline(Computation):
    """simulate=timeline: the time of `config.steps` steps of the method in its cluster, and the staleness of
    contributions.

    It writes one line; workers.csv, the same for each worker; and timeline.json, the beginning for ui.perfetto.dev.
    """

    folder: ClassVar[str] = "timelines"
    lines: ClassVar[str] = "timeline.jsonl"

    def line(self) -> dict[str, Any]:
        """Compute the line at once: a timeline takes seconds."""
        from decentral.training.facts import time_facts
        from decentral.training.timing import spans_of, timed

        config, steps, run = self.config, self.config.steps, prepare(self.config)
        assert steps is not None
        num_parameters = config.cluster.num_parameters or config.task.num_parameters(config)
        write_spans(self.directory, spans_of(run, steps, num_parameters))
        times = timed(run, steps, num_parameters)
        critical = [times.critical] if times.critical else []
        header = ("worker", *(f"{part}_s" for part in times.accounts), *(["critical"] if critical else []))
        columns = [range(self.n), *(seconds.tolist() for seconds in times.accounts.values()), *critical]
        write_text(self.directory / "workers.csv", csv_text(header, zip(*columns, strict=True)))
        return {
            "simulated_s": times.simulated_s,
            "steps": steps,
            "step_s": times.step_s,
            "bytes_sent": times.bytes_sent,
            "num_workers": config.num_workers,
            "num_parameters": num_parameters,
            **time_facts(times.accounts, times.lateness),
        }


# -- times of gradients ------------------------------------------------------------------------------------------------

SHARE = "gradients that take no longer (%)"
_QUANTILES = {"median (s)": 50, "95 % take at most (s)": 95, "least (s)": 0, "most (s)": 100}
_POINTS = 101
"""Number of stored quantiles of a distribution: the minimum, every hundredth, and the maximum."""


@dataclass
class GradientTimes(Measurement):
    """Durations of the first `steps` gradients of all workers of config.cluster, measured if the cluster's gradient
    times are.

    A line for each seed: {"seed", "mean": seconds, "quantiles": those of 0, 0.01, ..., 1}.
    """

    name: str = "gradient_times"
    seeds: list[int] = field(default_factory=lambda: [1])
    steps: int = setting(1000, at_least=1)

    folder: ClassVar[str] = "gradient_times"

    def check(self) -> None:
        """Check that there is a cluster."""
        cluster_of(self.config)

    def line(self, seed: int) -> dict[str, Any]:
        """Return the mean and the quantiles."""
        times = cluster_of(self.config).gradient_times(self.n, seed)
        if times.passes:
            times = times.measured(_measured(replace(self.config, seed=seed), times.passes))
        seconds = times.seconds(0, self.steps)
        quantiles = np.quantile(seconds, np.linspace(0, 1, _POINTS))
        return {"mean": float(seconds.mean()), "quantiles": quantiles.tolist()}

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return median, high quantile, range and mean in seconds."""
        for line in self.found():
            for metric, percent in _QUANTILES.items():
                yield Value(labels, line["quantiles"][percent], metric, line["seed"])
            yield Value(labels, line["mean"], "mean (s)", line["seed"])

    def curves(self, labels: Labels) -> Iterator[Row]:
        """Yield the cumulative distribution over seconds."""
        for line in self.found():
            points = [(seconds, float(p)) for p, seconds in enumerate(line["quantiles"])]
            yield from curve(labels, SHARE, line["seed"], points, axes=["simulated_s"])


def _measured(config: Config, passes: int) -> np.ndarray:
    """Return the seconds of `passes` gradients of the configured task on one core, at the initial models."""
    import torch

    from decentral.training.gradient_times import measure

    assert config.num_workers is not None
    config.task.prepare(config)
    problem = config.task.open(config, range(config.num_workers), torch.device("cpu"))
    try:
        with torch.no_grad():
            return measure(problem, problem.init().expand(config.num_workers, -1), passes)
    finally:
        problem.close()


def cluster_of(config: Config, sized: bool = False) -> VirtualCluster:
    """Return the cluster. Raises ConfigError if there is none, or, with `sized`, if it does not set the size of the
    model whose messages take time."""
    if not isinstance(config.cluster, VirtualCluster):
        raise ConfigError(
            "cluster=none has no simulated time, which this study needs: choose a cluster, such as two_delayed."
        )
    if sized and config.cluster.num_parameters is None:
        raise ConfigError(
            "cluster.num_parameters is not given: set the size of the model whose messages are timed, as nothing is "
            "trained here."
        )
    return config.cluster
