"""The contract of a data set: look at it quickly, prepare it once, load it onto a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from decentral.data.description import DataDescription

    Order = Callable[[int], Tensor]
    """order(step) -> LongTensor [k, B] on the CPU: the examples of each local worker. Pure: it may be called ahead."""
    Batch = tuple[Any, Any]
    """Inputs and targets [k, B, ...]; lists of k where workers have batches of different shapes."""
    Batches = Generator[Batch, None, None]


class DataSet(Settings, ABC, where="data"):
    """A data set as the user chooses it. The concrete ones are dataclasses: their fields are the configuration."""

    @abstractmethod
    def inspect(self) -> DataDescription:
        """Counts and shapes, and whatever else a model is built from, within a fraction of a second and without torch.

        Raises ConfigError if the folder is missing, malformed or empty.
        """

    def nominal(self) -> DataDescription | None:
        """What they are known to be where no files are given; None where that is not known."""
        return None

    def files_digest(self) -> str:
        """What the identity of a run has to know of the files beside the settings, such as a digest; '' if nothing."""
        return ""

    def notes(self) -> tuple[str, ...]:
        """What a reader of the metrics has to know of these data."""
        return ()

    def missing(self) -> str:
        """What `prepare` would have to download, in a few words; '' if nothing. Looks at a folder or two."""
        return ""

    def prepare(self) -> None:
        """Download or decode everything into the cache (`cache.py`), once; slow the first time. Here: nothing.

        Several processes may call it at once, and any of them may be killed midway.
        Raises ConfigError if the download fails or an image is broken (and names it).
        """
        return None

    @abstractmethod
    def load(self, device: torch.device | str, seed: int) -> Loaded:
        """The prepared data, ready to be drawn from; `seed` is the run's, it addresses the augmentation."""


class Loaded(ABC):
    """A data set on a device."""

    train_labels: np.ndarray  # [N] int64, for the partition: the classes, or where an example comes from
    num_classes: int  # how many different labels there may be
    num_test: int
    exact: bool = False  # whether examples in float64 are wanted as they are, and not in float32
    reads_ahead: ClassVar[bool] = True
    """Whether batches that are drawn one after the other come sooner than those that are asked for at random."""

    @abstractmethod
    def train_batches(self, order: Order, workers: Sequence[int], start: int, stop: int) -> Batches:
        """Inputs [k, B, ...] and targets [k, B, ...], for start <= step < stop.

        Images are [k, B, C, H, W] float32, normalised and augmented, texts [k, B, L] int64, filled up to the longest
        of the k B; labels are [k, B] int64. `workers` are the global numbers of the k rows of `order(step)`. The
        augmentation of an example depends on (seed, worker, step, position in the row) only: not on the other workers
        of this process, on how far ahead batches are read, or on the device. Inputs are the caller's, who may write
        into them: they share no memory with targets or with what is kept. Close the iterator to stop whatever it
        started before it is exhausted.
        """

    def test_batches(
        self, batch_size: int, chosen: Tensor | None = None, part: int = 0, parts: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs [b, ...], not augmented, and targets [b, ...], in a fixed order; the last batch may be smaller.

        All of the test set, or those `chosen` (LongTensor of numbers); of these batches every `parts`-th, from number
        `part` on.
        """
        import torch

        numbers = torch.arange(self.num_test) if chosen is None else chosen
        return self.test_examples(numbers.split(batch_size)[part::parts])

    def not_finite(self) -> tuple[str, ...]:
        """A sentence for each split in which examples are known to hold NaN or infinite numbers."""
        return ()

    @abstractmethod
    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, as above, for each of these batches: LongTensors [b] of numbers in the test set."""

    def close(self) -> None:
        """Release what is held, if it does not go with the object, which is not used afterwards."""
        return None


class DrawnApart(Loaded):
    """A data set from which workers that are not at the same step draw together."""

    @abstractmethod
    def drawn(self, rows: Tensor, workers: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """What `train_batches` gives for examples rows [k, B] of these workers, each at its own of the steps [k]."""
