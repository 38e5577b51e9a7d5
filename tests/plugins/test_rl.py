"""task=rl: PPO against references of its own, gridworld, gymnasium, and what a rollout is for workers that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from gymnasium.wrappers.utils import RunningMeanStd
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from configure import configure
from conftest import Start
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.environments.environment import EnvironmentDescription
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.plugins.rl import rollouts as ppo
from decentral.plugins.rl.policies import PolicyOptimization
from decentral.registry import components
from decentral.training.assemble import Run, assemble

CPU = torch.device("cpu")
SMALL = (
    *("task=rl", "algo=dpsgd", "topology=ring", "optim=adam", "lr=1e-3", "num_workers=4", "alpha=1", "batch_size=16"),
    *("task.num_envs=4", "task.rollout_steps=8", "env.num_train=40", "env.num_test=10", "env.size=5", "env.view=3"),
    "env.max_steps=6",
    *("processes=1", "device=cpu"),
)
MLP = ("model=policy_mlp", "model.hidden=[8]")
LSTM = ("model=policy_lstm", "model.width=6")
CNN = ("model=policy_cnn", "model.channels=4", "model.width=8")
PENDULUM = ("env=gymnasium", "env.id=Pendulum-v1", "env.num_test=2", "env.num_train=40", *MLP)
CARTPOLE = ("env=gymnasium", "env.id=CartPole-v1", "env.num_test=2", "env.num_train=40", *MLP)
CASES = {"mlp": MLP, "cnn": CNN, "lstm": LSTM, "continuous": PENDULUM, "cartpole": CARTPOLE}


def settings(case: str) -> list[str]:
    own = CASES[case]
    grid = "env=gymnasium" not in own
    return [word for word in SMALL if grid or not word.startswith("env.")] + ["env=gridworld"] * grid + list(own)


def opened(case: str, *more: str) -> Run:
    config = configure(*settings(case), "precision=fp64", *more)
    with torch.no_grad():
        return assemble(prepare(config), World(0, 1, CPU))


def problem_of(run: Run) -> PolicyOptimization:
    assert isinstance(run.problem, PolicyOptimization)
    return run.problem


# -- PPO, as CleanRL documents it --------------------------------------------------------------------------------------


def reference_advantages(
    rewards: np.ndarray, values: np.ndarray, ended: np.ndarray, last: np.ndarray, gamma: float, lam: float
) -> np.ndarray:
    """sum over l of (gamma lambda)^l delta_{t+l}, up to the end of the episode; [T, E]."""
    T, E = rewards.shape
    found = np.zeros((T, E))
    for e in range(E):
        for t in range(T):
            weight = 1.0
            for u in range(t, T):
                following = last[e] if u == T - 1 else values[u + 1, e]
                delta = rewards[u, e] + (0 if ended[u, e] else gamma * following) - values[u, e]
                found[t, e] += weight * delta
                if ended[u, e]:
                    break
                weight *= gamma * lam
    return found


def reference_scaled(rewards: np.ndarray, ended: np.ndarray, gamma: float) -> np.ndarray:
    """Rewards [T, E] over the standard deviation of all discounted returns so far, as gymnasium counts them."""
    discounted, moments, found = 0.0, RunningMeanStd(), []
    for reward, end in zip(rewards, ended, strict=True):
        discounted = discounted * gamma + reward
        moments.update(discounted)
        found.append(np.clip(reward / np.sqrt(moments.var + 1e-8), -10, 10))
        discounted = discounted * (1 - end)
    return np.array(found)


def reference_loss(task, distribution, value: Tensor, target: Tensor, actions: Tensor) -> Tensor:
    """PPO's loss of a batch by torch's distributions, term by term; target: advantage, return, value, log-prob."""
    advantage, wanted, before, log_prob = target.unbind(-1)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    new, entropy = distribution.log_prob(actions), distribution.entropy()
    if isinstance(distribution, Normal):
        new, entropy = new.sum(-1), entropy.sum(-1)
    ratio = torch.exp(new - log_prob)
    policy = -torch.min(advantage * ratio, advantage * torch.clip(ratio, 1 - task.clip, 1 + task.clip)).mean()
    clipped = torch.max(torch.min(value, before + task.clip), before - task.clip)
    errors = torch.max((value - wanted) ** 2, (clipped - wanted) ** 2)
    return policy + task.value_weight * 0.5 * errors.mean() - task.entropy_weight * entropy.mean()


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_rollout_has_the_advantages_the_loss_and_the_gradient_of_an_independent_ppo(case: str) -> None:
    run = opened(case)
    problem, task = problem_of(run), run.config.task
    rollouts = problem.rollouts
    rewards, ended = [], []
    step = rollouts.running.step

    def recorded(places: Sequence[int], actions: np.ndarray, chances: np.ndarray):
        moves = step(places, actions, chances)
        rewards.append(moves.rewards.copy())
        ended.append(moves.ended.copy())
        return moves

    rollouts.running.step = recorded  # type: ignore[method-assign]
    x = run.stepper.models.clone()
    x += 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    for draw_ in range(problem.R):  # the first rollout, at other models than the one that counts
        problem.gradient(x, np.full(4, draw_))
    at_first = x.clone()
    problem.gradient(x, np.full(4, problem.R))
    moved = x + 0.02 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    losses, g = problem.gradient(moved, np.full(4, problem.R + 1))
    assert np.array(ended).any() or case in ("continuous",), "episodes end in the middle of it"
    for i in range(4):
        target = rollouts.targets[i]
        values = target[..., 2].numpy()
        got, over = np.array(rewards)[:, i], np.array(ended)[:, i]
        got = reference_scaled(got, over, task.gamma) if rollouts.normalises else got
        seen, memory, begins = rollouts.observe([i]), rollouts.memory[[i]], rollouts.begins[[i]]
        last = problem._acting(at_first[[i]], [i])(seen, memory, begins)[0][0, :, 0].numpy()
        second = slice(task.rollout_steps, None)
        wanted = reference_advantages(got[second], values, over[second], last, task.gamma, task.gae_lambda)
        np.testing.assert_allclose(target[..., 0].numpy(), wanted, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(target[..., 1], target[..., 0] + target[..., 2])
        row = moved[i].clone().requires_grad_()
        module = problem.models.modules[i]
        inputs, batch = rollouts.batch([i], np.array([problem.R + 1]))
        order = rollouts._order(i, problem.R + 1)
        known = (
            rollouts.targets[i].transpose(0, 1)[order] if problem.memory else rollouts.targets[i].flatten(0, 1)[order]
        )
        torch.testing.assert_close(batch[0, ..., 1:], known[..., 1:], rtol=0, atol=0)
        with torch.enable_grad():
            parameters = dict(zip(problem.models.names, problem.models.views(row), strict=True))
            outputs = torch.func.functional_call(module, parameters, (inputs[0],))
            if problem.info.continuous:
                mean, log_std = outputs[..., 1:].chunk(2, dim=-1)
                distribution, actions = Normal(mean, log_std.exp()), known[..., 4:]
            else:
                distribution, actions = Categorical(logits=outputs[..., 1:]), known[..., 4]
            loss = reference_loss(task, distribution, outputs[..., 0], known[..., :4], actions)
            (slope,) = torch.autograd.grad(loss, row)
        torch.testing.assert_close(losses[i], loss.detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(g[i], slope, rtol=1e-9, atol=1e-11)
    run.close()


def test_actions_are_drawn_with_the_probabilities_of_the_policy_and_their_logarithms_are_right() -> None:
    outputs = torch.tensor([5.0, 0.3, -1.0, 0.9], dtype=torch.float64).expand(20_000, 4)
    action, log_prob = ppo.sample(outputs, False, torch.rand(20_000, 1, dtype=torch.float64))
    p = outputs[0, 1:].softmax(0)
    shares = torch.bincount(action[:, 0].long(), minlength=3) / 20_000
    torch.testing.assert_close(shares.double(), p, rtol=0, atol=0.015)
    torch.testing.assert_close(log_prob, Categorical(p).log_prob(action[:, 0]))
    outputs = torch.tensor([5.0, 1.0, -2.0, 0.5, -0.5], dtype=torch.float64).expand(7, 5)
    action, log_prob = ppo.sample(outputs, True, torch.randn(7, 2, dtype=torch.float64))
    torch.testing.assert_close(log_prob, Normal(outputs[:, 1:3], outputs[:, 3:].exp()).log_prob(action).sum(-1))
    torch.testing.assert_close(ppo.read(outputs, True).log_prob(action), log_prob)


def test_the_recurrent_policy_is_torchs_lstm_that_forgets_where_an_episode_begins() -> None:
    data = EnvironmentDescription(shape=(3,), num_actions=2)
    module = components("models")["policy_lstm"](width=5).build(data).double()
    lstm = nn.LSTMCell(5, 5).double()
    with torch.no_grad():
        lstm.weight_ih.copy_(module.from_input.weight), lstm.weight_hh.copy_(module.from_memory)
        lstm.bias_ih.copy_(module.from_input.bias.uniform_()), lstm.bias_hh.zero_()
    B, T = 4, 6
    seen, begins = torch.randn(B, T, 3).double(), (torch.rand(B, T) < 0.3).double()
    h, c = torch.randn(2, B, 5).double()
    pieces = torch.cat([torch.cat([seen, begins[..., None]], -1).flatten(1), h, c], 1)
    wanted = []
    for t in range(T):
        kept = 1 - begins[:, t, None]
        h, c = lstm(module.body(seen[:, t]).tanh(), (h * kept, c * kept))
        wanted.append(module.head(h))
    torch.testing.assert_close(module(pieces), torch.stack(wanted, 1))


# -- what a draw is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_loop_and_batched_give_the_same_rollouts_and_gradients(case: str) -> None:
    found = []
    for execution in ("loop", "batched"):
        run = opened(case, f"execution={execution}")
        x = run.stepper.models
        for _ in range(2 * problem_of(run).R):
            g = run.oracle(x).clone()
            x -= 0.1 * g
        found.append((x.clone(), g, problem_of(run).rollouts.targets.clone()))
        run.close()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_rollout_is_collected_every_so_many_draws_with_the_model_of_that_time() -> None:
    run = opened("mlp")
    problem, x = problem_of(run), run.stepper.models.clone()
    assert problem.R == 4  # 2 passes over 32 frames in batches of 16
    numbers, targets = [], []
    for step in range(9):
        run.oracle(x + step)
        numbers.append(problem.rollouts.held.tolist())
        targets.append(problem.rollouts.targets.clone())
    assert numbers == [[step // 4] * 4 for step in range(9)]
    assert all(torch.equal(targets[step], targets[step // 4 * 4]) for step in range(9))
    orders = [problem.rollouts._order(0, step).tolist() for step in range(4)]
    for first in (0, 2):
        assert sorted(orders[first] + orders[first + 1]) == list(range(32)), "each frame once in a pass"
    assert orders[0] != orders[2]
    assert problem.rollouts.frames.tolist() == [96] * 4
    whole, *parts = (problem.average_statistics(x[0], *share)[:-2] for share in ((0, 1), (0, 2), (1, 2)))
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize("case", ["mlp", "lstm", "cartpole"])
def test_workers_that_are_not_equally_far_have_what_they_would_have_alone(case: str) -> None:
    together, alone = opened(case), opened(case)
    x = together.stepper.models.clone()
    x += 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    turns = [[0, 1, 2, 3], [2], [2, 0], [2], [2, 3], [1], [0, 1, 2, 3], [2, 1], [2]]
    last = {}
    for places in turns:
        g = together.oracle(x[places], places)
        last |= {place: row.clone() for place, row in zip(places, g, strict=True)}
    for worker in range(4):
        for _ in range(sum(worker in places for places in turns)):
            g = alone.oracle(x[worker : worker + 1], [worker])
        torch.testing.assert_close(g[0], last[worker], rtol=1e-10, atol=1e-12)
    assert together.oracle.draws.tolist() == [3, 4, 8, 3]


@pytest.mark.parametrize(
    "case", ["lstm", *(pytest.param(one, marks=pytest.mark.slow) for one in ("cnn", "continuous"))]
)
def test_a_run_resumes_bit_for_bit_in_the_middle_of_a_rollout(start: Start, case: str) -> None:
    overrides = [*settings(case), "steps=15", "evaluation.every_epochs=1", "checkpoint_every_s=0", "trace=true"]
    overrides.append("task.normalise=true")
    straight = start(*overrides, directory="straight")
    start(*overrides, interrupt_at=6)
    again = start(*overrides)
    assert np.array_equal(again.iterates, straight.iterates)
    assert again.rows == straight.rows


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_processes(start: Start) -> None:
    overrides = [*settings("lstm"), "precision=fp64", "steps=15", "evaluation.every_epochs=1", "checkpoint_every_s=0"]
    overrides = [word for word in overrides if not word.startswith("processes=")] + ["trace=true"]
    straight = start(*overrides, directory="straight")
    start(*overrides, interrupt_at=6, processes=2)
    again = start(*overrides)
    np.testing.assert_allclose(again.iterates, straight.iterates, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "algo", ["algo=wagma algo.tau=3", pytest.param("algo=relaysgd topology=chain", marks=pytest.mark.slow)]
)
def test_methods_of_every_kind_train_in_a_virtual_cluster_and_resume_bit_for_bit(start: Start, algo: str) -> None:
    heavy = (
        *("cluster=machines", "cluster.compute.distribution=rollouts", "cluster.compute.mean_s=0.1"),
        *("cluster.compute.rollout_every=4", "cluster.compute.residence=2", "cluster.compute.floor_s=0.3"),
        *("cluster.compute.index=1.1", "cluster.compute.scale_s=0.1", "cluster.compute.cap_s=3"),
        *("cluster.links.latency_s=0.01", "cluster.links.bandwidth_gbps=1", "cluster.links.copy_gbps=1"),
    )
    overrides = [*settings("mlp"), *algo.split(), *heavy, "steps=12", "evaluation.every_epochs=1"]
    overrides.append("checkpoint_every_s=0")
    straight = start(*overrides, directory="straight")
    assert straight.facts["simulated_s"] > 0.1 * 12 + 0.3 * 3
    start(*overrides, interrupt_at=6)
    assert start(*overrides).rows == straight.rows


# -- gymnasium ---------------------------------------------------------------------------------------------------------


def test_any_id_of_gymnasium_is_an_environment() -> None:
    config = compose(["task=rl", "env=CartPole-v1", "env.num_test=3", "num_workers=2", "topology=chain"])
    assert (config.env.name, config.env.id, config.env.num_test) == ("gymnasium", "CartPole-v1", 3)
    assert config.model.name == "policy_mlp" and config.optim.name == "adam", "as the task usually has it"
    assert config.env.inspect().shape == (4,) and config.env.inspect().num_outputs == 3


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("env=CartPol-v1",), r"env=CartPol-v1 .*Did you mean 'CartPole-v1'"),
        (("env=grid",), r"env=grid .*no 'grid'"),
        (("env.view=4",), r"env\.view=4 .*odd number"),
        (("batch_size=48",), r"batch_size=48 does not divide the 256 frames .*batch_size=32"),
        (("model=policy_lstm", "batch_size=16"), r"batch_size=16 splits episode segments, .*task\.rollout_steps=32"),
        (("env=CartPole-v1", "model=policy_cnn"), r"model=policy_cnn needs images"),
        (("env=CartPole-v1", "env.vary=[mood]"), r"env\.vary has 'mood'"),
        (("model=cnn",), r"model=cnn needs images, but .*policy_cnn"),
        (("task.gamma=1.5",), r"task\.gamma=1\.5"),
        (("data=cifar10",), r"data=cifar10 does not apply to task=rl, which uses env= instead.*task=images"),
        (("env=CartPole-v1", "env.vary=[length]", "env.spread=1e300"), r"env\.spread=1e\+300 .*from 0 to 10"),
        (("env=habitat",), r"env=habitat needs habitat.*install"),
        (("cluster=rl", "cluster.compute.rollout_every=3"), r"cluster\.compute\.rollout_every=3 .*rollout_every=4"),
        (("cluster=rl", "accumulate=2"), r"accumulate=2 cannot be used with .*=rollouts"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as found:
        compose(["task=rl", *overrides])
    assert "\n" not in str(found.value)


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_worker_solves_a_known_gridworld(start: Start) -> None:
    """Rooms without corridors, which are the same in every run: SPL above 0.9 on those that it has not seen."""
    run = start(
        *("task=rl", "algo=allreduce", "num_workers=1", "optim=adam", "lr=1e-3", "batch_size=256", "partition=iid"),
        *("model=policy_mlp", "task.num_envs=64", "epochs=60", "evaluation.every_epochs=60"),
        *("env.size=5", "env.layouts=[open,rooms]", "env.num_test=100"),
    )
    assert run.last("SPL", "averaged") > 0.9
    assert run.last("frames", 0) == 60 * 64 * 32
    assert math.isfinite(run.last("loss", "mean"))
