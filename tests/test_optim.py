"""Local update rules equal torch's, on rows; schedules equal their formulas; batches are a pure function."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decentral.errors import ConfigError
from decentral.lr_schedules.constant import Constant
from decentral.lr_schedules.exponential import Exponential
from decentral.lr_schedules.inverse import Inverse
from decentral.lr_schedules.inverse_sqrt import InverseSqrt
from decentral.lr_schedules.multistep import MultiStep
from decentral.optim import rows
from decentral.optim.adam import Adam
from decentral.optim.adamw import AdamW
from decentral.optim.optimizer import LocalRule
from decentral.optim.sgd import SGD
from decentral.tasks.problems.batches import BatchOrder

K, P, STEPS = 3, 7, 20


def rate(t: int) -> float:
    return 0.1 / (1 + t)


RULES = {
    "sgd": (SGD(), torch.optim.SGD, {}),
    "weight decay": (SGD(weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": (SGD(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (
        SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "adam": (Adam(), torch.optim.Adam, {}),
    "adam with its settings": (
        Adam(beta1=0.5, beta2=0.7, epsilon=1e-3, weight_decay=0.1),
        torch.optim.Adam,
        {"betas": (0.5, 0.7), "eps": 1e-3, "weight_decay": 0.1},
    ),
    "adamw": (AdamW(weight_decay=0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
    "clipped": (SGD(weight_decay=0.1, clip_norm=2.0), torch.optim.SGD, {"weight_decay": 0.1}),
    "adamw, clipped": (AdamW(clip_norm=1.0), torch.optim.AdamW, {"weight_decay": 0.01}),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_that_of_torch_for_every_worker_with_a_rate_that_changes(name):
    rule, torch_rule, settings = RULES[name]
    local = LocalRule(rule, rate)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(K, P)))
    theirs = [row.clone().requires_grad_() for row in x]
    optimizers = [torch_rule([row], lr=1.0, **settings) for row in theirs]
    buffers = local.init(x)
    for t in range(STEPS):
        g = torch.from_numpy(np.random.default_rng(t).normal(size=(K, P)))
        for row, gradient, optimizer in zip(theirs, g.clone(), optimizers, strict=True):
            row.grad, optimizer.param_groups[0]["lr"] = gradient, rate(t)
            if rule.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_([row], rule.clip_norm)
            optimizer.step()
        u, buffers = local(g, x, buffers, t)
        x = x + u
        torch.testing.assert_close(x, torch.stack(theirs).detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_works_in_the_memory_of_the_gradient_and_leaves_the_model_alone(name):
    rule = LocalRule(RULES[name][0], rate)
    x, g = torch.ones(K, P), torch.full((K, P), 2.0)
    buffers = rule.init(x)
    assert all(buffer.shape == x.shape and not buffer.any() for buffer in buffers)
    u, after = rule(g, x, buffers, 0)
    assert u.data_ptr() == g.data_ptr()
    assert torch.equal(x, torch.ones(K, P))
    assert [buffer.data_ptr() for buffer in after] == [buffer.data_ptr() for buffer in buffers]


@pytest.mark.parametrize("rates", [0.3, torch.linspace(0.1, 0.5, P, dtype=torch.float64)[None]])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_adapting_a_model_is_adding_the_update_to_it(name, keep, rates):
    rule = LocalRule(RULES[name][0], lambda t: rates)
    x, g = torch.from_numpy(np.random.default_rng(0).normal(size=(2, K, P)))
    u, expected_buffers = rule(g.clone(), x, rule.init(x), 0)
    before = x.clone()
    y, buffers = rule.adapt(x, g, rule.init(x), 0, out=g if keep else None)
    torch.testing.assert_close(y, before + u, rtol=0, atol=1e-14)
    torch.testing.assert_close(buffers, expected_buffers, rtol=0, atol=0)
    assert y.data_ptr() == (g if keep else x).data_ptr()
    assert not keep or torch.equal(x, before)


# -- schedules ---------------------------------------------------------------------------------------------------------

TEN = 10.0  # steps per epoch
SCHEDULES = [
    (Constant(), {0: 1, 999: 1}),
    (Inverse(), {0: 1, 1: 1 / 2, 99: 1 / 100}),
    (Exponential(gamma=0.9), {0: 1, 9: 1, 10: 0.9, 19: 0.9, 20: 0.81, 500: 0.9**50}),
    (MultiStep(), {0: 0, 5: 0.1, 25: 0.5, 50: 1, 1499: 1, 1500: 0.1, 1799: 0.1, 1800: 0.01, 5000: 0.01}),
    (MultiStep(warmup_from=0.5, milestones=[30, 60, 80]), {0: 0.5, 25: 0.75, 50: 1, 300: 0.1, 600: 0.01, 800: 0.001}),
    (MultiStep(warmup_epochs=0, milestones=[1], gamma=0.5), {0: 1, 9: 1, 10: 0.5}),
    (InverseSqrt(warmup_steps=4), {0: 1 / 4, 3: 1, 15: 1 / 2, 399: 1 / 10}),
    (MultiStep(milestones=[2], warmup_epochs=4), {0: 0, 19: 19 / 40, 20: 0.05, 40: 0.1}),
]


@pytest.mark.parametrize(("schedule", "factors"), SCHEDULES, ids=lambda value: getattr(value, "name", ""))
def test_a_schedule_follows_its_formula(schedule, factors):
    assert {t: schedule.factor(t, TEN) for t in factors} == pytest.approx(factors, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("steps_per_epoch", [3.0, 7.0, 49.0, 97.0])
def test_the_exponential_schedule_drops_on_the_first_step_of_an_epoch(steps_per_epoch):
    for epoch in range(1, 200):
        t = round(epoch * steps_per_epoch)
        assert Exponential().factor(t, steps_per_epoch) == 0.9**epoch
        assert Exponential().factor(t - 1, steps_per_epoch) == 0.9 ** (epoch - 1)


def test_a_run_follows_its_schedule(start):
    same_functions = ["task=quadratics", "task.zeta2=0", "task.singular_min=1", "task.initial_distance=100"]
    result = start(*same_functions, "algo=allreduce", "num_workers=2", "lr=0.5", "schedule=inverse", "steps=8")
    left = [row["value"] for row in result.rows if (row["metric"], row["worker"]) == ("distance_to_optimum", 0)]
    expected = 100 * np.cumprod([1, *(1 - 0.5 / (t + 1) for t in range(8))])  # the Hessian is the identity
    np.testing.assert_allclose(left, expected, rtol=1e-9)


# -- batches -----------------------------------------------------------------------------------------------------------

PARTS = [np.arange(100 * w, 100 * w + size) for w, size in enumerate((23, 40, 7, 30))]  # 25 for each in an epoch


def order(workers: range, reshuffle: bool = True, drop_last: bool = True, seed: int = 0) -> BatchOrder:
    return BatchOrder(PARTS, workers, batch_size=4, seed=seed, reshuffle=reshuffle, drop_last=drop_last)


def test_the_batch_of_a_worker_at_a_step_is_the_same_whoever_asks_and_whenever():
    everybody = order(range(4))
    history = [everybody(step) for step in range(40)]
    alone = order(range(3, 4))
    assert torch.equal(alone(17)[0], history[17][3])
    assert torch.equal(alone(3)[0], history[3][3])  # going back, too
    assert torch.equal(order(range(2, 4))(31), history[31][2:])


@pytest.mark.parametrize(("drop_last", "steps", "samples"), [(True, 6, 24), (False, 7, 25)])
def test_an_epoch_takes_as_many_samples_of_everybody_from_their_own_part(drop_last, steps, samples):
    batches = order(range(4), drop_last=drop_last)
    assert batches.steps_per_epoch == steps
    epoch = torch.cat([batches(step) for step in range(steps)], dim=1)
    assert epoch.shape == (4, samples)
    for worker, part in enumerate(PARTS):
        seen, counts = np.unique(epoch[worker], return_counts=True)
        assert set(seen) <= set(part)
        assert len(seen) == min(len(part), samples)
        assert counts.max() - counts.min() <= 1  # a small part is gone through again and again


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    def first_epoch(batches: BatchOrder, epoch: int) -> torch.Tensor:
        return torch.cat([batches(6 * epoch + step) for step in range(6)], dim=1)

    assert not torch.equal(first_epoch(order(range(4)), 0), first_epoch(order(range(4)), 1))
    assert not torch.equal(first_epoch(order(range(4)), 0), first_epoch(order(range(4), seed=1), 0))
    forever = order(range(4), reshuffle=False)
    assert torch.equal(first_epoch(forever, 0), first_epoch(forever, 1))


@pytest.mark.parametrize("a", [2.0, torch.linspace(1, 2, P, dtype=torch.float64)[None]])
def test_rows_are_added_scaled_divided_and_copied_where_they_lie(a):
    for operation, sign in ((rows.add, 1), (rows.sub, -1)):
        for out in (None, 0, 1):
            operands = [torch.from_numpy(each) for each in np.random.default_rng(0).normal(size=(2, K, P))]
            before = [each.clone() for each in operands]
            found = operation(*operands, a, out=None if out is None else operands[out])
            torch.testing.assert_close(found, before[0] + sign * a * before[1], rtol=0, atol=1e-14)
            assert found is operands[out or 0] and torch.equal(operands[1 - (out or 0)], before[1 - (out or 0)])
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(K, P)))
    before, other = x.clone(), torch.zeros_like(x)
    assert rows.scale(x, a) is x and torch.equal(x, before * a)
    assert rows.divide(x, a) is x and torch.allclose(x, before, rtol=1e-15, atol=0)
    assert rows.copy(x, out=other) is other and torch.equal(other, x)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [(SGD, {"momentum": 1.0}), (SGD, {"nesterov": True}), (Adam, {"beta1": 1.0}), (Adam, {"weight_decay": np.nan})],
)
def test_a_setting_that_makes_no_sense_is_refused(rule, settings):
    with pytest.raises(ConfigError, match=f"optim.{next(iter(settings))}"):
        rule(**settings)
