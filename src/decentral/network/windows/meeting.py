"""What all processes do at once, and for which none of them waits longer than it was told to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_MILLISECONDS = re.compile(r"(\d+) ?ms\b")


class Meeting:
    """Sums over all processes, over gloo; to be made by all of them at once.

    Raises, from all that it does: TimeoutError if a process does not come within `timeout_s`, ConnectionError if one is
    gone. There can be no other meeting with the same `timeout_s` after that.
    """

    def __init__(self, timeout_s: float) -> None:
        with in_time():
            self._group = gloo_group(timedelta(seconds=timeout_s))

    def total(self, value: Tensor) -> Tensor:
        """The sum over processes of a tensor on the CPU, in place; waits for all of them."""
        with in_time():
            dist.all_reduce(value, group=self._group)
        return value


@contextmanager
def in_time() -> Iterator[None]:
    """What torch.distributed says of processes that do not come, or are gone, as an error of one sentence."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if _TIMED_OUT.search(text):
            waited = _MILLISECONDS.search(text)
            after = f" after {int(waited[1]) / 1000:g} s" if waited else ""
            raise TimeoutError(f"timed out{after} of waiting for the other processes of this run") from error
        if "connect" in text.lower():
            raise ConnectionError("connection closed by a process of this run") from error
        raise


_made: tuple[object, dict[timedelta, dist.ProcessGroup]] = None, {}


def gloo_group(timeout: timedelta) -> dist.ProcessGroup:
    """A gloo group of all processes with this timeout: the same one for all who ask, of a process group."""
    global _made
    if _made[0] is not dist.group.WORLD:
        _made = dist.group.WORLD, {}
    groups = _made[1]
    if timeout not in groups:
        group = dist.new_group(backend="gloo", timeout=timeout)
        assert isinstance(group, dist.ProcessGroup)
        groups[timeout] = group
    return groups[timeout]
