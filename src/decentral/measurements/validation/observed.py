"""Real runs between processes, of which it is kept when each worker did what."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.config.identity import identity
from decentral.config.schema import Config
from decentral.host.devices import num_cores
from decentral.measurements.computation import InProcesses
from decentral.measurements.validation.recording import Recording

if TYPE_CHECKING:
    from decentral.network.world import World
    from decentral.training.assemble import Run

_WAITS = ("join", "mean", "asked")
"""Operations of workers that go on by themselves, in which they wait."""


class Method(NamedTuple):
    """A method as the study calls it, and a run of it."""

    name: str
    config: Config


@dataclass
class ObservedRuns(InProcesses):
    """Carries out each method between processes with one worker each, round after round, in the same processes. A line
    for each run."""

    methods: Sequence[Method] = ()
    rounds: int = 1

    def parts(self) -> list[dict[str, Any]]:
        """Round by round."""
        return [{"method": name, "round": number} for number in range(self.rounds) for name, _ in self.methods]

    def config_of(self, method: str) -> Config:
        """The configuration of a method."""
        (config,) = (one.config for one in self.methods if one.name == method)
        return config


@dataclass
class ObservedTimes(ObservedRuns):
    """When each worker did what.

    Workers sleep as long as their cluster says that a gradient takes, and have zeros for a gradient of `num_parameters`
    numbers; or, where that is None, they sleep for the straggler's delay and compute gradients of the configured task.
    Of each method `rounds` runs are observed, round r with seed + r: `steps` steps after `warm_up` steps in which
    nobody sleeps. Both should be multiples of all periods, such as tau, that the methods have: then step t of what is
    observed is like step t of a run.

    A line of observed.jsonl for each run: see `Recording`.
    """

    steps: int = 40
    warm_up: int = 30
    num_parameters: int | None = None

    folder: ClassVar[str] = "observed_times"
    lines: ClassVar[str] = "observed.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Methods, steps and what is slept."""
        return {
            "methods": [[name, identity(config), config.network.transport.name] for name, config in self.methods],
            "steps": self.steps,
            "warm_up": self.warm_up,
            "rounds": self.rounds,
            "num_parameters": self.num_parameters,
        }

    def part(self, world: World, method: str, round: int) -> dict[str, Any]:
        """The times of a run."""
        config = self.config_of(method)
        own = replace(config, seed=config.seed + round, steps=self.warm_up + self.steps)
        return run_observed(own, world, self)

    def recordings(self) -> list[Recording]:
        """What has been observed so far."""
        return [Recording.of(line) for line in self.found()]


def run_observed(config: Config, world: World, job: ObservedTimes) -> dict[str, Any]:
    """One run; on the leader what its line says."""
    from decentral.measurements.timing import Still, advance, let_sleep
    from decentral.training.assemble import assemble
    from decentral.training.between_processes import ThreadedStepper

    task = config.task if job.num_parameters is None else Still(dimension=job.num_parameters)
    run = assemble(replace(config, task=task, record_operations=True), world)
    run.oracle.clock = run.net.clock = None  # nobody asks for simulated time here
    try:
        let_sleep(run, None)
        advance(run, job.warm_up)
        before, waited_before = _ages(run), run.net.waited_s
        let_sleep(run, all=job.num_parameters is not None)
        zero_ns = _together(world)
        recorded = run.oracle.recorded
        assert recorded is not None
        recorded.begin(zero_ns)
        world.barrier()
        ended_s = (advance(run, job.steps) - zero_ns) * 1e-9
        operations = [*recorded.found, *run.stepper.operations()]
        operations = [one for one in operations if (one["begin_s"] if "begin_s" in one else one["at_s"]) >= 0]
        waited_s = run.net.waited_s - waited_before
        if isinstance(run.stepper, ThreadedStepper):
            waited_s = sum(one["end_s"] - one["begin_s"] for one in operations if one["what"] in _WAITS)
        own = json.dumps({"ended_s": ended_s, "waited_s": waited_s, "operations": operations}).encode()
        parts = [json.loads(part) for part in world.collect_any(own)]
        ages = {age: count - before.get(age, 0) for age, count in _ages(run).items()}
        return _line(parts, ages, run.net.n, job.steps) if world.leader else {}
    finally:
        run.close()


def _together(world: World) -> int:
    """When the last process has come here, by the clock that the processes of a host share, in nanoseconds."""
    times = world.collect(time.monotonic_ns().to_bytes(8, "big"))
    return max(int.from_bytes(one, "big") for one in times)


def _ages(run: Run) -> dict[int, int]:
    """How many contributions were so many versions old, as far as that is known; the same on all processes."""
    lateness = run.stepper.lateness()
    return {} if lateness is None else dict(lateness.ages)


def _line(parts: list[dict[str, Any]], ages: dict[int, int], n: int, steps: int) -> dict[str, Any]:
    """What all processes have kept; see `Recording`."""
    operations = [one for part in parts for one in part["operations"]]
    gradients: list[list[dict[str, Any]]] = [[] for _ in range(n)]
    others: list[dict[str, Any]] = []
    for one in operations:
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
