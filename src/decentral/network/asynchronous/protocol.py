"""The rules of wait-avoiding groups and of servers, the same for real processes and for simulated time.

All groups run a version as soon as the first worker requests it; late workers contribute their send buffers (Li et al.,
TPDS 2021, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from decentral.topology.groups import GroupSchedule

if TYPE_CHECKING:
    from torch import Tensor

Sum = TypeVar("Sum")


def never(version: int) -> bool:
    """Return False for every version."""
    return False


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupRules:
    """The rules of group averaging.

    schedule      who is in a group in which version
    synchronizes  of a version: whether it is none, since all workers meet in it
    waits         a group waits for all of its members: everybody contributes to the version that it asked for
    empties       what has been contributed is taken out of the buffer: late contributions add up there (gradients)
    depth         the sums of how many versions a worker keeps, for when it is late
    activator     version -> the one worker who sets it off; None: whoever is first
    """

    schedule: GroupSchedule = field(kw_only=False)
    synchronizes: Callable[[int], bool] = never
    waits: bool = False
    empties: bool = False
    depth: int = 2
    activator: Callable[[int], int] | None = None

    def may_set_off(self, worker: int, version: int) -> bool:
        """Return whether a worker that first requests a version activates it, instead of waiting for the activator."""
        return not self.waits and (self.activator is None or self.activator(version) == worker)


class Member(Generic[Sum]):
    """One worker: the last versions that it published, was activated for, and finished.

    It finishes all versions in order, requested or not, and requests them in order. It takes the sum of the requested
    version if that is among the last `depth` finished ones, else the newest sum. The paper (section 4) and the authors'
    code (`sum_grad_ptrs` of their TensorFlow operator) have one receive buffer, which every version overwrites:
    depth 1.
    """

    __slots__ = ("called", "depth", "done", "published", "sums")

    def __init__(self, depth: int, first: int = 0) -> None:
        """Start before version `first`."""
        self.depth = depth
        self.published = self.called = self.done = first - 1
        self.sums: dict[int, Sum] = {}

    def call(self, version: int) -> bool:
        """Record the activation of a version and all earlier ones; return whether it is new."""
        news = version > self.called
        if news:
            self.called = version
        return news

    def finish(self, version: int, total: Sum) -> Sum | None:
        """Record the sum of a finished version; return the sum it evicts."""
        self.done, sums = version, self.sums
        sums[version] = total
        return sums.pop(next(iter(sums))) if len(sums) > self.depth else None

    def take(self, version: int) -> Sum:
        """Return the sum to use for a finished version. The sum of this very version is released, a later one kept."""
        if version in self.sums:
            return self.sums.pop(version)
        return self.sums[next(reversed(self.sums))]


def is_fresh(version: int, used: int, contributed: int) -> bool:
    """Return whether the sum of version `used` contains the row that the worker published as the requested version,
    not one that it `contributed` earlier or to a later version."""
    return contributed == version == used


@dataclass(frozen=True, eq=False)
class Parent:
    """A global server, beside worker 0, with which a region's server exchanges rows, in simulated time only.

    every     arrivals at the region's server, after the last answer, until it sends again
    send      state -> (d [P],), the row that the region sends
    step      (state, d [P]): the global server's step along d
    answer    state -> (theta [P],), the global model
    merge     (state, theta [P]): the region's server takes it
    """

    every: int
    send: Callable[..., tuple[Tensor]]
    step: Callable[..., object]
    answer: Callable[..., tuple[Tensor]]
    merge: Callable[..., object]


@dataclass(frozen=True, eq=False)
class Server:
    """A server with a common model, beside its first worker: what a worker delivers to it and takes from it.

    change    (state, index of the worker) -> d [P], the row that the worker delivers
    arrive    (state, d [P], version, gradients): the server receives the row of a worker that took the model of this
              version, and the number of the worker's gradients since then
    take      (state, index of the worker, model [P], version): lets the worker go on from the server's model
    seen      (state, index of the worker) -> the version that the worker took last
    work      (state, index of the worker) -> gradients since then
    now       state -> the server's model [P] after all arrivals, and its version, the number of arrivals so far
    steps     [n]: gradients of each worker between two deliveries
    grace_s   length of the window that arrival number `quorum` opens, in seconds; at its end all workers that have
              arrived since the last window take the model
    members   its workers
    """

    change: Callable[..., Tensor]
    arrive: Callable[..., object]
    take: Callable[..., object]
    seen: Callable[..., int]
    work: Callable[..., int]
    now: Callable[..., tuple[Tensor, int]]
    steps: Sequence[int]
    grace_s: float
    quorum: int
    members: Sequence[int]
    parent: Parent | None = None

    def deliver(self, s: Any, i: int) -> None:
        """Let worker i deliver, where the server's rows and the worker's are in one state."""
        self.arrive(s, self.change(s, i), self.seen(s, i), self.work(s, i))

    def collect(self, s: Any, i: int) -> None:
        """Let worker i take the model, likewise."""
        self.take(s, i, *self.now(s))
