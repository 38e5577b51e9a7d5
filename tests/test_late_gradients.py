"""What late gradients cost eager-SGD: the largest rate with which it is stable on a quadratic, with and without
momentum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decentral.algorithms.eager_sgd import EagerSGD
from decentral.network.local import LocalNetwork
from decentral.optim.optimizer import LocalRule
from decentral.optim.sgd import SGD
from decentral.registry import components
from decentral.topology.delivery import Losses

SHARES = [0.222, 0.525, 0.206, 0.045, 0.002]
"""Of gradients that are 0, 1, ... steps late: 16 workers, cluster=two_delayed."""
LIMITS = {
    (0.0, (1,)): 2.0, (0.0, (0, 1)): 1.0, (0.0, (0, 0, 1)): 0.618, (0.0, tuple(SHARES)): 1.35,
    (0.9, (1,)): 3.8, (0.9, (0, 1)): 0.1, (0.9, (0, 0, 1)): 0.051, (0.9, tuple(SHARES)): 0.096,
}  # fmt: skip


def largest_root(momentum: float, shares: tuple[float, ...], a: float) -> float:
    """Of the characteristic polynomial of x^{t+1} = x^t + m (x^t - x^{t-1}) - a sum_k w_k x^{t-k}."""
    coefficients = np.zeros(max(len(shares), 2) + 1)
    coefficients[:3] = 1, -(1 + momentum), momentum
    coefficients[1 : 1 + len(shares)] += a * np.array(shares)
    return float(np.abs(np.roots(coefficients)).max())


@pytest.mark.parametrize("case", LIMITS, ids=str)
def test_the_rates_of_the_table_are_the_largest_stable_ones(case):
    assert largest_root(*case, 0.97 * LIMITS[case]) < 1 < largest_root(*case, 1.03 * LIMITS[case])


@pytest.mark.parametrize(("momentum", "factor"), [(0.0, 1.0), (0.9, 1.0), (0.9, 0.02)])
@pytest.mark.parametrize("late", [0, 1])
def test_eager_sgd_has_these_limits(momentum, factor, late):
    """Its own operations on one row of curvature 1, whose gradients are those of `late` steps ago."""
    rate = 0.95 * factor * LIMITS[momentum, (1,)]
    method = EagerSGD().bind(LocalRule(SGD(momentum=momentum), lambda t: rate))
    net = LocalNetwork(components("topology")["chain"]().schedule(1), Losses(0.0, 0))
    state = method.init(torch.ones(1, 1, dtype=torch.float64), net)
    models = [state.x.clone()] * (late + 1)
    for t in range(600):
        method.publish(state, 0, models[-1 - late][0], t)
        total = state.send[0].clone()
        state.send.zero_()
        method.receive(state, 0, t, True, 1, total)
        models.append(state.x.clone())
    shares = (0,) * late + (1,)
    root = largest_root(momentum, shares, rate)
    assert (models[-1].abs().item() < 1) == (root < 1)
    assert abs(root - 1) > 0.001, "neither of both is near the limit"
