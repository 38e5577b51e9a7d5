"""PPO: advantages, the loss, sampling of actions; rollouts of environments, and their batches.

Schulman et al. 2017 (arXiv:1707.06347), in the details of CleanRL's `ppo.py` and `ppo_continuous_action.py` (Huang et
al., JMLR 23(274), 2022). Shapes: r workers, E environments each, T steps of a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.environments.environment import EnvironmentDescription, Running
from decentral.randomness import numpy_generator

if TYPE_CHECKING:
    from decentral.plugins.rl.tasks.rl import RL

COLUMNS = 4
"""Leading columns of a target: old advantage, return, value and log-probability; the action follows."""
_LOG_2PI = math.log(2 * math.pi)


class Policy(NamedTuple):
    """A policy's output for observations [...]."""

    value: Tensor  # [...]
    log_prob: Callable[[Tensor], Tensor]  # actions [..., columns] -> [...]
    entropy: Tensor  # [...]


def read(outputs: Tensor, continuous: bool) -> Policy:
    """Interpret outputs [..., num_outputs] as a policy: see `models.policy.Policy`."""
    value, action = outputs[..., 0], outputs[..., 1:]
    if not continuous:
        log_p = action.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return Policy(value, lambda a: log_p.gather(-1, a.long())[..., 0], entropy)
    mean, log_std = action.chunk(2, dim=-1)

    def log_prob(a: Tensor) -> Tensor:
        return (-((a - mean) / log_std.exp()).square() / 2 - log_std - _LOG_2PI / 2).sum(-1)

    return Policy(value, log_prob, (log_std + (1 + _LOG_2PI) / 2).sum(-1))


def sample(outputs: Tensor, continuous: bool, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample actions [..., columns] of the policy, and return them with their log-probabilities [...].

    noise   [..., columns]: uniform in [0, 1), or standard normal; a discrete action a is the smallest with P(0) + ... +
            P(a) > noise
    """
    if continuous:
        mean, log_std = outputs[..., 1:].chunk(2, dim=-1)
        return mean + log_std.exp() * noise, -(noise.square() / 2 + log_std + _LOG_2PI / 2).sum(-1)
    log_p = outputs[..., 1:].log_softmax(-1)
    total = log_p.exp().cumsum_(-1)
    action = (total[..., :-1] <= noise).sum(-1, keepdim=True)
    return action.to(outputs.dtype), log_p.gather(-1, action)[..., 0]


def likeliest(outputs: Tensor, continuous: bool) -> Tensor:
    """Return the likeliest actions [..., columns]."""
    if continuous:
        return outputs[..., 1:].chunk(2, dim=-1)[0]
    return outputs[..., 1:].argmax(-1, keepdim=True).to(outputs.dtype)


def advantages(
    rewards: Tensor, values: Tensor, ended: Tensor, last_value: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Return generalized advantage estimates [..., T, E] (Schulman et al., ICLR 2016), from the last step to the first:

        delta_t = r_t + gamma (1 - d_t) V_{t+1} - V_t;    A_t = delta_t + gamma lambda (1 - d_t) A_{t+1}

    rewards, values and ended (d_t: whether the episode was over after step t) [..., T, E]; last_value V_T [..., E].
    """
    estimates = torch.empty_like(values)
    following, ahead = torch.zeros_like(last_value), last_value
    for t in reversed(range(values.shape[-2])):
        goes_on = 1 - ended[..., t, :]
        delta = rewards[..., t, :] + gamma * goes_on * ahead - values[..., t, :]
        following = delta + gamma * gae_lambda * goes_on * following
        estimates[..., t, :] = following
        ahead = values[..., t, :]
    return estimates


@dataclass(frozen=True)
class PPOLoss:
    """The loss of outputs [..., num_outputs] for targets [..., COLUMNS + action], in the form that `gradients` expect:

        max(-A w, -A clip(w, 1 - c, 1 + c)) + c_v / 2 max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) - c_e H

    w = exp(log pi(a) - log pi_old(a)), H the entropy of pi; without `clips_value` the second term is c_v / 2 (V - R)^2.
    """

    continuous: bool
    clip: float  # c
    value_weight: float  # c_v
    entropy_weight: float  # c_e
    clips_value: bool

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
        """Return the mean, the sum, or with reduction="none" the loss of each of [...]."""
        advantage, wanted, old_value, old_log_prob, *_ = targets.unbind(-1)
        policy, c = read(outputs, self.continuous), self.clip
        ratio = (policy.log_prob(targets[..., COLUMNS:]) - old_log_prob).exp()
        surrogate = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - c, 1 + c))
        missed = (policy.value - wanted).square()
        if self.clips_value:
            moved = (policy.value - old_value).clamp(-c, c)
            missed = torch.maximum(missed, (old_value + moved - wanted).square())
        loss = surrogate + self.value_weight / 2 * missed - self.entropy_weight * policy.entropy
        return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


