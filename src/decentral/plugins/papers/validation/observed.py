"""Real runs between processes with one worker each: the times of all operations, and the training time to a target."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.config.identity import identity
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.errors import ConfigError, check_at_least
from decentral.host.machine import num_cores
from decentral.measurements.measurement import InProcesses
from decentral.measurements.timing import Still, advance, let_sleep
from decentral.settings import Settings, setting

if TYPE_CHECKING:
    from decentral.cluster.cluster import VirtualCluster
    from decentral.network.world import World
    from decentral.training.assemble import Run

_WAITS = ("join", "mean", "asked", "outer")
"""Operations in which asynchronous workers wait."""


class Method(NamedTuple):
    """A method by its name in the study, and a run of it."""

    name: str
    config: Config


@dataclass
class ObservedRuns(InProcesses):
    """Runs of each method, round after round, in the same processes; round r has seed + r. A line for each run."""

    methods: Sequence[Method] = ()
    rounds: int = 1

    def parameters(self) -> dict[str, Any]:
        """Return methods and rounds."""
        methods = [[name, identity(config), config.network.transport.name] for name, config in self.methods]
        return {"methods": methods, "rounds": self.rounds}

    def parts(self) -> list[dict[str, Any]]:
        """Return the parts, round by round."""
        return [{"method": name, "round": number} for number in range(self.rounds) for name, _ in self.methods]

    def config_of(self, method: str, round: int = 0) -> Config:
        """Return the configuration of a method in a round."""
        (config,) = (known.config for known in self.methods if known.name == method)
        return replace(config, seed=config.seed + round)


# -- when each worker did what -----------------------------------------------------------------------------------------


class Recording(NamedTuple):
    """Times of all operations of the workers in a run, in seconds since their common start."""

    method: str
    round: int
    steps: int
    cores: int
    """Number of cores that all workers shared."""
    ended_s: list[float]
    """Time at which each worker had finished its last step."""
    first: list[int]
    """Number of each worker's first gradient here, which is the number of gradients it had computed before."""
    begin_s: list[list[float]]
    """Start times as [n][gradient], sleep included."""
    end_s: list[list[float]]
    waited_s: list[float]
    """Time each worker waited for others, in seconds."""
    ages: dict[int, int]
    """Age in versions -> number of contributions to group sums; {} without groups."""
    operations: list[dict[str, Any]]
    """Operations other than gradients, see `training.operations`."""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Recording:
        """Return the recording of a line."""
        known = {name: line[name] for name in cls._fields if name != "ages"}
        return cls(**known, ages={int(age): count for age, count in line["ages"].items()})

    @property
    def stale_share(self) -> float | None:
        """Return the share of contributions to group sums whose version differs from the summed one."""
        return stale_share(self.ages)

    def durations(self) -> np.ndarray:
        """Return the durations of gradients, float64 [T, n], with T the maximum over workers. A worker with fewer
        gradients repeats its own from the first."""
        each = [np.subtract(ends, begins) for begins, ends in zip(self.begin_s, self.end_s, strict=True)]
        most = max(map(len, each))
        return np.stack([np.resize(times, most) for times in each], axis=1)

    def beyond(self, planned: np.ndarray) -> np.ndarray:
        """Return the extra time of each gradient beyond `planned` [T, n], by its number: float64 [all]."""
        found = []
        for i, (begins, ends) in enumerate(zip(self.begin_s, self.end_s, strict=True)):
            numbers = self.first[i] + np.arange(len(begins))
            found.append(np.subtract(ends, begins) - planned[numbers, i])
        return np.concatenate(found)

    def work_s(self) -> float:
        """Return the mean seconds per gradient in which a worker neither computes it nor waits: updates and copies."""
        seconds = []
        for begins, ends, until, waited in zip(self.begin_s, self.end_s, self.ended_s, self.waited_s, strict=True):
            gradients = sum(end - begin for begin, end in zip(begins, ends, strict=True))
            seconds.append((until - begins[0] - gradients - waited) / len(begins))
        return max(0.0, float(np.mean(seconds)))

    def step_s(self, free_running: bool) -> float:
        """Return the seconds in which the workers compute as many gradients as there are workers: see `pace`. If all
        take the same number of steps, return the time of the last worker divided by that number."""
        return pace(self.begin_s, self.end_s) if free_running else max(self.ended_s) / self.steps


