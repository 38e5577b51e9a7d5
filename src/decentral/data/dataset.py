"""The interface of a data set, its description before loading, and the location of prepared data."""

from __future__ import annotations

import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.errors import ConfigError, suggest
from decentral.randomness import numpy_generator
from decentral.settings import Settings, setting
from decentral.store.digests import cache_folder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.data.loading.augmentation import Transform

    Order = Callable[[int], Tensor]
    """order(step) -> LongTensor [k, B] on the CPU: the examples of each local worker. Pure: it may be called ahead."""
    Batch = tuple[Any, Any]
    """Inputs and targets [k, B, ...]; lists of k where workers have batches of different shapes."""
    Batches = Generator[Batch, None, None]


@dataclass(frozen=True, kw_only=True)
class DataDescription(ABC):
    """A description of data: a subclass for each kind, with the inputs of a model's construction.

    num_train, num_test   numbers of training and test examples
    names                 names of the labels 0, 1, ...: classes or sources; () if unknown
    """

    kind: ClassVar[str]
    """Name in the plural: images."""
    num_train: int = 0
    num_test: int = 0
    names: Sequence[str] = field(default=(), repr=False, compare=False)

    @abstractmethod
    def batch_shape(self, size: int) -> tuple[int, ...]:
        """Return the shape of a model's input in one call, a batch of `size` examples: [size, ...]."""

    @property
    def num_labels(self) -> int:
        """Return the number of distinct labels for a partition: classes or sources; 1 if there are none."""
        return 1


@dataclass(frozen=True, kw_only=True)
class LabelledData(DataDescription):
    """Examples of some shape, each of one of several classes.

    shape         shape of one example
    num_classes   labels are 0 ... num_classes - 1
    first_class   smallest label
    """

    kind: ClassVar[str] = "labeled examples"
    shape: tuple[int, ...]
    num_classes: int
    first_class: int = field(default=0, repr=False, compare=False)

    def batch_shape(self, size: int) -> tuple[int, ...]:
        """Return [size, *shape]."""
        return size, *self.shape

    @property
    def num_labels(self) -> int:
        """Return the number of classes."""
        return self.num_classes


@dataclass(frozen=True, kw_only=True)
class ImageData(LabelledData):
    """Images, each of one of several classes; their shape is (C, H, W): channels, height and width in pixels."""

    kind: ClassVar[str] = "images"
    shape: tuple[int, int, int]


PADDING = 0
"""The token that pads sequences to the longest of their batch."""
IGNORED = -1
"""The target after padding, which does not count in the loss."""


@dataclass(frozen=True, kw_only=True)
class TokenData(DataDescription):
    """Sequences of tokens, whole numbers below `vocabulary`: [size, L] int64, padded at the end with `PADDING`.

    vocabulary    number of tokens, with `PADDING`
    longest       maximum number of tokens in a sequence
    usual         approximate number of tokens in a sequence; infinity if unknown
    tokenizer     whether the tokens are those of a given tokenizer, not of one that is trained on the texts
    """

    kind: ClassVar[str] = "sequences of tokens"
    vocabulary: int
    longest: int
    usual: float = math.inf
    tokenizer: bool = field(default=False, repr=False, compare=False)

    def batch_shape(self, size: int) -> tuple[int, ...]:
        """Return the shape of a batch of the longest sequences: [size, longest]."""
        return size, self.longest


@dataclass(frozen=True, kw_only=True)
class LabelledTokens(TokenData):
    """Texts in tokens, each of one of several classes: labels are 0 ... num_classes - 1."""

    kind: ClassVar[str] = "texts with labels"
    num_classes: int

    @property
    def num_labels(self) -> int:
        """Return the number of classes."""
        return self.num_classes


@dataclass(frozen=True, kw_only=True)
class NextTokens(TokenData):
    """Pieces of running text in tokens, each from one of several sources; the target of a token is the next one.

    num_sources   number of sources
    """

    kind: ClassVar[str] = "running text"
    num_sources: int = 1

    @property
    def num_labels(self) -> int:
        """Return the number of sources."""
        return self.num_sources


