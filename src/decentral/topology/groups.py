"""Groups of wait-avoiding group averaging, and the tree by which one worker activates all (Li et al., TPDS 2021,
section 3).

n = log2 P for P workers and k = log2 S for groups of S, both powers of two. In phase r of version t worker p exchanges
with p xor 2^((t k + r) mod n). The group of p is all workers it is connected to in the k phases: those equal to p in
the other n - k bits. This follows the paper's text and figures. Its printed Algorithm 1 shifts an already shifted mask,
and so pairs other workers once S >= 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError


@dataclass(frozen=True)
class GroupSchedule:
    """The groups of all versions for n workers and groups of S; `dynamic`: they change per version.

    Raises ConfigError unless both are powers of two, S <= n.
    """

    num_workers: int
    group_size: int
    dynamic: bool = True

    def __post_init__(self) -> None:
        check_groups(self.num_workers, self.group_size)

    def groups(self, version: int) -> tuple[list[list[int]], list[int]]:
        """Return the groups of a version, members ascending, and the index of each worker's group."""
        found = grouping(version, self.num_workers, self.group_size, self.dynamic)
        number = np.empty(self.num_workers, dtype=np.int64)
        number[found] = np.arange(len(found))[:, None]
        return found.tolist(), number.tolist()


def check_groups(num_workers: int, group_size: int, key: str = "algo.group_size") -> None:
    """Raise ConfigError unless both are powers of two with group_size <= num_workers; suggest valid values."""
    if not is_power_of_two(num_workers):
        below = 1 << (max(1, num_workers).bit_length() - 1)
        raise ConfigError(
            f"num_workers={num_workers} does not allow butterfly groups: use a power of two, for example {below} or "
            f"{2 * below}."
        )
    if not is_power_of_two(group_size) or group_size > num_workers:
        sizes = ", ".join(str(1 << k) for k in range(num_workers.bit_length()))
        raise ConfigError(
            f"{key}={group_size} is not a valid group size for num_workers={num_workers}: use one of {sizes}."
        )


def is_power_of_two(number: int) -> bool:
    """Return whether it is 1, 2, 4, ..."""
    return number > 0 and not number & (number - 1)


def group_size_auto(num_workers: int) -> int:
    """Return S = 2^round(log2(P) / 2), about sqrt(P) as in the paper; halves round to even, so P = 8 gives 4. For P = 2
    it is 2: a group of one does not average.

    Raises ConfigError unless P is a power of two.
    """
    check_groups(num_workers, 1)
    n = _bits(num_workers)
    return 1 << max(round(n / 2), min(n, 1))


def phases(version: int, num_workers: int, group_size: int, dynamic: bool = True) -> list[int]:
    """Return the bit in which partners differ, for each of the k phases; fixed groups use version 0."""
    n, k = _bits(num_workers), _bits(group_size)
    first = version * k if dynamic else 0
    return [(first + r) % n for r in range(k)]


def partners(worker: int, version: int, num_workers: int, group_size: int, dynamic: bool = True) -> list[int]:
    """Return a worker's partner in each of the k phases of a version."""
    return [worker ^ (1 << bit) for bit in phases(version, num_workers, group_size, dynamic)]


def group(worker: int, version: int, num_workers: int, group_size: int, dynamic: bool = True) -> list[int]:
    """Return the S members of a worker's group in a version, sorted."""
    members = [worker]
    for bit in phases(version, num_workers, group_size, dynamic):
        members += [member ^ (1 << bit) for member in members]
    return sorted(members)


def grouping(version: int, num_workers: int, group_size: int, dynamic: bool = True) -> np.ndarray:
    """Return all groups of a version: int [P / S, S], each row sorted, rows ordered by their first worker."""
    mask = sum(1 << bit for bit in phases(version, num_workers, group_size, dynamic))
    workers = np.arange(num_workers)
    return workers[np.argsort(workers & ~mask, kind="stable")].reshape(-1, group_size)


def group_period(num_workers: int, group_size: int) -> int:
    """Return the period of the phases in versions: n / gcd(n, k); 1 for one worker or groups of one."""
    n, k = _bits(num_workers), _bits(group_size)
    return n // math.gcd(n, k) if k else 1


def activation_children(worker: int, came_over: int, num_workers: int) -> list[int]:
    """Return the workers that a worker activates, after activation over dimension `came_over` (-1: by itself).

    The binomial tree of Figure 1, rooted at any worker: over all higher dimensions, the widest subtree first.
    """
    return [worker ^ (1 << dimension) for dimension in range(came_over + 1, _bits(num_workers))]


def dimension(sender: int, receiver: int) -> int:
    """Return the bit in which two workers adjacent in the tree differ."""
    return (sender ^ receiver).bit_length() - 1


def _bits(size: int) -> int:
    """Return log2 of a power of two."""
    return size.bit_length() - 1
