"""The rules of wait-avoiding groups, the same for threads between processes and for the simulated clock.

Every version is carried out by all groups as soon as the first of all workers asks for it: who has not come by then
takes part with what lies in its send buffer (Li et al., TPDS 2021, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from decentral.topology.groups import GroupSchedule

Sum = TypeVar("Sum")


def never(version: int) -> bool:
    """Of no version."""
    return False


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupRules:
    """How workers meet in groups.

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
        """Whether a worker that is the first to ask for a version calls the others, or waits for who does."""
        return not self.waits and (self.activator is None or self.activator(version) == worker)


class Member(Generic[Sum]):
    """One worker: the version of what it has published, the last one it was called for, and the last one it finished.

    It finishes all versions in order, whether it has asked for them or not, and asks for them in order. It takes the
    sum of the very version that it asks for, if that is among the last `depth` that it has finished; or else the newest
    one. The paper (section 4) and the authors' code (`sum_grad_ptrs` of their TensorFlow operator) have one receive
    buffer, which every version overwrites: depth 1.
    """

    __slots__ = ("called", "depth", "done", "published", "sums")

    def __init__(self, depth: int, first: int = 0) -> None:
        """Before version `first`."""
        self.depth = depth
        self.published = self.called = self.done = first - 1
        self.sums: dict[int, Sum] = {}

    def call(self, version: int) -> bool:
        """Somebody has set off a version, and with it all before: whether that is news."""
        news = version > self.called
        if news:
            self.called = version
        return news

    def finish(self, version: int, total: Sum) -> Sum | None:
        """A version is over, with this sum; returns the sum that is given up for it."""
        self.done, sums = version, self.sums
        sums[version] = total
        return sums.pop(next(iter(sums))) if len(sums) > self.depth else None

    def take(self, version: int) -> Sum:
        """The sum that it takes for a version that is over. That of the very version is given up, a later one kept."""
        if version in self.sums:
            return self.sums.pop(version)
        return self.sums[next(reversed(self.sums))]


def is_fresh(version: int, used: int, contributed: int) -> bool:
    """Whether a worker that asked for a version finds in the sum of version `used` what it published as that version,
    and not what it `contributed` before or to a later one."""
    return contributed == version == used
