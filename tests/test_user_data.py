"""Data sets from Python: what is trained on is what their items are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import decentral
from decentral.errors import ConfigError
from decentral.script.given import GivenData


class Examples(Dataset):
    """So many, each made by a function of its number."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 4
PAIRS_OF_6 = TensorDataset(X, Y)
ONE_LABEL, ONE_BUFFER, TWO_BUFFERS = torch.tensor(0), torch.zeros(6), np.zeros((2, 6), np.float32)


def copied(to: Any, number: int) -> Any:
    to[:] = X[number] if isinstance(to, torch.Tensor) else X[number].numpy()
    return to


class With(Examples):
    """Examples, and what they are said to be."""

    def __init__(self, make: Callable[[int], Any], targets: Any) -> None:
        super().__init__(40, make)
        self.targets = targets


class Turned(TensorDataset):
    def __getitem__(self, number: int) -> Any:
        x, label = super().__getitem__(number)
        return -x, (label + 1) % 4


class Chosen(Subset):
    def __getitem__(self, number: int) -> Any:
        x, label = super().__getitem__(number)
        return -x, (label + 1) % 4

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [self[number] for number in numbers]


def labelled(label: Callable[[int], Any]) -> Examples:
    return Examples(40, lambda number: (X[number], label(number)))


AS_IT_IS = {
    "tensors": TensorDataset(X, Y),
    "a column of labels": TensorDataset(X, Y[:, None]),
    "labels as bytes": TensorDataset(X, Y.byte()),
    "gradients": TensorDataset(X.clone().requires_grad_(), Y),
    "float64 in memory": TensorDataset(X.double(), Y),
    "a subset": Subset(Subset(TensorDataset(X, Y), range(40)), torch.arange(40)),
    "two parts": ConcatDataset([TensorDataset(X[:15], Y[:15]), TensorDataset(X[15:], Y[15:])]),
    "a list": [(X[number], int(Y[number])) for number in range(40)],
    "tensor labels": labelled(lambda number: Y[number : number + 1]),
    "array labels": labelled(lambda number: np.array([number % 4])),
    "numbers of numpy": labelled(lambda number: np.uint8(number % 4)),
    "a label of one tensor": labelled(lambda number: ONE_LABEL.fill_(number % 4)),
    "arrays": Examples(40, lambda number: (X[number].numpy()[::-1].copy()[::-1], number % 4)),
    "one buffer": Examples(40, lambda number: (copied(ONE_BUFFER, number), number % 4)),
    "two buffers": Examples(40, lambda number: (copied(TWO_BUFFERS[number % 2], number), number % 4)),
    "other targets": With(lambda number: (X[number], number % 4), [3 - number % 4 for number in range(40)]),
    "one other target": With(
        lambda number: (X[number], number % 4), [number % 4 * (number != 17) for number in range(40)]
    ),
    "targets that are none": With(lambda number: (X[number], number % 4), Y + 0.5),
}
TURNED = {
    "as tensors": TensorDataset(-X, (Y + 1) % 4),
    "a subclass of tensors": Turned(X, Y),
    "a subset of that": Subset(Turned(X, Y), range(40)),
    "a subclass of subsets": Chosen(TensorDataset(X, Y), range(40)),
    "targets of the tensors": With(Turned(X, Y).__getitem__, Y.tolist()),
}
FEW = {"algo": "dpsgd", "topology": "ring", "num_workers": 3, "partition": "iid", "batch_size": 4, "steps": 4,
       "precision": "fp64", "progress": False, "device": "cpu"}  # fmt: skip


def losses(folder: Any, data: Any) -> list[float]:
    torch.manual_seed(0)
    rows = decentral.train(nn.Linear(6, 4), data, data, results_dir=folder, **FEW).metrics
    return rows[rows.metric.isin(["loss", "accuracy"])].value.tolist()


@pytest.mark.parametrize(
    ("kinds", "name"),
    [pytest.param(kinds, name, id=name) for kinds in (AS_IT_IS, TURNED) for name in [*kinds][1:]],
)
def test_examples_and_labels_are_what_items_are(tmp_path, kinds, name):
    expected = losses(tmp_path / "a", next(iter(kinds.values())))
    assert losses(tmp_path / "b", kinds[name]) == pytest.approx(expected, rel=1e-9) and len(expected) > 6


