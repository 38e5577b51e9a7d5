"""Numbers that follow from a graph alone, over the number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import truediv
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.compression.rows import RowLayout
from decentral.config.identity import component_identity, identity
from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest
from decentral.measurements.measurement import Measurement, check_losses
from decentral.measurements.values import Labels, Value
from decentral.registry.find import functions
from decentral.topology import facts
from decentral.topology.rounds import Rounds, mean_delay

if TYPE_CHECKING:
    from torch import Tensor

_AGREED = 1e-10  # spread of the workers' models, relative to their mean, at which a change has settled
_MAX_STEPS = 1_000_000


@dataclass
class GraphFacts(Measurement):
    """A quantity of config.topology for each number of workers.

    quantity      name of a quantity of the topology (see `quantities`), or measured_correction, a quantity of the
                  algorithm
    num_workers   numbers of workers
    metric        name of the metric; '': that of the quantity
    """

    name: str = "facts"
    quantity: str = ""
    num_workers: list[int] = field(default_factory=list)
    metric: str = ""

    folder: ClassVar[str] = "facts"
    decides: ClassVar[frozenset[str]] = frozenset({"lr", "num_workers"})

    def check(self) -> None:
        """Check that the quantity exists."""
        known = [*quantities(), measured_correction.__name__]
        if self.quantity not in known:
            raise ConfigError(f"quantity={self.quantity} is unknown.{suggest(self.quantity, known)}")
        check_losses(self.config)
        self.config = replace(self.config, num_workers=self.num_workers[0])

    def parameters(self) -> dict[str, Any]:
        """Return the quantity, the numbers of workers, and the topology if the run's identity leaves it out."""
        settings = {"quantity": self.quantity, "sizes": self.num_workers}
        if "topology" in identity(self.config):
            return settings
        return {**settings, "topology": component_identity(self.config.topology)}

    def parts(self) -> list[dict[str, Any]]:
        """Return a part for each number of workers."""
        return [{"num_workers": n} for n in self.num_workers]

    def line(self, num_workers: int) -> dict[str, Any]:
        """Return the quantity."""
        config = replace(self.config, num_workers=num_workers)
        if self.quantity == measured_correction.__name__:
            return {"value": measured_correction(config)}
        return {"value": quantities()[self.quantity](config.rounds())}

    def numbers(self) -> dict[int, float]:
        """Return number of workers -> value, for the numbers known so far."""
        return {int(line["num_workers"]): float(line["value"]) for line in self.found()}

    def cells(self) -> list[Labels]:
        """Return a cell for each number of workers."""
        return [self.labels | {"num_workers": n} for n in self.num_workers]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return the quantity for the cell's number of workers."""
        yield Value(labels, self.numbers()[int(labels["num_workers"])], self.metric or self.quantity, 0)


def measured_correction(config: Config) -> float:
    """Return how much less a change of one worker counts than with all-reduce: 1 / the final mean, after all models
    once rise by 1.

    The algorithm of the configuration runs with learning rate 1, from zero, until the workers agree (relative 1e-10);
    the authors stop at a standard deviation of 1e-4.
    """
    import torch

    from decentral.training.method import local_network, with_rate
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
    raise ArithmeticError(f"the workers have not converged after {_MAX_STEPS} steps of algo={config.algo.name}.")


_QUANTITIES: dict[str, Callable[[Rounds], float]] = {
    "m_over_p": lambda rounds: truediv(*facts.effective_spectral_gap(facts.relay_matrix(rounds))),
    "second_eigenvalue": lambda rounds: facts.second_largest_eigenvalue_modulus(rounds.matrices(0)[0]),
    "smallest_eigenvalue": lambda rounds: facts.smallest_eigenvalue(rounds.matrices(0)[0]),
    "relay_second_eigenvalue": lambda rounds: facts.second_largest_eigenvalue_modulus(facts.relay_matrix(rounds)),
    "correction": lambda rounds: 1 + mean_delay(rounds),
    "half_of_diameter": lambda rounds: float(rounds.hops().max()) / 2,
}


def quantities() -> dict[str, Callable[[Rounds], float]]:
    """Return the quantities that follow from the rounds of a topology: ours, and functions in `quantities/*.py`."""
    return _QUANTITIES | functions("quantities")
