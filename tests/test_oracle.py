"""The oracle: every call draws the next sample of each worker that it is for, however far the others are."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from configure import configure
from decentral.network.world import World
from decentral.training.assemble import Run, assemble
from decentral.training.checkpoint import from_parts, to_part
from decentral.training.sleep import Sleep

K = 3
TASKS = {
    "quadratics": ["task=quadratics", "task.noise=1"],
    "mean_estimation": ["task=mean_estimation", "algo=relay_mean", "topology=chain"],
    "one by one": ["model=cnn", "execution=loop"],
    "side by side": ["model=mlp", "execution=batched"],
    "dropout": ["data=synthetic", "data.image_size=32", "model=vgg11", "batch_size=2"],
}
SAMPLES_PER_EPOCH = 479  # of the digits, for 3 workers


def assembled(name: str, *settings: str) -> Run:
    common = [f"num_workers={K}", "processes=1", "device=cpu", "partition=iid", "algo=dpsgd", "topology=ring"]
    config = configure(*common, *TASKS[name], *settings)
    config.task.prepare(config)
    with torch.no_grad():
        return assemble(config, World(0, 1, torch.device("cpu")))


def models(run: Run) -> Tensor:
    """Models that differ [K, P]."""
    x = run.stepper.models.clone()
    return x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)


def gradient(run: Run, x: Tensor, *draws: int) -> Tensor:
    """Of all workers, in these draws."""
    return run.problem.gradient(x, np.array(draws))[1].clone()


@pytest.fixture(params=TASKS)
def run(request: pytest.FixtureRequest) -> Run:
    return assembled(request.param)


def test_workers_of_a_process_sleep_as_long_as_the_latest_of_those_that_are_asked(run: Run, monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("decentral.training.oracle.time.sleep", slept.append)

    class Delays(NamedTuple):
        def delays(self, first: int, last: int) -> np.ndarray:
            return np.array([[10 * first + i for i in range(1, K + 1)]])

    run.oracle.sleep = Sleep(Delays())  # type: ignore[arg-type]
    x = models(run)
    run.oracle(x)
    run.oracle(x[[0, 1]], [0, 1])
    run.oracle(x[[0, 2]], [0, 2])
    assert slept == [3, 12, 21]


def test_two_calls_in_a_step_are_gradients_of_two_batches(run: Run) -> None:
    x = models(run)
    first, second = run.oracle(x).clone(), run.oracle(x).clone()
    fresh = gradient(run, x, 0, 0, 0), gradient(run, x, 1, 1, 1)
    assert torch.equal(first, fresh[0])
    assert torch.equal(second, fresh[1])
    assert not torch.equal(first, second)
    assert run.oracle.draws.tolist() == [2, 2, 2]


def test_a_call_for_some_workers_draws_only_theirs(run: Run) -> None:
    x = models(run)
    everybody = gradient(run, x, 0, 0, 0)
    some = run.oracle(x[[2, 0]], [2, 0])
    assert run.oracle.draws.tolist() == [1, 0, 1]
    torch.testing.assert_close(some, everybody[[2, 0]])
    torch.testing.assert_close(run.oracle(x[1:2], [1]), everybody[1:2])
    assert run.oracle.draws.tolist() == [1, 1, 1]


def test_workers_that_are_not_equally_far_draw_what_is_next_for_each(run: Run) -> None:
    x = models(run)
    for worker, draws in ((0, 5), (2, 1)):
        for _ in range(draws):
            run.oracle(x[worker : worker + 1], [worker])
    mixed = run.oracle(x).clone()
    assert run.oracle.draws.tolist() == [6, 1, 2]
    for worker, draw in enumerate((5, 0, 1)):
        torch.testing.assert_close(mixed[worker], gradient(run, x, draw, draw, draw)[worker])
    assert torch.isfinite(run.oracle.take_losses().mean).all()


@pytest.mark.parametrize("name", ["one by one", "side by side"])
def test_workers_in_different_epochs_have_batches_of_different_sizes(name: str) -> None:
    run = assembled(name, "batch_size=100", "task.drop_last=false")
    assert SAMPLES_PER_EPOCH % 100 != 0
    x = models(run)
    last = int(run.problem.steps_per_epoch) - 1
    whole = [gradient(run, x, *[draw] * K) for draw in (last, 0, last + 3)]
    mixed = gradient(run, x, last, 0, last + 3)
    for worker in range(K):
        torch.testing.assert_close(mixed[worker], whole[worker][worker])


def test_the_loss_is_per_draw(run: Run) -> None:
    x = models(run)
    losses = [run.problem.gradient(x, np.full(K, draw))[0].double() for draw in range(3)]
    for _ in range(2):
        run.oracle(x)
    run.oracle(x[:1], [0])
    expected = torch.stack([sum(loss[0] for loss in losses) / 3, *[(losses[0][i] + losses[1][i]) / 2 for i in (1, 2)]])
    assert run.oracle.recent_loss() == pytest.approx(expected.mean().item())
    torch.testing.assert_close(run.oracle.take_losses().mean, expected)
    assert run.oracle.take_losses().mean.isnan().all(), "nothing was drawn since"


def test_a_checkpoint_knows_how_far_every_worker_is(run: Run) -> None:
    x = models(run)
    run.oracle(x)
    run.oracle.take_losses()
    run.oracle(x[1:2], [1])
    part = copy.deepcopy(to_part(run.stepper.state, run.problem, run.oracle, run.net))
    following = run.oracle(x).clone()
    resumed = assembled_again(run)
    from_parts([part], 1, resumed.stepper.state, resumed.problem, resumed.oracle, resumed.net)
    assert resumed.oracle.draws.tolist() == [1, 2, 1]
    torch.testing.assert_close(resumed.oracle(x), following)
    torch.testing.assert_close(resumed.oracle.take_losses().mean, run.oracle.take_losses().mean)


def assembled_again(run: Run) -> Run:
    with torch.no_grad():
        return assemble(run.config, run.world)


def test_a_state_of_no_kind_is_refused_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class State(NamedTuple):
        x: Rows  # noqa: F821
        compression_stats: Rows  # noqa: F821
        opt: list[Tensor]

    config = configure("num_workers=3", "task=quadratics", "algo=dpsgd", "topology=ring")
    monkeypatch.setattr(type(config.algo), "State", State)
    with pytest.raises(TypeError, match=r"State\.opt: annotate it as Rows"):
        assemble(config, World(0, 1, torch.device("cpu")))
