"""What a step moves in memory, allocates and sends, counted: the same on every machine."""

from __future__ import annotations

import pytest
import torch

from decentral.benchmarks.baselines.meter import Meter
from decentral.benchmarks.cases.traffic import CASES, count


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
def test_the_meter_counts_each_operand_and_each_result_once(operation, moved, allocated):
    a, b = torch.zeros(8), torch.zeros(8)
    with Meter() as meter:
        operation(a, b)
    assert (meter.moved_bytes, meter.allocated_bytes) == (32 * moved, 32 * allocated)


@pytest.fixture(scope="module")
def counts():
    return {settings: count(settings, least, 1 << 21) for settings, least in CASES}


def test_relaysgd_on_double_trees_moves_at_most_twice_what_it_has_to(counts):
    found = counts["algo=relaysgd", "topology=dbt"]
    assert found["least"] == 9.0
    assert found["ratio"] <= 2.0


@pytest.mark.parametrize("settings", [settings for settings, least in CASES if least is not None])
def test_no_method_moves_much_more_than_it_has_to(counts, settings):
    assert counts[settings]["ratio"] <= 2.2


@pytest.mark.parametrize("settings", [settings for settings, _ in CASES])
def test_update_and_exchange_allocate_next_to_nothing(counts, settings):
    assert counts[settings]["allocated"] <= 0.01
