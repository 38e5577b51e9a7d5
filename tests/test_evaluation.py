"""What is reported of the models of all workers, by hand-made numbers; and runs that diverge."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from decentral.cli import carry_out as carry_out_command
from decentral.composition import compose
from decentral.evaluation import Evaluation, evaluate
from decentral.network.local import LocalNetwork
from decentral.network.processes import join
from decentral.network.rounds import Losses
from decentral.network.settings import NetworkSettings
from decentral.store import RunStore
from decentral.tasks.task import Metric, Problem
from decentral.topology.ring import Ring
from decentral.world import World

MODELS = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 6.0]], dtype=torch.float64)  # their mean is (2, 2)
LOSSES = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)


class Coordinates(Problem):
    """Score: the first coordinate; cost: the square of the second. Process p of P does p + 1 shares of the work."""

    metrics = (Metric("test", "score", larger_is_better=True), Metric("test", "cost"))
    steps_per_epoch = 1.0

    def init(self, seed: int) -> Tensor:
        return torch.zeros(2)

    def gradient(self, x: Tensor, index: int) -> tuple[Tensor, Tensor]:
        return x[:, 0], x

    def evaluate_workers(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], x[:, 1] ** 2], dim=1)

    def evaluate_average(self, x: Tensor, part: int = 0, parts: int = 1) -> Tensor:
        return self.evaluate_workers(x[None])[0] * (part + 1) / (parts * (parts + 1) / 2)


def evaluated(models: Tensor = MODELS, losses: Tensor = LOSSES) -> Evaluation:
    net = LocalNetwork(Ring().schedule(len(models)), Losses(0.0, 0))
    return evaluate(Coordinates(), models, net, losses, part=0, parts=1)


def value(found: Evaluation, metric: str, worker: int | str) -> float:
    (row,) = [row for row in found.rows() if (row["metric"], row["worker"]) == (metric, worker)]
    return row["value"]


def test_every_worker_has_its_own_row():
    found = evaluated()
    assert [value(found, "score", i) for i in range(3)] == [1, 3, 2]
    assert [value(found, "cost", i) for i in range(3)] == [0, 0, 36]


def test_worst_is_the_least_favourable_of_each_metric():
    assert value(evaluated(), "score", "worst") == 1
    assert value(evaluated(), "cost", "worst") == 36


def test_the_mean_over_workers_is_not_the_averaged_model():
    assert value(evaluated(), "cost", "mean") == 12
    assert value(evaluated(), "cost", "averaged") == 4
    assert value(evaluated(), "score", "mean") == value(evaluated(), "score", "averaged") == 2


def test_the_consensus_distance_is_the_mean_square_distance_to_the_averaged_model():
    assert value(evaluated(), "consensus_distance", "mean") == pytest.approx((5 + 5 + 16) / 3)


def test_the_training_loss_is_reported_once_there_is_one():
    assert value(evaluated(), "loss", "mean") == 1.5
    assert value(evaluated(), "loss", "worst") == 3
    before = evaluated(losses=torch.full((3,), math.nan, dtype=torch.float64))
    assert not before.diverged
    assert not [row for row in before.rows() if row["metric"] == "loss"]


def test_rows_carry_their_place_and_the_summary_leaves_single_workers_out():
    found = evaluated()
    assert all(row["step"] == 7 for row in found.rows(step=7))
    assert found.summary()["test/cost/worst"] == 36
    assert not [key for key in found.summary() if key.endswith(("/0", "/1", "/2"))]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_single_worker_that_is_not_finite_is_divergence(poison):
    assert not evaluated().diverged
    models, losses = MODELS.clone(), LOSSES.clone()
    models[1, 1] = losses[1] = poison
    assert evaluated(models=models).diverged
    assert evaluated(losses=losses).diverged
    assert not math.isfinite(evaluated(models=models).worst(1))


def over_processes(world: World) -> tuple[Evaluation, tuple[bool, ...]]:
    net = join(Ring().schedule(3), Losses(0.0, 0), world.device, world.rank, world.size, NetworkSettings())
    mine = slice(net.workers.start, net.workers.stop)
    found = evaluate(Coordinates(), MODELS[mine], net, LOSSES[mine], world.rank, world.size)
    return found, world.any(world.rank == 1, False)


def test_processes_see_the_same_evaluation_and_what_any_of_them_wants(worlds):
    expected = evaluated()
    for found, wishes in worlds(2).call(over_processes):
        assert wishes == (True, False)
        assert found.summary() == pytest.approx(expected.summary(), rel=1e-12)
        assert torch.equal(found.workers, expected.workers)


DIVERGE = {
    "quadratics": ["task=quadratics", "lr=1e6", "steps=300"],
    "digits": ["data=digits", "model=mlp", "partition=iid", "batch_size=8", "lr=1e6", "steps=60"],
}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("task", DIVERGE)
def test_a_run_that_diverges_stops_and_says_so(start, task, processes):
    result = start(*DIVERGE[task], "num_workers=4", "eval_every_epochs=0.5", processes=processes)
    assert result.status == result.facts["status"] == "diverged"
    assert 0 < result.facts["step"] < (300 if task == "quadratics" else 60)
    last = [row["value"] for row in result.rows if row["step"] == result.facts["step"]]
    assert not all(map(math.isfinite, last))
    assert all(math.isfinite(row["value"]) for row in result.rows if row["step"] == 0)


def test_divergence_is_a_result_and_not_a_failure(tmp_path, capsys):
    config = compose([*DIVERGE["quadratics"], f"run_dir={tmp_path / 'run'}", "progress=false", "num_workers=4"])
    assert carry_out_command(config) == 0
    assert "diverged" in capsys.readouterr().out
    step = (RunStore.peek(tmp_path / "run") or {})["step"]
    assert carry_out_command(config) == 0
    assert "done before" in capsys.readouterr().out
    assert (RunStore.peek(tmp_path / "run") or {})["step"] == step


@pytest.mark.parametrize(
    ("every", "steps", "expected"),
    [("1", "5", [0, 1, 2, 3, 4, 5]), ("2", "5", [0, 2, 4, 5]), ("100", "5", [0, 5]), ("2.5", "6", [0, 2, 5, 6])],
)
def test_runs_are_evaluated_before_the_first_step_every_so_often_and_after_the_last(start, every, steps, expected):
    result = start("task=quadratics", "num_workers=3", f"steps={steps}", f"eval_every_epochs={every}")
    assert sorted({row["step"] for row in result.rows}) == expected
