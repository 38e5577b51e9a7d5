"""What tells the problems of an ensemble apart, and what an ensemble can be made of."""

from __future__ import annotations

from typing import NamedTuple

from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.jobs.computation import check_losses
from decentral.tasks.quadratics import Quadratics


class Member(NamedTuple):
    """What tells one problem of an ensemble from the others."""

    seed: int
    """Draws the problem (unless task.problem_seed does) and the noise of its gradients."""
    zeta2: float
    """Heterogeneity 1/n sum_i ||grad f_i(x*)||^2."""


class Rated(NamedTuple):
    """A member with its learning rate."""

    seed: int
    zeta2: float
    lr: float


def check(config: Config) -> None:
    """Raises ConfigError, with what would work, for a configuration of which no ensemble can be made."""
    if not isinstance(config.task, Quadratics):
        raise ConfigError(
            f"task={config.task.name} cannot be used: this study solves many problems side by side, as one run, which "
            f"only task={Quadratics.name} can."
        )
    check_losses(config)
    assert config.num_workers is not None
    pieces = config.rounds().num_pieces
    if pieces > 1:
        raise ConfigError(
            f"topology={config.topology.name} cuts each model in {pieces} pieces, which an ensemble of models in one "
            "row cannot: use a topology of one graph, such as bt or chain."
        )
