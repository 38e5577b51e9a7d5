"""The contract of an environment: look at it quickly, then open as many of it side by side as are wanted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.data.dataset import DataDescription
from decentral.settings import Settings
from decentral.store.metrics import Metric

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class EnvironmentDescription(DataDescription):
    """Observations of some shape, and what can be done: what a policy is built from.

    shape         of an observation
    num_actions   number of discrete actions; for continuous actions, the dimension of one
    continuous    whether an action is a vector
    normalises    whether observations and rewards have scales of their own, so that it pays to normalise them
    num_train, num_test   scenes for training and for testing
    """

    kind: ClassVar[str] = "observations and actions"
    shape: tuple[int, ...]
    num_actions: int
    continuous: bool = False
    normalises: bool = False

    @property
    def num_outputs(self) -> int:
        """What a policy gives for an observation: the value, and a logit for each action, or mean and log std."""
        return 1 + self.num_actions * (2 if self.continuous else 1)

    def batch_shape(self, size: int) -> tuple[int, ...]:
        """[size, *shape]."""
        return size, *self.shape


class Environment(Settings, ABC, where="env"):
    """An environment as the user chooses it. The concrete ones are dataclasses: their fields are the configuration.

    It has *scenes*: mazes, say, or the places where episodes begin. Those for training are dealt out to the workers by
    `partition`, as the images of a data set are. Those for testing are others, and an episode in each is a test
    example.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()
    """What an episode gives beside its return and length, a number each; a model is judged by the first of all."""

    @abstractmethod
    def inspect(self) -> EnvironmentDescription:
        """Shapes and counts, within a fraction of a second and without torch.

        Raises ConfigError if there is no such environment, or a package that it needs is missing.
        """

    @abstractmethod
    def kinds(self) -> np.ndarray:
        """[num_train] int64: of which kind each scene for training is; what `partition` deals out by."""

    @abstractmethod
    def open(self, scenes: Sequence[np.ndarray], num_envs: int) -> Running:
        """For each of k workers E = `num_envs` environments side by side, whose episodes are in its scenes: numbers of
        scenes for training."""

    @abstractmethod
    def open_tests(self, num_models: int, scenes: np.ndarray) -> Running:
        """For each of k models an environment for each of these N scenes for testing, in which its episodes are."""

    def test_chances(self, scenes: np.ndarray) -> np.ndarray:
        """What `Running.begin` takes for the episodes of these scenes for testing, whatever the run's seed: [N, 3]."""
        import numpy as np

        from decentral.randomness import uniform

        chances = uniform(0, "test episodes", scenes[:, None], np.arange(Running.num_chances))
        chances[:, 0] = (np.arange(len(scenes)) + 0.5) / max(1, len(scenes))
        return chances

    def tests_at_once(self, num_scenes: int) -> int:
        """With how many models at once it is tested best: k of `open_tests`."""
        return 1


class Moves(NamedTuple):
    """What came of an action in r x E environments."""

    rewards: np.ndarray  # [r, E] float64
    ended: np.ndarray  # [r, E] bool: the episode is over, and the observation that follows is the next one's first
    facts: np.ndarray  # [r, E, M] float64: `Environment.metrics` of the episode, where it is over


class Running(ABC):
    """k x E environments side by side: E of each of k workers (or models), of which some are asked at a time.

    `places` are those of r workers among the k, each once. All randomness of an environment is in `chances`: numbers in
    [0, 1) that address the next episode, should this one be over; the same ones and the same actions give the same
    episodes, whatever the other workers do.
    """

    num_chances: ClassVar[int] = 3
    """The first one chooses the scene among those of the worker, each as likely."""

    @abstractmethod
    def begin(self, places: Sequence[int], chances: np.ndarray) -> None:
        """Begin first episodes, for chances [r, E, num_chances]."""

    @abstractmethod
    def observe(self, places: Sequence[int]) -> np.ndarray:
        """What there is to be seen: [r, E, *shape] float32."""

    @abstractmethod
    def step(self, places: Sequence[int], actions: np.ndarray, chances: np.ndarray) -> Moves:
        """Take actions, int64 [r, E] or float64 [r, E, num_actions]; where an episode ends, the next one begins."""

    @abstractmethod
    def state(self, place: int) -> Any:
        """Where the E environments of a worker are, for a checkpoint: see `tasks.task.Problem.state`."""

    @abstractmethod
    def load_state(self, place: int, state: Any) -> None:
        """Be there again."""

    def close(self) -> None:
        """Release what is held."""
