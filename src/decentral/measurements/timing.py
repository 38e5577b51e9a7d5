"""Several pieces of work timed in turn, round after round, so that a slow moment of the machine affects all alike.

They run in one process, or in many that begin each piece together; it ends with the last process.
"""

from __future__ import annotations

import gc
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decentral.cluster.cluster import VirtualCluster
from decentral.config.composition import compose
from decentral.config.prepared import Prepared, prepare
from decentral.runtime.launch import in_processes
from decentral.store import Status
from decentral.store.files import read_json, write_json
from decentral.tasks.convex import Quadratics

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.config.schema import Config
    from decentral.network.world import World
    from decentral.tasks.task import Problem, TaskConfig
    from decentral.training.assemble import Run

    Setup = Callable[[World], "Work"]
    """Makes a work in each process, together with the others; it can be pickled: partial(Verb, config, 100, "mix")."""

_TIMES = "times.json"


def turned(names: list[str], number: int) -> list[str]:
    """Return the order of the names in a round."""
    shift = number % len(names)
    return names[shift:] + names[:shift]


# -- between processes -------------------------------------------------------------------------------------------------


class Work(ABC):
    """A timed piece of work, which all processes of the group do simultaneously."""

    @abstractmethod
    def __call__(self) -> None:
        """Do the work once."""

    net: Any = None
    """Network whose sent data are counted for this process; None: not counted."""

    def sent(self) -> tuple[int, int]:
        """Return the bytes and messages that this process has sent to others so far, if it counts them."""
        return getattr(self.net, "wire_bytes", 0), getattr(self.net, "wire_messages", 0)

    def close(self) -> None:
        """Release resources."""


@dataclass(frozen=True)
class Turns:
    """Works that take turns: for each name a function that creates the work in every process, and can be pickled.

    `warm_up` calls are not timed; a time is that of `repeats` calls, divided by their number.
    """

    setups: Mapping[str, Setup]
    rounds: int
    repeats: int = 1
    warm_up: int = 2


def in_group(size: int, turns: Sequence[Turns]) -> list[dict[str, dict[str, Any]]]:
    """Time works in `size` new gloo processes with one thread each; one group of works after the other.

    The result has for each group, by the names of its works, values for one call: `wall`, the time until the last
    process is done, and `cpu`, the sum over all processes, in seconds, a number per round; `sent`, the bytes and
    messages of all processes.

    Raises `failures.RunFailed` if one of the processes fails, ConfigError if one of them refuses its part.
    """
    config = compose([*host("allreduce", "complete"), f"num_workers={size}", f"processes={size}"])
    with tempfile.TemporaryDirectory() as folder:
        in_processes(prepare(config, Path(folder)), partial(take_turns, turns=list(turns)))
        found = read_json(Path(folder) / _TIMES)
    assert found is not None
    groups: list[dict[str, dict[str, Any]]] = found["turns"]
    return groups


def host(algo: str, topology: str) -> list[str]:
    """Return the overrides of a run whose processes only host timed work."""
    known = ["task=quadratics", "task.zeta2=0", "restarts=0", "progress=false", "device=cpu"]
    return [*known, f"algo={algo}", f"topology={topology}"]


def take_turns(run: Prepared, world: World, turns: Sequence[Turns]) -> Status:
    """The part of one process; the leader leaves the times in the directory."""
    import torch

    torch.set_num_threads(1)
    found = []
    for each in turns:
        with torch.no_grad():
            works = {name: setup(world) for name, setup in each.setups.items()}
            found.append(in_turn_together(world, works, each))
        for work in works.values():
            work.close()
        del works
        gc.collect()
    if world.leader:
        write_json(run.directory / _TIMES, {"turns": found})
    return Status.done


def in_turn_together(world: World, works: Mapping[str, Work], turns: Turns) -> dict[str, Any]:
    """Return `wall`, `cpu` and `sent` of each work, as in `in_group`; the order changes from round to round."""
    import torch
    import torch.distributed as dist

    for work in works.values():
        for _ in range(turns.warm_up):
            work()
    names = list(works)
    before = torch.tensor([works[name].sent() for name in names], dtype=torch.float64)
    wall_s, cpu_s = torch.zeros(2, len(names), turns.rounds, dtype=torch.float64)
    for number in range(turns.rounds):
        for name in turned(names, number):
            place, work = names.index(name), works[name]
            world.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(turns.repeats):
                work()
            wall_s[place, number] = time.perf_counter() - wall
            cpu_s[place, number] = time.process_time() - cpu
    sent = torch.tensor([works[name].sent() for name in names], dtype=torch.float64) - before
    if world.distributed:
        dist.all_reduce(wall_s, op=dist.ReduceOp.MAX)
        dist.all_reduce(cpu_s)
        dist.all_reduce(sent)
    calls = {"wall": wall_s / turns.repeats, "cpu": cpu_s / turns.repeats, "sent": sent / turns.rounds / turns.repeats}
    return {kind: dict(zip(names, values.tolist(), strict=True)) for kind, values in calls.items()}


