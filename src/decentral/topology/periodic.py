"""Rounds that communicate now and then, or let all workers agree now and then."""

from __future__ import annotations

import math

from decentral.errors import ConfigError
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import MEAN, Phase, Rounds

MAX_PERIOD = 100_000


def now_and_then(base: Rounds, every: int, global_every: int | None, topology: str) -> Rounds:
    """A round of `base` in every `every`-th round, the mean of all workers in every `global_every`-th of those.

    In between nothing is sent: W = I. `topology` is its name in messages.

    Raises:
        ConfigError: the rounds repeat too late.
    """
    n, d = base.num_workers, base.num_pieces
    period = every * math.lcm(base.period, global_every or 1)
    if period > MAX_PERIOD:
        raise ConfigError(
            f"communication.every={every} and communication.global_every={global_every} with topology={topology} "
            f"repeat after {period} steps only, more than {MAX_PERIOD}: use smaller numbers."
        )

    def silent(round: int) -> bool:
        return (round + 1) % every > 0

    def everybody(round: int) -> bool:
        return global_every is not None and (round // every + 1) % global_every == 0

    def matrices(round: int) -> tuple[MixingMatrix, ...]:
        if silent(round):
            return (MixingMatrix.identity(n),) * d
        return (MixingMatrix.average(n),) * d if everybody(round) else base.mixing(round // every)

    def phases(round: int) -> list[Phase]:
        if silent(round):
            return []
        return [MEAN] if everybody(round) else base.phases(round // every)

    return Rounds(n, matrices, num_pieces=d, period=period, split=base.split, phases=phases)