class DataSet(Settings, ABC, where="data"):
    """A data set as the user chooses it. Concrete data sets are dataclasses; their fields are the configuration."""

    name: str

    @abstractmethod
    def inspect(self) -> DataDescription:
        """Return counts, shapes and other inputs of a model's construction, in a fraction of a second, without torch.

        Raises ConfigError if the folder is missing, malformed or empty.
        """

    def nominal(self) -> DataDescription | None:
        """Return the known description if no files are given; None if unknown."""
        return None

    def files_digest(self) -> str:
        """Return the part of the run ID that depends on the files, such as a digest; '' if none."""
        return ""

    def notes(self) -> tuple[str, ...]:
        """Return notes on these data for readers of the metrics."""
        return ()

    def examples(self, column: str | None) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return a column of the training and of the test examples (None: unknown), before `test_share` divides them.

        For `column` None: the examples themselves, as a function in `partition.column` gets them.
        Raises ConfigError for a column that the training examples lack.
        """
        what = "partition.column" if column is None else f"partition.column={column}"
        raise ConfigError(
            f"{what} needs examples with columns, which data={self.name} lacks: use data of the library datasets, "
            "textfolder, imagefolder or your own, or leave partition.column out."
        )

    def missing(self) -> str:
        """Describe briefly what `prepare` would download; '' if nothing. Checks one or two folders only."""
        return ""

    def prepare(self) -> Any:
        """Download or decode everything into the cache (`cache.py`), once; slow the first time. Here: nothing.

        Several processes may call it at once, and any of them may be killed midway. Returns the folder.
        Raises ConfigError if the download fails or an image is broken (and names it).
        """
        return None

    @abstractmethod
    def load(self, device: torch.device | str, seed: int) -> Loaded:
        """Load the prepared data. `seed` is the run's seed; it addresses the augmentation."""


NO_TEST = "data.test_share=0.2 holds out a fifth of the examples of each class for testing"
"""Advice for data without test examples."""


def no_column(data: DataSet, column: str, names: Collection[str]) -> ConfigError:
    """Return the error for a column that is not among the names of the training examples."""
    return ConfigError(
        f"partition.column={column} is not in the training data of data={data.name}.{suggest(column, names)}"
    )


@dataclass(kw_only=True)
class DivisibleData(DataSet):
    """Data without test examples: a share of the training examples can be held out.

    test_share   share of the training examples of each class to hold out for testing, drawn from the run's seed, if
                 there are no test examples
    """

    test_share: float | None = setting(None, above=0, below=1, older=None)


def opened(data: DataSet, device: torch.device | str, seed: int) -> Loaded:
    """Load data, divided into training and test examples: with `test_share`, `load` has all examples for both."""
    loaded = data.load(device, seed)
    if not isinstance(data, DivisibleData) or data.test_share is None:
        return loaded
    return Divided(loaded, *divided(loaded.train_labels, data.test_share, seed))


def counts(share: float | None, num_train: Sequence[int], num_test: int) -> dict[str, Any]:
    """Return num_train and num_test, from the training examples of each class and the test examples there are."""
    if share is not None:
        num_test = sum(held_out(number, share) for number in num_train)
        return {"num_train": sum(num_train) - num_test, "num_test": num_test}
    return {"num_train": sum(num_train), "num_test": num_test}


def held_out(number: int, share: float) -> int:
    """Return how many of these examples of a class are for testing: of two or more, at least one and not all."""
    return min(number - 1, max(1, round(share * number))) if number else 0