def pace(begin_s: list[list[float]], end_s: list[list[float]]) -> float:
    """Return n T / G. T is when the first worker has finished its last gradient, and G the number of gradients of all
    workers by then. An unfinished gradient counts by its elapsed share.

    >>> pace([[0.0, 1.0], [0.0, 2.0]], [[1.0, 2.0], [2.0, 4.0]])
    1.3333333333333333
    """
    until = min(ends[-1] for ends in end_s)
    taken = 0.0
    for begins, ends in zip(begin_s, end_s, strict=True):
        for begin, end in zip(begins, ends, strict=True):
            taken += min(1.0, max(0.0, (until - begin) / (end - begin)))
    return len(begin_s) * until / taken


def stale_share(ages: Mapping[int, int]) -> float | None:
    """Return the share of contributions that are older than the sum they contribute to; None if there are none."""
    contributions = sum(ages.values())
    return sum(count for age, count in ages.items() if age > 0) / contributions if contributions else None


@dataclass
class ObservedTimes(ObservedRuns):
    """Times of all operations of the workers: a line is a `Recording`.

    Workers sleep for the gradient time of their cluster, and use zero gradients of `num_parameters` numbers. If that is
    None, they sleep for the straggler's delay and compute gradients of the configured task. In each run `steps` steps
    are observed after `warm_up` steps without sleep. Both should be multiples of all periods of the methods, such as
    tau: then observed step t corresponds to step t of a run.
    """

    steps: int = 40
    warm_up: int = 30
    num_parameters: int | None = None

    folder: ClassVar[str] = "observed_times"
    lines: ClassVar[str] = "observed.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Return also the steps, and what is slept."""
        settings = {"steps": self.steps, "warm_up": self.warm_up, "num_parameters": self.num_parameters}
        return super().parameters() | settings

    def part(self, world: World, opened: None, method: str, round: int) -> dict[str, Any]:
        """Observe one run."""
        from decentral.training.assemble import assemble
        from decentral.training.between_processes import ThreadedStepper

        config, sleeps = self.config_of(method, round), self.num_parameters is not None
        task = Still(dimension=self.num_parameters) if self.num_parameters is not None else config.task
        steps = self.warm_up + self.steps
        run = assemble(prepare(replace(config, steps=steps, task=task, record_operations=True)), world)
        run.oracle.clock = run.net.traffic.clock = None  # nobody asks for simulated time here
        try:
            let_sleep(run, None)
            advance(run, self.warm_up)
            before, waited_before = _ages(run), run.net.waited_s
            let_sleep(run, all=sleeps)
            zero_ns = _latest_ns(world, time.monotonic_ns())
            recorded = run.oracle.recorded
            assert recorded is not None
            recorded.begin(zero_ns)
            world.barrier()
            ended_s = (advance(run, self.steps) - zero_ns) * 1e-9
            operations = [one for one in recorded.found if one.get("begin_s", one.get("at_s", 0.0)) >= 0]
            waited_s = run.net.waited_s - waited_before
            if isinstance(run.stepper, ThreadedStepper):
                waited_s = sum(one["end_s"] - one["begin_s"] for one in operations if one["what"] in _WAITS)
            own = json.dumps({"ended_s": ended_s, "waited_s": waited_s, "operations": operations}).encode()
            parts = [json.loads(part) for part in world.collect_any(own)]
            ages = {age: count - before.get(age, 0) for age, count in _ages(run).items()}
            return _line(parts, ages, run.net.n, self.steps)
        finally:
            run.close()

    def recordings(self, method: str) -> list[Recording]:
        """Return the recordings of a method so far."""
        return [Recording.of(line) for line in self.found() if line["method"] == method]


def _latest_ns(world: World, ns: int) -> int:
    """Return the maximum over processes, by the shared clock of a host's processes."""
    return max(int.from_bytes(one, "big") for one in world.collect(ns.to_bytes(8, "big")))


def _ages(run: Run) -> dict[int, int]:
    """Return age in versions -> known number of contributions; the same on all processes."""
    lateness = run.stepper.lateness()
    return {} if lateness is None else dict(lateness.ages)


