"""Map-style data sets of torch as they are: examples are asked for one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from decentral.data.dataset import Loaded
from decentral.errors import ConfigError
from decentral.randomness import seeded

if TYPE_CHECKING:
    from decentral.data.dataset import Batches, Order

_KEPT_BYTES = 2e9  # of test examples, which are read once if they take no more


class MapStyle(Loaded):
    """Training examples are read whenever they are drawn, test examples once; those of a TensorDataset are gathered.

    Generators (torch, numpy, random) are seeded for the examples of each worker and step, and left as they were.
    """

    def __init__(
        self,
        train: Any,
        test: Any,
        train_labels: np.ndarray,
        num_classes: int,
        *,
        device: torch.device | str,
        seed: int,
    ) -> None:
        self.device, self.seed = torch.device(device), seed
        self.train_labels, self.num_classes = train_labels, num_classes
        self._train, self._test, self.num_test = train, test, len(test)
        self._labels = torch.from_numpy(train_labels).to(self.device)
        self._tensors = _tensors(train, self.device)
        self._kept: dict[int, tuple[Tensor, int]] = {}

    def train_batches(self, order: Order, workers: Sequence[int], start: int, stop: int) -> Batches:
        """See `Loaded`; every batch is a new tensor."""
        for step in range(start, stop):
            rows = order(step)
            flat = rows.reshape(-1).to(self.device)
            labels = self._labels.index_select(0, flat).view(rows.shape)
            if self._tensors is not None:
                examples = self._tensors.index_select(0, flat)
                yield examples.view(*rows.shape, *examples.shape[1:]), labels
                continue
            read = [self._read(worker, step, row.tolist()) for worker, row in zip(workers, rows, strict=True)]
            yield torch.stack(read).to(self.device), labels

    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Loaded`; what has been read is kept, as long as there is room."""
        for batch in batches:
            pairs = [self._test_example(number) for number in batch.tolist()]
            labels = torch.tensor([label for _, label in pairs], device=self.device)
            yield torch.stack([one for one, _ in pairs]).to(self.device), labels

    def _test_example(self, number: int) -> tuple[Tensor, int]:
        if number not in self._kept:
            with seeded(0, "test example", number):
                pair = self._test[number]
            found = example(pair), int(pair[1])
            if len(self._kept) * found[0].numel() * found[0].element_size() > _KEPT_BYTES:
                return found
            self._kept[number] = found
        return self._kept[number]

    def close(self) -> None:
        """Forget the test examples."""
        self._kept = {}

    def _read(self, worker: int, step: int, numbers: list[int]) -> Tensor:
        with seeded(self.seed, "example", worker, step):
            return torch.stack([example(self._train[number]) for number in numbers])


def example(pair: Any) -> Tensor:
    """The first of a pair (example, label), in float32."""
    return torch.as_tensor(pair[0]).to(torch.float32)


def first_shape(data: Any, where: str) -> tuple[int, ...]:
    """The shape of its first example. Raises ConfigError for what is no pair of a tensor and a label."""
    first, _ = _pair(data, 0, where)
    if not isinstance(first, Tensor | np.ndarray):
        raise ConfigError(
            f"{where}: an example has to be a tensor and a label, not a {type(first).__name__} and a label: "
            "torchvision's data sets take transform=ToTensor()."
        )
    return tuple(first.shape)


def labels_of(data: Any, where: str) -> np.ndarray:
    """All labels [N] int64: from what data sets of torch and torchvision know of them, else example by example.

    Raises ConfigError if they are no whole numbers from 0 upwards.
    """
    labels = _labels(data, where)
    try:
        found = np.asarray(labels)
    except ValueError:  # of different shapes
        found = np.array(None)
    if found.shape != (len(data),) or found.dtype.kind not in "iu" or found.min() < 0:
        raise ConfigError(f"{where}: labels have to be whole numbers from 0 upwards, one for each example.")
    return found.astype(np.int64)


def _labels(data: Any, where: str) -> Any:
    if type(data) is Subset:
        chosen, number = np.asarray(data.indices, dtype=np.int64), len(data.dataset)  # type: ignore[arg-type]
        if (outside := chosen[(chosen < -number) | (chosen >= number)]).size:
            raise ConfigError(f"{where}: a Subset has example {outside[0]} of a data set that has {number}.")
        return np.asarray(_labels(data.dataset, where))[chosen]
    if type(data) is TensorDataset:
        return data.tensors[1]
    known = getattr(data, "targets", None)
    if known is not None and len(known) == len(data) and getattr(data, "target_transform", None) is None:
        return known
    labels = [_pair(data, number, where)[1] for number in range(len(data))]
    return [label.item() if isinstance(label, Tensor) and label.numel() == 1 else label for label in labels]


def _pair(data: Any, number: int, where: str) -> tuple[Any, Any]:
    try:
        pair = data[number]
    except StopIteration as error:  # a list comprehension takes it for its own end
        raise ConfigError(f"{where}: example {number} of {len(data)} cannot be read: StopIteration.") from error
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ConfigError(
            f"{where}: an example has to be a pair (tensor, label), but example {number} is a {type(pair).__name__}."
        )
    return pair[0], pair[1]


def _tensors(data: Any, device: torch.device) -> Tensor | None:
    """All examples of a TensorDataset, or of a subset of one."""
    if type(data) is Subset and type(data.dataset) is TensorDataset:
        return data.dataset.tensors[0][torch.as_tensor(data.indices)].to(device, torch.float32)
    return data.tensors[0].to(device, torch.float32) if type(data) is TensorDataset else None
