"""The contract of the forward and backward passes of a step, which give the gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from decentral.gradients.precision import Precision


class Lanes:
    """One after the other, where everything is computed."""

    def __call__(self, turn: int) -> AbstractContextManager[object]:
        """A context for the passes of the worker whose turn it is."""
        return nullcontext()

    def join(self) -> None:
        """What follows begins after all of them."""
        return None


class Passes(ABC):
    """The forward and backward passes of r of the k local workers, at models that are the rows of x [r, P]."""

    execution: str
    """What `execution=` calls this way, for the run's records."""

    takes_lists: bool = False
    """Whether workers may have batches of different shapes: then inputs and targets are lists of r."""

    seconds: list[float] | None = None
    """A list, where somebody wants to know how long the pass of each row of the last call took; on a GPU, where work is
    queued, each is then waited for. It stays empty where rows are computed together."""

    @abstractmethod
    def __call__(
        self,
        x: Tensor,
        inputs: Any,
        targets: Any,
        workers: Sequence[int],
        seed: Callable[[int], None],
    ) -> tuple[Tensor, Tensor]:
        """Mean losses [r] and their gradients g [r, P], for inputs [r, B, ...], such as images [r, B, C, H, W], and
        targets [r, B, ...], such as labels [r, B]; or, where this `takes_lists`, for lists of r. Then inputs[j] is what
        the module of row j takes as its argument, a tensor or a tuple of them.

        `workers` are the places of the r workers among the local ones, each once. g is the same memory in every call,
        which the caller may overwrite until the next. `seed(j)` addresses the randomness of the worker of row j; it is
        called right before that worker's forward pass, if that may draw anything.
        """

    def doubt(self, x: Tensor, inputs: Tensor, targets: Tensor) -> str | None:
        """Why these are not the gradients of a first batch of all local workers at models near x [k, P]; None if they
        are, but for rounding. Leaves nothing behind."""
        return None


def agree(found: Tensor, expected: Tensor, precision: Precision) -> bool:
    """Whether tensors [r, ...] are equal but for rounding, for each worker: in half of the digits of the precision.

    A sum of m terms in another order is off by less than m roundings, and an activation near 0 may be cut off or not.
    What mixes workers up differs in the first digit. Of what is not finite nothing can be said.
    """
    if found.shape != expected.shape:
        return False
    size, off = (torch.linalg.vector_norm(each.reshape(len(each), -1), dim=1) for each in (expected, found - expected))
    return bool(((off <= precision.rounding**0.5 * size) | ~size.isfinite()).all())