def _line(parts: list[dict[str, Any]], ages: dict[int, int], n: int, steps: int) -> dict[str, Any]:
    """Merge the records of all processes; see `Recording`."""
    gradients: list[list[dict[str, Any]]] = [[] for _ in range(n)]
    others: list[dict[str, Any]] = []
    for one in (one for part in parts for one in part["operations"]):
        (gradients[one["worker"]] if one["what"] == "gradient" else others).append(one)
    return {
        "steps": steps,
        "cores": num_cores(),
        "ended_s": [part["ended_s"] for part in parts],
        "first": [own[0]["number"] for own in gradients],
        "begin_s": [[one["begin_s"] for one in own] for own in gradients],
        "end_s": [[one["end_s"] for one in own] for own in gradients],
        "waited_s": [part["waited_s"] for part in parts],
        "ages": {str(age): count for age, count in sorted(ages.items()) if count},
        "operations": others,
    }


# -- how long they train to a target -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target(Settings, where="target"):
    """A criterion for models that are good enough.

    accuracy       mean test accuracy of the workers to reach, a fraction of 1
    every_steps    steps between two checks, at which all real workers wait for each other
    at_most_steps  maximum number of steps to reach it
    """

    accuracy: float = setting(0.9, above=0, at_most=1)
    every_steps: int = setting(20, at_least=1)
    at_most_steps: int = 200

    def __post_init__(self) -> None:
        check_at_least("target.at_most_steps", self.at_most_steps, self.every_steps)

    def seconds(self, config: Config, world: World) -> float | None:
        """Train until the target is reached. Return the seconds that took, simulated ones if there is one process; None
        for never."""
        from decentral.training.assemble import assemble
        from decentral.training.evaluation import evaluate

        config = replace(config, steps=self.at_most_steps)
        run = assemble(prepare(config, Path(os.devnull)), world)
        if world.distributed:
            run.oracle.clock = run.net.traffic.clock = None  # the real one counts
        stepper, spent_ns = run.stepper, 0
        try:
            for first in range(0, self.at_most_steps, self.every_steps):
                world.barrier()
                began = time.monotonic_ns()
                ended = advance(run, min(self.every_steps, self.at_most_steps - first))
                spent_ns += _latest_ns(world, ended - began)
                losses = run.oracle.take_losses()
                evaluation = evaluate(run.problem, stepper.models, run.net, losses, world.rank, world.size)
                if evaluation.metrics[0].name != "accuracy":
                    raise ConfigError(
                        f"target.accuracy needs a task with an accuracy, unlike task={run.config.task.name}: leave it "
                        "out."
                    )
                if evaluation.workers[:, 0].mean() >= self.accuracy:
                    return 1e-9 * spent_ns if stepper.simulated_s is None else stepper.simulated_s
            return None
        finally:
            run.close()

    def simulated_s(self, config: Config, cluster: VirtualCluster) -> float:
        """Return the simulated seconds of a method in this cluster; nan for never."""
        import torch

        from decentral.network.world import World

        alone = replace(config, processes="1", cluster=cluster, record_operations=False)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                seconds = self.seconds(alone, World(0, 1, torch.device("cpu")))
        finally:
            torch.set_num_threads(threads)
        return math.nan if seconds is None else seconds


@dataclass
class ObservedTargets(ObservedRuns):
    """Training with each method until the target is reached. Stragglers sleep, and gradients are computed.

    A line has {"seconds": training time without evaluations; null for never}.
    """

    target: Target = Target()

    folder: ClassVar[str] = "observed_targets"
    lines: ClassVar[str] = "reached.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Return also the target."""
        return super().parameters() | {"target": list(vars(self.target).values())}

    def part(self, world: World, opened: None, method: str, round: int) -> dict[str, Any]:
        """Return the training time."""
        return {"seconds": self.target.seconds(self.config_of(method, round), world)}

    def seconds(self, method: str) -> list[float]:
        """Return the seconds of each round; nan for never."""
        found = [line["seconds"] for line in self.found() if line["method"] == method]
        return [math.nan if one is None else float(one) for one in found]
