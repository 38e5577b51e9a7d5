"""The school: who is near whom, what a fish sees, and how it swims.

Arrays are [n, 2], places in body lengths and velocities in body lengths per round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from decentral.errors import ConfigError
from decentral.randomness import normal, uniform


@dataclass
class School:
    """What is the same for all fish and all rounds.

    radius            fish nearer than this are neighbours
    spacing           how far apart neighbours like to be
    width             radius of the disc around 0 in which they are at the start
    speed             the most that a fish swims in a round
    danger            a fish that believes the predator nearer than this flees (escape)
    ring              how far from the predator the circle is that the fish form (encircle)
    distance_noise    standard deviation of a measured distance, as a part of it
    angle_noise       standard deviation of a measured direction, in radians
    gamma             step size of the estimates
    agility           how much of its velocity a fish chooses anew in a round; the rest is its neighbours' mean
    togetherness      how strongly it keeps its spacing
    predator_from     where the predator is in round 0, on the first axis
    predator_speed    how far it swims in a round, towards 0, where it stays
    """

    radius: float = 5.0
    spacing: float = 5.0
    width: float = 10.0
    speed: float = 0.8
    danger: float = 14.0
    ring: float = 9.0
    distance_noise: float = 0.3
    angle_noise: float = 0.3
    gamma: float = 0.5
    agility: float = 0.4
    togetherness: float = 0.1
    predator_from: float = -30.0
    predator_speed: float = 1.0

    def __post_init__(self) -> None:
        for key in ("radius", "spacing", "width", "speed", "danger", "ring"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"school.{key}={getattr(self, key):g} makes no sense: it has to be above 0.")
        for key in ("gamma", "agility"):
            if not 0 < getattr(self, key) <= 1:
                raise ConfigError(f"school.{key}={getattr(self, key):g} makes no sense: it has to be in (0, 1].")

    def predator(self, k: int) -> np.ndarray:
        """Where the predator is in round k: [2]."""
        way = max(0.0, abs(self.predator_from) - self.predator_speed * k)
        return np.array([np.copysign(way, self.predator_from), 0.0])

    def places(self, n: int, seed: int) -> np.ndarray:
        """Where the fish are in round 0, anywhere in the disc: [n, 2]."""
        fish = np.arange(n)
        r = self.width * np.sqrt(uniform(seed, "fish at the start: distance", fish))
        angle = 2 * np.pi * uniform(seed, "fish at the start: angle", fish)
        return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)


class Seen(NamedTuple):
    """What each fish measures in a round."""

    d: np.ndarray  # [n]: how far the predator is
    u: np.ndarray  # [n, 2]: unit vectors that point from the predator to the fish

    def gradient(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Of f_i(w_i) = (d_i - u_i^T (x_i - w_i))^2 / 2 at fish x_i: (d_i - u_i^T (x_i - w_i)) u_i, [n, 2]."""
        return (self.d - (self.u * (x - w)).sum(1))[:, None] * self.u

    def guess(self, x: np.ndarray) -> np.ndarray:
        """Where the predator is by this measurement alone: x_i - d_i u_i."""
        return x - self.d[:, None] * self.u


def look(school: School, x: np.ndarray, predator: np.ndarray, seed: int, k: int) -> Seen:
    """Distance and direction of the predator as the fish at x [n, 2] measure them in round k."""
    fish = np.arange(len(x))
    d, angle = np.hypot(*(x - predator).T), np.arctan2(*(x - predator).T[::-1])
    d = d * (1 + school.distance_noise * normal(seed, "measured distance", k, fish))
    angle = angle + school.angle_noise * normal(seed, "measured direction", k, fish)
    return Seen(d, np.stack([np.cos(angle), np.sin(angle)], axis=1))


def neighbours(x: np.ndarray, radius: float) -> np.ndarray:
    """Bool [n, n]: who is within `radius` of whom; nobody is a neighbour of himself."""
    near = np.hypot(*(x[:, None] - x[None]).transpose(2, 0, 1)) <= radius
    np.fill_diagonal(near, False)
    return near


def escape(school: School, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Straight away from where the predator is believed to be, w [n, 2], if it is near; else 0: [n, 2]."""
    away = x - w
    distance = np.hypot(*away.T)[:, None]
    return np.where(distance < school.danger, school.speed * away / np.maximum(distance, 1e-9), 0.0)


def encircle(school: School, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """To the circle around where the predator is believed to be, and around it: [n, 2]."""
    away = x - w
    distance = np.hypot(*away.T)[:, None]
    out = away / np.maximum(distance, 1e-9)
    around = np.stack([-out[:, 1], out[:, 0]], axis=1)
    return school.speed * (np.clip((school.ring - distance) / school.spacing, -1, 1) * out + 0.3 * around)


BEHAVIOURS: dict[str, Callable[[School, np.ndarray, np.ndarray], np.ndarray]] = {
    "escape": escape,
    "encircle": encircle,
}
"""The velocities that fish at x with the estimates w would choose by themselves: the paper's Figures 5 and 6."""


def swim(school: School, x: np.ndarray, near: np.ndarray, mean_v: np.ndarray, own_v: np.ndarray) -> np.ndarray:
    """The velocities of the next round, [n, 2].

        v_i = (1 - agility) mean of the neighbours' v + agility own_i
              + togetherness sum_{j near i} (1 - spacing / ||x_j - x_i||) (x_j - x_i) / number of neighbours

    shortened to `speed`; own_v [n, 2] is what each would do by itself (see `BEHAVIOURS`).
    Tu & Sayed's cohesion, alignment and their motion by the estimate.
    """
    to = x[None] - x[:, None]  # [i, j]: from i to j
    distance = np.maximum(np.hypot(*to.transpose(2, 0, 1)), 1e-9)
    pull = np.where(near, 1 - school.spacing / distance, 0.0)[..., None] * to
    keep = pull.sum(1) / np.maximum(near.sum(1), 1)[:, None]
    v = (1 - school.agility) * mean_v + school.agility * own_v + school.togetherness * keep
    return v * np.minimum(1.0, school.speed / np.maximum(np.hypot(*v.T), 1e-9))[:, None]
