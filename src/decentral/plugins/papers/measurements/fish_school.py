"""A school of fish that estimates the position of a predator, by diffusion over a graph that follows the fish.

BlueFog paper (Ying et al., 2021, arXiv:2111.04287), section IV-B and Figures 5 and 6; the motion is that of Tu & Sayed,
"Mobile adaptive networks", IEEE Journal of Selected Topics in Signal Processing, 2011. Arrays are [n, 2], positions in
body lengths and velocities in body lengths per round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from decentral.measurements.measurement import Measurement, check_losses
from decentral.measurements.values import Labels, Row, Value, curve
from decentral.randomness import normal, uniform
from decentral.settings import Settings, setting
from decentral.topology.graph import Graph
from decentral.topology.topology import Weights, mixing_matrix

ERROR = "error of the estimates (body lengths)"
NEAREST, GAP = "nearest fish at the end (body lengths)", "widest gap at the end (degrees)"
CURVES = {"error": ERROR, "nearest": "nearest fish (body lengths)", "groups": "groups of fish"}
"""Quantity of each round -> metric in curves.csv."""
_PLACES = ("place x", "place y", "heading", "estimate x", "estimate y")


@dataclass
class School(Settings, where="school"):
    """Settings shared by all fish and all rounds."""

    radius: float = setting(5.0, above=0)  # fish nearer than this are neighbors
    spacing: float = setting(5.0, above=0)  # how far apart neighbors like to be
    width: float = setting(10.0, above=0)  # radius of the disc around 0 in which they are at the start
    speed: float = setting(0.8, above=0)  # the most that a fish swims in a round
    danger: float = setting(14.0, above=0)  # a fish that believes the predator nearer than this flees (escape)
    ring: float = setting(9.0, above=0)  # how far from the predator the circle is that the fish form (encircle)
    distance_noise: float = 0.3  # standard deviation of a measured distance, as a part of it
    angle_noise: float = 0.3  # standard deviation of a measured direction, in radians
    gamma: float = setting(0.5, above=0, at_most=1)  # step size of the estimates
    agility: float = setting(0.4, above=0, at_most=1)  # share of a velocity that is its own; the rest: neighbors'
    togetherness: float = 0.1  # how strongly it keeps its spacing
    predator_from: float = -30.0  # where the predator is in round 0, on the first axis
    predator_speed: float = 1.0  # how far it swims in a round, toward 0, where it stays

    def predator(self, k: int) -> np.ndarray:
        """Return the predator's position in round k: [2]."""
        way = max(0.0, abs(self.predator_from) - self.predator_speed * k)
        return np.array([np.copysign(way, self.predator_from), 0.0])

    def places(self, n: int, seed: int) -> np.ndarray:
        """Return the positions of the fish in round 0, uniform in the disc: [n, 2]."""
        fish = np.arange(n)
        r = self.width * np.sqrt(uniform(seed, "fish at the start: distance", fish))
        angle = 2 * np.pi * uniform(seed, "fish at the start: angle", fish)
        return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)


