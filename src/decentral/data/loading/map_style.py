"""Map-style data sets of torch, read example by example."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from decentral.data.dataset import Loaded
from decentral.errors import ConfigError
from decentral.randomness import seeded
from decentral.registry import blame
from decentral.terminal.display import unless_quick

if TYPE_CHECKING:
    pass

_PLACES = 32  # positions at which shortcuts must agree with the examples
_MOST_EXACT = 1 << 24
_KEPT_BYTES = 2e9  # test examples up to this size are read once


class Look(NamedTuple):
    """The result of inspecting a data set.

    where       name of the data set
    labels      [N] int64
    shape       shape of an example
    shared      examples reuse each other's memory: they are copied when they are read
    agrees      the labels equal those of an attribute, if there is one
    inputs      [N, ...] all examples, if they are tensors in memory
    odd         index of the first inspected example that is not finite; -1 if all are
    digest      digest of the inspected examples; '' if it differs when they are read again
    """

    where: str
    labels: np.ndarray
    shape: tuple[int, ...]
    shared: bool
    agrees: bool
    inputs: Tensor | None
    odd: int
    digest: str


class MapStyle(Loaded):
    """A map-style data set on a device. Training examples are read with their labels whenever they are drawn, test
    examples once; those of a TensorDataset are gathered.

    Generators (torch, numpy, random) are seeded for the examples of each worker and step, and restored.
    """

    def __init__(
        self,
        train: Any,
        test: Any,
        looks: tuple[Look, Look],
        num_classes: int,
        *,
        device: torch.device | str,
        seed: int,
    ) -> None:
        self.device, self.seed = torch.device(device), seed
        self.train_labels, self.num_classes = looks[0].labels, num_classes
        self._train, self._test, self.num_test, self._looks = train, test, len(test), looks
        self._labels = torch.from_numpy(self.train_labels).to(self.device)
        self._inputs = looks[0].inputs
        self._kept: dict[int, tuple[Tensor, int]] = {}

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.exact else torch.float32

    def drawn(self, rows: Tensor, workers: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Loaded`; every batch is a new tensor."""
        if self._inputs is not None:
            self._inputs, flat = self._inputs.to(self.device, self._dtype), rows.reshape(-1).to(self.device)
            examples, labels = self._inputs.index_select(0, flat), self._labels.index_select(0, flat)
            return examples.view(*rows.shape, *examples.shape[1:]), labels.view(rows.shape)
        each = zip(workers, steps, rows.tolist(), strict=True)
        read = [self._read(worker, step, numbers) for worker, step, numbers in each]
        labels = torch.tensor([labels for _, labels in read], device=self.device)
        return torch.stack([examples for examples, _ in read]).to(self.device), labels

    def tested(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """See `Loaded`; test examples are cached while there is room."""
        pairs = [self._test_example(number) for number in numbers.tolist()]
        labels = torch.tensor([label for _, label in pairs], device=self.device)
        return torch.stack([one for one, _ in pairs]).to(self.device, self._dtype), labels

    def _test_example(self, number: int) -> tuple[Tensor, int]:
        if number not in self._kept:
            with seeded(0, "test example", number):
                examples, (label,) = self._those(self._test, self._looks[1], [number])
            pair = examples[0], label
            if len(self._kept) * pair[0].numel() * pair[0].element_size() > _KEPT_BYTES:
                return pair
            self._kept[number] = pair
        return self._kept[number]

    def not_finite(self) -> tuple[str, ...]:
        """See `Loaded`; for the inspected examples, or those in memory."""
        sentences = []
        for look in self._looks:
            odd = look.odd if look.inputs is None else _first_odd(look.inputs)
            if odd >= 0:
                sentences.append(f"{look.where}: example {odd} holds NaN or infinite numbers")
        return tuple(sentences)

    def close(self) -> None:
        """Release the test examples."""
        self._kept = {}

    def _read(self, worker: int, step: int, numbers: list[int]) -> tuple[Tensor, list[int]]:
        with seeded(self.seed, "example", worker, step):
            return self._those(self._train, self._looks[0], numbers)

    def _those(self, data: Any, look: Look, numbers: list[int]) -> tuple[Tensor, list[int]]:
        """Return these examples [B, ...], and their labels at this reading."""
        pairs = list[tuple[Tensor, Any]]()
        for number in numbers:
            first, label = _pair(data, number, look.where)
            one = example(first, number, look.where)
            pairs.append(
                (
                    one.clone() if look.shared else one,
                    label if type(label) is int else _class(label, number, look.where),
                )
            )
        labels = [label for _, label in pairs]
        if not 0 <= min(labels) <= max(labels) < self.num_classes:
            odd = next(label for label in labels if not 0 <= label < self.num_classes)
            raise ConfigError(
                f"{look.where}: example {numbers[labels.index(odd)]} has the label {odd}, but labels were 0 to "
                f"{self.num_classes - 1} at first reading: give the data set an attribute `classes`."
            )
        for number, (one, _) in zip(numbers, pairs, strict=True):
            if one.shape != look.shape:
                raise _of_another_shape(look.where, number, one.shape, look.shape)
        return torch.stack([one for one, _ in pairs]).to(self._dtype), labels


def example(value: Any, number: int, where: str) -> Tensor:
    """Return the first of a pair (example, label) as a tensor. Raises ConfigError if it is neither a tensor nor an
    array."""
    try:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.require(value, requirements=["C", "W"]))
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_complex():
            return value.detach() if value.requires_grad else value
    except (TypeError, ValueError):  # of objects, or of the other byte order
        pass
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        kind = f"a {value.layout} tensor of {value.dtype}".replace("torch.", "")
    raise ConfigError(
        f"{where}: example {number} is {kind} and a label, instead of a tensor of real numbers and a label: with "
        "torchvision's data sets, use transform=ToTensor()."
    )


