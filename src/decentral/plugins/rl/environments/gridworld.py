"""Navigation to a goal through mazes with known shortest paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from decentral.environments.environment import Environment, EnvironmentDescription, Running
from decentral.errors import ConfigError
from decentral.plugins.rl.mazes import LAYOUTS, Mazes, Walks, draw
from decentral.settings import setting
from decentral.store.metrics import Metric

_TESTS_AT_ONCE = 4096  # walks


@dataclass
class Gridworld(Environment):
    """Navigation to a goal in an unseen maze, with a local view; nothing to install.

    A scene is a maze of size x size cells, of one of several kinds; its free cells are connected. An episode begins at
    a random cell with another random cell as its goal, and ends at the goal or after `max_steps` steps. Actions are a
    step north, east, south and west; a step into a wall has no effect. Observations are two channels of view x view
    cells around the agent: walls, and the goal, projected to the border of the window if it is farther away. In
    training

        reward = progress (d before - d after) - step_cost,    and 1 more at the goal,

    where d is the shortest-path distance to the goal, as in DD-PPO (Wijmans et al., ICLR 2020). The metric of an
    episode with a shortest path of l steps that took p steps is its success weighted by path length (Anderson et
    al. 2018, arXiv:1807.06757), which is exact because l is known; p counts steps into walls:

        SPL = success * l / max(l, p)

    size        side of a maze, in cells
    view        side of the window, in cells; odd
    layouts     kinds of mazes: open, blocks (single blocked cells), rooms (four, with doors), bars (walls with a gap),
                maze (corridors); they take turns, and `partition` distributes them over the workers
    num_train   number of mazes for training
    num_test    number of other mazes for testing, with one episode each
    max_steps   maximum length of an episode (null: 5 size)
    progress    see above
    step_cost   see above
    maze_seed   seed of the mazes and of the test episodes, independent of the run's seed
    """

    name: str = "gridworld"
    size: int = setting(9, at_least=4, at_most=32, hint="all shortest paths of a maze are kept")
    view: int = setting(7, at_least=3)
    layouts: list[str] = setting(list(LAYOUTS), choices=tuple(LAYOUTS))
    num_train: int = setting(1000, at_least=1)
    num_test: int = setting(200, at_least=1)
    max_steps: int | None = setting(None, at_least=1)
    progress: float = setting(0.2, at_least=0)
    step_cost: float = setting(0.02, at_least=0)
    maze_seed: int = 0
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("test", "SPL", larger_is_better=True),
        Metric("test", "success", larger_is_better=True, unit="%"),
    )

    def __post_init__(self) -> None:
        if self.view % 2 == 0:
            raise ConfigError(
                f"env.view={self.view} is even, without a middle cell: use an odd number, such as {self.view + 1}."
            )
        if not self.layouts:
            raise ConfigError(f"env.layouts=[] is empty: list kinds of mazes, such as [{','.join(LAYOUTS)}].")

    def inspect(self) -> EnvironmentDescription:
        """Return the description: two channels, four actions."""
        return EnvironmentDescription(
            shape=(2, self.view, self.view), num_actions=4, num_train=self.num_train, num_test=self.num_test
        )

    def kinds(self) -> np.ndarray:
        """Return the kind of each maze; the kinds alternate."""
        return np.arange(self.num_train) % len(self.layouts)

    def open(self, scenes: Sequence[np.ndarray], num_envs: int) -> Running:
        """Open the mazes of these workers; no others are drawn."""
        numbers, places = np.unique(np.concatenate(scenes), return_inverse=True)
        own = np.split(places, np.cumsum([len(each) for each in scenes])[:-1])
        return self._walks("training", numbers, own, num_envs)

    def open_tests(self, num_models: int, scenes: np.ndarray) -> Running:
        """Open a different maze for every episode, the same for all models."""
        return self._walks("test", scenes, [np.arange(len(scenes))] * num_models, len(scenes))

    def tests_at_once(self, num_scenes: int) -> int:
        """Return the number of models with some thousand walks per call."""
        return max(1, _TESTS_AT_ONCE // max(1, num_scenes))

    def _walks(self, purpose: str, numbers: np.ndarray, own: Sequence[np.ndarray], num_envs: int) -> Walks:
        mazes = _mazes(tuple(self.layouts), self.size, self.view, self.maze_seed, purpose, tuple(numbers.tolist()))
        max_steps = self.max_steps or 5 * self.size
        return Walks(mazes, numbers, own, num_envs, self.progress, self.step_cost, max_steps)


@lru_cache(maxsize=4)
def _mazes(layouts: tuple[str, ...], size: int, view: int, seed: int, purpose: str, numbers: tuple[int, ...]) -> Mazes:
    """Return the mazes with these numbers, which are read-only."""
    walls = [draw(layouts[number % len(layouts)], size, seed, purpose, number) for number in numbers]
    return Mazes.of(walls, view)
