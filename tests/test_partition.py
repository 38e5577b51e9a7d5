"""How the training set is dealt out to the workers."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.partition.dirichlet import Dirichlet, DirichletThesis, dirichlet_shares
from decentral.partition.partition import IID, Natural, Partition, Shards, class_counts, save_table
from decentral.registry import components
from decentral.report.partition_figure import save_figure

ALL = [
    IID(),
    Shards(),
    Shards(shards_per_worker=5),
    *(Dirichlet(alpha=alpha, even=even) for alpha in (1e-300, 1e-4, 0.01, 0.1, 1.0, 100.0) for even in (True, False)),
    *(DirichletThesis(alpha=alpha) for alpha in (1e-4, 0.1, 1.0)),
]
CIFAR_LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))


def digits_like(num_train: int = 1438, num_classes: int = 10) -> np.ndarray:
    return np.random.default_rng(1).integers(num_classes, size=num_train)


def largest_share(counts: np.ndarray) -> float:
    return float((counts.max(axis=1) / counts.sum(axis=1)).mean())


def test_every_partition_is_listed_here():
    known = {type(partition) for partition in ALL} | {Natural}  # which deals whole labels: see test_text.py
    assert known == set(components("partition").values())


@pytest.mark.parametrize("num_workers", [1, 2, 7, 10, 11, 16, 64])
@pytest.mark.parametrize("partition", ALL, ids=str)
def test_every_index_is_dealt_exactly_once(partition: Partition, num_workers: int):
    labels = digits_like()
    partition.check(len(labels), num_workers)
    dealt = partition.indices(labels, num_workers, seed=3)
    assert len(dealt) == num_workers
    assert min(map(len, dealt)) > 0
    assert {rows.dtype for rows in dealt} == {np.dtype(np.int64)}
    np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(len(labels)))


@pytest.mark.parametrize("num_classes", [1, 2, 3, 50])
@pytest.mark.parametrize("partition", ALL, ids=str)
def test_the_number_of_classes_does_not_matter(partition: Partition, num_classes: int):
    dealt = partition.indices(digits_like(num_classes=num_classes), 16, seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(1438))


@pytest.mark.parametrize("partition", ALL, ids=str)
def test_a_few_samples_for_each_worker_are_enough_and_fewer_are_refused(partition: Partition):
    per_worker = getattr(partition, "shards_per_worker", 1 if getattr(partition, "even", True) else 2)
    labels = digits_like(12 * per_worker)
    assert min(len(rows) for rows in partition.indices(labels, 12, seed=0)) >= 1
    with pytest.raises(ConfigError, match=r"num_workers=13 .*<= 12"):
        partition.check(len(labels), 13)
    with pytest.raises(ConfigError, match=r"num_workers=13 .*<= 12"):
        partition.indices(labels, 13, seed=0)
    with pytest.raises(ConfigError, match="num_workers=0"):
        partition.check(len(labels), 0)


@pytest.mark.parametrize("partition", ALL, ids=str)
def test_a_partition_is_a_function_of_the_seed(partition: Partition):
    labels = digits_like()
    first, again, other = (partition.indices(labels, 16, seed) for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    "partition", [IID(), Dirichlet(alpha=0.01), DirichletThesis(alpha=0.01)], ids=["iid", "dirichlet", "thesis"]
)
@pytest.mark.parametrize("num_workers", [3, 16, 64])
def test_sizes_differ_by_at_most_one(partition: Partition, num_workers: int):
    sizes = [len(rows) for rows in partition.indices(digits_like(), num_workers, seed=0)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("partition", [Dirichlet, DirichletThesis])
def test_classes_concentrate_as_alpha_goes_to_zero(partition: type):
    labels = digits_like()
    share = []
    for alpha in (100, 1, 0.1, 0.01):
        dealt = [partition(alpha=alpha).indices(labels, 16, seed) for seed in range(4)]
        share.append(np.mean([largest_share(class_counts(labels, rows, 10)) for rows in dealt]))
    assert share == sorted(share)
    assert share[0] < 0.2 and share[-1] > 0.6


@pytest.mark.parametrize("alpha", [1e-2, 1e-4, 1e-300])
@pytest.mark.parametrize("num_workers", [16, 64])
def test_the_uneven_draw_gives_every_worker_at_least_half_of_its_share(alpha: float, num_workers: int):
    labels = digits_like()
    dealt = Dirichlet(alpha=alpha, even=False).indices(labels, num_workers, seed=0)
    assert min(map(len, dealt)) >= int(0.5 * (len(labels) // num_workers))
    assert largest_share(class_counts(labels, dealt, 10)) > 0.75


# --- against the authors -------------------------------------------------------------------------------------------


def authors_shares(labels: np.ndarray, num_workers: int, alpha: float, random: np.random.RandomState) -> list:
    """The rejection loop one draw at a time, as the specification states it."""
    order = np.arange(len(labels))
    random.shuffle(order)
    shares: list[np.ndarray] = []
    while len(shares) < num_workers:
        n_g = min(10, num_workers - len(shares))
        size = len(order) if len(shares) + n_g == num_workers else int(10 / num_workers * len(labels))
        group, order = order[:size], order[size:]
        held = np.zeros(n_g)
        while True:
            pieces: list[list] = [[] for _ in range(n_g)]
            for c in range(labels.max() + 1):
                rows = group[labels[group] == c]
                held = np.array([sum(map(len, mine)) for mine in pieces])
                p = random.dirichlet(np.repeat(alpha, n_g)) * (held < size / n_g)
                cuts = (np.cumsum(p / p.sum()) * len(rows)).astype(int)[:-1]
                for mine, piece in zip(pieces, np.split(rows, cuts), strict=True):
                    mine.append(piece)
            if min(sum(map(len, mine)) for mine in pieces) >= int(0.5 * size / n_g):
                break
        shares += [np.concatenate(mine) for mine in pieces]
    return shares


@pytest.mark.parametrize("num_workers", [3, 16, 20])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 1.0, 10.0])
def test_the_blockwise_draw_is_the_authors_loop(alpha: float, num_workers: int):
    labels = digits_like(5000)
    ours = dirichlet_shares(labels, num_workers, alpha, np.random.RandomState(2))
    theirs = authors_shares(labels, num_workers, alpha, np.random.RandomState(2))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("labels", [CIFAR_LABELS, np.sort(CIFAR_LABELS)], ids=["shuffled", "sorted"])
@pytest.mark.parametrize(
    ("alpha", "raw_sizes", "classes_present", "distance"),
    [
        (1.0, [6583, 6110, 5211, 8077, 6433, 6250, 7483, 3853], [9, 10, 10, 7, 9, 7, 9, 10], 0.394),
        (0.1, [6725, 5338, 4286, 3812, 5686, 9080, 8141, 6932], [4, 7, 4, 7, 5, 3, 7, 7], 0.721),
        (0.01, [5001, 6025, 4999, 5112, 4989, 4999, 8875, 10000], [4, 5, 3, 2, 4, 3, 2, 2], 0.782),
    ],
)
def test_the_thesis_partition_has_the_facts_of_cifar10_with_8_workers(
    labels: np.ndarray, alpha: float, raw_sizes: list[int], classes_present: list[int], distance: float
):
    raw = dirichlet_shares(labels, 8, alpha, np.random.RandomState(0))
    assert [len(rows) for rows in raw] == raw_sizes
    counts = class_counts(labels, DirichletThesis(alpha=alpha).indices(labels, 8, seed=0), 10)
    assert (counts > 0).sum(axis=1).tolist() == classes_present
    total_variation = 0.5 * np.abs(counts / 6250 - 0.1).sum(axis=1)
    assert total_variation.mean() == pytest.approx(distance, abs=1e-3)


@pytest.mark.parametrize(("alpha", "num_classes", "share"), [(1.0, 8.0, 0.31), (0.1, 4.3, 0.53), (0.01, 2.2, 0.79)])
def test_the_relaysgd_partition_is_as_heterogeneous_as_theirs(alpha: float, num_classes: float, share: float):
    counts = np.concatenate(
        [class_counts(CIFAR_LABELS, Dirichlet(alpha=alpha).indices(CIFAR_LABELS, 16, s), 10) for s in (1, 2, 3, 4)]
    )
    assert (counts > 0.01 * 3125).sum(axis=1).mean() == pytest.approx(num_classes, rel=0.1)
    assert largest_share(counts) == pytest.approx(share, rel=0.1)


def test_the_samples_that_the_thesis_drops_go_to_the_first_workers():
    labels = digits_like(103)
    together = np.concatenate(dirichlet_shares(labels, 5, 0.1, np.random.RandomState(9)))
    dealt = DirichletThesis(alpha=0.1).indices(labels, 5, seed=9)
    assert [rows[:20].tolist() for rows in dealt] == together[:100].reshape(5, 20).tolist()
    assert [rows[20:].tolist() for rows in dealt] == [[together[100]], [together[101]], [together[102]], [], []]


# --- shards, checks, pictures --------------------------------------------------------------------------------------


def test_shards_give_each_worker_about_that_many_classes():
    counts = class_counts(CIFAR_LABELS, Shards(shards_per_worker=2).indices(CIFAR_LABELS, 20, seed=0), 10)
    assert (counts.sum(axis=1) == 2500).all()
    assert set((counts > 0).sum(axis=1).tolist()) <= {1, 2}


def test_the_table_has_a_row_for_each_worker(tmp_path):
    save_table(np.array([[1, 0], [2, 3]]), tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["worker", "class_0", "class_1", "total"], ["0", "1", "0", "1"], ["1", "2", "3", "5"]]


@pytest.mark.parametrize(("num_workers", "num_classes"), [(1, 1), (16, 10), (64, 120)])
def test_the_figure_is_saved_in_the_format_of_its_suffix(tmp_path, num_workers: int, num_classes: int):
    counts = np.random.default_rng(0).integers(1, 100, size=(num_workers, num_classes))
    save_figure(counts, tmp_path / "picture.png", "a title")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
