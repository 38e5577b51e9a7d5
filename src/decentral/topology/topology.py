"""The contract of a topology, and the configuration that all topologies made of graphs share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.schedule import Schedule
from decentral.topology.weights import Weights, mixing_matrix


class Topology(ABC):
    """Turns a number of workers into a schedule; its fields are its configuration. Pure: same fields, same schedule."""

    name: str

    def implied_num_workers(self) -> int | None:
        """How many workers this topology is made for, if it says so itself (a graph from a file)."""
        return None

    @abstractmethod
    def schedule(self, num_workers: int) -> Schedule:
        """The schedule for `num_workers` workers; ConfigError if this topology does not exist for so many."""


MAX_WORKERS = 8192


@dataclass
class GraphTopology(Topology):
    """A topology given by graphs, with mixing weights by a common rule (see `Weights`).

    A concrete topology gives `name` its default and implements `graphs`. `edge_weight` goes with weights=constant only.
    """

    name: str
    weights: Weights = Weights.auto
    edge_weight: float | None = None

    def __post_init__(self) -> None:
        if self.weights is Weights.constant and self.edge_weight is None:
            raise ConfigError("topology.weights=constant needs topology.edge_weight, the weight of every edge.")
        if self.edge_weight is None:
            return
        if self.weights is not Weights.constant:
            raise ConfigError(
                f"topology.edge_weight={self.edge_weight:g} is used with topology.weights=constant only, "
                f"not with topology.weights={self.weights.name}."
            )
        if not (math.isfinite(self.edge_weight) and self.edge_weight > 0):
            raise ConfigError(f"topology.edge_weight={self.edge_weight:g} must be a positive number.")

    @abstractmethod
    def graphs(self, num_workers: int) -> list[tuple[np.ndarray, ...]]:
        """The graphs of every round (list) and piece (tuple), bool [n, n]: entry [i, j] says whether j sends to i.

        Raises ConfigError if there is no such graph with `num_workers` >= 1 vertices.
        """

    def schedule(self, num_workers: int) -> Schedule:
        """The schedule for `num_workers` workers.

        Raises:
            ConfigError: this topology does not exist for so many workers, or not with these weights.
        """
        if not 1 <= num_workers <= MAX_WORKERS:
            raise ConfigError(
                f"num_workers={num_workers} must be from 1 to {MAX_WORKERS}: mixing matrices are dense, n x n numbers."
            )
        rounds = [tuple(self.matrix(A) for A in pieces) for pieces in self.graphs(num_workers)]
        return Schedule(num_workers, rounds.__getitem__, num_pieces=len(rounds[0]), period=len(rounds))

    def matrix(self, A: np.ndarray) -> np.ndarray:
        """The mixing matrix of one graph."""
        return mixing_matrix(A, self.weights, self.edge_weight, self.name)
