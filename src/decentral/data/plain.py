"""Data sets of torch, from a function of a module of one's own: data=mymodule:make_data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decentral.data.cache import cache_folder
from decentral.data.dataset import DataSet
from decentral.data.description import ImageData, LabelledData
from decentral.errors import ConfigError
from decentral.randomness import seeded
from decentral.registry import blame
from decentral.registry.signature import Plain, address, component_from

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.map_style import MapStyle


_MOST_CLASSES = 1_000_000  # that there may be beyond the examples


class Sets(NamedTuple):
    """What the function returned, and what is known of it."""

    train: Any
    test: Any
    train_labels: np.ndarray
    test_labels: np.ndarray
    description: LabelledData


class PlainData(Plain, DataSet):
    """A function that returns two map-style data sets, (train, test), of pairs (tensor, label).

    It is called once in each process, with seeded generators, and has to return the same whenever it is called.
    Whatever is random in reading an example (augmentation) is seeded by the run's seed, the worker and its draw.
    """

    def inspect(self) -> LabelledData:
        """Makes the data sets, and looks at the first example and at all labels."""
        return self._sets().description

    def prepare(self) -> None:
        """Done by then."""
        self._sets()

    def load(self, device: torch.device | str, seed: int) -> MapStyle:
        """See `DataSet`."""
        from decentral.data.loading.map_style import MapStyle

        sets = self._sets()
        return MapStyle(
            sets.train, sets.test, sets.train_labels, sets.description.num_classes, device=device, seed=seed
        )

    def _sets(self) -> Sets:
        known = address(self)
        if known not in _MADE:
            _MADE[known] = self._made()
        return _MADE[known]

    def _made(self) -> Sets:
        from decentral.data.loading.map_style import first_shape, labels_of

        with blame.named(), _one_at_a_time(), seeded(0, "make data"):
            made = self.target()(**self.settings())
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise ConfigError(f"data={self.name} has to return two data sets, (train, test), not {_type(made)}.")
        for split, data in zip(("training", "test"), made, strict=True):
            if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
                raise ConfigError(
                    f"data={self.name}: the {split} data have to be a map-style data set, with len() and [index], not "
                    f"{_type(data)}."
                )
            if not _length(data, f"data={self.name}: the {split} data"):
                raise ConfigError(f"data={self.name}: there are no {split} data.")
        with blame.named(), seeded(0, "look at data"):
            where = f"data={self.name}"
            shape, test_shape = (first_shape(data, where) for data in made)
            train_labels, test_labels = (labels_of(data, where) for data in made)
        if shape != test_shape:
            raise ConfigError(f"{where}: training examples are {list(shape)}, test examples {list(test_shape)}.")
        largest, known = max(int(train_labels.max()), int(test_labels.max())), len(train_labels) + len(test_labels)
        if largest > _MOST_CLASSES and largest > known:
            raise ConfigError(f"{where}: a label is {largest:,} in only {known:,} examples: labels are 0, 1, 2, ...")
        classes = getattr(made[0], "classes", None) or ()
        num_classes = max(len(classes), int(train_labels.max()) + 1, int(test_labels.max()) + 1)
        kind: Any = ImageData if len(shape) == 3 else LabelledData
        counts = {"num_train": len(train_labels), "num_test": len(test_labels)}
        return Sets(made[0], made[1], train_labels, test_labels, kind(shape=shape, num_classes=num_classes, **counts))


_MADE: dict[str, Sets] = {}


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Where several processes of a machine begin at once, one downloads, and the others find what it has downloaded."""
    from filelock import FileLock

    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache_folder() / "own-data.lock")
        lock.acquire()
    except OSError:  # a cache that cannot be written
        yield
        return
    try:
        yield
    finally:
        lock.release()


@cache
def plain(name: str) -> type:
    """The data set for `module:function`. Raises ConfigError if there is no such thing."""
    return component_from("data", name, PlainData, ())


def _length(data: Any, what: str) -> int:
    with blame.named():
        try:
            return len(data)
        except (ValueError, TypeError, OverflowError) as error:
            if blame.place(error) is not None:
                raise
            raise ConfigError(f"{what} have no length: {blame.sentence(error)}.") from error


def _type(value: Any) -> str:
    return f"a {type(value).__name__}"
