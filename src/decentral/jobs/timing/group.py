"""Works of several processes timed in turn: all of them begin a work together, and it ends with the last of them."""

from __future__ import annotations

import gc
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.jobs.timing.times import Times
from decentral.store import Status
from decentral.store.files import read_json, write_json

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.network.world import World
    from decentral.training.assemble import Run

    Setup = Callable[[World], "Work"]
    """Makes a work in each process, together with the others; it can be pickled."""

_TIMES = "times.json"


class Work(ABC):
    """What a process does when it is its turn; all processes of the group do it at the same time."""

    @abstractmethod
    def __call__(self) -> None:
        """Once."""

    def sent(self) -> tuple[int, int]:
        """Bytes and messages that this process has sent to others so far, where it counts them."""
        return 0, 0

    def close(self) -> None:
        """Release what is held."""
        return None


@dataclass(frozen=True)
class Turns:
    """Works that take turns: for each name what makes the work in every process, and can be pickled.

    `warm_up` calls are not timed; a time is that of `repeats` calls, divided by their number.
    """

    setups: Mapping[str, Setup]
    rounds: int
    repeats: int = 1
    warm_up: int = 2


class Together(NamedTuple):
    """What the works took.

    `wall` is the time until the last process is done, `cpu` the sum over all processes, in seconds; `sent` the bytes
    and messages of all processes. All of them for one call.
    """

    wall: Times
    cpu: Times
    sent: dict[str, tuple[float, float]]


def in_group(size: int, turns: Sequence[Turns]) -> list[Together]:
    """Time works in `size` new gloo processes with one thread each; one group of works after the other.

    Raises `failures.RunFailed` if one of the processes fails, ConfigError if one of them refuses its part.
    """
    from decentral.config.composition import compose
    from decentral.runtime.launch import in_processes

    host = [
        "task=quadratics",
        "task.zeta2=0",
        "algo=allreduce",
        "topology=complete",
        "restarts=0",
        "progress=false",
        "device=cpu",
    ]
    config = compose([*host, f"num_workers={size}", f"processes={size}"])
    with tempfile.TemporaryDirectory() as folder:
        in_processes(config, Path(folder), partial(take_turns, turns=list(turns)))
        found = read_json(Path(folder) / _TIMES)
    assert found is not None
    return [Together(Times(one["wall"]), Times(one["cpu"]), _pairs(one["sent"])) for one in found["turns"]]


def _pairs(sent: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    return {name: (both[0], both[1]) for name, both in sent.items()}


def take_turns(config: Config, world: World, directory: Path, turns: Sequence[Turns]) -> Status:
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
        write_json(directory / _TIMES, {"turns": found})
    return Status.done


def in_turn_together(world: World, works: Mapping[str, Work], turns: Turns) -> dict[str, Any]:
    """`wall`, `cpu` and `sent` of each work, as in `Together`; the order turns from round to round."""
    import torch

    for work in works.values():
        for _ in range(turns.warm_up):
            work()
    names = list(works)
    before = torch.tensor([works[name].sent() for name in names], dtype=torch.float64)
    seconds = torch.zeros(2, len(names), turns.rounds, dtype=torch.float64)
    for number in range(turns.rounds):
        shift = number % len(names)
        for place in [*range(shift, len(names)), *range(shift)]:
            work = works[names[place]]
            world.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(turns.repeats):
                work()
            seconds[0, place, number] = time.perf_counter() - wall
            seconds[1, place, number] = time.process_time() - cpu
    sent = torch.tensor([works[name].sent() for name in names], dtype=torch.float64) - before
    seconds, sent = _over_all(world, seconds), _sum(world, sent) / (turns.rounds * turns.repeats)
    wall_s, cpu_s = (seconds / turns.repeats).tolist()
    by_name = zip(names, wall_s, cpu_s, sent.tolist(), strict=True)
    found: dict[str, Any] = {"wall": {}, "cpu": {}, "sent": {}}
    for name, *values in by_name:
        for kind, value in zip(found, values, strict=True):
            found[kind][name] = value
    return found


def _over_all(world: World, seconds: Any) -> Any:
    """Wall times (the longest) and CPU times (the sum) of all processes."""
    import torch.distributed as dist

    if world.distributed:
        dist.all_reduce(seconds[0], op=dist.ReduceOp.MAX)
        dist.all_reduce(seconds[1])
    return seconds


def _sum(world: World, numbers: Any) -> Any:
    import torch.distributed as dist

    if world.distributed:
        dist.all_reduce(numbers)
    return numbers


class Stepping(Work):
    """A run that takes a step at each call."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self) -> None:
        """One step of all workers."""
        self.run.stepper.step()

    def sent(self) -> tuple[int, int]:
        """See `Work`."""
        return sent_by(self.run.net)

    def close(self) -> None:
        """See `Work`."""
        self.run.close()


def sent_by(net: Any) -> tuple[int, int]:
    """The bytes and messages that a network has sent from this process; (0, 0) of one that stays in it."""
    return getattr(net, "wire_bytes", 0), getattr(net, "wire_messages", 0)
