"""Attacks by Byzantine workers (`attack=`). An attacker trains like the others; its messages or labels are changed."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar

from decentral.errors import ConfigError
from decentral.host.machine import Lazy
from decentral.network.attacks import Attack, Seen
from decentral.randomness import numpy_generator, torch_generator
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")


@dataclass
class Attackers(Attack):
    """Some workers are attackers.

    workers  numbers of the attackers
    count    number of attackers, drawn by the seed (null: one, or those of attack.workers)
    """

    name: str
    workers: list[int] = setting([], at_least=0)
    count: int | None = setting(None, at_least=0)

    def attackers(self, num_workers: int, seed: int) -> list[int]:
        """See `Attack`."""
        if self.workers:
            return sorted(self.workers)
        count = 1 if self.count is None else self.count
        drawn = numpy_generator(seed, "attackers").choice(num_workers, count, replace=False)
        return sorted(drawn.tolist())

    def check(self, num_workers: int) -> None:
        """Refuse attackers that do not exist, and a run without an honest worker."""
        if self.workers and self.count is not None:
            raise ConfigError(
                f"attack.count={self.count} and attack.workers={self.workers} conflict: leave one of them out."
            )
        if len(set(self.workers)) < len(self.workers) or max(self.workers, default=0) >= num_workers:
            raise ConfigError(
                f"attack.workers={self.workers} is invalid: name different workers from 0 to {num_workers - 1} "
                f"(num_workers={num_workers})."
            )
        number = len(self.workers) or (1 if self.count is None else self.count)
        if number >= num_workers:
            key = f"attack.workers={self.workers}" if self.workers else f"attack.count={number}"
            raise ConfigError(
                f"{key} leaves no honest worker with num_workers={num_workers}: use fewer attackers, or more workers."
            )


@dataclass
class SignFlip(Attackers):
    """Attackers send -y_a instead of their model y_a."""

    name: str = "sign_flip"

    def message(self, a: int, seen: Seen) -> Tensor:
        """Return -y_a."""
        return -seen.rows[a]


@dataclass
class Noise(Attackers):
    """Attackers send y_a + sigma N, N standard normal, the same to all neighbors.

    sigma  standard deviation of every coordinate
    """

    name: str = "noise"
    sigma: float = setting(1.0, at_least=0)

    def message(self, a: int, seen: Seen) -> Tensor:
        """Return y_a + sigma N; N is addressed by (seed, attacker, round)."""
        y, generator = seen.rows[a], torch_generator("cpu", seen.seed, "attack: noise", a, seen.round)
        return y.add(torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device), alpha=self.sigma)


@dataclass
class LabelFlip(Attackers):
    """Attackers train on labels C - 1 - c instead of c, of C classes, and send the result."""

    name: str = "label_flip"
    flips_labels: ClassVar[bool] = True


@dataclass
class Alie(Attackers):
    """A little is enough: attackers send worker i the mean of its honest neighborhood minus z standard deviations.

        m_ai = mu - z sd    mean and standard deviation (over count - 1) of each coordinate, of i and its honest
                            neighbors

    z  number of standard deviations (null: Phi^-1((n - f - s) / (n - f)), s = floor(n / 2 + 1) - f, for f attackers
       among n workers)

    Baruch et al., NeurIPS 2019 (arXiv:1902.06156). Attackers know all models.
    """

    name: str = "alie"
    z: float | None = setting(None, at_least=-1e6, at_most=1e6)

    def check(self, num_workers: int) -> None:
        """Check that z exists."""
        super().check(num_workers)
        f = len(self.attackers(num_workers, 0))
        if self.z is None and not 0 < _share(num_workers, f) < 1:
            raise ConfigError(
                f"attack.z=null is undefined for {f} attackers among num_workers={num_workers}: give a number, such "
                "as attack.z=1.5."
            )

    def message(self, a: int, seen: Seen) -> Tensor:
        """Return mu - z sd."""
        i, n = seen.receiver, seen.num_workers
        z = NormalDist().inv_cdf(_share(n, len(seen.attackers))) if self.z is None else self.z
        around = torch.stack([seen.rows[j] for j in sorted({i, *seen.honest})])
        mean = around.mean(0)
        sd = (around - mean).square_().sum(0).div_(max(1, len(around) - 1)).sqrt_()
        return mean.sub_(sd, alpha=z)


def _share(n: int, f: int) -> float:
    """Return (n - f - s) / (n - f), the share of honest workers that may be farther from the mean than an attacker."""
    return (n - f - (n // 2 + 1 - f)) / (n - f)


@dataclass
class Dissensus(Attackers):
    """Attackers push worker i away from its honest neighbors, as far as their weights allow.

        m_ai = y_i - epsilon sum_{honest j} W_ij (y_j - y_i) / sum_{attackers b} W_ib

    epsilon  1: plain gossip leaves i in place; larger: it moves away from the others

    He, Karimireddy and Jaggi (arXiv:2202.01545). Attackers know all models.
    """

    name: str = "dissensus"
    epsilon: float = setting(1.5, at_least=0)

    def message(self, a: int, seen: Seen) -> Tensor:
        """Return y_i - epsilon (pull of honest workers) / (weight of attackers)."""
        i, y = seen.receiver, seen.rows[seen.receiver]
        pull = torch.zeros_like(y)
        for j in seen.honest:
            pull.add_(seen.rows[j] - y, alpha=seen.weights[j])
        weight = sum(w for b, w in seen.weights.items() if b in seen.attackers and b != i)
        return y.sub(pull, alpha=self.epsilon / weight)
