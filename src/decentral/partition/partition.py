"""Partitions of the training set over the workers: the interface, all kinds, and a table of the result."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.errors import ConfigError
from decentral.randomness import numpy_generator, seeded
from decentral.registry import blame
from decentral.registry.signature import function
from decentral.settings import Settings, setting
from decentral.store.files import csv_text, write_text

if TYPE_CHECKING:
    from decentral.data.dataset import DataSet, Loaded


class Partition(Settings, ABC, where="partition"):
    """A partition of the training set over the workers. Pure and seeded: every process computes the same one."""

    @abstractmethod
    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Return the int64 indices of each worker's samples; together they contain each of 0 ... N-1 exactly once.

        Raises ConfigError if `check` does, or if the labels make the partition impossible.
        """

    def check(self, num_train: int, num_workers: int) -> None:
        """Raise ConfigError if `num_train` samples cannot be split over `num_workers`; fast, before data is loaded."""
        if num_workers < 1:
            raise ConfigError(f"num_workers={num_workers} is out of range; use a number >= 1.")
        if num_workers > num_train:
            raise ConfigError(
                f"num_workers={num_workers} exceeds the {num_train} training samples, one per worker: use num_workers "
                f"<= {num_train}."
            )

    def check_labels(self, num_labels: int, num_workers: int) -> None:
        """Raise ConfigError if samples with `num_labels` distinct labels cannot be split over `num_workers`."""

    def check_data(self, data: DataSet, num_workers: int) -> None:
        """Raise ConfigError if the examples of `data` lack what the partition needs."""

    def groups_of(self, data: DataSet, loaded: Loaded) -> Groups | None:
        """Return the groups of the examples, whose numbers replace the labels in `indices`; None: there are none."""
        return None


def class_counts(labels: np.ndarray, indices: list[np.ndarray], num_classes: int) -> np.ndarray:
    """Return the number of samples of each class on each worker: [n, C] int64."""
    return np.stack([np.bincount(labels[rows], minlength=num_classes) for rows in indices]).astype(np.int64)


def own_test_set(counts: np.ndarray, labels: np.ndarray, seed: int, worker: int) -> np.ndarray:
    """Return the indices of a maximal test set, among examples with these labels [N'], with the class distribution of a
    worker that holds counts [C] training examples of each class: distinct, in random order.

    With p_c the worker's share of class c and N'_c test examples of it, m p_c (rounded) of these are drawn for the
    largest m with m p_c <= N'_c; classes without test examples are skipped. (seed, worker) determines the draw; test
    sets of two workers may overlap. Raises ConfigError if a worker's classes have no test examples.
    """
    there = np.bincount(labels, minlength=len(counts))
    held = np.where(there > 0, counts, 0)
    if not held.any():
        raise ConfigError(
            f"evaluation.split=local has no test examples for worker {worker}, because the test set lacks its "
            "classes: use evaluation.split=global, or another partition."
        )
    m = (there[held > 0] / held[held > 0]).min()  # times the counts
    wanted = np.rint(m * held).astype(np.int64)
    generator = numpy_generator(seed, "local test set", worker)
    order = generator.permutation(len(labels))
    chosen = [order[labels[order] == c][:number] for c, number in enumerate(wanted.tolist())]
    return generator.permutation(np.concatenate(chosen))


def save_table(
    counts: np.ndarray, path: str | Path, dealt: str = "class", groups: Sequence[Sequence[str]] | None = None
) -> None:
    """Write `counts` [n, C] as CSV with columns worker, class_0, class_1, ..., total; `dealt` replaces "class". The
    `groups` of each worker are a last column, separated by semicolons."""
    head = ["worker", *(f"{dealt}_{c}" for c in range(counts.shape[1])), "total"]
    rows = [[worker, *row, sum(row)] for worker, row in enumerate(counts.tolist())]
    if groups is not None:
        head.append("groups")
        rows = [[*row, ";".join(names)] for row, names in zip(rows, groups, strict=True)]
    write_text(Path(path), csv_text(head, rows))