class Stepping(Work):
    """A run that takes a step in each call."""

    def __init__(self, run: Run) -> None:
        self.run, self.net = run, run.net

    def __call__(self) -> None:
        """Take one step of all workers."""
        self.run.stepper.step()

    def close(self) -> None:
        """See `Work`."""
        self.run.close()


# -- works: a verb, a step, steps of workers that sleep ----------------------------------------------------------------


class Verb(Work):
    """One of the network's operations on a row: mix, relay or mean."""

    def __init__(self, config: Config, num_coordinates: int, verb: str, world: World) -> None:
        import torch

        from decentral.training.method import open_network

        self.net = open_network(config, config.rounds(), world, loses=False)
        self.verb, self.t, self.x = verb, 0, torch.ones(1, num_coordinates)
        if verb == "relay":
            self.m, self.out = self.net.no_messages(self.x), torch.zeros_like(self.x)

    def __call__(self) -> None:
        """Apply the operation once, to its last result."""
        if self.verb == "mix":
            self.x = self.net.mix(self.x, self.t)
        elif self.verb == "mean":
            self.x = self.net.mean(self.x)
        else:
            self.m = self.net.relay(self.x, self.m, self.t)
            self.out = self.net.collect(self.m, self.x, out=self.out)
        self.t += 1

    def close(self) -> None:
        """See `Work`."""
        self.net.close()


@dataclass
class Still(Quadratics):
    """Rows of `dimension` numbers, with immediate zero gradients."""

    name: str = "quadratics"

    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """Open the problem, for the local workers."""
        import torch

        from decentral.tasks.task import Problem as Base

        zeros = torch.zeros(len(workers), self.dimension)

        class Nothing(Base):
            metrics = ()
            steps_per_epoch = 1.0

            def init(self) -> Tensor:
                return torch.ones_like(zeros[0])

            def gradient(self, x: Tensor, draws: object, workers: object = None) -> tuple[Tensor, Tensor]:
                return torch.zeros(len(x)), zeros[: len(x)]

            def worker_statistics(self, x: Tensor, workers: object = None, scope: object = None) -> Tensor:
                return x.new_zeros(len(x), 0)

        return Nothing()


class Sleeping(Stepping):
    """A method between processes, whose workers sleep as long as a gradient takes in the cluster.

    A call takes `steps` steps, from one pause to the next. Before the first call there are `warm_up` steps without
    sleep.
    """

    def __init__(self, config: Config, steps: int, warm_up: int, world: World) -> None:
        from decentral.training.assemble import assemble

        super().__init__(assemble(prepare(config), world))
        self.steps = steps
        advance(self.run, warm_up)
        let_sleep(self.run, all=True)

    def __call__(self) -> None:
        """Take the steps."""
        advance(self.run, self.steps)


def advance(run: Run, steps: int) -> int:
    """Take `steps` steps, from one pause to the next. Return the time at which this process finished them, in
    nanoseconds."""
    stepper = run.stepper
    stepper.may_go_on_to(stepper.t + steps)
    for _ in range(steps):
        stepper.step()
    ended_ns = time.monotonic_ns()
    stepper.flush()
    return ended_ns


def let_sleep(run: Run, all: bool | None) -> None:
    """Let workers sleep before their gradients from now on, for `all` of the gradients' time, or only for a straggler's
    delay; None: without sleep."""
    from decentral.training.between_processes import ThreadedStepper
    from decentral.training.gradient_times import Sleep, uneven

    cluster = run.config.cluster
    assert isinstance(cluster, VirtualCluster)
    times = uneven(cluster.gradient_times(run.net.n, run.config.seed), run.prepared)
    sleep = Sleep(times, all) if all is not None else None
    if isinstance(run.stepper, ThreadedStepper):
        run.stepper.sleep = sleep
    else:
        run.oracle.sleep = sleep
