"""`make bench`. Times are not looked at."""

from __future__ import annotations

import pytest
import torch

import bench.__main__  # noqa: F401 - it imports all benchmarks
from bench.harness import BENCHMARKS, RESULTS, Effort, save
from bench.page import load_all, write_page
from bench.traffic import CASES, Meter, count

QUICK = Effort(rounds=1, quick=True)


# -- the command, what it stores, and the page -------------------------------------------------------------------------


def test_the_page_that_is_committed_is_made_again(tmp_path) -> None:
    assert write_page(load_all(RESULTS), tmp_path).read_text() == (RESULTS / "README.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in RESULTS.glob("*.[!j]*")}
    assert {one["name"]: one["title"] for one in load_all(RESULTS)} == {
        name: one.title for name, one in BENCHMARKS.items() if name != "gpu"
    }


@pytest.mark.slow
@pytest.mark.parametrize("name, tables, targets", [("simulated", 2, 3), ("timeline", 1, 1), ("ways", 1, 2)])
def test_a_benchmark_finds_tables_and_targets(name: str, tables: int, targets: int, tmp_path) -> None:
    threads = torch.get_num_threads()
    try:
        found = BENCHMARKS[name].measure(QUICK)
    finally:
        torch.set_num_threads(threads)
    assert (len(found.tables), len(found.targets)) == (tables, targets)
    for table in found.tables:
        assert table.rows and all(set(table.columns) <= set(row) for row in table.rows)
    save(name, found, QUICK, 1.0, tmp_path)
    page = write_page(load_all(tmp_path), tmp_path).read_text()
    assert all(table.title in page for table in found.tables)


# -- memory: computed, measured, counted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "moved", "allocated"),
    [
        (lambda a, b: a.add_(b), 3, 0),
        (lambda a, b: a.copy_(b), 2, 0),
        (lambda a, b: a.zero_(), 1, 0),
        (lambda a, b: torch.add(a, b, out=a.view(-1)), 3, 0),
        (lambda a, b: a + b, 3, 1),
        (lambda a, b: a[::2].mul_(2), 1, 0),
        (lambda a, b: a.view(2, -1).t(), 0, 0),
    ],
)
def test_the_meter_counts_each_operand_and_each_result_once(operation, moved, allocated) -> None:
    a, b = torch.zeros(8), torch.zeros(8)
    with Meter() as meter:
        operation(a, b)
    assert (meter.moved_bytes, meter.allocated_bytes) == (32 * moved, 32 * allocated)


@pytest.mark.parametrize(
    ("settings", "least"), [CASES[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:])]
)
def test_no_method_moves_much_more_than_it_has_to_and_all_allocate_next_to_nothing(settings, least) -> None:
    found = count(settings, least, 1 << 21)
    assert found["allocated"] <= 0.01
    assert found.get("ratio", 1) <= (2.0 if settings == CASES[0][0] else 2.2)
    assert settings != CASES[0][0] or found["least"] == 9.0
