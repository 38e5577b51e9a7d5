"""Numbers that follow from a graph: a job that computes one of them for several numbers of workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.config import Config
from decentral.ensembles.job import Computation
from decentral.identity import component_identity, identity
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    from decentral.topology.schedule import Schedule

_AGREED = 1e-10  # spread of the workers' models, relative to their mean, at which a change has settled
_MAX_STEPS = 1_000_000


@dataclass(frozen=True)
class FactJob(Computation):
    """A quantity (a key of QUANTITIES) of config.topology for each number of workers; a line of facts.jsonl each."""

    quantity: str = ""
    num_workers: tuple[int, ...] = ()

    folder: ClassVar[str] = "facts"
    lines: ClassVar[str] = "facts.jsonl"

    def asked(self) -> dict[str, Any]:
        """Quantity, numbers of workers, and the topology where the run's identity leaves it out."""
        own = {"quantity": self.quantity, "sizes": list(self.num_workers)}
        if "topology" in identity(self.config):
            return own
        return {**own, "topology": component_identity(self.config.topology)}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """One number of workers after the other."""
        known = {line["num_workers"] for line in lines.known}
        for number, n in enumerate(self.num_workers):
            if n in known:
                continue
            if stop():
                return False
            lines.append({"num_workers": n, "value": QUANTITIES[self.quantity](replace(self.config, num_workers=n))})
            show(number / len(self.num_workers), f"n = {n}")
        return True

    def numbers(self) -> dict[int, float]:
        """Number of workers -> value, as far as they are known."""
        return {int(line["num_workers"]): float(line["value"]) for line in self.found()}


def measured_correction(config: Config) -> float:
    """By how much a change of one worker counts less than with all-reduce: all models go up by 1 once, 1 / the mean.

    The algorithm of the configuration with learning rate 1, from zero, until the workers agree (relative 1e-10); the
    authors stop at a standard deviation of 1e-4.
    """
    import torch

    from decentral.ensembles.ensemble import network
    from decentral.optim.optimizer import LocalRule

    with torch.no_grad():
        net = network(config)
        algorithm = config.algo.using(LocalRule(config.optim, lambda t: 1.0))
        state = algorithm.init(torch.zeros(net.n, 1, dtype=torch.float64), net)
        for t in range(_MAX_STEPS):
            state = algorithm.step(state, lambda x, t=t: torch.full_like(x, -1.0 if t == 0 else 0.0), net, t)
            x = algorithm.models(state)
            if t > net.n and float(x.max() - x.min()) <= _AGREED * float(x.mean().abs()):
                return 1 / float(x.mean())
    raise ArithmeticError(f"the workers do not agree after {_MAX_STEPS} steps of algo={config.algo.name}.")


def _of_schedule(value: Callable[[Schedule], float]) -> Callable[[Config], float]:
    def of(config: Config) -> float:
        assert config.num_workers is not None
        return value(config.rounds())

    return of


def _effective_gap(schedule: Schedule) -> float:
    from decentral.topology.facts import effective_spectral_gap, relay_matrix

    m, p = effective_spectral_gap(relay_matrix(schedule))
    return m / p


def _second(schedule: Schedule) -> float:
    from decentral.topology.facts import second_largest_eigenvalue_modulus

    return second_largest_eigenvalue_modulus(schedule.matrices(0)[0])


def _smallest(schedule: Schedule) -> float:
    from decentral.topology.facts import smallest_eigenvalue

    return smallest_eigenvalue(schedule.matrices(0)[0])


def _relay_second(schedule: Schedule) -> float:
    from decentral.topology.facts import relay_matrix, second_largest_eigenvalue_modulus

    return second_largest_eigenvalue_modulus(relay_matrix(schedule))


def _correction(schedule: Schedule) -> float:
    from decentral.topology.facts import mean_delay

    return 1 + mean_delay(schedule)


QUANTITIES: dict[str, Callable[[Config], float]] = {
    "m_over_p": _of_schedule(_effective_gap),
    "second_eigenvalue": _of_schedule(_second),
    "smallest_eigenvalue": _of_schedule(_smallest),
    "relay_second_eigenvalue": _of_schedule(_relay_second),
    "correction": _of_schedule(_correction),
    "measured_correction": measured_correction,
    "half_of_diameter": _of_schedule(lambda schedule: float(schedule.hops().max()) / 2),
}
"""What a FactJob can compute, each from a configuration."""
