"""What all processes do at once, and for which none of them waits longer than it was told to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from weakref import WeakKeyDictionary, WeakValueDictionary

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
        self._timeout = timedelta(seconds=timeout_s)
        with in_time():
            gloo_group(self._timeout)

    def total(self, value: Tensor) -> Tensor:
        """The sum over processes of a tensor on the CPU, in place; waits for all of them."""
        with in_time():
            dist.all_reduce(value, group=gloo_group(self._timeout))
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


_made: WeakKeyDictionary[object, WeakValueDictionary[timedelta, dist.ProcessGroup]] = WeakKeyDictionary()


def gloo_group(timeout: timedelta) -> dist.ProcessGroup:
    """A gloo group of all processes with this timeout: the same one for all who ask.

    Nothing here keeps it: when torch.distributed lets go of it, its threads have to end before the interpreter does.
    """
    groups = _made.setdefault(dist.group.WORLD, WeakValueDictionary())
    if (known := groups.get(timeout)) is not None:
        return known
    made = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(made, dist.ProcessGroup)
    groups[timeout] = made
    return made