@dataclass
class FishSchool(Measurement):
    """`rounds` rounds of a school of config.num_workers fish; a line for each seed.

    In round k, with the positions x, velocities v and estimates w of all fish:

        W from x: Metropolis-Hastings weights among those nearer than `radius`
        w_i <- sum_j a_ij (w_j - gamma grad f_j(w_j))          a = W, I or 1/n by `sharing`: D-SGD in its ATC form
        v_i <- swim(sum_j W_ij v_j, by behaviour and w_i);     x_i <- x_i + v_i

    BlueFog paper, Listing 2, which averages x where its text (and this) averages w.

    behaviour       reaction of the fish to the predator: escape or encircle
    sharing         partners with whom they average their estimates: neighbours, nobody or everybody
    school          settings shared by all fish: {predator_speed: 3.0}
    pictures        rounds whose positions, headings and estimates are kept, of the first seed
    """

    name: str = "fish_school"
    seeds: list[int] = field(default_factory=list)
    behaviour: str = setting("escape", choices=("escape", "encircle"))
    sharing: str = setting("neighbours", choices=("neighbours", "nobody", "everybody"))
    school: School = field(default_factory=School)
    rounds: int = 100
    pictures: list[int] = field(default_factory=list)

    folder: ClassVar[str] = "schools"
    row_labels: ClassVar[tuple[str, ...]] = ("method", "behaviour")

    def __post_init__(self) -> None:
        self.pictures = [k for k in self.pictures if k <= self.rounds]

    def check(self) -> None:
        """Check that no message can get lost."""
        check_losses(self.config)

    def line(self, seed: int) -> dict[str, Any]:
        """Return the quantities of every round (see `measure`), and positions, headings and estimates of the drawn
        rounds."""
        import torch

        from decentral.training.method import local_network

        net, school = local_network(self.config), self.school
        x, v = school.places(self.n, seed), np.zeros((self.n, 2))
        w = look(school, x, school.predator(0), seed, 0).guess(x)
        near, measured, pictures = neighbors(x, school.radius), [], []
        for k in range(self.rounds + 1):
            predator = school.predator(k)
            measured.append(measure(x, w, predator, near))
            if k in self.pictures:
                heading = np.arctan2(v[:, 1], v[:, 0])
                drawn = {"x": x, "heading": heading, "w": w, "predator": predator}
                pictures.append({"round": k, **{name: array.tolist() for name, array in drawn.items()}})
            W = mixing_matrix(Graph.of(near), Weights.metropolis, None, "near").dense()
            shares = {"neighbours": W, "nobody": np.eye(self.n), "everybody": np.full_like(W, 1 / self.n)}
            w = w - school.gamma * look(school, x, predator, seed, k).gradient(x, w)
            w = net.mix_with(torch.from_numpy(w), shares[self.sharing]).numpy()
            mean_v = net.mix_with(torch.from_numpy(v), W).numpy()
            v = swim(school, x, near, mean_v, wanted(school, self.behaviour, x, w))
            x = x + v
            near = neighbors(x, school.radius)
        return {"numbers": {key: [numbers[key] for numbers in measured] for key in measured[0]}, "pictures": pictures}

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return the error (root mean square over the fish, mean over the second half of the rounds), and at the end
        the distance of the nearest fish and, for a school that encircles, the widest gap."""
        for line in self.found():
            numbers, seed = line["numbers"], line["seed"]
            yield Value(labels, statistics.fmean(numbers["error"][self.rounds // 2 :]), ERROR, seed)
            yield Value(labels, numbers["nearest"][-1], NEAREST, seed)
            if self.behaviour == "encircle":
                yield Value(labels, numbers["gap"][-1], GAP, seed)

    def curves(self, labels: Labels) -> Iterator[Row]:
        """Return the quantities of each round, and for the first seed the positions, headings and estimates of the fish
        in the drawn rounds, each as a curve; a predator has only a position."""
        lines = self.found()
        for key, metric in CURVES.items():
            for line in lines:
                yield from curve(labels, metric, line["seed"], enumerate(line["numbers"][key]))
        series: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for picture in lines[0]["pictures"]:
            fish = zip(picture["x"], picture["heading"], picture["w"], strict=True)
            rows = {str(i): [*x, heading, *w] for i, (x, heading, w) in enumerate(fish)}
            for worker, numbers in {**rows, "predator": picture["predator"]}.items():
                for metric, number in zip(_PLACES, numbers, strict=False):
                    series.setdefault((metric, worker), []).append((picture["round"], number))
        for (metric, worker), points in series.items():
            yield from curve(labels, metric, lines[0]["seed"], points, worker)


def measure(x: np.ndarray, w: np.ndarray, predator: np.ndarray, near: np.ndarray) -> dict[str, float]:
    """Return the quantities of a round. error: the estimates' root mean squared distance from the predator; nearest:
    the nearest fish's distance; gap: the widest angle, seen from the predator, without a fish (degrees); groups: the
    number of connected parts of the graph."""
    from scipy.sparse.csgraph import connected_components

    distance, angle = np.hypot(*(x - predator).T), np.sort(np.arctan2(*(x - predator).T[::-1]))
    gaps = np.diff(angle, append=angle[0] + 2 * math.pi)
    return {
        "error": float(np.sqrt(((w - predator) ** 2).sum(1).mean())),
        "nearest": float(distance.min()),
        "gap": math.degrees(float(gaps.max())),
        "groups": float(connected_components(near, directed=False)[0]),
    }


class Seen(NamedTuple):
    """The measurements of each fish in a round."""

    d: np.ndarray  # [n]: how far the predator is
    u: np.ndarray  # [n, 2]: unit vectors that point from the predator to the fish

    def gradient(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Return the gradient of f_i(w_i) = (d_i - u_i^T (x_i - w_i))^2 / 2 at fish x_i: (d_i - u_i^T (x_i - w_i)) u_i,
        [n, 2]."""
        return (self.d - (self.u * (x - w)).sum(1))[:, None] * self.u

    def guess(self, x: np.ndarray) -> np.ndarray:
        """Return the predator's position by this measurement alone: x_i - d_i u_i."""
        return x - self.d[:, None] * self.u


