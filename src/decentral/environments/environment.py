"""The interface of an environment: a fast description, and any number of parallel instances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from decentral.data.dataset import DataDescription
from decentral.errors import ConfigError
from decentral.randomness import uniform
from decentral.settings import Settings
from decentral.store.metrics import Metric


@dataclass(frozen=True, kw_only=True)
class EnvironmentDescription(DataDescription):
    """Observations of some shape, and the possible actions: the inputs of a policy's construction.

    shape         shape of an observation
    num_actions   number of discrete actions; for continuous actions, the dimension of one
    continuous    whether an action is a vector
    normalises    whether observations and rewards have arbitrary scales, so that normalizing them helps
    num_train, num_test   numbers of training and test scenes
    """

    kind: ClassVar[str] = "observations and actions"
    shape: tuple[int, ...]
    num_actions: int
    continuous: bool = False
    normalises: bool = False

    @property
    def num_outputs(self) -> int:
        """Return the size of a policy's output: the value, and a logit for each action, or mean and log std."""
        return 1 + self.num_actions * (2 if self.continuous else 1)

    def batch_shape(self, size: int) -> tuple[int, ...]:
        """Return [size, *shape]."""
        return size, *self.shape


class Environment(Settings, ABC, where="env"):
    """The configuration of an environment. Concrete ones are dataclasses: their fields are the configuration.

    It has *scenes*, such as mazes or initial states of episodes. `partition` splits those for training over the
    workers, like the images of a data set. Test scenes are different, and an episode in each is a test example.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics of an episode besides its return and length, one number each; the first metric of all is the target."""

    @abstractmethod
    def inspect(self) -> EnvironmentDescription:
        """Return shapes and counts, within a fraction of a second and without torch.

        Raises ConfigError if the environment does not exist, or a required package is missing.
        """

    @abstractmethod
    def kinds(self) -> np.ndarray:
        """Return the kind of each training scene, the label for `partition`: int64 [num_train]."""

    @abstractmethod
    def open(self, scenes: Sequence[np.ndarray], num_envs: int) -> Running:
        """Open E = `num_envs` parallel environments for each of k workers, with episodes in the worker's scenes, which
        are numbers of training scenes."""

    @abstractmethod
    def open_tests(self, num_models: int, scenes: np.ndarray) -> Running:
        """Open an environment for each of k models and N test scenes, with all its episodes in that scene."""

    def test_chances(self, scenes: np.ndarray) -> np.ndarray:
        """Return the `chances` of `Running.begin` for test episodes of these scenes, for any run seed: [N, 3]."""
        import numpy as np

        chances = uniform(0, "test episodes", scenes[:, None], np.arange(Running.num_chances))
        chances[:, 0] = (np.arange(len(scenes)) + 0.5) / max(1, len(scenes))
        return chances

    def tests_at_once(self, num_scenes: int) -> int:
        """Return the best number of models to test at once: k of `open_tests`."""
        return 1


@dataclass
class NoEnvironment(Environment):
    """No environment: for tasks on data."""

    name: str = "none"

    def inspect(self) -> EnvironmentDescription:
        """Raise ConfigError: there are no scenes."""
        raise ConfigError("env=none has no scenes: choose an environment, such as env=gridworld.")

    kinds = open = open_tests = inspect  # type: ignore[assignment]


class Moves(NamedTuple):
    """The results of an action in r x E environments."""

    rewards: np.ndarray  # [r, E] float64
    ended: np.ndarray  # [r, E] bool: the episode is over, and the next observation is the first of a new one
    facts: np.ndarray  # [r, E, M] float64: `Environment.metrics` of the episode, where it is over


class Running(ABC):
    """k x E parallel environments: E for each of k workers (or models), used by some workers at a time.

    `places` are the distinct indices of r workers among the k. All randomness of an environment is in `chances`:
    numbers in [0, 1) that address the next episode, if this one is over; equal chances and actions give equal episodes,
    regardless of other workers.
    """

    num_chances: ClassVar[int] = 3
    """Number of random numbers per episode. The first one chooses the scene among those of the worker, uniformly."""

    @abstractmethod
    def begin(self, places: Sequence[int], chances: np.ndarray) -> None:
        """Begin first episodes, for chances [r, E, num_chances]."""

    @abstractmethod
    def observe(self, places: Sequence[int]) -> np.ndarray:
        """Return the observations: [r, E, *shape] float32."""

    @abstractmethod
    def step(self, places: Sequence[int], actions: np.ndarray, chances: np.ndarray) -> Moves:
        """Take actions, int64 [r, E] or float64 [r, E, num_actions]; where an episode ends, the next one begins."""

    @abstractmethod
    def state(self, place: int) -> Any:
        """Return the state of a worker's E environments, for a checkpoint: see `tasks.task.Problem.state`."""

    @abstractmethod
    def load_state(self, place: int, state: Any) -> None:
        """Restore a result of `state`."""

    def close(self) -> None:
        """Release resources."""
