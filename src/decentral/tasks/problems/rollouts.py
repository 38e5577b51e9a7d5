"""What workers have seen, done and got: rollouts of their environments, and the batches that they are cut into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.environments.environment import Running
from decentral.randomness import numpy_generator
from decentral.tasks.problems import ppo

_EPSILON = 1e-8
_MOST = 10.0  # of what is normalised


class Scale(NamedTuple):
    """How observations are standardised."""

    mean: np.ndarray  # [*shape]
    std: np.ndarray  # [*shape]

    def __call__(self, observed: np.ndarray) -> np.ndarray:
        """[..., *shape], cut off at 10."""
        return np.clip((observed - self.mean) / self.std, -_MOST, _MOST).astype(np.float32)


Acting = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""What policies do: (observations [r, E, *shape], memory [r, E, M], whether episodes begin [r, E]) -> outputs
[r, E, num_outputs], and the memory that follows."""


class Settings(NamedTuple):
    """How long rollouts are, and what is made of them."""

    num_envs: int
    num_steps: int
    passes: int
    batch_size: int
    gamma: float
    gae_lambda: float
    continuous: bool
    num_actions: int
    memory: int
    """Numbers that a policy remembers; 0: batches are single frames."""
    normalises_rewards: bool

    @property
    def columns(self) -> int:
        """Numbers of an action."""
        return self.num_actions if self.continuous else 1

    @property
    def batches_per_pass(self) -> int:
        """Batches that a rollout is cut into."""
        return self.num_envs * self.num_steps // self.batch_size


