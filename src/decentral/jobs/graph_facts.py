"""Numbers that follow from a graph: a job that computes one of them for several numbers of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.compression.row_layout import RowLayout
from decentral.config.identity import component_identity, identity
from decentral.config.schema import Config
from decentral.jobs.computation import Computation
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.topology.rounds import Rounds

_AGREED = 1e-10  # spread of the workers' models, relative to their mean, at which a change has settled
_MAX_STEPS = 1_000_000


@dataclass(frozen=True)
class GraphFacts(Computation):
    """A quantity (a key of QUANTITIES) of config.topology for each number of workers; a line of facts.jsonl each."""

    quantity: str = ""
    num_workers: tuple[int, ...] = ()

    folder: ClassVar[str] = "facts"
    lines: ClassVar[str] = "facts.jsonl"

    def parameters(self) -> dict[str, Any]:
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
            show((number + 1) / len(self.num_workers), f"n = {n}")
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

    from decentral.training.assemble import local_network, with_rate
    from decentral.training.stepper import Stepper

    def once(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        return torch.full_like(x, -1.0 if stepper.t == 0 else 0.0)

    with torch.no_grad():
        net = local_network(config)
        start = torch.zeros(net.n, 1, dtype=torch.float64)
        stepper = Stepper(with_rate(config, lambda t: 1.0, RowLayout.flat(1)), net, once, start)
        while stepper.t < _MAX_STEPS:
            stepper.step()
            x = stepper.models
            if stepper.t > net.n + 1 and float(x.max() - x.min()) <= _AGREED * float(x.mean().abs()):
                return 1 / float(x.mean())
    raise ArithmeticError(f"the workers do not agree after {_MAX_STEPS} steps of algo={config.algo.name}.")


def _of_rounds(value: Callable[[Rounds], float]) -> Callable[[Config], float]:
    def of(config: Config) -> float:
        assert config.num_workers is not None
        return value(config.rounds())

    return of


def _effective_gap(rounds: Rounds) -> float:
    from decentral.topology.facts import effective_spectral_gap, relay_matrix

    m, p = effective_spectral_gap(relay_matrix(rounds))
    return m / p


def _second(rounds: Rounds) -> float:
    from decentral.topology.facts import second_largest_eigenvalue_modulus

    return second_largest_eigenvalue_modulus(rounds.matrices(0)[0])


def _smallest(rounds: Rounds) -> float:
    from decentral.topology.facts import smallest_eigenvalue

    return smallest_eigenvalue(rounds.matrices(0)[0])


def _relay_second(rounds: Rounds) -> float:
    from decentral.topology.facts import relay_matrix, second_largest_eigenvalue_modulus

    return second_largest_eigenvalue_modulus(relay_matrix(rounds))


def _correction(rounds: Rounds) -> float:
    from decentral.topology.facts import mean_delay

    return 1 + mean_delay(rounds)


QUANTITIES: dict[str, Callable[[Config], float]] = {
    "m_over_p": _of_rounds(_effective_gap),
    "second_eigenvalue": _of_rounds(_second),
    "smallest_eigenvalue": _of_rounds(_smallest),
    "relay_second_eigenvalue": _of_rounds(_relay_second),
    "correction": _of_rounds(_correction),
    "measured_correction": measured_correction,
    "half_of_diameter": _of_rounds(lambda rounds: float(rounds.hops().max()) / 2),
}
"""What a GraphFacts can compute, each from a configuration."""
