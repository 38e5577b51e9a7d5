"""Real runs between processes, of which it is kept when each worker did what."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.cluster.cluster import VirtualCluster
from decentral.config.identity import identity
from decentral.config.schema import Config
from decentral.host.devices import num_cores
from decentral.jobs.computation import BetweenProcesses, Computation
from decentral.jobs.validation.recording import Recording
from decentral.store import Status
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    from decentral.network.world import World
    from decentral.training.assemble import Run

_WAITS = ("join", "mean", "asked")
"""Operations of workers that go on by themselves, in which they wait."""


class Method(NamedTuple):
    """A method as the study calls it, and a run of it."""

    name: str
    config: Config


class ObservedRuns(BetweenProcesses, Computation):
    """Carries out each method between processes with one worker each, round after round, one after the other in the
    same processes. A line for each run: {"method", "round", and what `observed` gives}."""

    methods: tuple[Method, ...]
    rounds: int

    @abstractmethod
    def observed(self, config: Config, number: int, world: World) -> dict[str, Any]:
        """One process's part of a method's run in round `number`; on the leader what the line says."""

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """In `num_workers` new processes."""
        from decentral.runtime.launch import in_processes

        return in_processes(self.config, self.directory, partial(observe, job=self)) is Status.done


def observe(config: Config, world: World, directory: Path, *, job: ObservedRuns) -> Status:
    """One process's part; the leader adds a line for each run. SIGTERM stops all of them after a run."""
    import torch

    from decentral.host.interrupt import Interrupt

    torch.set_num_threads(1)
    with (
        Interrupt() as interrupt,
        torch.no_grad(),
        closing(LineFile(directory / job.lines)) if world.leader else nullcontext() as lines,
    ):
        known = {(one["method"], one["round"]) for one in lines.known} if lines is not None else set()
        for number in range(job.rounds):
            for name, method in job.methods:
                if world.agree(int((name, number) in known)):
                    continue
                if world.any(interrupt.requested)[0]:
                    return Status.interrupted
                found = job.observed(method, number, world)
                if lines is not None:
                    lines.append({"method": name, "round": number, **found})
    return Status.done


@dataclass(frozen=True)
class ObservedTimes(ObservedRuns):
    """When each worker did what.

    Workers sleep as long as their cluster says that a gradient takes, and have zeros for a gradient of `num_parameters`
    numbers; or, where that is None, they sleep for the straggler's delay and compute gradients of the configured task.
    Of each method `rounds` runs are observed, round r with seed + r: `steps` steps after `warm_up` steps in which
    nobody sleeps. Both should be multiples of all periods, such as tau, that the methods have: then step t of what is
    observed is like step t of a run.

    A line of observed.jsonl for each run: see `Recording`.
    """

    methods: tuple[Method, ...] = ()
    steps: int = 40
    warm_up: int = 30
    rounds: int = 1
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

    def observed(self, config: Config, number: int, world: World) -> dict[str, Any]:
        """Its times."""
        own = replace(config, seed=config.seed + number, steps=self.warm_up + self.steps)
        return run_observed(own, world, self)

    def recordings(self) -> list[Recording]:
        """What has been observed so far."""
        return [Recording.of(line) for line in self.found()]


def run_observed(config: Config, world: World, job: ObservedTimes) -> dict[str, Any]:
    """One run; on the leader what its line says."""
    from decentral.jobs.timing.sleeping import Still
    from decentral.training.assemble import assemble
    from decentral.training.between_processes import ThreadedStepper

    task = config.task if job.num_parameters is None else Still(dimension=job.num_parameters)
    run = assemble(replace(config, task=task, record_operations=True), world)
    run.oracle.clock = run.net.clock = None  # nobody asks for simulated time here
    try:
        _sleep(run, False)
        _advance(run, job.warm_up)
        before, waited_before = _ages(run), run.net.waited_s
        _sleep(run, True, all=job.num_parameters is not None)
        zero_ns = _together(world)
        recorded = run.oracle.recorded
        assert recorded is not None
        recorded.begin(zero_ns)
        world.barrier()
        ended_s = (_advance(run, job.steps) - zero_ns) * 1e-9
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


def _advance(run: Run, steps: int) -> int:
    """So many steps, from a pause to the next one; when they were over for this process, in nanoseconds."""
    stepper = run.stepper
    stepper.may_go_on_to(stepper.t + steps)
    for _ in range(steps):
        stepper.step()
    ended_ns = time.monotonic_ns()
    stepper.settle()
    return ended_ns


def _sleep(run: Run, sleeps: bool, all: bool = False) -> None:
    """Whether workers sleep before their gradients, for `all` of the time that they take."""
    from decentral.training.between_processes import ThreadedStepper
    from decentral.training.sleep import Sleep

    cluster = run.config.cluster
    assert isinstance(cluster, VirtualCluster)
    sleep = Sleep(cluster.gradient_times(run.net.n, run.config.seed), all) if sleeps else None
    if isinstance(run.stepper, ThreadedStepper):
        run.stepper.sleep = sleep
    else:
        run.oracle.sleep = sleep


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