class Rollouts:
    """The newest rollout of each of k workers, and where their environments are."""

    def __init__(
        self, running: Running, shape: tuple[int, ...], s: Settings, workers: range, seed: int, dtype: torch.dtype
    ) -> None:
        self.running, self.s, self.workers, self.seed, self.dtype = running, s, workers, seed, dtype
        self.scale: Scale | None = None
        k, T, E = len(workers), s.num_steps, s.num_envs
        self.held = np.full(k, -1, dtype=np.int64)
        """[k]: the number of the rollout that each worker holds; -1 for none."""
        self.frames = np.zeros(k, dtype=np.int64)
        """[k]: how many frames each has taken."""
        self.observations = torch.zeros(k, T, E, *shape)
        self.targets = torch.zeros(k, T, E, ppo.COLUMNS + s.columns, dtype=dtype)
        self.began = torch.zeros(k, T, E, dtype=dtype)
        """Whether an episode begins with this observation."""
        self.remembered = torch.zeros(k, E, s.memory, dtype=dtype)
        """The memory before the first step."""
        self.memory = torch.zeros(k, E, s.memory, dtype=dtype)
        self.begins = torch.ones(k, E, dtype=dtype)
        """The memory after the last step, and whether an episode begins then."""
        self.returns = np.zeros((k, E))
        self.spread = np.tile(np.array([0.0, 1.0, 1e-4]), (k, 1))
        """Discounted returns so far; their running mean, variance and count."""
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def collect(self, acting: Acting, places: Sequence[int], numbers: np.ndarray) -> None:
        """Rollouts `numbers` [r] of these workers, who act as they are told to."""
        s, rows, r = self.s, list(places), len(places)
        T, E = s.num_steps, s.num_envs
        self._begin_first([i for i in rows if self.held[i] < 0])
        noise, chances = self._drawn(rows, numbers)
        whole = r == len(self.workers) and rows == list(range(r))
        observations = self.observations if whole else self.observations[rows]
        began, memory, begins = self.began.new_empty(r, T, E), self.memory[rows], self.begins[rows]
        self.remembered[rows] = memory
        values, log_probs = began.new_empty(2, r, T, E)
        actions = began.new_empty(r, T, E, s.columns)
        rewards, ended = np.empty((r, T, E)), np.empty((r, T, E))
        for t in range(T):
            observations[:, t], began[:, t] = self.observe(rows), begins
            outputs, memory = acting(observations[:, t], memory, begins)
            action, log_probs[:, t] = ppo.sample(outputs, s.continuous, noise[:, t])
            values[:, t], actions[:, t] = outputs[..., 0], action
            taken = action.double().numpy() if s.continuous else action[..., 0].long().numpy()
            moves = self.running.step(rows, taken, chances[:, t])
            rewards[:, t] = self._scaled(rows, moves.rewards, moves.ended) if s.normalises_rewards else moves.rewards
            ended[:, t] = moves.ended
            begins = torch.from_numpy(moves.ended).to(self.dtype)
        last, _ = acting(self.observe(rows), memory, begins)
        received, over = (torch.from_numpy(each).to(self.dtype) for each in (rewards, ended))
        advantage = ppo.advantages(received, values, over, last[..., 0], s.gamma, s.gae_lambda)
        known = torch.stack([advantage, advantage + values, values, log_probs], dim=-1)
        self.targets[rows] = torch.cat([known, actions], dim=-1)
        if not whole:
            self.observations[rows] = observations
        self.began[rows], self.memory[rows], self.begins[rows] = began, memory, begins
        self.held[rows] = numbers
        self.frames[rows] += T * E

    def batch(self, places: Sequence[int], draws: np.ndarray) -> tuple[Tensor, Tensor]:
        """The batches [r, B, ...] that these workers draw from the rollouts that they hold, and their targets."""
        s, rows = self.s, torch.tensor(list(places))[:, None]
        order = torch.stack([self._order(i, int(draw)) for i, draw in zip(places, draws, strict=True)])
        if s.memory:
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
        """What these workers see [r, E, *shape], standardised."""
        seen = self.running.observe(places)
        return torch.from_numpy(seen if self.scale is None else self.scale(seen))

    def state(self, i: int) -> dict[str, Any]:
        """What a worker has to remember; see `Problem.state`."""
        if self.held[i] < 0:
            return {"held": -1}
        tensors = {name: getattr(self, name)[i].clone() for name in _TENSORS}
        numbers = {"returns": self.returns[i].tolist(), "spread": self.spread[i].tolist()}
        counts = {"held": int(self.held[i]), "frames": int(self.frames[i])}
        return {**tensors, **numbers, **counts, "environments": self.running.state(i)}

    def load_state(self, i: int, state: dict[str, Any]) -> None:
        """Go on from there."""
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

    def _begin_first(self, rows: list[int]) -> None:
        """The first episodes of these workers."""
        if not rows:
            return
        shape = self.s.num_envs, Running.num_chances
        drawn = [numpy_generator(self.seed, "first episodes", self.workers[i]).random(shape) for i in rows]
        self.running.begin(rows, np.stack(drawn))

    def _drawn(self, rows: list[int], numbers: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """The noise of actions [r, T, E, columns] and the chances of episodes [r, T, E, 3]."""
        s = self.s
        noise, chances = [], []
        for i, number in zip(rows, numbers.tolist(), strict=True):
            random = numpy_generator(self.seed, "rollout", self.workers[i], number)
            shape = s.num_steps, s.num_envs
            noise.append(random.standard_normal((*shape, s.columns)) if s.continuous else random.random((*shape, 1)))
            chances.append(random.random((*shape, Running.num_chances)))
        return torch.from_numpy(np.stack(noise)).to(self.dtype), np.stack(chances)

    def _order(self, i: int, draw: int) -> Tensor:
        """The frames (or environments, where policies remember) in this batch of a worker's rollout."""
        s = self.s
        each = s.batch_size // s.num_steps if s.memory else s.batch_size
        pass_number, batch = divmod(draw, s.batches_per_pass)
        known, order = self._orders.get(i, (-1, torch.empty(0)))
        if known != pass_number:
            number = s.num_envs if s.memory else s.num_envs * s.num_steps
            random = numpy_generator(self.seed, "batches", self.workers[i], pass_number)
            order = torch.from_numpy(random.permutation(number))
            self._orders[i] = pass_number, order
        return order[batch * each : (batch + 1) * each]

    def _scaled(self, rows: list[int], rewards: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Rewards [r, E] over the running standard deviation of the discounted return, which they are counted for.

        The moments are those of gymnasium's `NormalizeReward`, of a worker's environments together.
        """
        returns = self.returns[rows] * self.s.gamma + rewards
        mean, variance, count = self.spread[rows].T
        batch, found, more = returns.mean(1), returns.var(1), returns.shape[1]
        total, apart = count + more, batch - mean
        squares = variance * count + found * more + apart**2 * count * more / total
        self.spread[rows] = np.stack([mean + apart * more / total, squares / total, total], axis=1)
        self.returns[rows] = returns * (1 - ended)
        return np.clip(rewards / np.sqrt(squares / total + _EPSILON)[:, None], -_MOST, _MOST)


_TENSORS = ("observations", "targets", "began", "remembered", "memory", "begins")
