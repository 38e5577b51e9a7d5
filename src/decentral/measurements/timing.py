"""Several things timed in turn, round after round, so that a slow machine is slow for all of them.

In one process, or in many that begin a thing together, where it ends with the last of them.
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
    """Whose turn it is in a round."""
    shift = number % len(names)
    return names[shift:] + names[:shift]


# -- between processes -------------------------------------------------------------------------------------------------


class Work(ABC):
    """A timed piece of work, which all processes of the group do simultaneously."""

    @abstractmethod
    def __call__(self) -> None:
        """Once."""

    net: Any = None
    """Its network, which counts data sent from this process, except within it."""

    def sent(self) -> tuple[int, int]:
        """Bytes and messages that this process has sent to others so far, where it counts them."""
        return getattr(self.net, "wire_bytes", 0), getattr(self.net, "wire_messages", 0)

    def close(self) -> None:
        """Release what is held."""


@dataclass(frozen=True)
class Turns:
    """Works that take turns: for each name what makes the work in every process, and can be pickled.

    `warm_up` calls are not timed; a time is that of `repeats` calls, divided by their number.
    """

    setups: Mapping[str, Setup]
    rounds: int
    repeats: int = 1
    warm_up: int = 2


def in_group(size: int, turns: Sequence[Turns]) -> list[dict[str, dict[str, Any]]]:
    """Time works in `size` new gloo processes with one thread each; one group of works after the other.

    Of each group, by the names of its works, for one call: `wall`, the time until the last process is done, and `cpu`,
    the sum over all of them, in seconds, a number per round; `sent`, the bytes and messages of all processes.

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
    """Overrides of a run whose processes only host what is timed."""
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
    """`wall`, `cpu` and `sent` of each work, as in `in_group`; the order turns from round to round."""
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
    """A run that takes a step at each call."""

    def __init__(self, run: Run) -> None:
        self.run, self.net = run, run.net

    def __call__(self) -> None:
        """One step of all workers."""
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

        self.net = open_network(config, world, loses=False)
        self.verb, self.t, self.x = verb, 0, torch.ones(1, num_coordinates)
        if verb == "relay":
            self.m, self.out = self.net.no_messages(self.x), torch.zeros_like(self.x)

    def __call__(self) -> None:
        """Once, with what the last one gave."""
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
    """Rows of `dimension` numbers, with gradients that are zero and there at once."""

    name: str = "quadratics"

    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """The problem, for the local workers."""
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
    """A method between processes, whose workers sleep for all of what the cluster says that a gradient takes.

    A call is `steps` steps, from a pause to the next one. Before the first one there are `warm_up` steps without sleep.
    """

    def __init__(self, config: Config, steps: int, warm_up: int, world: World) -> None:
        from decentral.training.assemble import assemble

        super().__init__(assemble(config, world))
        self.steps = steps
        advance(self.run, warm_up)
        let_sleep(self.run, all=True)

    def __call__(self) -> None:
        """So many steps."""
        advance(self.run, self.steps)


def advance(run: Run, steps: int) -> int:
    """So many steps, from a pause to the next one; when they were over for this process, in nanoseconds."""
    stepper = run.stepper
    stepper.may_go_on_to(stepper.t + steps)
    for _ in range(steps):
        stepper.step()
    ended_ns = time.monotonic_ns()
    stepper.flush()
    return ended_ns


def let_sleep(run: Run, all: bool | None) -> None:
    """From now on workers sleep before their gradients, for `all` of the time that they take, or for a straggler's
    delay alone; None: nobody does."""
    from decentral.training.between_processes import ThreadedStepper
    from decentral.training.gradient_times import Sleep, uneven

    cluster = run.config.cluster
    assert isinstance(cluster, VirtualCluster)
    times = uneven(cluster.gradient_times(run.net.n, run.config.seed), run.config)
    sleep = Sleep(times, all) if all is not None else None
    if isinstance(run.stepper, ThreadedStepper):
        run.stepper.sleep = sleep
    else:
        run.oracle.sleep = sleep
