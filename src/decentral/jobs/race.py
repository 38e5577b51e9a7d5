"""How the workers approach their mean against time, where one of them is slower than the others: a job."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.jobs.computation import BetweenProcesses, Computation
from decentral.jobs.consensus import error, starts
from decentral.network.settings import Carrier
from decentral.store import Status
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.config.schema import Config
    from decentral.network.world import World


class RaceSettings(NamedTuple):
    """How long a worker computes between two messages, and how long the race takes.

    pause_s      of work in each turn of the usual workers
    duration_s   of the whole
    dimension    of the vectors
    """

    pause_s: float = 0.005
    duration_s: float = 3.0
    dimension: int = 1000


@dataclass(frozen=True)
class Race(BetweenProcesses, Computation):
    """Average consensus for `duration_s`, in as many processes as there are workers; the last one is slower.

    asynchronous   push-sum by windows (BlueFog paper, Listing 3): a worker waits for nobody. In its turn it works,
                   gives each out-neighbour the share 1 / (outdegree + 1) of what it has, x and p, keeps that share, and
                   takes what has come. When the time is over all stop, and what is on its way is collected.
    synchronous    x_i <- sum_j W_ij x_j in rounds in which everybody waits for his neighbours.

    For each seed, each slowdown and first one, then the other, in the same processes: a line of races.jsonl with an
    entry for each worker, see `ErrorLog.entry`.
    """

    seeds: tuple[int, ...] = ()
    slowdowns: tuple[float, ...] = (10.0,)
    settings: RaceSettings = field(default_factory=RaceSettings)

    folder: ClassVar[str] = "races"
    lines: ClassVar[str] = "races.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Seeds, slowdowns, the settings (under the name that they had when ids were given), a transport that was
        chosen."""
        carrier = self.config.network.transport
        transport = {} if carrier is Carrier.auto else {"transport": carrier.name}
        return {
            "seeds": list(self.seeds),
            "slowdowns": list(self.slowdowns),
            "course": self.settings._asdict(),
            **transport,
        }

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """All of them in the same processes, whose leader adds the lines."""
        from decentral.runtime.launch import in_processes

        conditions = [
            Condition(seed, self.settings, slowdown, asynchronous)
            for seed in self.seeds
            for slowdown in self.slowdowns
            for asynchronous in (True, False)
        ]
        show(len(lines.known) / len(conditions), f"{len(conditions)} times {self.settings.duration_s:g} s")
        part = partial(run, conditions=conditions, name=self.lines)
        return in_processes(self.config, self.directory, part) is Status.done

    def of(self, slowdown: float, asynchronous: bool) -> list[dict[str, Any]]:
        """The lines that there are, by seed."""
        return [one for one in self.found() if (one["slowdown"], one["asynchronous"]) == (slowdown, asynchronous)]


class Condition(NamedTuple):
    """What one line of a race is about."""

    seed: int
    settings: RaceSettings
    slowdown: float
    asynchronous: bool

    def pause_of(self, worker: int, n: int) -> float:
        """Seconds of work in each turn; of the last worker, `slowdown` times as many."""
        return self.settings.pause_s * (self.slowdown if worker == n - 1 else 1)


def run(config: Config, world: World, directory: Path, *, conditions: Sequence[Condition], name: str) -> Status:
    """The part of one process, which hosts one worker; the leader adds a line for each condition to the file `name`."""
    import torch

    from decentral.host.interrupt import Interrupt

    assert config.num_workers is not None
    torch.set_num_threads(1)
    with (
        torch.no_grad(),
        Interrupt() as interrupt,
        closing(LineFile(directory / name)) if world.leader else nullcontext() as lines,
    ):
        for condition in conditions[world.agree(len(lines.known) if lines is not None else 0) :]:
            if world.any(interrupt.requested)[0]:
                return Status.interrupted
            take_part = push_sum if condition.asynchronous else in_rounds
            x = starts(config.num_workers, condition.settings.dimension, condition.seed)
            own, sums = take_part(config, world, condition, x)
            known = {
                "seed": condition.seed,
                "slowdown": condition.slowdown,
                "asynchronous": condition.asynchronous,
            }
            workers = _from_all(world, own)
            if lines is not None:
                lines.append({**known, "workers": workers, **sums})
    return Status.done


