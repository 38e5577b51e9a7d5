"""Vector environments of gymnasium, one for each worker, with addressed episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from decentral.environments.environment import Moves, Running

if TYPE_CHECKING:
    from decentral.plugins.rl.environments.gymnasium import Gymnasium


class Vectors(Running):
    """k vector environments of E each.

    An episode is determined by its reset seed and its actions, which are its stored state: a resumed run replays it.
    (This is exact for environments that depend on both only.)
    """

    def __init__(self, env: Gymnasium, own: Sequence[np.ndarray], num_envs: int, purpose: str) -> None:
        self.env, self.own, self.purpose = env, own, purpose
        self.vectors = [
            SyncVectorEnv([env.make] * num_envs, copy=False, autoreset_mode=AutoresetMode.DISABLED) for _ in own
        ]
        one = self.vectors[0].envs[0]
        self.usual = {name: float(getattr(one.unwrapped, name)) for name in env.vary}
        shape, self._seen = env.seen(one.observation_space)
        self.space: Any = one.action_space
        self.observed = np.zeros((len(own), num_envs, *shape), dtype=np.float32)
        self.scene = np.zeros((len(own), num_envs), dtype=np.int64)
        self.taken: list[list[list[Any]]] = [[[] for _ in range(num_envs)] for _ in own]
        """Actions of each episode so far."""

    def begin(self, places: Sequence[int], chances: np.ndarray) -> None:
        """See `Running`."""
        for place, row in zip(places, chances, strict=True):
            self._begin(place, np.ones(len(row), dtype=bool), row)

    def _begin(self, place: int, which: np.ndarray, chances: np.ndarray) -> None:
        own = self.own[place]
        for e in np.flatnonzero(which):
            self.scene[place, e] = own[int(chances[e, 0] * len(own))]
            self.taken[place][e] = []
        self._reset(place, which)

    def _reset(self, place: int, which: np.ndarray) -> None:
        vector = self.vectors[place]
        for e in np.flatnonzero(which):
            self.env.arrange(vector.envs[e], self.usual, int(self.scene[place, e]))
        seeds: list[int | None] = [self.env.seed_of(self.purpose, scene) for scene in self.scene[place].tolist()]
        observed, _ = vector.reset(seed=seeds, options={"reset_mask": which})
        self.observed[place, which] = self._seen(observed)[which]

    def observe(self, places: Sequence[int]) -> np.ndarray:
        """See `Running`."""
        return self.observed[list(places)]

    def step(self, places: Sequence[int], actions: np.ndarray, chances: np.ndarray) -> Moves:
        """See `Running`."""
        shape = len(places), actions.shape[1]
        rewards, ended = np.zeros(shape), np.zeros(shape, dtype=bool)
        facts = np.zeros((*shape, len(self.env.metrics)))
        for r, place in enumerate(places):
            vector = self.vectors[place]
            for e, action in enumerate(actions[r].tolist()):
                self.taken[place][e].append(action)
            observed, reward, terminated, truncated, infos = vector.step(self._actions(actions[r]))
            rewards[r], ended[r] = reward, terminated | truncated
            self.observed[place] = self._seen(observed)
            for e in np.flatnonzero(ended[r]).tolist():
                info = {key: value[e] for key, value in infos.items() if isinstance(value, np.ndarray)}
                facts[r, e] = self.env.facts(float(reward[e]), bool(terminated[e]), info)
            if ended[r].any():
                self._begin(place, ended[r], chances[r])
        return Moves(rewards, ended, facts)

    def _actions(self, actions: np.ndarray) -> np.ndarray:
        """Convert actions for the environments: vectors within their limits."""
        if isinstance(self.space, spaces.Box):
            shaped = actions.reshape(len(actions), *self.space.shape)
            return np.clip(shaped, self.space.low, self.space.high).astype(self.space.dtype)
        return actions + self.space.start

    def state(self, place: int) -> Any:
        """Return the scene of each episode, and its actions so far."""
        return {"scenes": self.scene[place].tolist(), "actions": [list(taken) for taken in self.taken[place]]}

    def load_state(self, place: int, state: Any) -> None:
        """Replay the episodes to the stored position."""
        self.scene[place] = state["scenes"]
        self.taken[place] = [list(taken) for taken in state["actions"]]
        self._reset(place, np.ones(len(self.taken[place]), dtype=bool))
        for e, taken in enumerate(self.taken[place]):
            for action in taken:
                observed, *_ = self.vectors[place].envs[e].step(self._actions(np.asarray([action]))[0])
            if taken:
                self.observed[place, e] = self._seen(_stacked(observed))[0]

    def close(self) -> None:
        """Close all environments."""
        for vector in self.vectors:
            vector.close()


def _stacked(observed: Any) -> Any:
    """Return an observation as a batch of one."""
    if isinstance(observed, dict):
        return {key: _stacked(value) for key, value in observed.items() if key == "image"}
    return np.asarray(observed)[None]


class DepthAndGoal(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations as bytes [height, width, 3]: depth, and distance and direction of the goal, the same at each pixel.

    Distance is clipped at 10 m; direction ranges from -pi to pi.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        depth: Any = env.observation_space["depth"]  # type: ignore[index]
        self.observation_space = spaces.Box(0, 255, (*depth.shape[:2], 3), np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        """Return the combined observation."""
        depth = np.asarray(observation["depth"], dtype=np.float64)[..., 0]
        distance, direction = observation["pointgoal_with_gps_compass"]
        constant = np.ones_like(depth)
        parts = [depth, constant * min(distance / 10, 1), constant * (direction / (2 * np.pi) + 0.5)]
        return (255 * np.clip(np.stack(parts, axis=-1), 0, 1)).astype(np.uint8)
