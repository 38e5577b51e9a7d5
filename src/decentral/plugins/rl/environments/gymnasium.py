"""Any environment of gymnasium."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.environments.environment import Environment, EnvironmentDescription, Running
from decentral.errors import ConfigError, suggest
from decentral.randomness import address, normal
from decentral.settings import setting
from decentral.store.metrics import Metric

if TYPE_CHECKING:
    import gymnasium

_PACKAGES = {"MiniGrid": "minigrid", "BabyAI": "minigrid"}
"""Prefix of an ID -> the package whose import registers it with gymnasium."""
_TESTS_AT_ONCE = 64
_MOST_STEPS = 1000  # of an episode without a limit

_WIDEST_SPREAD = 10.0  # exp(10 z) is millions of times as much, or as little


@dataclass
class Gymnasium(Environment):
    """An environment of gymnasium, by its ID: `env=CartPole-v1` is `env=gymnasium env.id=CartPole-v1`.

    `pip install '.[rl]'` has classic control, `'.[minigrid]'` has MiniGrid, with its image as the
    observation. Observations are vectors (Box), images (height, width and channels, of bytes) or categorical (Discrete,
    one-hot encoded); actions are categorical (Discrete) or vectors (Box).

    A scene is a number that seeds `reset` at the beginning of an episode. `vary` names numeric attributes of the
    environment, such as gravity: each kind of scene multiplies them by exp(spread z), z standard normal. Test scenes
    include all kinds. An episode without a limit ends after 1000 steps.

    id           ID for gymnasium.make
    vary         attributes that differ between kinds of scenes, such as [gravity,length]
    num_kinds    number of kinds
    spread       see above
    num_train    number of scenes for training
    num_test     number of other scenes for testing, with one episode each
    """

    name: str = "gymnasium"
    id: str = "CartPole-v1"
    vary: list[str] = field(default_factory=list)
    num_kinds: int = setting(8, at_least=1)
    spread: float = setting(0.3, at_least=0, at_most=_WIDEST_SPREAD)
    num_train: int = setting(10_000, at_least=1)
    num_test: int = setting(20, at_least=1)

    @property
    def metrics(self) -> tuple[Metric, ...]:  # type: ignore[override]
        """Return success and return for MiniGrid, otherwise only the return."""
        succeeds = _PACKAGES.get(self.id.partition("-")[0]) == "minigrid"
        return (Metric("test", "success", larger_is_better=True, unit="%"),) if succeeds else ()

    def inspect(self) -> EnvironmentDescription:
        """Return the description, from a new environment. Raises ConfigError if gymnasium is missing, does not know the
        ID, or the environment is of another kind."""
        env = self.make()
        try:
            shape, _ = self.seen(env.observation_space)
            num_actions, continuous = self.acted(env.action_space)
            for name in self.vary:
                if not isinstance(getattr(env.unwrapped, name, None), int | float):
                    raise ConfigError(f"env.vary has '{name}', but {self.id} has no numeric attribute of that name.")
        finally:
            env.close()
        return EnvironmentDescription(
            shape=shape,
            num_actions=num_actions,
            continuous=continuous,
            normalises=continuous,
            num_train=self.num_train,
            num_test=self.num_test,
        )

    def seen(self, space: Any) -> tuple[tuple[int, ...], Callable[[Any], np.ndarray]]:
        """Return the shape of observations of a space of gymnasium, and a function that converts those of E
        environments to [E, ...].

        Raises ConfigError for a space that no policy supports.
        """
        from gymnasium import spaces

        if isinstance(space, spaces.Dict) and "image" in space.spaces:
            shape, take = self.seen(space["image"])
            return shape, lambda observed: take(observed["image"])
        if isinstance(space, spaces.Discrete):
            ones, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
            return (int(space.n),), lambda observed: ones[np.asarray(observed) - start]
        if isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
            height, width, channels = space.shape
            scale = 10.0 if self.id.startswith(tuple(_PACKAGES)) else 255.0  # MiniGrid's are small numbers, no colors
            return (channels, height, width), lambda observed: np.moveaxis(observed, -1, -3).astype(np.float32) / scale
        if isinstance(space, spaces.Box):
            size = math.prod(space.shape)
            return (size,), lambda observed: np.asarray(observed, dtype=np.float32).reshape(-1, size)
        raise ConfigError(
            f"env={self.id} has observations of the kind {type(space).__name__}, which no policy here supports: use "
            "an environment with vectors, images or discrete observations (Box or Discrete)."
        )

    def acted(self, space: Any) -> tuple[int, bool]:
        """Return (number of discrete actions, False) or (action size, True). Raises ConfigError for other spaces."""
        from gymnasium import spaces

        if isinstance(space, spaces.Discrete):
            return int(space.n), False
        if isinstance(space, spaces.Box):
            return math.prod(space.shape), True
        raise ConfigError(
            f"env={self.id} has actions of the kind {type(space).__name__}, which no policy here supports: use an "
            "environment with discrete actions or vectors (Discrete or Box)."
        )

    def kinds(self) -> np.ndarray:
        """Return the kind of each scene; the kinds alternate. Without `vary` all scenes are alike."""
        return np.arange(self.num_train) % (self.num_kinds if self.vary else 1)

    def open(self, scenes: Sequence[np.ndarray], num_envs: int) -> Running:
        """Open a vector environment for each worker."""
        from decentral.plugins.rl.vectors import Vectors

        return Vectors(self, [np.asarray(numbers) for numbers in scenes], num_envs, "training")

    def open_tests(self, num_models: int, scenes: np.ndarray) -> Running:
        """Open a vector environment for each model."""
        from decentral.plugins.rl.vectors import Vectors

        return Vectors(self, [scenes] * num_models, len(scenes), "test")

    def tests_at_once(self, num_scenes: int) -> int:
        """Return the number of models for some dozens of environments: each takes time and memory."""
        return max(1, _TESTS_AT_ONCE // max(1, num_scenes))

    def make(self) -> gymnasium.Env[Any, Any]:
        """Create an environment whose episodes end. Raises ConfigError, see `inspect`."""
        gym = installed("gymnasium", self.id, "rl")
        package = _PACKAGES.get(self.id.partition("-")[0])
        if package is not None:
            installed(package, self.id, "minigrid")
        try:
            made = gym.make(self.id)
        except gym.error.DependencyNotInstalled as error:
            raise ConfigError(f"env={self.id} has missing dependencies: {_sentence(error)}.") from None
        except (gym.error.Error, ImportError, ValueError) as error:
            raise ConfigError(
                f"env={self.id} is neither a built-in environment nor one of gymnasium: {_why(gym, self.id, error)}"
            ) from None
        if made.spec is None or made.spec.max_episode_steps is None:
            made = gym.wrappers.TimeLimit(made, _MOST_STEPS)
        return made

    def seed_of(self, purpose: str, scene: int) -> int:
        """Return the `reset` seed of a scene."""
        return address(0, f"{purpose} scene", scene) % 2**31

    def arrange(self, one: gymnasium.Env[Any, Any], usual: dict[str, float], scene: int) -> None:
        """Set the attributes of an environment for this kind of scene; `usual` has the defaults."""
        for number, (name, value) in enumerate(usual.items()):
            z = float(normal(0, "kind of scene", scene % self.num_kinds, number))
            setattr(one.unwrapped, name, value * math.exp(self.spread * z))

    def facts(self, reward: float, terminated: bool, info: dict[str, Any]) -> list[float]:
        """Return the values of `metrics` for an episode that ends with this step."""
        return [float(terminated and reward > 0)] * len(self.metrics)


def installed(package: str, wanted: str, extra: str) -> Any:
    """Import a package. Raises ConfigError with installation instructions."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"env={wanted} needs {package}, which is not installed: pip install '.[{extra}]'.")
    return importlib.import_module(package)


def _why(gym: Any, wanted: str, error: Exception) -> str:
    """Explain why gymnasium cannot create this environment, and suggest alternatives."""
    if wanted in gym.registry:
        return f"{_sentence(error)}."
    near = suggest(wanted, [*gym.registry, "gridworld"])
    return f"there is no '{wanted}'.{near if near.startswith(' Did') else ' IDs end in a version, as in CartPole-v1.'}"


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