def push_sum(config: Config, world: World, condition: Condition, x: Tensor) -> tuple[dict[str, Any], dict[str, float]]:
    """Asynchronous push-sum for x [n, d]: this worker's entry, and what has become of the sums of p and x."""
    from decentral.network.windows.choose import open_window
    from decentral.network.windows.slots import Edges

    n, i, mean = len(x), world.rank, x.mean(0)
    edges = Edges.of(config.rounds().mixing(0)[0].graph)
    share = 1 / (1 + len(edges.receivers(i)))
    window = open_window(config.network, edges, [range(j, j + 1) for j in range(n)], x[i : i + 1])
    with _closing(window):
        log = ErrorLog(world, mean)
        while log.seconds() < condition.settings.duration_s:
            time.sleep(condition.pause_of(i, n))
            window.accumulate(i, dict.fromkeys(edges.receivers(i), share), share)
            window.collect(i)
            log.note(window.t / window.p[0], float(window.p[0]))
        window.drain()
        end, p = window.t / window.p[0], window.p.clone()
        total_p, total_x = _total(p), _total(window.t[0].clone())
    sums = {
        "p_error": abs(float(total_p[0]) - n),
        "mass_error": float((total_x - x.sum(0)).norm() / x.sum(0).norm()),
    }
    return log.entry(end), sums


def in_rounds(config: Config, world: World, condition: Condition, x: Tensor) -> tuple[dict[str, Any], dict[str, float]]:
    """Synchronous averaging of x [n, d], which lasts as long as the slowest worker needs for its turns."""
    from decentral.network.delivery import Losses
    from decentral.network.processes import join

    n, i, mean = len(x), world.rank, x.mean(0)
    net = join(config.rounds(), Losses(0.0, 0), world.device, i, world.size, config.network)
    with _closing(net):
        own, log = x[i : i + 1].clone(), ErrorLog(world, mean)
        for t in range(math.ceil(condition.settings.duration_s / condition.pause_of(n - 1, n))):
            time.sleep(condition.pause_of(i, n))
            own = net.mix(own, t)
            log.note(own, 1.0)
        total = _total(own[0].clone())
    sums = {"p_error": 0.0, "mass_error": float((total - x.sum(0)).norm() / x.sum(0).norm())}
    return log.entry(own), sums


class ErrorLog:
    """A worker's errors after each of its turns, with their times in seconds since all processes were ready."""

    def __init__(self, world: World, mean: Tensor) -> None:
        self.mean, self.times, self.errors, self.p = mean, [0.0], list[float](), [1.0]
        world.barrier()
        self.began = time.perf_counter()

    def seconds(self) -> float:
        """Since all processes were ready."""
        return time.perf_counter() - self.began

    def note(self, estimate: Tensor, p: float) -> None:
        """The estimate [1, d] and the push-sum weight after a turn."""
        self.times.append(self.seconds())
        self.errors.append(error(estimate, self.mean))
        self.p.append(p)

    def entry(self, end: Tensor) -> dict[str, Any]:
        """seconds, errors: after each turn; smallest_p; end: the error when everything has come home."""
        return {
            "seconds": [round(t, 6) for t in self.times[1:]],
            "errors": self.errors,
            "smallest_p": min(self.p),
            "end": error(end, self.mean),
        }


@contextmanager
def _closing(thing: Any) -> Iterator[None]:
    """Close it, when all is well: a process that fails does not wait for the others."""
    yield
    thing.close()


def _total(values: Tensor) -> Tensor:
    """The sum over all processes."""
    import torch.distributed as dist

    dist.all_reduce(values)
    return values


def _from_all(world: World, entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of all workers."""
    return [json.loads(content) for content in world.collect_any(json.dumps(entry).encode())]
