"""Torch data sets from a user's function: data=mymodule:make_data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decentral.data.dataset import NO_TEST, DivisibleData, ImageData, LabelledData, cache_folder, counts
from decentral.errors import ConfigError
from decentral.randomness import seeded
from decentral.registry import blame
from decentral.registry.signature import Plain, call
from decentral.store.digests import by_content

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.map_style import Look, MapStyle


_SPLITS = ("training", "test")
_MOST_NAMED = 5  # labels in a sentence
_MOST_CLASSES = 1_000_000  # maximum number of classes beyond those in the examples


class Sets(NamedTuple):
    """The function's data sets, and their inspection."""

    train: Any
    test: Any
    looks: tuple[Look, Look]
    description: LabelledData


@dataclasses.dataclass(kw_only=True)
class PlainData(Plain, DivisibleData):
    """A function that returns two map-style data sets, (train, test), of pairs (tensor, label); with `test_share` one.

    It is called once in each process, with seeded generators, and has to return the same in every call. Randomness in
    reading an example (augmentation) is seeded by the run's seed, the worker and its draw.
    """

    def inspect(self) -> LabelledData:
        """Create the data sets, and inspect some examples and all labels."""
        found: LabelledData = self._sets().description
        return found

    def prepare(self) -> None:
        """Do nothing: the data sets already exist."""
        self._sets()

    def load(self, device: torch.device | str, seed: int) -> MapStyle:
        """See `DataSet`."""
        from decentral.data.loading.map_style import MapStyle

        sets = self._sets()
        return MapStyle(sets.train, sets.test, sets.looks, sets.description.num_classes, device=device, seed=seed)

    def files_digest(self) -> str:
        """Return the digest of the inspected examples and labels, whatever files they come from."""
        return "".join(look.digest for look in self._sets().looks)

    def examples(self, column: str | None) -> tuple[Any, Any]:
        """Return an attribute of the data sets with a value for each example, or the data sets, whose items are
        pairs."""
        from decentral.data.loading.map_style import attribute

        sets = self._sets()
        if column is None:
            return sets.train, sets.test
        if (train := attribute(sets.train, column)) is None:
            raise ConfigError(
                f"partition.column={column} is not an attribute of the training data of data={self.name}: give it one "
                "with a value for each example, or use a function of an example."
            )
        return train, attribute(sets.test, column)

    def notes(self) -> tuple[str, ...]:
        """Return notes on the classes that the training data lack."""
        sets, notes = self._sets(), list[str]()
        train, test = (set(look.labels.tolist()) for look in sets.looks)
        if lacking := sorted(test - train):
            labels = ", ".join(map(str, lacking[:_MOST_NAMED])) + ", ..." * (len(lacking) > _MOST_NAMED)
            notes.append(f"data={self.name}: labels {labels} occur in test examples, but not in training examples")
        if first := sets.description.first_class:
            notes.append(f"data={self.name}: the smallest label is {first}: labels start from 0; subtract {first}")
        return tuple(notes)

    def called(self) -> Any:
        """Return the function's result."""
        return call(self.target(), {}, **self.settings())

    def _sets(self) -> Any:
        fields = [f for f in dataclasses.fields(self) if not f.metadata.get("volatile")]  # type: ignore[arg-type]
        settings = {f.name: by_content(getattr(self, f.name)) for f in fields}
        known = json.dumps([self.plain_name, settings], sort_keys=True, default=str)
        if known not in _MADE:
            _MADE[known] = self._made()
        return _MADE[known]

    def _made(self) -> Sets:
        from torch.utils.data import IterableDataset

        from decentral.data.loading.map_style import look_at

        with blame.named(), _one_at_a_time(), seeded(0, "make data"):
            made = self.called()
        if self.test_share is not None:
            if isinstance(made, tuple):
                raise ConfigError(
                    f"data={self.name} returns test data: leave out data.test_share={self.test_share:g}, or return "
                    "the training data alone."
                )
            made = made, made
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise ConfigError(
                f"data={self.name} returns a {type(made).__name__}: return two data sets, (train, test); or one, and "
                f"{NO_TEST}."
            )
        for split, data in zip(_SPLITS, made, strict=True):
            if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
                raise ConfigError(
                    f"data={self.name}: the {split} data are of type {type(data).__name__}: give a map-style data "
                    "set, with len() and [index]."
                )
            if not _length(data, f"data={self.name}: the {split} data"):
                raise ConfigError(f"data={self.name}: the {split} data are empty: give at least one example.")
        with blame.named():
            looks = [look_at(data, f"data={self.name} ({split})") for split, data in zip(_SPLITS, made, strict=True)]
        if looks[0].shape != looks[1].shape:
            raise ConfigError(
                f"data={self.name}: training examples are {list(looks[0].shape)}, test examples {list(looks[1].shape)}."
            )
        sizes = np.unique(looks[0].labels, return_counts=True)[1].tolist()
        shape, largest, known = looks[0].shape, int(max(look.labels.max() for look in looks)), sum(map(len, made))
        if largest > _MOST_CLASSES and largest > known:
            raise ConfigError(
                f"data={self.name}: a label is {largest:,}, with only {known:,} examples: number labels 0, 1, 2, ..."
            )
        classes = (getattr(made[0], "classes", None) or ()) if looks[0].agrees else ()
        kind: Any = ImageData if len(shape) == 3 else LabelledData
        description = kind(
            shape=shape,
            num_classes=max(len(classes), largest + 1),
            first_class=int(min(look.labels.min() for look in looks)),
            **counts(self.test_share, sizes, len(looks[1].labels)),
            names=tuple(map(str, classes)),
        )
        return Sets(made[0], made[1], (looks[0], looks[1]), description)


_MADE: dict[str, Sets] = {}


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one process of a machine download first, so that the others find the files."""
    from filelock import FileLock

    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache_folder() / "own-data.lock")
        lock.acquire()
    except OSError:  # the cache is not writable
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _length(data: Any, what: str) -> int:
    with blame.named():
        try:
            return len(data)
        except (ValueError, TypeError, OverflowError) as error:
            if blame.place(error) is not None:
                raise
            raise ConfigError(f"{what} have no length: {blame.sentence(error)}.") from error
