"""The interface of attacks by Byzantine workers (`attack=`): an attacker's messages or labels are changed."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


class Seen(NamedTuple):
    """The information an attack may use for a message to worker `receiver`, i."""

    receiver: int
    rows: Mapping[int, Tensor]
    """y_j [P] by worker, including at least i and its neighbors."""
    weights: Mapping[int, float]
    """W_ij of i and its neighbors, workers ascending."""
    attackers: frozenset[int]
    num_workers: int
    seed: int
    round: int

    @property
    def honest(self) -> list[int]:
        """Return i and its neighbors that are not attackers."""
        return [j for j in self.weights if j not in self.attackers]


class Attack(Settings, ABC, where="attack"):
    """The behavior of the attackers."""

    name: str

    flips_labels: ClassVar[bool] = False
    """True if attackers train on wrong labels and send the result."""

    def attackers(self, num_workers: int, seed: int) -> list[int]:
        """Return the numbers of the attackers, ascending."""
        return []

    def check(self, num_workers: int) -> None:
        """Raise ConfigError if the attack is impossible for this number of workers."""

    def message(self, a: int, seen: Seen) -> Tensor:
        """Return the message [P] of attacker a."""
        return seen.rows[a]


@dataclass
class NoAttack(Attack):
    """All workers are honest."""

    name: str = "none"
