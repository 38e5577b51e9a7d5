"""Many walks through mazes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from decentral.environments.environment import Moves, Running
from decentral.environments.grids.mazes import Mazes


class Rewards:
    """What a step is worth: progress * (steps that are left less than before) - cost, and 1 at the goal."""

    def __init__(self, progress: float, cost: float) -> None:
        self.progress, self.cost = progress, cost


class Walks(Running):
    """k x E walks, each in one of the mazes, from a start to a goal; see `env=gridworld` for what they are.

    The chances of an episode are those of its maze, its start and its goal.
    """

    def __init__(
        self,
        mazes: Mazes,
        numbers: np.ndarray,
        own: Sequence[np.ndarray],
        num_envs: int,
        rewards: Rewards,
        max_steps: int,
    ) -> None:
        """`numbers` are what the mazes are called, in order; `own`, for each of k workers, places of its among them."""
        self.numbers = numbers
        self.mazes, self.own, self.rewards, self.max_steps = mazes, own, rewards, max_steps
        self.num_own = np.array([len(each) for each in own])
        self.owned = np.stack([np.resize(each, self.num_own.max()) for each in own])
        k, cells = len(own), mazes.distance.shape[1]
        self.num_cells, self.view = cells, mazes.seen.shape[-1]
        self.maze, self.at, self.goal, self.steps, self.shortest, self.left = np.zeros((6, k, num_envs), dtype=np.int64)
        self.after, self.distance = mazes.after.reshape(-1), mazes.distance.reshape(-1)
        self.seen = mazes.seen.reshape(-1, self.view, self.view)
        offset = np.arange(cells)
        self.row, self.column = offset // mazes.size, offset % mazes.size

    def begin(self, places: Sequence[int], chances: np.ndarray) -> None:
        """See `Running`."""
        rows = np.asarray(places)
        self._begin(rows, np.ones(chances.shape[:2], dtype=bool), chances)

    def _begin(self, rows: np.ndarray, which: np.ndarray, chances: np.ndarray) -> None:
        """New episodes in those environments [r, E] of these workers that `which` says."""
        r, e = np.nonzero(which)
        i, (first, second, third) = rows[r], chances[r, e].T
        maze = self.owned[i, (first * self.num_own[i]).astype(np.int64)]
        free = self.mazes.num_free[maze]
        start = (second * free).astype(np.int64)
        goal = (third * (free - 1)).astype(np.int64)
        goal += goal >= start
        at, to = self.mazes.free[maze, start].astype(np.int64), self.mazes.free[maze, goal].astype(np.int64)
        way = self.distance[(maze * self.num_cells + at) * self.num_cells + to]
        self.maze[i, e], self.at[i, e], self.goal[i, e] = maze, at, to
        self.steps[i, e], self.shortest[i, e], self.left[i, e] = 0, way, way

    def observe(self, places: Sequence[int]) -> np.ndarray:
        """Two channels [r, E, 2, V, V]: walls, and the goal, at the border of the window where it is outside."""
        maze, at, goal = self.maze[places], self.at[places], self.goal[places]
        (r, E), V = at.shape, self.view
        found = np.zeros((r, E, 2, V, V), dtype=np.float32)
        found[:, :, 0] = self.seen[maze * self.num_cells + at]
        down = np.clip(self.row[goal] - self.row[at], -(V // 2), V // 2) + V // 2
        right = np.clip(self.column[goal] - self.column[at], -(V // 2), V // 2) + V // 2
        pixels = found.reshape(r * E, 2 * V * V)
        pixels[np.arange(r * E), (V * V + down * V + right).ravel()] = 1.0
        return found

    def step(self, places: Sequence[int], actions: np.ndarray, chances: np.ndarray) -> Moves:
        """See `Running`; facts are success weighted by path length, and success."""
        rows = np.asarray(places)
        maze, at, goal = self.maze[rows], self.at[rows], self.goal[rows]
        cell = maze * self.num_cells + at
        moved = self.after[cell * 4 + actions].astype(np.int64)
        left = self.distance[(cell - at + moved) * self.num_cells + goal].astype(np.int64)
        steps = self.steps[rows] + 1
        arrived = left == 0
        ended = arrived | (steps >= self.max_steps)
        rewards = self.rewards.progress * (self.left[rows] - left) - self.rewards.cost + arrived
        self.at[rows], self.steps[rows], self.left[rows] = moved, steps, left
        facts = np.zeros((*ended.shape, 2))
        if ended.any():
            shortest = self.shortest[rows]
            facts[..., 0] = np.where(arrived, shortest / np.maximum(shortest, steps), 0.0)
            facts[..., 1] = arrived
            self._begin(rows, ended, chances)
        return Moves(rewards, ended, facts)

    def state(self, place: int) -> Any:
        """The numbers that describe each walk."""
        found = {name: getattr(self, name)[place].tolist() for name in _NUMBERS}
        return found | {"maze": self.numbers[self.maze[place]].tolist()}

    def load_state(self, place: int, state: Any) -> None:
        """See `Running`."""
        for name in _NUMBERS:
            getattr(self, name)[place] = state[name]
        self.maze[place] = np.searchsorted(self.numbers, state["maze"])


_NUMBERS = ("at", "goal", "steps", "shortest", "left")
