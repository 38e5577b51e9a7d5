"""Virtual clusters whose times are given as a table, and that train on gradients that a test makes up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Team
from decentral.cluster.links import Collective, CollectiveName
from decentral.cluster.timeline import Timeline
from decentral.network.local import LocalNetwork
from decentral.optim.optimizer import LocalRule
from decentral.optim.sgd import SGD
from decentral.topology.delivery import Losses
from decentral.topology.rounds import Rounds
from decentral.training.virtual import VirtualRows

RATE = 0.1


@dataclass(frozen=True)
class Table:
    """Seconds of gradient t of worker i: [T, n]; it begins again after T."""

    table: np.ndarray

    def seconds(self, first: int, last: int) -> np.ndarray:
        return self.table[np.arange(first, last) % len(self.table)]


@dataclass(frozen=True)
class Costs:
    """What messages cost, in seconds, whatever their size."""

    mean: float = 0.0
    hop: float = 0.0
    message: float = 0.0
    pair: float = 0.0
    copy: float = 0.0
    ways: int = 1
    devices: None = None
    per_machine: int = 1
    shared: float = 0.0
    uniform: bool = True

    def all_reduce(self, num_workers: int, num_bytes: float, begins: float) -> tuple[CollectiveName, float]:
        return CollectiveName.recursive_doubling, self.mean

    def collective_s(self, collective: Collective, num_workers: int, num_bytes: float) -> float:
        return self.mean

    def sends(self, collective: Collective, num_workers: int) -> tuple[float, float]:
        return collective.sends(num_workers, math.log2(num_workers))

    def hop_s(self, i: int, j: int) -> float:
        return self.hop

    def of(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(src == dst, 0.0, self.hop), np.zeros(src.shape)

    def message_s(self, i: int, j: int, num_bytes: float) -> float:
        return self.message

    def pair_s(self, i: int, j: int, num_bytes: float, begins: float) -> float:
        return self.pair

    def copy_s(self, num_bytes: float) -> float:
        return self.copy


class Oracle:
    """gradient(model [P], worker, number of its draw) of each worker, [r, P] -> [r, P]; `taken` has all of them."""

    def __init__(self, gradient: Callable[[Tensor, int, int], Tensor], num_workers: int) -> None:
        self.gradient, self.draws = gradient, [0] * num_workers
        self.taken: list[Tensor] = []

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        assert workers is not None
        found = []
        for row, i in zip(x, workers, strict=True):
            found.append(self.gradient(row, i, self.draws[i]))
            self.draws[i] += 1
        self.taken += found
        return torch.stack(found)

    prefetch = __call__

    def at_copies(self, x: Tensor) -> AbstractContextManager[None]:
        """Gradients change nothing."""
        return nullcontext()

    def complete(self, place: int) -> None:
        """Nobody asks for losses."""


def pulls(n: int, dimension: int) -> Callable[[Tensor, int, int], Tensor]:
    """Every worker pulls to another place, with noise that is the same whoever asks when."""
    places = torch.from_numpy(np.random.default_rng(1).normal(size=(n, dimension)))

    def gradient(x: Tensor, i: int, draw: int) -> Tensor:
        return x - places[i] + 0.1 * torch.from_numpy(np.random.default_rng([i, draw]).normal(size=dimension))

    return gradient


class Watched:
    """The rows of a virtual cluster; `seen` has the time of everything that is done to them, and its name."""

    def __init__(self, rows: VirtualRows, seen: list[tuple[float, str, tuple[Any, ...]]]) -> None:
        self.rows, self.seen = rows, seen
        self.timeline: Timeline | None = None

    def __getattr__(self, name: str) -> Any:
        def watched(*arguments: Any, **options: Any) -> Any:
            assert self.timeline is not None
            self.seen.append((self.timeline.now, name, arguments))
            return getattr(self.rows, name)(*arguments, **options)

        return watched


class Virtual:
    """An algorithm in a virtual cluster of n workers, with models [n, dimension] in float64 that begin at 0."""

    def __init__(
        self,
        algorithm: AsynchronousAlgorithm,
        rounds: Rounds,
        times: np.ndarray,
        costs: Costs,
        steps: int,
        *,
        dimension: int = 3,
        together: bool = True,
        trains: bool = True,
        gradient: Callable[[Tensor, int, int], Tensor] | None = None,
    ) -> None:
        n = rounds.num_workers
        self.algorithm = algorithm.bind(LocalRule(SGD(), lambda t: RATE))
        net = LocalNetwork(rounds, Losses(0.0, 0))
        self.state = self.algorithm.init(torch.zeros(n, dimension, dtype=torch.float64), net)
        self.oracle = Oracle(gradient or pulls(n, dimension), n)
        self.rows = VirtualRows(self.algorithm, self.state, self.oracle, together=together)  # type: ignore[arg-type]
        self.seen: list[tuple[float, str, tuple[Any, ...]]] = []
        watched = Watched(self.rows, self.seen)
        team = Team(rounds, steps, 0, float(times.mean()), times.mean(axis=0).tolist())
        programs = [self.algorithm.program(i, team) for i in range(n)]
        carries: Any = watched if trains else None
        self.timeline = watched.timeline = Timeline(
            programs, Table(times), costs, 8 * dimension, n * steps, carries  # type: ignore[arg-type]
        )  # fmt: skip

    def run(self) -> np.ndarray:
        """All of it; the models [n, dimension]."""
        with torch.no_grad():
            assert not self.timeline.run()
        return self.models

    @property
    def models(self) -> np.ndarray:
        return self.algorithm.models(self.state).numpy().copy()