@dataclass
class IID(Partition):
    """A random permutation cut into equal parts: all workers have the same distribution.

    groups  number of consecutive groups of the workers, and of the classes: a group has all samples of its classes,
            split evenly among its workers
    """

    name: str = "iid"
    groups: int = setting(1, at_least=1, older=1)

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Return the indices; sizes within a group differ by at most one."""
        self.check(len(labels), num_workers)
        found, order = list[np.ndarray](), numpy_generator(seed, "partition").permutation(len(labels))
        classes = np.array_split(np.unique(labels), self.groups)
        for own, workers in zip(classes, np.array_split(np.arange(num_workers), self.groups), strict=True):
            found += np.array_split(order[np.isin(labels[order], own)], len(workers))
        return found

    def check(self, num_train: int, num_workers: int) -> None:
        """Check that every group has a worker."""
        super().check(num_train, num_workers)
        if self.groups > num_workers:
            raise ConfigError(
                f"partition.groups={self.groups} exceeds num_workers={num_workers}: use fewer groups, or more workers."
            )

    def check_labels(self, num_labels: int, num_workers: int) -> None:
        """Check that every group has a class."""
        if self.groups > max(1, num_labels):
            raise ConfigError(
                f"partition.groups={self.groups} exceeds the {num_labels} classes of this data=: use fewer groups."
            )


@dataclass
class Shards(Partition):
    """Samples sorted by class and cut into shards, a few shards per worker: about that many classes each.

    McMahan et al., AISTATS 2017 (arXiv:1602.05629), section 3: `shards_per_worker` = 2. Shards differ in size by at
    most one sample; within a class the samples keep their order.
    """

    name: str = "shards"
    shards_per_worker: int = setting(2, at_least=1)

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Return the indices; sizes differ by at most `shards_per_worker`."""
        self.check(len(labels), num_workers)
        shards = np.array_split(np.argsort(labels, kind="stable"), num_workers * self.shards_per_worker)
        dealt = numpy_generator(seed, "partition").permutation(len(shards)).reshape(num_workers, -1)
        return [np.concatenate([shards[s] for s in mine]) for mine in dealt]

    def check(self, num_train: int, num_workers: int) -> None:
        """Check that no shard is empty."""
        super().check(num_train, num_workers)
        if num_workers * self.shards_per_worker > num_train:
            raise ConfigError(
                f"num_workers={num_workers} times partition.shards_per_worker={self.shards_per_worker} exceeds the "
                f"{num_train} training samples: use num_workers <= {num_train // self.shards_per_worker}."
            )


class Groups(NamedTuple):
    """The groups of the examples of a data set.

    names   the group of each number: all groups of training examples, sorted as text
    train   number of the group of each training example, int64 [N]
    test    the same of the test examples, -1 for a group without training examples; None if unknown
    """

    names: list[str]
    train: np.ndarray
    test: np.ndarray | None