def look_at(data: Any, where: str) -> Look:
    """Inspect examples at 32 positions; all of them if nothing else has the labels.

    Otherwise the labels come from an attribute `targets`, and all examples from a TensorDataset, if these agree with
    the inspected ones. Generators are seeded meanwhile and restored.

    Raises ConfigError for anything but a pair of a tensor and a label, for tensors of different shapes, and for labels
    that are not integers >= 0.
    """
    _check_subset(data, where)
    places = np.unique(np.linspace(0, len(data) - 1, _PLACES).astype(np.int64)).tolist()
    with seeded(0, "look at data"):
        read, copies, labels = _read(data, places, where)
    with seeded(0, "look at data"):
        steady = all(map(_alike, _read(data, places[:2], where)[1], copies))
    inputs, known = _tensors(data), _known_labels(data)
    if inputs is not None and not all(map(_alike, inputs[places], copies)):
        inputs = None
    if inputs is not None:
        _check_digits(inputs, f"{where}: an example")
    agrees = known is None or np.array_equal(known[places], labels)
    digest, odd = hashlib.sha256(str(copies[0].dtype).encode()), _first_odd(copies)
    odd = places[odd] if odd >= 0 else odd
    if known is not None and agrees:
        _class(int(known.min()), int(known.argmin()), where)
        for one in copies if inputs is None else [inputs]:
            digest.update(_bytes(one))
        found = known.astype(np.int64)
    else:
        found = np.empty(len(data), dtype=np.int64)
        with seeded(0, "look at data"), unless_quick(f"Reading the examples of {where}", len(data)) as advance:
            for number in range(len(data)):
                (one,), _, found[number : number + 1] = _read(data, [number], where, copies[0].shape)
                digest.update(_bytes(one))
                odd = number if odd < 0 and not one.isfinite().all() else odd
                advance(1)
        agrees = known is None or np.array_equal(known, found)
    digest.update(found.tobytes())
    shared = not all(map(_alike, read, copies))
    return Look(
        where, found, tuple(copies[0].shape), shared, agrees, inputs, odd, digest.hexdigest()[:16] if steady else ""
    )


