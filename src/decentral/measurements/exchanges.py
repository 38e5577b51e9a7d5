"""How long averaging takes, over the number of workers and the size of their models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from decentral.config.identity import component_identity
from decentral.errors import ConfigError
from decentral.measurements.measurement import Measurement
from decentral.measurements.timeline import baseline_of
from decentral.measurements.timing import Turns, Verb, in_group
from decentral.measurements.values import Labels, Value
from decentral.settings import setting

WALL_MS, CPU_MS = "wall time (ms)", "CPU time per worker (ms)"
BYTES_PER_MB = 1_000_000
_BYTES_PER_NUMBER = 4  # float32


@dataclass
class ExchangeTimes(Measurement):
    """Times the exchanges of all rows in turn, round after round, so that a slow moment of the machine is slow for all.

    There is a process for each worker. A round of an exchange begins when all processes are ready; its wall time ends
    when the last of them has what it waits for, and its CPU time is the sum over all of them. A line for each size has
    the times of all rounds, in seconds: {"megabytes": 44, "wall_s": {method: [...]}, "cpu_s": {method: [...]}}.

    verb         what of the network is timed: mix (with the topology's matrices) or mean (an all-reduce)
    megabytes    sizes of a worker's row, in 10^6 bytes of float32
    baseline     the method that the ratios are to, in the same round
    rounds       how often each is timed: each is a value of its own, with its number as `seed`
    warm_up      rounds before that
    """

    name: str = "exchanges"
    verb: Literal["mix", "mean"] = "mix"
    megabytes: list[float] = setting([], above=0)
    baseline: str = ""
    rounds: int = setting(10, at_least=1)
    warm_up: int = setting(2, at_least=0)
    column: Sequence[ExchangeTimes] = field(default=(), metadata={"inner": True})
    """All rows with as many workers."""

    folder: ClassVar[str] = "exchange_times"
    lines: ClassVar[str] = "times.jsonl"
    decides: ClassVar[frozenset[str]] = frozenset({"num_workers", "processes"})
    timed: ClassVar[frozenset[str]] = frozenset({"network.transport"})
    one_per_worker: ClassVar[bool] = True

    def check(self) -> None:
        """Processes on the CPU."""
        if self.config.device.startswith("cuda"):
            raise ConfigError(
                f"device={self.config.device} cannot be used: exchanges are timed on the CPU; leave it out."
            )
        if self.n < 2:
            raise ConfigError(f"num_workers={self.n} has to be at least 2: each has a process of its own.")
        self.config = replace(self.config, processes=str(self.n))

    def beside(self, column: Sequence[Self]) -> Self:
        """One job for all of them."""
        baseline_of(self.baseline, column)
        return replace(column[0], column=column)

    def parameters(self) -> dict[str, Any]:
        """The exchanges with their topologies and transports, the sizes and the rounds."""
        exchanges = [
            {
                "name": each.labels["method"],
                "verb": each.verb,
                "topology": component_identity(each.config.topology),
                "communication": component_identity(each.config.communication),
                "transport": each.config.network.transport.name,
            }
            for each in self.column
        ]
        return {
            "exchanges": exchanges,
            "megabytes": self.megabytes,
            "rounds": self.rounds,
            "warm_up": self.warm_up,
        }

    def parts(self) -> list[dict[str, Any]]:
        """One size after the other."""
        return [{"megabytes": size} for size in self.megabytes]

    def line(self, megabytes: float) -> dict[str, Any]:
        """In new processes."""
        numbers = round(megabytes * BYTES_PER_MB / _BYTES_PER_NUMBER)
        setups = {str(each.labels["method"]): partial(Verb, each.config, numbers, each.verb) for each in self.column}
        (found,) = in_group(self.n, [Turns(setups, self.rounds, warm_up=self.warm_up)])
        return {"wall_s": found.wall.seconds, "cpu_s": found.cpu.seconds}

    def cells(self) -> list[Labels]:
        """Size by size."""
        first = {label: self.labels[label] for label in self.row_labels}
        return [{**first, "megabytes": size, **self.labels} for size in self.megabytes]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Times, and their ratios to the baseline's in the same round."""
        (line,) = (line for line in self.found() if line["megabytes"] == labels["megabytes"])
        for clock, metric, workers in (("wall", WALL_MS, 1), ("CPU", CPU_MS, self.n)):
            seconds = line[f"{clock.lower()}_s"]
            own, baseline = seconds[labels["method"]], seconds[self.baseline]
            for number, value in enumerate(own):
                yield Value(labels, 1e3 * value / workers, metric, number)
            for number, (value, other) in enumerate(zip(own, baseline, strict=True)):
                yield Value(labels, value / other, f"{clock} time / {self.baseline}'s", number)