@dataclass
class Natural(Partition):
    """Whole groups of examples, such as the writers of a column; without a column, whole sources or classes.

    column             a column (writer_id), the level of a folder, or module:function, a function of an example that
                       returns its group; in Python also a function, or a list with the group of each training example
    groups_per_worker  groups of each worker; the groups left over are not used (null: all groups are used)
    min_examples       minimum number of training examples of a group; smaller groups are not used

    Without these settings nothing is drawn: the largest source of running text, or class, goes to worker 0, and each
    next one to the worker with the fewest samples so far (the first on ties).

    With any of them, the groups are drawn from the run's seed. With n = num_workers, k = groups_per_worker and values =
    the group of each training example, in the order of the data set, the indices of the workers are

        number, size = np.unique(list(map(str, values)), return_inverse=True, return_counts=True)[1:]
        order = generator.permutation(np.flatnonzero(size >= min_examples))[: k and n * k]
        indices = [np.flatnonzero(np.isin(number, mine)) for mine in np.array_split(order, n)]

    So groups are sorted as text by code points ("10" before "2"), those that are too small are left out, the rest are
    permuted, and worker i gets the i-th consecutive share: sizes differ by at most one group. A worker's samples are in
    the order of the data set. Without a column, `values` are the numbers of the classes or sources, without `str`.
    `generator` is `numpy_generator(seed, "partition")` of decentral.randomness, PCG64 with a seed from the finalizer of
    SplitMix64:

        f = lambda z, shift, factor: (z ^ z >> shift) * factor % 2**64
        h = lambda z: f(f(f((z + 0x9E3779B97F4A7C15) % 2**64, 30, 0xBF58476D1CE4E5B9), 27, 0x94D049BB133111EB), 31, 1)
        generator = np.random.Generator(np.random.PCG64(h(h(seed) ^ zlib.crc32(b"partition")) >> 1))

    With `evaluation.split=local`, a worker's test set has all test examples of its groups, in random order. If the test
    set has none, or no such column, the test set has the worker's class distribution, as with other partitions.
    """

    name: str = "natural"
    column: Any = field(default=None, metadata={"older": None, "code": "partition.column"})
    groups_per_worker: int | None = setting(None, at_least=1, older=None)
    min_examples: int = setting(1, at_least=1, older=1)
    given: ClassVar[Any] = None
    """The function or the values from Python, of which `column` is the name."""

    def __post_init__(self) -> None:
        given = self.column
        if not isinstance(given, str | Real | None):
            digest = "" if callable(given) else hashlib.sha256(repr(np.asarray(given).tolist()).encode()).hexdigest()
            self.column = f"values {digest[:16]}" if digest else getattr(given, "__qualname__", type(given).__name__)
            vars(self)["given"] = given

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Return the indices for the numbers of the groups, sources or classes: those of the groups that are used."""
        self.check(len(labels), num_workers)
        numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)[1:]
        kept = np.flatnonzero(sizes >= self.min_examples)
        self._check_groups(len(kept), num_workers)
        worker_of = np.full(len(sizes), -1)
        if self.column is not None or self.groups_per_worker is not None or self.min_examples > 1:
            last = self.groups_per_worker and num_workers * self.groups_per_worker
            order = numpy_generator(seed, "partition").permutation(kept)[:last]
            for worker, mine in enumerate(np.array_split(order, num_workers)):
                worker_of[mine] = worker
        else:
            held = np.zeros(num_workers, dtype=np.int64)
            for source in np.argsort(-sizes, kind="stable"):
                worker_of[source] = held.argmin()
                held[worker_of[source]] += sizes[source]
        return [np.flatnonzero(worker_of[numbers] == worker) for worker in range(num_workers)]

    def check_labels(self, num_labels: int, num_workers: int) -> None:
        """Check that there is a source for each worker."""
        if self.column is None:
            self._check_groups(num_labels, num_workers)

    def check_data(self, data: DataSet, num_workers: int) -> None:
        """Check that the column exists and has a group for each worker; the groups of a function are counted later."""
        if self.column is not None:
            function, train, _ = self._examples(data)
            if function is None:
                sizes = np.unique([_name(*pair, self.column) for pair in enumerate(train)], return_counts=True)[1]
                self._check_groups(int((sizes >= self.min_examples).sum()), num_workers)

    def groups_of(self, data: DataSet, loaded: Loaded) -> Groups | None:
        """Return the groups of the examples, which `loaded` has."""
        if self.column is None:
            return None
        function, *splits = self._examples(data)
        named = list[Any]()
        with blame.named(f"partition.column={self.column}"), seeded(0, "groups"):
            for rows in splits:
                values = rows if function is None or rows is None else (function(rows[i]) for i in range(len(rows)))
                named.append(None if values is None else [_name(*pair, self.column) for pair in enumerate(values)])
        train, test = loaded.divide(*named)
        numbers = {name: number for number, name in enumerate(sorted(set(train)))}
        tested = None if test is None else np.array([numbers.get(name, -1) for name in test])
        return Groups(list(numbers), np.array([numbers[name] for name in train]), tested)

    def _examples(self, data: DataSet) -> tuple[Callable[..., Any] | None, Sequence[Any], Sequence[Any] | None]:
        """Return the function, or None, and the training and test examples for it, or the values of the column."""
        name = str(self.column)
        if callable(self.given) or (self.given is None and ":" in name):
            return self.given or function("partition.column", name), *data.examples(None)
        if self.given is None:
            return None, *data.examples(name)
        if len(self.given) != (number := len(data.examples(None)[0])):
            raise ConfigError(
                f"partition.column has {len(self.given)} groups for {number} training examples: give one for each."
            )
        return None, self.given, None

    def _check_groups(self, number: int, num_workers: int) -> None:
        """Raise ConfigError if this number of groups is too small."""
        each = self.groups_per_worker or 1
        if number < num_workers * each:
            what = (
                "sources or classes of this data="
                if self.column is None
                else f"groups of partition.column={self.column}"
            )
            many = f" times partition.groups_per_worker={each}" if each > 1 else ""
            large = (
                f" with partition.min_examples={self.min_examples} or more examples" if self.min_examples > 1 else ""
            )
            fits = f"num_workers <= {number // each}" if number >= each else "smaller numbers of these"
            raise ConfigError(
                f"num_workers={num_workers}{many} exceeds the {number} {what}{large}, and partition=natural needs "
                f"{each if each > 1 else 'one'} per worker: use {fits}, or another partition, such as iid."
            )


def _name(number: int, value: Any, column: str) -> str:
    """Return the name of an example's group. Raises ConfigError if it has none."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or value != value or value == "":
        raise ConfigError(f"partition.column={column} has no value for example {number}: give each example a group.")
    return str(value)


