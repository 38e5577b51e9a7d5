"""Beyond the rows, a process needs the memory of the workers that it computes at a time, not that of all of them."""

from __future__ import annotations

import pytest

from decentral.benchmarks.cases.memory import peak
from decentral.registry import components


@pytest.mark.slow
@pytest.mark.parametrize("execution", sorted(components("gradients").keys() - {"auto"}))
def test_what_a_step_takes_beyond_the_rows_does_not_grow_with_the_number_of_workers(execution: str) -> None:
    settings = ["algo=dpsgd", "topology=ring", "model=mlp", "model.hidden=[1000,1000]", "batch_size=8"]
    few, many = (peak(*settings, f"num_workers={n}", f"execution={execution}") for n in (4, 32))
    row, more_workers = 4 * many["parameters"], 32 - 4
    growth = (many["peak"] - many["rows"]) - (few["peak"] - few["rows"])
    assert growth < 0.5 * more_workers * row