def test_what_is_drawn_with_an_example_is_trained_on_with_it(tmp_path):
    """A label that is drawn with the example, as for telling how far it was turned."""
    given, drawn = list[tuple[torch.Tensor, int]](), list[tuple[torch.Tensor, torch.Tensor]]()

    def turned(number: int) -> tuple[torch.Tensor, int]:
        by = int(torch.randint(4, ()))
        given.append((X[number].roll(by), by))
        return given[-1]

    data = GivenData.of(Examples(40, turned), Examples(40, turned)).load("cpu", 0)
    given.clear()
    for inputs, labels in data.train_batches(lambda step: torch.arange(8).view(2, 4) + step, range(2), 0, 5):
        drawn += zip(inputs.flatten(0, 1), labels.flatten(), strict=True)
    assert all(torch.equal(x, was) and int(label) == by for (x, label), (was, by) in zip(drawn, given, strict=True))
    assert any(int(label) != data.train_labels[i % 8 + i // 8] for i, (_, label) in enumerate(drawn))


def test_float64_loses_no_digits(tmp_path):
    fine = X.double() + 1e-9
    for data in (TensorDataset(fine, Y), Examples(40, lambda number: (fine[number].numpy(), number % 4))):
        loaded = GivenData.of(data, data).load("cpu", 0)
        loaded.exact = True
        inputs, _ = next(loaded.train_batches(lambda step: torch.arange(40)[None], range(1), 0, 1))
        ((test, _),) = loaded.test_batches(40)
        assert torch.equal(inputs[0], fine) and torch.equal(test, fine)


def test_any_other_example_or_label_is_another_run():
    def digest(change: Callable[[int], Any]) -> str:
        return GivenData.of(Examples(40, change), TensorDataset(X, Y)).content

    def of(change: Callable[[int], Any]) -> str:
        return GivenData.of([change(number) for number in range(40)], TensorDataset(X, Y)).content  # by content alone

    def other(place: int, by: float, label: int) -> Callable[[int], Any]:
        return lambda number: (X[number] + by * (number == place), (number + label * (number == place)) % 4)

    found = [of(other(place, by, label)) for place in (1, 17, 39) for by, label in ((1e-6, 0), (0.0, 1), (0.0, 0))]
    assert len(set(found)) == 7 and found[2] == found[5] == found[8]
    moved = X.clone()
    moved[17, 3] += 1e-6
    tensors = [GivenData.of(TensorDataset(x, Y), TensorDataset(X, Y)).content for x in (X, moved, X.clone())]
    assert tensors[0] == tensors[2] != tensors[1]
    noise = [
        digest(lambda number, by=scale: (X[number] + by * torch.randn(6), number % 4)) for scale in (0.1, 0.1, 0.2)
    ]
    assert noise[0] == noise[1] != noise[2]


class Around(Dataset):
    """Another data set, read through what is called otherwise than `transform`, and counted."""

    def __init__(self, base: Any, **settings: Any) -> None:
        self.base, self.cache, self.reads = base, {}, 0
        self.__dict__.update(settings)

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, number: int) -> Any:
        self.reads += 1
        return self.cache.setdefault(number, self.base[number])


class Rarely:
    def __init__(self, p: float) -> None:
        self.p = p


SELDOM: dict[str, Callable[[float], Any]] = {
    "probability": lambda p: Around(PAIRS_OF_6, p=p),
    "probability in a dict": lambda p: Around(PAIRS_OF_6, options={"p": p}),
    "switch": lambda p: Around(PAIRS_OF_6, flips=p < 0.5),
    "function": lambda p: Around(PAIRS_OF_6, augment=lambda x: x if torch.rand(()) > p else -x),
    "list of functions": lambda p: Around(PAIRS_OF_6, augment=[lambda x: x if torch.rand(()) > p else -x]),
    "configuration": lambda p: Around(PAIRS_OF_6, options=Rarely(p)),
    "data set within": lambda p: Around(Around(PAIRS_OF_6, p=p)),
    "subset": lambda p: Subset(Around(PAIRS_OF_6, p=p), range(40)),
    "parts": lambda p: ConcatDataset([Around(PAIRS_OF_6, p=p), PAIRS_OF_6]),
}
"""What may change an example at some later reading, though it has not at the first."""


@pytest.mark.parametrize("name", SELDOM)
def test_what_shows_at_some_readings_only_makes_another_run(name):
    first, again, other = (SELDOM[name](p) for p in (1e-6, 1e-6, 0.9))
    digests = [GivenData.of(data, PAIRS_OF_6).content for data in (first, again, other, first)]
    assert digests[0] == digests[1] == digests[3] != digests[2]


def test_data_sets_that_hold_each_other_and_what_cannot_be_compared():
    one, two = Around(PAIRS_OF_6, file=open(__file__)), Around(PAIRS_OF_6)  # noqa: SIM115
    one.other, two.other = two, one
    with one.file:
        assert GivenData.of(one, two).content == GivenData.of(one, two).content


def test_examples_that_nobody_can_know_again_make_a_new_run(capsys):
    draws = np.random.default_rng()
    data = Examples(40, lambda number: (torch.from_numpy(draws.random(6)), number % 4))
    assert GivenData.of(data, PAIRS_OF_6).content != GivenData.of(data, PAIRS_OF_6).content
    assert "train_data[0] is another example when it is read again, so this run is new" in capsys.readouterr().err


class Endless(IterableDataset):
    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Any:
        return iter(PAIRS_OF_6)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Endless(), "have to be a map-style data set, with len.. and .index., not a Endless"),
        (labelled(lambda number: 1.0), "example 0 has the label 1.0, but labels have to be whole numbers .* from 0"),
        (
            labelled(lambda number: -1 if number == 17 else 0),
            "example 17 has the label -1, but labels have to be whole",
        ),
        (labelled(lambda number: "cat"), "example 0 has the label 'cat', but labels"),
        (labelled(lambda number: torch.eye(4)[number % 4]), r"a label of shape \[4\], but .*one-hot .* label\.argmax"),
        (TensorDataset(X, torch.eye(4)[Y]), r"a label of shape \[4\], but"),
        (TensorDataset(X, Y, Y), "a pair .tensor, label., but example 0 is a tuple of 3"),
        (Examples(40, lambda number: {"x": X[number]}), "but example 0 is a dict"),
        (Examples(40, lambda number: (X[number] + 1j, 0)), "example 0 is a strided tensor of complex64 and a label"),
        (Examples(40, lambda number: (X[number].to_sparse(), 0)), "a sparse_coo tensor of float32"),
        (Examples(40, lambda number: (np.array([None]), 0)), "an array of object"),
        (
            Examples(40, lambda number: (np.array([2**24 + number, 1]), 0)),
            "example 1 has whole numbers above 16,777,216",
        ),
        (
            TensorDataset(2**25 * (torch.arange(40)[:, None] == 4), Y),
            "an example has whole numbers above 16,777,216, which float32",
        ),
        (
            Examples(40, lambda number: (X[number, : 6 - number // 39], 0)),
            r"example 39 is \[5\], but example 0 is \[6\]",
        ),
        (labelled(lambda number: 10**30), "has the label 1000"),
        (
            Examples(41, lambda number: (X[number], 0)),
            "example 40 of 41 cannot be read .*: IndexError: index 40 is out of",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_data_that_cannot_be_are_refused(data, said):
    with pytest.raises(ConfigError, match=said):
        GivenData.of(data, PAIRS_OF_6)
    with pytest.raises(ConfigError, match=said):
        GivenData.of(PAIRS_OF_6, data)


def test_a_long_look_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr("time.monotonic", itertools.count(0, 0.5).__next__)
    GivenData.of(labelled(lambda number: number % 4), PAIRS_OF_6)
    said = capsys.readouterr()
    assert said.out == "" and "Reading the examples of data=given (training): " in said.err
