"""Times of methods between real processes: averaging, and whole steps with sleep instead of computation, compared with
the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from decentral.config.identity import component_identity, identity
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.measurements.measurement import Measurement, check_losses
from decentral.measurements.timeline import STEP, THROUGHPUT, baseline_of, cluster_of
from decentral.measurements.timing import Sleeping, Still, Turns, Verb, in_group
from decentral.measurements.values import Labels, Meaning, Value
from decentral.settings import setting

WALL_MS, CPU_MS = "wall time (ms)", "CPU time per worker (ms)"
BYTES_PER_MB = 1_000_000
_BYTES_PER_NUMBER = 4  # float32


@dataclass
class InTurn(Measurement):
    """A measurement of all rows of a column in one job: they take turns in the same processes, one for each worker.

    baseline   method that the others are compared with
    """

    baseline: str = ""
    column: Sequence[InTurn] = field(default=(), metadata={"inner": True})
    """All rows with the same number of workers."""

    one_per_worker: ClassVar[bool] = True

    def check(self) -> None:
        """Check that the processes use the CPU."""
        if self.config.device.startswith("cuda"):
            raise ConfigError(
                f"device={self.config.device} cannot be used, because this is timed on the CPU: leave it out."
            )
        if self.n < 2:
            raise ConfigError(f"num_workers={self.n} is too small: use at least 2, each with its own process.")
        self.config = replace(self.config, processes=str(self.n))

    def beside(self, column: Sequence[Self]) -> Self:
        """Return one job for all of them."""
        baseline_of(self.baseline, column)
        return replace(column[0], column=column)

    def methods(self) -> list[dict[str, Any]]:
        """Return, for the ID, every method and its transport."""
        return [
            {"name": each.labels["method"], "transport": each.config.network.transport.name} for each in self.column
        ]


@dataclass
class ExchangeTimes(InTurn):
    """Times of the exchanges of all rows, in turn in every round, so that a slow moment of the machine affects all
    alike.

    There is a process for each worker. A round of an exchange begins when all processes are ready. Its wall time ends
    when the last process has received all messages. Its CPU time is the sum over all processes. A line for each size
    has the times of all rounds, in seconds: {"megabytes": 44, "wall_s": {method: [...]}, "cpu_s": {method: [...]}}.

    verb         network operation to time: mix (with the topology's matrices) or mean (an all-reduce)
    megabytes    sizes of a worker's row, in 10^6 bytes of float32
    baseline     method in the denominator of the ratios, in the same round
    rounds       number of timings of each: every timing is a separate value, with its number as `seed`
    warm_up      untimed rounds before that
    """

    name: str = "exchanges"
    verb: Literal["mix", "mean"] = "mix"
    megabytes: list[float] = setting([], above=0)
    rounds: int = setting(10, at_least=1)
    warm_up: int = setting(2, at_least=0)
    column: Sequence[ExchangeTimes] = field(default=(), metadata={"inner": True})

    folder: ClassVar[str] = "exchange_times"
    decides: ClassVar[frozenset[str]] = frozenset({"num_workers", "processes"})
    timed: ClassVar[frozenset[str]] = frozenset({"network.transport"})

    def parameters(self) -> dict[str, Any]:
        """Return the exchanges with their topologies and transports, the sizes and the rounds."""
        exchanges = [
            known
            | {
                "verb": each.verb,
                "topology": component_identity(each.config.topology),
                "communication": component_identity(each.config.communication),
            }
            for known, each in zip(self.methods(), self.column, strict=True)
        ]
        own = {"megabytes": self.megabytes, "rounds": self.rounds, "warm_up": self.warm_up}
        return {"exchanges": exchanges, **own}

    def parts(self) -> list[dict[str, Any]]:
        """Return a part for each size."""
        return [{"megabytes": size} for size in self.megabytes]

    def line(self, megabytes: float) -> dict[str, Any]:
        """Return the times, measured in new processes."""
        numbers = round(megabytes * BYTES_PER_MB / _BYTES_PER_NUMBER)
        setups = {str(each.labels["method"]): partial(Verb, each.config, numbers, each.verb) for each in self.column}
        (found,) = in_group(self.n, [Turns(setups, self.rounds, warm_up=self.warm_up)])
        return {"wall_s": found["wall"], "cpu_s": found["cpu"]}

    def cells(self) -> list[Labels]:
        """Return a cell for each size."""
        first = {label: self.labels[label] for label in self.row_labels}
        return [{**first, "megabytes": size, **self.labels} for size in self.megabytes]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return times, and their ratios to the baseline's in the same round."""
        (line,) = (line for line in self.found() if line["megabytes"] == labels["megabytes"])
        for clock, metric, workers in (("wall", WALL_MS, 1), ("CPU", CPU_MS, self.n)):
            seconds = line[f"{clock.lower()}_s"]
            own, baseline = seconds[labels["method"]], seconds[self.baseline]
            for number, value in enumerate(own):
                yield Value(labels, 1e3 * value / workers, metric, number)
            for number, (value, other) in enumerate(zip(own, baseline, strict=True)):
                yield Value(labels, value / other, f"{clock} time / {self.baseline}'s", number)


# -- workers that sleep ------------------------------------------------------------------------------------------------

BY_CLOCK, ERROR = "time per step by the clock (s)", "clock's time against the measured one (%)"


@dataclass
class SleepingSteps(InTurn):
    """Time per step of real processes, one for each worker, that sleep as long as a gradient takes by config.cluster.

    All rows take turns in the same processes, with the same delays. Each seed draws new delays. A line for each seed:
    {"seed", "measured_s": {method: seconds per step}, "clock_s": {method: seconds per step by the clock for the same
    gradients}}. Rows have the size of the cluster's model.

    baseline   method that each row is compared with, under the same delays: its speed-up is the row's time per step
               divided by its own
    seeds      seeds of the delays
    steps      timed steps, from one pause of all workers to the next
    warm_up    untimed steps before that, without sleep
    """

    name: str = "sleeping"
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    steps: int = setting(20, at_least=1)
    warm_up: int = setting(10, at_least=1)
    column: Sequence[SleepingSteps] = field(default=(), metadata={"inner": True})

    folder: ClassVar[str] = "sleeping_steps"
    decides: ClassVar[frozenset[str]] = frozenset({"lr", "num_workers", "processes", "steps"})

    def check(self) -> None:
        """Check the processes, and that the clock can time the methods."""
        super().check()
        check_losses(self.config)
        cluster_of(self.config, sized=True)

    def parameters(self) -> dict[str, Any]:
        """Return the seeds and steps, and every method with its topology and transport."""
        methods = [
            known | {"config": identity(each.config), "over": component_identity(each.config.topology)}
            for known, each in zip(self.methods(), self.column, strict=True)
        ]
        return {"seeds": self.seeds, "steps": self.steps, "warm_up": self.warm_up, "methods": methods}

    def line(self, seed: int) -> dict[str, Any]:
        """Return the measured and simulated times per step."""
        from decentral.training.timing import timed

        size = cluster_of(self.config).num_parameters
        assert size is not None
        total = self.warm_up + self.steps
        configs = {str(each.labels["method"]): replace(each.config, seed=seed, steps=total) for each in self.column}
        setups = {
            name: partial(Sleeping, replace(config, task=Still(dimension=size)), self.steps, self.warm_up)
            for name, config in configs.items()
        }
        (found,) = in_group(self.n, [Turns(setups, rounds=1, warm_up=0)])
        return {
            "measured_s": {name: found["wall"][name][0] / self.steps for name in configs},
            "clock_s": {
                name: timed(prepare(config), self.steps, size, after=self.warm_up).step_s
                for name, config in configs.items()
            },
        }

    @property
    def meanings(self) -> dict[str, Meaning]:  # type: ignore[override]
        """Return the meanings: a larger speed-up is better for the baseline, and neither better nor worse for the
        row."""
        return {
            f"speed-up of {self.baseline}": Meaning(None, "x"),
            f"speed-up of {self.baseline} by the clock": Meaning(None, "x"),
            THROUGHPUT: Meaning(True, "1/s"),
            STEP: Meaning(False, "s"),
            BY_CLOCK: Meaning(False, "s"),
            ERROR: Meaning(None, "%"),
        }

    def values(self, labels: Labels) -> Iterator[Value]:
        """Yield, for each seed, the measured values and the clock's."""
        method, baseline = labels["method"], self.baseline
        for line in self.found():
            measured, clock = line["measured_s"], line["clock_s"]
            numbers = {
                f"speed-up of {baseline}": measured[method] / measured[baseline],
                f"speed-up of {baseline} by the clock": clock[method] / clock[baseline],
                THROUGHPUT: 1 / measured[method],
                STEP: measured[method],
                BY_CLOCK: clock[method],
                ERROR: 100 * (clock[method] / measured[method] - 1),
            }
            for metric, number in numbers.items():
                yield Value(labels, number, metric, line["seed"])
