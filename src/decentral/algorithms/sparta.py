"""SPARTA, alone and with DiLoCo."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.diloco import DiLoCo
from decentral.algorithms.features import Feature
from decentral.algorithms.given_events import read_draws
from decentral.algorithms.states import OnlyModels
from decentral.errors import ConfigError
from decentral.randomness import numpy_generator
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


class Select(Enum):
    """The sampling of a step's coordinates."""

    random = "random"
    shuffled = "shuffled"
    partitioned = "partitioned"


@dataclass
class Drawn(Algorithm):
    """An algorithm in which all workers average the same random coordinates.

    share   p, share of the coordinates in a step
    select  random: each coordinate with probability p; shuffled: one permutation, cut into ceil(1/p) parts, used in
            turn; partitioned: the same with a new permutation after each cycle
    seed    seed of the draws
    masks   an .npz file with booleans masks [T, P] instead: row t mod T in step t
    """

    name: str
    share: float = setting(0.005, at_least=0, at_most=1, as_sgd=1)
    select: Select = Select.random
    seed: int = 0
    masks: str | None = setting(None, content=True)
    supports = Algorithm.supports - {Feature.message_loss, Feature.topology}

    def check(self, num_workers: int, optim: Any) -> None:
        """Raise ConfigError if the file of masks is invalid."""
        if self.masks is not None:
            _ = self._given

    def average(self, x: Tensor, net: Network, t: int) -> Tensor:
        """Average the coordinates M_t and return x [k, P]."""
        P = net.row_length(x)
        count = self.count(P, t)
        return net.mean_at(x, count, partial(self.places, P, t)) if count else x

    def count(self, num_coordinates: int, t: int) -> int:
        """Return the size of M_t."""
        if self.masks is not None:
            return len(self.places(num_coordinates, t))
        if self.select is Select.random or self.share == 0:
            return int(numpy_generator(self.seed, "sparta", t).binomial(num_coordinates, self.share))
        parts = math.ceil(1 / self.share)
        return len(range(t % parts, num_coordinates, parts))

    def places(self, num_coordinates: int, t: int) -> np.ndarray:
        """Return M_t: distinct indices below P, int64, unordered."""
        P, p = num_coordinates, self.share
        if self.masks is not None:
            if self._given.shape[1] != P:
                raise ConfigError(
                    f"algo.masks={self.masks} has masks for {self._given.shape[1]} parameters, but the models have "
                    f"{P}: give masks [T, P]."
                )
            return np.flatnonzero(self._given[t % len(self._given)])
        if self.select is Select.random or p == 0:
            generator = numpy_generator(self.seed, "sparta", t)  # first their number, then the indices
            return generator.choice(P, generator.binomial(P, p), replace=False, shuffle=False)
        parts = math.ceil(1 / p)
        cycle = t // parts if self.select is Select.partitioned else 0
        return _permutation(P, self.seed, cycle)[t % parts :: parts]

    @cached_property
    def _given(self) -> np.ndarray:
        return read_draws("algo.masks", str(self.masks), "masks", ("T", "P"))


@lru_cache(maxsize=2)
def _permutation(P: int, seed: int, cycle: int) -> np.ndarray:
    return numpy_generator(seed, "sparta: order", cycle).permutation(P)


@dataclass
class SPARTA(Drawn, OnlyModels):
    """SPARTA: after every local step, all workers average the same few coordinates of their models.

        x_i <- x_i + u_i
        x_i[M] <- 1/n sum_j x_j[M]                           M = M_t: all workers draw the same M, so it is not sent

    share=1 is `model_averaging`; share=0 sends nothing. Local optimizer buffers stay with their workers. EXO
    ("12 days of EXO", 2024; formula from exo-explore/gym, no paper was found): p = 0.0005 to 0.005. Departures: the
    authors' code broadcasts masks, here all workers draw the same ones; it permutes each parameter separately, here the
    whole row; and it skips parameters without a gradient. Topology: not used.
    """

    name: str = "sparta"
    supports = Drawn.supports | {Feature.own_starts}

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """Take one local update and all-reduce the drawn coordinates."""
        x, opt = self.local.adapt(s.x, oracle(s.x), s.opt, t)
        return self.State(self.average(x, net, t), opt)


@dataclass
class SpartaDiLoCo(Drawn, DiLoCo):
    """SPARTA-DiLoCo: workers average a few coordinates after every step, with DiLoCo's periodic outer step.

        x_i <- x_i + u_i
        x_i[M] <- 1/n sum_j x_j[M]           as `sparta`     and, when t + 1 is a multiple of H = `period_steps`,
        D    = 1/n sum_j (phi - x_j),  v <- mu v + D
        phi <- phi - outer_lr (D + mu v),  x_i <- phi        as `diloco`

    share=0 is `diloco`. EXO ("12 days of EXO", 2024; formula from exo-explore/gym): H can be much longer than without
    SPARTA. Departures: as `sparta`; and the authors' code takes outer steps after H + 1, 2 H + 1, ... steps, this one
    after H, 2 H, ..., as `diloco`. Topology: not used.
    """

    name: str = "sparta_diloco"

    def step(self, s: DiLoCo.State, oracle: Oracle, net: Network, t: int) -> DiLoCo.State:
        """Take one local update, all-reduce the drawn coordinates, and at the end of a period take an outer step."""
        x, opt = self.local.adapt(s.x, oracle(s.x), s.opt, t)
        return self.outer(s._replace(x=self.average(x, net, t), opt=opt), net, t)