def _read(
    data: Any, numbers: Sequence[int], where: str, shape: torch.Size | None = None
) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Return these examples as they are read, copies of them, and their labels."""
    read, copies, labels = list[Tensor](), list[Tensor](), list[int]()
    for number in numbers:
        first, label = _pair(data, number, where)
        read.append(example(first, number, where))
        copies.append(read[-1].clone())
        labels.append(_class(label, number, where))
        _check_digits(read[-1], f"{where}: example {number}")
        if read[-1].shape != (shape if shape is not None else read[0].shape):
            raise _of_another_shape(where, number, read[-1].shape, shape or read[0].shape)
    return read, copies, labels


def _first_odd(examples: Sequence[Tensor] | Tensor) -> int:
    """Return the number of the first example that is not finite; -1 if all are."""
    return next((number for number, one in enumerate(examples) if not one.isfinite().all()), -1)


def _check_digits(examples: Tensor, what: str) -> None:
    """Check that integers fit into float32, which has 24 bits for them."""
    if examples.dtype in (torch.int32, torch.int64) and (examples.abs() > _MOST_EXACT).any():
        raise ConfigError(f"{what} has integers above {_MOST_EXACT:,}, which float32 rounds: give floats.")


def _of_another_shape(where: str, number: int, shape: Sequence[int], usual: Sequence[int]) -> ConfigError:
    return ConfigError(
        f"{where}: example {number} is {list(shape)}, but example 0 is {list(usual)}: give all examples the same shape."
    )


def _class(label: Any, number: int, where: str) -> int:
    if isinstance(label, Tensor | np.ndarray | np.generic) and math.prod(label.shape) == 1:
        label = label.item()
    try:
        found = operator.index(label)
    except TypeError:
        found = -1
    if 0 <= found < 1 << 62:
        return found
    shape = list(getattr(label, "shape", ()))
    said = f"a label of shape {shape}" if shape else f"the label {label!r:.40}"
    way = "; for a one-hot label, give label.argmax()" if shape else ""
    if isinstance(label, float):
        way = "; use int(label), or labels.long() for a tensor" if label >= 0 and label.is_integer() else ""
    raise ConfigError(f"{where}: example {number} has {said}: give one whole number (integer) >= 0 per example{way}.")


def _known_labels(data: Any) -> np.ndarray | None:
    """Return all labels [N] from the attributes of torch and torchvision data sets; None if there are none."""
    if type(data) is Subset:
        inner = _known_labels(data.dataset)
        return None if inner is None else inner[np.asarray(data.indices, dtype=np.int64)]
    found = np.empty(0)
    with suppress(Exception):  # a user's property may raise anything
        if type(data) is TensorDataset:
            found = np.asarray(data.tensors[1])
        elif getattr(data, "target_transform", None) is None:
            found = np.asarray(data.targets)
    return found if found.shape == (len(data),) and found.dtype.kind in "iu" else None


def attribute(data: Any, name: str) -> Any:
    """Return an attribute of a data set, with a value for each example; of a `Subset`, those of its examples."""
    if type(data) is not Subset:
        return getattr(data, name, None)
    values = attribute(data.dataset, name)
    return None if values is None else np.asarray(values)[np.asarray(data.indices, dtype=np.int64)]


def _check_subset(data: Any, where: str) -> None:
    while type(data) is Subset:
        chosen, number = np.asarray(data.indices, dtype=np.int64), len(data.dataset)  # type: ignore[arg-type]
        if (outside := chosen[(chosen < -number) | (chosen >= number)]).size:
            raise ConfigError(f"{where}: a Subset refers to example {outside[0]} of a data set with {number} examples.")
        data = data.dataset


def _pair(data: Any, number: int, where: str) -> tuple[Any, Any]:
    try:
        pair = data[number]
    except Exception as error:
        place = blame.place(error)
        raise ConfigError(
            f"{where}: example {number} of {len(data)} cannot be read{f' ({place})' if place else ''}: "
            f"{blame.sentence(error)}."
        ) from error
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        kind = type(pair).__name__ + (f" of {len(pair)}" if isinstance(pair, tuple | list) else "")
        raise ConfigError(
            f"{where}: example {number} is a {kind}: return pairs (tensor, label), as TensorDataset(images, labels) "
            "does."
        )
    return pair[0], pair[1]


def _tensors(data: Any) -> Tensor | None:
    """Return all examples of a TensorDataset, or of a subset of one."""
    if type(data) is Subset:
        inner = _tensors(data.dataset)
        return None if inner is None else inner[torch.as_tensor(data.indices)]
    return data.tensors[0].detach() if type(data) is TensorDataset else None


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and np.array_equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
