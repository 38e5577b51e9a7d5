"""Simulate a school for some seeds: a job."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np

from decentral.jobs.computation import SeededComputation
from decentral.jobs.fish_school.school import BEHAVIOURS, School, look, neighbours, swim
from decentral.topology.graph import Graph
from decentral.topology.weights import Weights, mixing_matrix

SHARING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "neighbours": lambda W: W,
    "nobody": lambda W: np.eye(len(W)),
    "everybody": lambda W: np.full_like(W, 1 / len(W)),
}
"""With whom a fish averages its estimate, given the weights W of the neighbours."""


@dataclass(frozen=True)
class FishSchool(SeededComputation):
    """`rounds` rounds of a school of config.num_workers fish; a line of schools.jsonl for each seed.

    In round k, with the places x, velocities v and estimates w of all fish:

        W from x: Metropolis-Hastings weights among those nearer than `radius`, checked
        w_i <- sum_j a_ij (w_j - gamma grad f_j(w_j))          a = W, I or 1/n, see SHARING: D-SGD in its ATC form
        v_i <- swim(sum_j W_ij v_j, by behaviour and w_i);     x_i <- x_i + v_i

    BlueFog paper, Listing 2, which averages x where its text (and this) averages w.
    """

    school: School = field(default_factory=School)
    behaviour: str = "escape"
    sharing: str = "neighbours"
    rounds: int = 80
    pictures: tuple[int, ...] = ()
    """The rounds whose places, headings and estimates are kept."""

    folder: ClassVar[str] = "schools"
    lines: ClassVar[str] = "schools.jsonl"

    def parameters(self) -> dict[str, Any]:
        """All but the configuration."""
        own = {"behaviour": self.behaviour, "sharing": self.sharing, "rounds": self.rounds}
        return {**own, "seeds": list(self.seeds), "pictures": list(self.pictures), "school": asdict(self.school)}

    def line(self, seed: int) -> dict[str, Any]:
        """The numbers of every round (`measure`), and places, headings and estimates of the rounds that are drawn."""
        import torch

        from decentral.training.assemble import local_network

        net, school, n = local_network(self.config), self.school, self.config.num_workers
        assert n is not None
        x, v = school.places(n, seed), np.zeros((n, 2))
        w = look(school, x, school.predator(0), seed, 0).guess(x)
        near, found, pictures = neighbours(x, school.radius), [], []
        for k in range(self.rounds + 1):
            found.append(measure(x, w, school.predator(k), near))
            if k in self.pictures:
                pictures.append(_picture(k, x, v, w, school.predator(k)))
            W = checked(mixing_matrix(Graph.of(near), Weights.metropolis, None, "near").dense(), near)
            w = w - school.gamma * look(school, x, school.predator(k), seed, k).gradient(x, w)
            w = net.mix_with(torch.from_numpy(w), SHARING[self.sharing](W)).numpy()
            mean_v = net.mix_with(torch.from_numpy(v), W).numpy()
            v = swim(school, x, near, mean_v, BEHAVIOURS[self.behaviour](school, x, w))
            x = x + v
            near = neighbours(x, school.radius)
        numbers = {key: [one[key] for one in found] for key in found[0]}
        return {"numbers": numbers, "pictures": pictures}


def checked(W: np.ndarray, near: np.ndarray) -> np.ndarray:
    """W, if it fits a round's graph: symmetric, with rows that add up to 1, no weight negative or from further away.

    Raises ArithmeticError otherwise: what the fish agree on would be wrong.
    """
    stochastic = np.allclose(W.sum(1), 1, rtol=0, atol=1e-12) and np.allclose(W, W.T, rtol=0, atol=1e-12)
    if not stochastic or W.min() < 0 or (W[~near & ~np.eye(len(W), dtype=bool)] != 0).any():
        raise ArithmeticError("the weights of this round do not fit its graph of neighbours.")
    return W


def measure(x: np.ndarray, w: np.ndarray, predator: np.ndarray, near: np.ndarray) -> dict[str, float]:
    """error: the estimates' root mean squared distance from the predator; nearest: the nearest fish's distance;
    gap: the widest angle, seen from the predator, without a fish (degrees); groups: how many parts the graph has."""
    distance, angle = np.hypot(*(x - predator).T), np.sort(np.arctan2(*(x - predator).T[::-1]))
    gaps = np.diff(angle, append=angle[0] + 2 * math.pi)
    return {
        "error": float(np.sqrt(((w - predator) ** 2).sum(1).mean())),
        "nearest": float(distance.min()),
        "gap": math.degrees(float(gaps.max())),
        "groups": float(_num_groups(near)),
    }


def _num_groups(near: np.ndarray) -> int:
    """Connected components of an undirected graph."""
    label = np.arange(len(near))
    linked = near | np.eye(len(near), dtype=bool)
    while True:
        smallest = np.where(linked, label[None], len(near)).min(1)
        if (smallest == label).all():
            return len(np.unique(label))
        label = smallest


def _picture(k: int, x: np.ndarray, v: np.ndarray, w: np.ndarray, predator: np.ndarray) -> dict[str, Any]:
    """Places, headings (radians) and estimates of a round."""
    heading = np.arctan2(v[:, 1], v[:, 0])
    return {"round": k, "x": x.tolist(), "heading": heading.tolist(), "w": w.tolist(), "predator": predator.tolist()}