def look(school: School, x: np.ndarray, predator: np.ndarray, seed: int, k: int) -> Seen:
    """Return distance and direction of the predator as the fish at x [n, 2] measure them in round k."""
    fish = np.arange(len(x))
    d, angle = np.hypot(*(x - predator).T), np.arctan2(*(x - predator).T[::-1])
    d = d * (1 + school.distance_noise * normal(seed, "measured distance", k, fish))
    angle = angle + school.angle_noise * normal(seed, "measured direction", k, fish)
    return Seen(d, np.stack([np.cos(angle), np.sin(angle)], axis=1))


def neighbors(x: np.ndarray, radius: float) -> np.ndarray:
    """Return bool [n, n]: which fish are within `radius` of each other; no fish is a neighbor of itself."""
    near = np.hypot(*(x[:, None] - x[None]).transpose(2, 0, 1)) <= radius
    np.fill_diagonal(near, False)
    return near


def wanted(school: School, behaviour: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the velocities that fish at x would choose alone, with estimates w of the predator's position: [n, 2].

    escape: straight away from the predator, if it is near (the paper's Figure 5); encircle: to a circle around the
    predator, and along it (Figure 6).
    """
    away = x - w
    distance = np.hypot(*away.T)[:, None]
    if behaviour == "escape":
        return np.where(distance < school.danger, school.speed * away / np.maximum(distance, 1e-9), 0.0)
    out = away / np.maximum(distance, 1e-9)
    around = np.stack([-out[:, 1], out[:, 0]], axis=1)
    return school.speed * (np.clip((school.ring - distance) / school.spacing, -1, 1) * out + 0.3 * around)


def swim(school: School, x: np.ndarray, near: np.ndarray, mean_v: np.ndarray, own_v: np.ndarray) -> np.ndarray:
    """Return the velocities of the next round, [n, 2].

        v_i = (1 - agility) mean of the neighbors' v + agility own_i
              + togetherness sum_{j near i} (1 - spacing / ||x_j - x_i||) (x_j - x_i) / number of neighbors

    shortened to `speed`; own_v [n, 2] are the velocities that the fish would choose alone (see `wanted`). Tu & Sayed's
    cohesion, alignment and their motion by the estimate.
    """
    to = x[None] - x[:, None]  # [i, j]: from i to j
    distance = np.maximum(np.hypot(*to.transpose(2, 0, 1)), 1e-9)
    pull = np.where(near, 1 - school.spacing / distance, 0.0)[..., None] * to
    keep = pull.sum(1) / np.maximum(near.sum(1), 1)[:, None]
    v = (1 - school.agility) * mean_v + school.agility * own_v + school.togetherness * keep
    return v * np.minimum(1.0, school.speed / np.maximum(np.hypot(*v.T), 1e-9))[:, None]