def divided(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the training and the test examples, each sorted, drawn from the seed class by class."""

    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        drawn = numpy_generator(seed, "test share", int(label)).permutation(places)
        test[drawn[: held_out(len(places), share)]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


AUGMENTATIONS = {"none": False, "false": False, "crop_flip": True, "true": True, "autoaugment": "autoaugment"}
"""Accepted values of `data.augment` -> canonical value."""


class AugmentedImages(DataSet):
    """Images with random augmentation in training, selected by the field `augment`.

    augment    none, crop_flip, autoaugment (torchvision's, after crop_flip), or module:transform, such as a class of
               torchvision.transforms.v2, that maps uint8 [C, H, W] to the same
    """

    augment: Any
    policy: ClassVar[str] = "cifar10"
    """AutoAugment's policy."""

    def __post_init__(self) -> None:
        said = str(self.augment)
        if ":" not in said and said.lower() not in AUGMENTATIONS:
            raise ConfigError(
                f"data.augment={said} does not exist: use none, crop_flip, autoaugment, or module:transform."
            )
        self.augment = AUGMENTATIONS.get(said.lower(), said)

    @property
    def crops(self) -> bool:
        """Return whether training images are cropped and flipped at random."""
        return self.augment in (True, "autoaugment")

    def transform(self, shape: tuple[int, ...], seed: int) -> Transform | None:
        """Return the further transform of training images, with output shape [C, H, W]."""
        from decentral.data.loading.augmentation import Transform

        return None if isinstance(self.augment, bool) else Transform(self.augment, self.policy, shape, seed)


class Loaded(ABC):
    """A data set on a device."""

    train_labels: np.ndarray  # [N] int64, for the partition: classes or sources
    num_classes: int  # number of possible labels
    num_test: int
    exact: bool = False  # whether to keep examples in float64 instead of float32
    drawn_apart: ClassVar[bool] = False
    """True if workers at different steps may draw together."""

    def train_batches(self, order: Order, workers: Sequence[int], start: int, stop: int) -> Batches:
        """Yield the `drawn` batches for start <= step < stop; `workers` numbers the rows of `order(step)` globally.

        Close the iterator to stop its background work early.
        """
        for step in range(start, stop):
            yield self.drawn(order(step), workers, [step] * len(workers))

    def drawn(self, rows: Any, workers: Sequence[int], steps: Sequence[int]) -> Batch:
        """Return inputs and targets [k, B, ...]: examples rows [k, B] of these workers, each at its own step.

        Images are [k, B, C, H, W] float32, normalized and augmented, texts [k, B, L] int64, padded to the longest of
        the k B; labels are [k, B] int64. The augmentation of an example depends only on (seed, worker, step, position
        in the row): not on the other workers of this process, on prefetching, or on the device. The caller owns the
        inputs and may overwrite them: they share no memory with targets or stored data.
        """
        raise NotImplementedError

    def test_batches(
        self, batch_size: int, chosen: Tensor | None = None, part: int = 0, parts: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs [b, ...], not augmented, and targets [b, ...], in a fixed order; the last batch may be smaller.

        They are the whole test set, or the `chosen` examples (LongTensor of numbers). Of these batches every `parts`-th
        is yielded, beginning with number `part`.
        """
        import torch

        numbers = torch.arange(self.num_test) if chosen is None else chosen
        return self.test_examples(numbers.split(batch_size)[part::parts])

    def test_labels(self) -> np.ndarray:
        """Return the classes of all test examples: int64 [num_test]. By default, all of them are read."""
        import torch

        return torch.cat([targets for _, targets in self.test_batches(500)]).cpu().numpy()

    def divide(self, train: Sequence[Any], test: Sequence[Any] | None) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return values for the training and for the test examples, from those of `DataSet.examples`."""
        return train, test

    def not_finite(self) -> tuple[str, ...]:
        """Return a sentence for each split in which examples are known to have NaN or infinite numbers."""
        return ()

    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Any, Tensor]]:
        """Yield inputs and targets, as above, for each of these batches: LongTensors [b] of numbers in the test set."""
        return map(self.tested, batches)

    def tested(self, numbers: Tensor) -> tuple[Any, Tensor]:
        """Return the test examples of one batch."""
        raise NotImplementedError

    def close(self) -> None:
        """Release resources that are not freed with the object, which is not used afterwards."""


class Divided(Loaded):
    """Training and test examples of data whose examples are divided into both."""

    def __init__(self, whole: Loaded, train: np.ndarray, test: np.ndarray) -> None:
        import torch

        self._whole, self._train, self._test = whole, torch.from_numpy(train), torch.from_numpy(test)
        self.train_labels, self._labels = whole.train_labels[train], whole.train_labels[test]
        self.num_classes, self.num_test = whole.num_classes, len(test)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "exact":
            self._whole.exact = value

    def _rows(self, rows: Any) -> Any:
        return [self._train[row] for row in rows] if isinstance(rows, list) else self._train[rows]

    def train_batches(self, order: Order, workers: Sequence[int], start: int, stop: int) -> Batches:
        """See `Loaded`."""
        return self._whole.train_batches(lambda step: self._rows(order(step)), workers, start, stop)

    def drawn(self, rows: Any, workers: Sequence[int], steps: Sequence[int]) -> Batch:
        """See `Loaded`."""
        return self._whole.drawn(self._rows(rows), workers, steps)

    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Any, Tensor]]:
        """See `Loaded`."""
        return self._whole.test_examples([self._test[numbers] for numbers in batches])

    def test_labels(self) -> np.ndarray:
        """See `Loaded`."""
        return self._labels

    def divide(self, train: Sequence[Any], test: Sequence[Any] | None) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """See `Loaded`; both come from the training examples."""
        return [train[i] for i in self._train.tolist()], [train[i] for i in self._test.tolist()]

    def not_finite(self) -> tuple[str, ...]:
        """See `Loaded`."""
        return self._whole.not_finite()

    def close(self) -> None:
        """See `Loaded`."""
        self._whole.close()


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache, filled by `build(empty folder)` if it does not exist.

    One process builds while the others wait. The folder appears by one rename when it is complete, so a process that is
    killed midway leaves no folder that looks complete. The next process removes its remains. Raises ConfigError if the
    cache cannot be written, and whatever `build` raises.
    """
    from filelock import FileLock

    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir():
                unfinished = folder.with_name(folder.name + ".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                try:
                    build(unfinished)
                    os.replace(unfinished, folder)
                finally:
                    shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"The prepared data cannot be written to {folder} ({error.strerror or error}): set the environment "
            "variable DECENTRAL_CACHE to a folder with enough space."
        ) from error
    return folder
