"""Habitat's observations as images."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class DepthAndGoal(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Bytes [height, width, 3]: depth, and distance and direction of the goal, the same at each pixel.

    Distance is that up to 10 m, direction from -pi to pi.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        depth: Any = env.observation_space["depth"]  # type: ignore[index]
        self.observation_space = spaces.Box(0, 255, (*depth.shape[:2], 3), np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        """See above."""
        depth = np.asarray(observation["depth"], dtype=np.float64)[..., 0]
        distance, direction = observation["pointgoal_with_gps_compass"]
        constant = np.ones_like(depth)
        parts = [depth, constant * min(distance / 10, 1), constant * (direction / (2 * np.pi) + 0.5)]
        return (255 * np.clip(np.stack(parts, axis=-1), 0, 1)).astype(np.uint8)
