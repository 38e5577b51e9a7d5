"""Spaces of gymnasium, as policies here take them. (gymnasium itself is imported only where it is needed.)"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from decentral.errors import ConfigError

PACKAGES = {"MiniGrid": "minigrid", "BabyAI": "minigrid"}
"""What an id begins with -> the package that has to be imported before gymnasium knows it."""


def seen(name: str, space: Any) -> tuple[tuple[int, ...], Callable[[Any], np.ndarray]]:
    """The shape of observations of a space of gymnasium, and what makes them [E, ...] of those of E environments.

    Raises ConfigError for one that no policy here takes.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict) and "image" in space.spaces:
        shape, take = seen(name, space["image"])
        return shape, lambda observed: take(observed["image"])
    if isinstance(space, spaces.Discrete):
        ones, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return (int(space.n),), lambda observed: ones[np.asarray(observed) - start]
    if isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
        height, width, channels = space.shape
        scale = 10.0 if name.startswith(tuple(PACKAGES)) else 255.0  # MiniGrid's are small numbers, no colours
        return (channels, height, width), lambda observed: np.moveaxis(observed, -1, -3).astype(np.float32) / scale
    if isinstance(space, spaces.Box):
        size = math.prod(space.shape)
        return (size,), lambda observed: np.asarray(observed, dtype=np.float32).reshape(-1, size)
    raise ConfigError(
        f"env={name} has observations of the kind {type(space).__name__}, which no policy here takes: choose one with "
        "vectors, images or one of several (Box or Discrete)."
    )


def acted(name: str, space: Any) -> tuple[int, bool]:
    """How many actions there are to choose from, or numbers in one, and True. Raises ConfigError for others."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return int(space.n), False
    if isinstance(space, spaces.Box):
        return math.prod(space.shape), True
    raise ConfigError(
        f"env={name} has actions of the kind {type(space).__name__}, which no policy here chooses: choose one with one "
        "of several, or a vector (Discrete or Box)."
    )