@dataclass
class Dirichlet(Partition):
    """Class proportions drawn from Dir(alpha): the smaller `alpha`, the more heterogeneous. As in the RelaySGD paper.

    Vogels et al., NeurIPS 2021 (arXiv:2110.04175), appendix D, exactly as their code does it: the draw of
    `dirichlet_shares` from RandomState(seed + 100). The draw is uneven; with `even` (as in their runs) the shares are
    concatenated and cut into n equal parts, so neighbors in index order share classes. Without `even` each worker keeps
    its draw: at least half of its group's average.
    """

    name: str = "dirichlet"
    alpha: float = setting(0.1, above=0, hint="such as 1, 0.1 or 0.01")
    even: bool = True

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Return the indices; sizes differ by at most one if `even`."""
        self.check(len(labels), num_workers)
        random = np.random.RandomState((seed + 100) % 2**32)
        shares = dirichlet_shares(labels, num_workers, self.alpha, random)
        return np.array_split(np.concatenate(shares), num_workers) if self.even else shares

    def check(self, num_train: int, num_workers: int) -> None:
        """Check for two samples per worker, so that the uneven draw gives every worker some."""
        super().check(num_train, num_workers)
        if not self.even and num_workers > num_train // 2:
            raise ConfigError(
                f"num_workers={num_workers} is too many for partition.even=false with {num_train} training samples, "
                f"two per worker: use num_workers <= {num_train // 2}, or partition.even=true."
            )


@dataclass
class DirichletThesis(Partition):
    """Class proportions drawn from Dir(alpha), as in Bohl's thesis (2022), where all runs use seed 0.

    The `dirichlet_shares` are drawn from RandomState(seed), concatenated and cut into slices of floor(N / n).
    Departures: the thesis always draws with seed 0; here the run's seed is used. It drops the last N mod n samples;
    here the first workers get one each, because a partition contains every sample. Within a slice the thesis shuffles
    once and keeps that order in every epoch; here the partition does not determine the order of visits.
    """

    name: str = "dirichlet_thesis"
    alpha: float = setting(0.1, above=0, hint="such as 1, 0.1 or 0.01")

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Return the indices; sizes differ by at most one."""
        self.check(len(labels), num_workers)
        shares = dirichlet_shares(labels, num_workers, self.alpha, np.random.RandomState(seed % 2**32))
        together = np.concatenate(shares)
        size = len(together) // num_workers
        slices = [together[i * size : (i + 1) * size] for i in range(num_workers)]
        for i, left_over in enumerate(together[num_workers * size :]):
            slices[i] = np.append(slices[i], left_over)
        return slices


GROUP_WORKERS = 10  # the authors' "auxiliary workers"
MAX_TRIES = 5_000  # of the authors' loop, for a group
MAX_BLOCK = 256


