"""Partitions of the training set over the workers: the interface, all kinds, and a table of the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decentral.errors import ConfigError
from decentral.randomness import numpy_generator
from decentral.settings import Settings, setting
from decentral.store.files import csv_text, write_text


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


def save_table(counts: np.ndarray, path: str | Path, dealt: str = "class") -> None:
    """Write `counts` [n, C] as CSV with columns worker, class_0, class_1, ..., total; `dealt` replaces "class"."""
    head = ["worker", *(f"{dealt}_{c}" for c in range(counts.shape[1])), "total"]
    write_text(Path(path), csv_text(head, ([worker, *row, sum(row)] for worker, row in enumerate(counts.tolist()))))


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


@dataclass
class Natural(Partition):
    """Whole sources: files, speakers or sections of running text; whole classes of labeled data.

    The largest source goes to worker 0, and each next one to the worker with the fewest samples so far (the first on
    ties). The heterogeneity is natural, without randomness. With as many sources as workers, each worker has one.
    """

    name: str = "natural"

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Return the indices; sizes depend on the sources."""
        self.check(len(labels), num_workers)
        sources, sizes = np.unique(labels, return_counts=True)
        self.check_labels(len(sources), num_workers)
        worker_of = np.zeros(int(labels.max()) + 1, dtype=np.int64)
        held = np.zeros(num_workers, dtype=np.int64)
        for source in np.argsort(-sizes, kind="stable"):
            worker = int(held.argmin())
            worker_of[sources[source]] = worker
            held[worker] += sizes[source]
        return [np.flatnonzero(worker_of[labels] == worker) for worker in range(num_workers)]

    def check_labels(self, num_labels: int, num_workers: int) -> None:
        """Check that there is a source for each worker."""
        if num_labels < num_workers:
            raise ConfigError(
                f"num_workers={num_workers} exceeds the {num_labels} sources of this data=, and partition=natural "
                f"needs one per worker: use num_workers <= {num_labels}, or another partition, such as iid."
            )


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
