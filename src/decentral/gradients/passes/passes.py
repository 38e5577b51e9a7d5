"""The contract of the forward and backward passes of a step, which give the gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


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