def dirichlet_shares(
    labels: np.ndarray, num_workers: int, alpha: float, random: np.random.RandomState
) -> list[np.ndarray]:
    """Return uneven shares of 0 ... N-1, one per worker, skewed by class.

    Lin et al., ICML 2021 (arXiv:2102.04761), in the form of the RelaySGD authors' code. Samples are shuffled, workers
    handled in groups of at most ten; every group but the last takes int(10 / n N) samples, the last takes the rest. In
    a group of n_g workers and N_g samples, every class is cut in proportions

        p ~ Dir(alpha, ..., alpha),    p_j <- 0 for workers that hold N_g / n_g samples or more,    p <- p / sum_j p_j,

    and everything is repeated until every worker holds at least int(N_g / n_g / 2) samples, and at least one. If p is 0
    / 0 (all mass on full workers, or alpha so small that every draw underflows) the authors' arithmetic gives the class
    to the last worker.

    Departure: with tiny alpha, or fewer classes than workers in a group, their loop practically never ends. After 5000
    tries, which the papers' settings do not reach, `_fill` cuts the classes: a worker takes at most its equal share,
    and the excess goes to others, so that all have equal size and as few classes as possible.
    """
    num_classes = int(labels.max()) + 1
    shuffled = random.permutation(len(labels))
    shares: list[np.ndarray] = []
    for first in range(0, num_workers, GROUP_WORKERS):
        group_workers = min(GROUP_WORKERS, num_workers - first)
        is_last = first + group_workers == num_workers
        size = len(shuffled) if is_last else int(GROUP_WORKERS / num_workers * len(labels))
        group, shuffled = shuffled[:size], shuffled[size:]
        class_sizes = np.bincount(labels[group], minlength=num_classes)
        by_class = group[np.argsort(labels[group], kind="stable")]
        of_class = np.split(by_class, np.cumsum(class_sizes)[:-1])
        ends = _draw_until_balanced(class_sizes, group_workers, alpha, random)
        pieces = [np.split(rows, end[:-1]) for rows, end in zip(of_class, ends, strict=True)]
        shares += [np.concatenate(mine) for mine in zip(*pieces, strict=True)]
    return shares


def _draw_until_balanced(
    class_sizes: np.ndarray, num_workers: int, alpha: float, random: np.random.RandomState
) -> np.ndarray:
    """Return the end of each worker's piece of each class, [C, n_g]; one draw of C proportions is a try.

    Tries are drawn and checked in blocks, which is twenty times faster; the generator is then reset to its state right
    after the accepted try.
    """
    minimum = max(1, int(0.5 * class_sizes.sum() / num_workers))
    concentrations, num_classes = np.repeat(alpha, num_workers), len(class_sizes)
    tries, block = 0, 1
    while tries < MAX_TRIES:
        before = random.get_state()
        ends = _ends(random.dirichlet(concentrations, (block, num_classes)), class_sizes)
        sizes = np.diff(ends, prepend=0, axis=2).sum(axis=1)
        accepted = np.flatnonzero(sizes.min(axis=1) >= minimum)
        if len(accepted):
            random.set_state(before)
            random.dirichlet(concentrations, (accepted[0] + 1, num_classes))
            return ends[accepted[0]]
        tries += block
        block = min(2 * block, MAX_BLOCK)
    return _fill(random.dirichlet(concentrations, num_classes), class_sizes, random)


def _ends(proportions: np.ndarray, class_sizes: np.ndarray) -> np.ndarray:
    """Convert proportions [tries, C, n_g] to the ends of the workers' pieces in each class, int [tries, C, n_g]."""
    num_tries, _, num_workers = proportions.shape
    ends = np.zeros(proportions.shape, dtype=np.int64)
    held = np.zeros((num_tries, num_workers), dtype=np.int64)
    for c, class_size in enumerate(class_sizes):
        p = np.where(held < class_sizes.sum() / num_workers, proportions[:, c], 0.0)
        total = p.sum(axis=1, keepdims=True)
        usable = (total > 0) & np.isfinite(total)  # else 0 / 0, and the class goes to the last worker
        ends[:, c] = np.cumsum(np.where(usable, p, 0.0) / np.where(usable, total, 1.0), axis=1) * class_size
        ends[:, c, -1] = class_size
        held += np.diff(ends[:, c], prepend=0, axis=1)
    return ends


def _fill(proportions: np.ndarray, class_sizes: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Return ends [C, n_g] for proportions [C, n_g] such that every worker holds its equal share, up to one sample.

    Each class is cut as far as workers have room; the rest fills up the workers in random order.
    """
    num_workers = proportions.shape[1]
    room = np.diff(np.arange(num_workers + 1) * class_sizes.sum() // num_workers)
    ends = np.zeros(proportions.shape, dtype=np.int64)
    for c, class_size in enumerate(class_sizes):
        wanted = np.nan_to_num(proportions[c], posinf=0.0) * class_size
        taken = np.minimum(wanted.astype(np.int64), room)
        for j in random.permutation(num_workers):
            taken[j] += min(class_size - taken.sum(), room[j] - taken[j])
        room -= taken
        ends[c] = np.cumsum(taken)
    return ends
