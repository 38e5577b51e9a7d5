"""Certificates beside real runs: what a method guarantees on a graph, and the worst that random quadratics did."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from decentral.measurements.measurement import Measurement
from decentral.measurements.values import NOT_REACHED, Labels, Meaning, Value
from decentral.settings import setting

_METRICS = {
    "upper": "certified error",
    "lower": "error attained",
    "worst_random": "worst error of random quadratics",
    "steps_to": "steps to the target",
    "stable": "largest stable learning rate",
    "rate": "rate per step",
    "bias": "bias per unit of heterogeneity",
    "noise_worker": "variance of a worker / all-reduce",
    "inverse_gap": "1 / spectral gap",
}
_MOST_STEPS = 5000


@dataclass
class Certificate(Measurement):
    """The certificate of config.algo on config.topology, and the errors of real runs on random quadratics.

    The errors are E = 1/n sum_i ||x_i - x*||^2 after `after` steps, for ||x^0 - x*|| <= 1 and heterogeneity zeta2.

    mu         strong convexity of every worker's function
    L          smoothness of every worker's function
    effective  effective learning rate: the rate times the number of times that a gradient finally counts
    after      K, the number of steps of the worst case
    zeta2      heterogeneity
    target     error whose number of steps is measured, as the mean over random quadratics
    trials     number of random quadratics
    """

    name: str = "certificate"
    mu: float = 0.1
    L: float = 1.0
    effective: float = setting(0.2, above=0)
    after: int = 5
    zeta2: float = 0.1
    target: float = 0.05
    trials: int = 10_000

    folder: ClassVar[str] = "certified"
    meanings: ClassVar[dict[str, Meaning]] = {
        words: Meaning(larger_is_better=key == "stable") for key, words in _METRICS.items()
    }

    def line(self) -> dict[str, Any]:
        """Return the numbers by the keys of the metrics; not a number for those that do not exist."""
        import torch

        from decentral.plugins.certificates.certify import Certifier, Terms, method_of
        from decentral.plugins.certificates.trace import run
        from decentral.topology.facts import spectral_gap

        method = method_of(self.config)
        certifier = Certifier(method, self.effective)
        lr = self.effective / certifier.count
        terms = Terms(mu=self.mu, L=self.L, steps=self.after, zeta2=self.zeta2)
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        n = method.n
        h = torch.where(draw(n, self.trials) < draw(self.trials), self.mu, self.L)
        g = draw(n, self.trials) - 0.5
        g -= g.mean(0)
        g *= (self.zeta2 / g.square().mean(0)).sqrt()
        x0 = torch.ones(self.trials, dtype=torch.float64)
        after = next(islice(run(method, lr, h, g, x0), self.after - 1, None))
        few = islice(run(method, lr, h[:, :100], g[:, :100], x0[:100]), _MOST_STEPS)
        return certifier.row(lr, terms) | {
            "worst_random": float(after.square().mean(0).max()),
            "steps_to": next((t for t, x in enumerate(few, 1) if x.square().mean() <= self.target), math.nan),
            "stable": certifier.largest_stable(terms),
            "inverse_gap": 1 / spectral_gap(method.rounds),
        }

    def values(self, labels: Labels) -> Iterator[Value]:
        """Yield every number."""
        for line in self.found():
            for key, words in _METRICS.items():
                status = "done" if math.isfinite(line[key]) else NOT_REACHED
                yield Value(labels, line[key], words, 0, line["lr"], status=status)
