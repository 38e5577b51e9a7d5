"""How fast methods are between real processes whose workers sleep instead of computing, beside what the clock says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, check_at_least, suggest
from decentral.jobs.computation import check_losses, without_seed_and_rate
from decentral.jobs.simulated_time import cluster_of
from decentral.jobs.sleeping_steps import SleepingSteps
from decentral.study.job_cell import JobCell
from decentral.study.rows import Row
from decentral.study.study import Cell, Meaning, Study, Value

THROUGHPUT, STEP, BY_CLOCK = "throughput (steps/s)", "time per step (s)", "time per step by the clock (s)"
ERROR = "clock's time against the measured one (%)"


@dataclass
class Sleeping(Study):
    """`rows` over `num_workers`; all methods are timed in turn in the same processes, a worker in each.

    rows         the methods
    num_workers  numbers of workers; as many processes
    baseline     the method that each is held against, with the same delays: its speed-up is the ratio of the times per
                 step, how many times as long the row takes
    seeds        of the delays
    steps        that are timed, from a pause of all workers to the next one
    warm_up      steps before that, without sleep
    """

    name: str = "sleeping"
    rows: list[Row] = field(default_factory=list)
    num_workers: list[int] = field(default_factory=list)
    baseline: str = ""
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    steps: int = 20
    warm_up: int = 10

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps)
        check_at_least("warm_up", self.warm_up)
        if min(self.num_workers, default=2) < 2:
            raise ConfigError(f"num_workers={self.num_workers} have to be at least 2: each has a process of its own.")
        methods = [row.method for row in self.rows]
        if self.baseline not in methods:
            raise ConfigError(f"baseline={self.baseline} is the method of no row.{suggest(self.baseline, methods)}")
        if len(set(methods)) < len(methods):
            raise ConfigError(f"rows: two have the same method, of {', '.join(methods)}: give each its own.")

    @property
    def speed_up(self) -> str:
        """The name of the metric."""
        return f"speed-up of {self.baseline}"

    def decided_keys(self) -> set[str]:
        """Also the numbers of workers and processes, the steps, and the rate: nothing is trained."""
        return super().decided_keys() | {"num_workers", "processes", "steps", "lr"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row; all rows with as many workers share a job."""
        jobs = {n: self._job(n, overrides, config_dir) for n in self.num_workers}
        return [
            SleepingCell({"method": row.method, "topology": row.topology, "num_workers": n}, jobs[n], self)
            for row in self.rows
            for n in self.num_workers
        ]

    def _job(self, n: int, overrides: Sequence[str], config_dir: str | None) -> SleepingSteps:
        places = [f"num_workers={n}", f"processes={n}"]
        commands = [[*self.base, *row.base, *overrides, *places] for row in self.rows]
        configs = [without_seed_and_rate(config) for config in compose_all(commands, config_dir)]
        for config in configs:
            check_losses(config)
            if config.device.startswith("cuda"):
                raise ConfigError(f"device={config.device} cannot be used: nothing is computed here; leave it out.")
            if cluster_of(config).num_parameters is None:
                raise ConfigError(
                    "cluster.num_parameters is not given: nothing is trained here, say how large the model is that is "
                    "exchanged."
                )
        methods = tuple(zip([row.method for row in self.rows], configs, strict=True))
        return SleepingSteps(configs[0], f"{n} workers", tuple(self.seeds), methods, self.steps, self.warm_up)


@dataclass
class SleepingCell(JobCell[SleepingSteps]):
    """One method with one number of workers, for all seeds, beside the baseline in the same processes."""

    study: Sleeping

    @property
    def sharing(self) -> int:
        """Every method with as many workers."""
        return len(self.job.methods)

    def meanings(self) -> dict[str, Meaning]:
        """More of what the baseline is compared by is better for the baseline: neither good nor bad of the row."""
        return {
            self.study.speed_up: Meaning(None, "x"),
            f"{self.study.speed_up} by the clock": Meaning(None, "x"),
            THROUGHPUT: Meaning(True, "1/s"),
            STEP: Meaning(False, "s"),
            BY_CLOCK: Meaning(False, "s"),
            ERROR: Meaning(None, "%"),
        }

    def read(self) -> Iterator[Value]:
        """For each seed what is measured, and what the clock says of it."""
        method, baseline = str(self.labels["method"]), self.study.baseline
        for line in self.job.found():
            measured, clock = line["measured_s"], line["clock_s"]
            numbers = {
                self.study.speed_up: measured[method] / measured[baseline],
                f"{self.study.speed_up} by the clock": clock[method] / clock[baseline],
                THROUGHPUT: 1 / measured[method],
                STEP: measured[method],
                BY_CLOCK: clock[method],
                ERROR: 100 * (clock[method] / measured[method] - 1),
            }
            for metric, number in numbers.items():
                yield Value(self.labels, number, metric, line["seed"])