_EPSILON = 1e-8
_MOST = 10.0  # of what is normalized


class Scale(NamedTuple):
    """The standardization of observations."""

    mean: np.ndarray  # [*shape]
    std: np.ndarray  # [*shape]

    def __call__(self, observed: np.ndarray) -> np.ndarray:
        """Standardize observations [..., *shape], clipped at 10."""
        return np.clip((observed - self.mean) / self.std, -_MOST, _MOST).astype(np.float32)


Acting = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function of policies: (observations [r, E, *shape], memory [r, E, M], whether episodes begin [r, E]) -> outputs [r,
E, num_outputs], and the next memory."""


class Rollouts:
    """The newest rollout of each of k workers, and the state of their environments."""

    def __init__(
        self,
        running: Running,
        task: RL,
        info: EnvironmentDescription,
        workers: range,
        *,
        batch_size: int,
        memory: int,
        seed: int,
        dtype: torch.dtype,
        normalises: bool,
    ) -> None:
        """Create the rollouts; `memory` is the number of values that a policy remembers (0: batches are single frames),
        `normalises` scales rewards."""
        self.running, self.task, self.workers, self.seed, self.dtype = running, task, workers, seed, dtype
        self.batch_size, self.remembers, self.continuous, self.normalises = (
            batch_size,
            memory > 0,
            info.continuous,
            normalises,
        )
        self.columns = info.num_actions if info.continuous else 1
        """Numbers per action."""
        self.scale: Scale | None = None
        k, T, E = len(workers), task.rollout_steps, task.num_envs
        self.held = np.full(k, -1, dtype=np.int64)
        """Number of the rollout that each worker holds; -1 for none: [k]."""
        self.frames = np.zeros(k, dtype=np.int64)
        """Number of frames that each worker has taken: [k]."""
        self.observations = torch.zeros(k, T, E, *info.shape)
        self.targets = torch.zeros(k, T, E, COLUMNS + self.columns, dtype=dtype)
        self.began = torch.zeros(k, T, E, dtype=dtype)
        """True if an episode begins with this observation."""
        self.remembered = torch.zeros(k, E, memory, dtype=dtype)
        """Memory before the first step."""
        self.memory = torch.zeros(k, E, memory, dtype=dtype)
        self.begins = torch.ones(k, E, dtype=dtype)
        """`memory` is the policies' memory after the last step; `begins` is true if an episode begins then."""
        self.returns = np.zeros((k, E))
        self.spread = np.tile(np.array([0.0, 1.0, 1e-4]), (k, 1))
        """`returns` are the discounted returns so far; `spread` has their running mean, variance and count."""
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def collect(self, acting: Acting, places: Sequence[int], numbers: np.ndarray) -> None:
        """Collect rollouts `numbers` [r] of these workers with the policies `acting`."""
        rows, r, T, E = list(places), len(places), self.task.rollout_steps, self.task.num_envs
        if first := [i for i in rows if self.held[i] < 0]:
            drawn = [numpy_generator(self.seed, "first episodes", self.workers[i]) for i in first]
            self.running.begin(first, np.stack([each.random((E, Running.num_chances)) for each in drawn]))
        noise, chances = self._drawn(rows, numbers)
        whole = r == len(self.workers) and rows == list(range(r))
        observations = self.observations if whole else self.observations[rows]
        began, memory, begins = self.began.new_empty(r, T, E), self.memory[rows], self.begins[rows]
        self.remembered[rows] = memory
        values, log_probs = began.new_empty(2, r, T, E)
        actions = began.new_empty(r, T, E, self.columns)
        rewards, ended = np.empty((r, T, E)), np.empty((r, T, E))
        for t in range(T):
            observations[:, t], began[:, t] = self.observe(rows), begins
            outputs, memory = acting(observations[:, t], memory, begins)
            action, log_probs[:, t] = sample(outputs, self.continuous, noise[:, t])
            values[:, t], actions[:, t] = outputs[..., 0], action
            taken = action.double().numpy() if self.continuous else action[..., 0].long().numpy()
            moves = self.running.step(rows, taken, chances[:, t])
            rewards[:, t] = self._scaled(rows, moves.rewards, moves.ended) if self.normalises else moves.rewards
            ended[:, t] = moves.ended
            begins = torch.from_numpy(moves.ended).to(self.dtype)
        last, _ = acting(self.observe(rows), memory, begins)
        received, over = (torch.from_numpy(each).to(self.dtype) for each in (rewards, ended))
        advantage = advantages(received, values, over, last[..., 0], self.task.gamma, self.task.gae_lambda)
        known = torch.stack([advantage, advantage + values, values, log_probs], dim=-1)
        self.targets[rows] = torch.cat([known, actions], dim=-1)
        if not whole:
            self.observations[rows] = observations
        self.began[rows], self.memory[rows], self.begins[rows] = began, memory, begins
        self.held[rows] = numbers
        self.frames[rows] += T * E

    def batch(self, places: Sequence[int], draws: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the batches [r, B, ...] that these workers draw from their rollouts, and their targets."""
        rows = torch.tensor(list(places))[:, None]
        order = torch.stack([self._order(i, int(draw)) for i, draw in zip(places, draws, strict=True)])
        if self.remembers:
            pieces = self.observations.flatten(3).transpose(1, 2)[rows, order].to(self.dtype)
            begun = self.began.transpose(1, 2)[rows, order]
            steps = torch.cat([pieces, begun[..., None]], dim=-1).flatten(2)
            inputs = torch.cat([steps, self.remembered[rows, order]], dim=-1)
            targets = self.targets.transpose(1, 2)[rows, order]
        else:
            inputs = self.observations.flatten(1, 2)[rows, order].to(self.dtype)
            targets = self.targets.flatten(1, 2)[rows, order]
        advantage = targets[..., 0].flatten(1)
        if advantage.shape[1] > 1:
            std, mean = torch.std_mean(advantage, dim=1, keepdim=True)
            targets[..., 0] = ((advantage - mean) / (std + _EPSILON)).view(targets.shape[:-1])
        return inputs, targets

    def observe(self, places: Sequence[int]) -> Tensor:
        """Return these workers' standardized observations [r, E, *shape]."""
        seen = self.running.observe(places)
        return torch.from_numpy(seen if self.scale is None else self.scale(seen))

    def state(self, i: int) -> dict[str, Any]:
        """Return a worker's state; see `Problem.state`."""
        if self.held[i] < 0:
            return {"held": -1}
        tensors = {name: getattr(self, name)[i].clone() for name in _TENSORS}
        numbers = {"returns": self.returns[i].tolist(), "spread": self.spread[i].tolist()}
        counts = {"held": int(self.held[i]), "frames": int(self.frames[i])}
        return {**tensors, **numbers, **counts, "environments": self.running.state(i)}

    def load_state(self, i: int, state: dict[str, Any]) -> None:
        """Restore a worker's state."""
        self.held[i] = state["held"]
        self.frames[i] = state.get("frames", 0)
        if self.held[i] < 0:
            self.begins[i], self.memory[i] = 1, 0
            self.returns[i], self.spread[i] = 0, (0, 1, 1e-4)
            return
        for name in _TENSORS:
            getattr(self, name)[i] = state[name]
        self.returns[i], self.spread[i] = state["returns"], state["spread"]
        self.running.load_state(i, state["environments"])

    def _drawn(self, rows: list[int], numbers: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Draw the noise of actions [r, T, E, columns] and the random numbers of episodes [r, T, E, 3]."""
        noise, chances, shape = [], [], (self.task.rollout_steps, self.task.num_envs)
        for i, number in zip(rows, numbers.tolist(), strict=True):
            random = numpy_generator(self.seed, "rollout", self.workers[i], number)
            draw = random.standard_normal if self.continuous else random.random
            noise.append(draw((*shape, self.columns)))
            chances.append(random.random((*shape, Running.num_chances)))
        return torch.from_numpy(np.stack(noise)).to(self.dtype), np.stack(chances)

    def _order(self, i: int, draw: int) -> Tensor:
        """Return the frames (or environments, if policies remember) in this batch of a worker's rollout."""
        task = self.task
        each = self.batch_size // task.rollout_steps if self.remembers else self.batch_size
        pass_number, batch = divmod(draw, task.frames // self.batch_size)
        known, order = self._orders.get(i, (-1, torch.empty(0)))
        if known != pass_number:
            number = task.num_envs if self.remembers else task.frames
            random = numpy_generator(self.seed, "batches", self.workers[i], pass_number)
            order = torch.from_numpy(random.permutation(number))
            self._orders[i] = pass_number, order
        return order[batch * each : (batch + 1) * each]

    def _scaled(self, rows: list[int], rewards: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Divide rewards [r, E] by the running standard deviation of the discounted return, updated with them.

        The moments are those of gymnasium's `NormalizeReward`, of a worker's environments together.
        """
        returns = self.returns[rows] * self.task.gamma + rewards
        mean, variance, count = self.spread[rows].T
        batch, found, more = returns.mean(1), returns.var(1), returns.shape[1]
        total, apart = count + more, batch - mean
        squares = variance * count + found * more + apart**2 * count * more / total
        self.spread[rows] = np.stack([mean + apart * more / total, squares / total, total], axis=1)
        self.returns[rows] = returns * (1 - ended)
        return np.clip(rewards / np.sqrt(squares / total + _EPSILON)[:, None], -_MOST, _MOST)


_TENSORS = ("observations", "targets", "began", "remembered", "memory", "begins")
