"""The contract of what computes the gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor


class Passes(ABC):
    """Losses and gradients of k workers, at models that are the rows of x [k, P]."""

    execution: ClassVar[str]
    """The name of this way, for the records."""

    @abstractmethod
    def __call__(self, x: Tensor, images: Tensor, labels: Tensor, seed: Callable[[int], None]) -> tuple[Tensor, Tensor]:
        """Mean cross-entropies [k] and their gradients g [k, P], for images [k, B, C, H, W] and labels [k, B].

        g is the same tensor in every call, which the caller may overwrite until the next. `seed(i)` addresses the
        randomness of local worker i; it is called right before that worker's forward pass, if that draws anything.
        """
