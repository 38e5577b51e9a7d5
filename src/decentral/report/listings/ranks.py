"""Ranks of methods over problems, with their uncertainty over seeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decentral.errors import ConfigError
from decentral.report import profiles, style
from decentral.report.listings.listing import Listing

if TYPE_CHECKING:
    from decentral.report.results import Results


@dataclass
class Ranks(Listing):
    """A row for each method, from the best mean rank of the first metric to the worst: its mean rank by each metric, in
    how many problems it gets to the target, and in how many it takes at most `within` times as much as the best.

    metrics   metric -> what its column is called
    problem   the label that tells problems apart
    methods   the labels that tell methods apart
    """

    name: str = "ranks"
    metrics: dict[str, str] = field(default_factory=dict)
    problem: str = "scenario"
    methods: list[str] = field(default_factory=lambda: ["method"])
    within: float = 2.0
    left: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError(f"the listing '{self.file}' needs `metrics`: a metric, and what its column is called.")

    def lines(self, results: Results) -> list[list[str]]:
        """Mean ranks with 5 % and 95 % quantiles of the bootstrap."""
        first, columns = None, []
        for metric in self.metrics:
            found = profiles.costs(results, metric, self.problem, self.methods)
            first = first or found
            if found.methods:
                columns.append(self._column(found))
        assert first is not None
        head = [*(style.heading(label) for label in self.methods), *(f"rank, {word}" for word in self.metrics.values())]
        head += ["at the target", f"within {self.within:g}x in {next(iter(self.metrics.values()))}"]
        if not first.methods:
            return [head]
        number = len(first.problems)
        reached = np.isfinite(first.typical).sum(axis=1)
        close = (first.ratios <= self.within * (1 + 1e-9)).sum(axis=1)
        rows = []
        for one in first.order():
            key = first.methods[one]
            names = [style.pretty(label, word) for label, word in zip(self.methods, key, strict=True)]
            counts = [f"{reached[one]} of {number}", f"{close[one]} of {number}"]
            rows.append([*names, *(column[key] for column in columns), *counts])
        return [head, *rows]

    def _column(self, found: profiles.Costs) -> dict[tuple[str, ...], str]:
        ranks, (low, high) = found.ranks(), found.rank_bounds()
        return {key: f"{ranks[one]:.1f} ({low[one]:.1f} to {high[one]:.1f})" for one, key in enumerate(found.methods)}

    def sentences(self, results: Results) -> list[str]:
        """What the numbers are."""
        found = profiles.costs(results, next(iter(self.metrics)), self.problem, self.methods)
        number = len(found.problems)
        problems = f"{number} {self.problem}{'s' if number != 1 else ''}"
        texts = [
            f"Mean over {problems} of a method's rank (1: the best) by the median over seeds; who never gets to the "
            "target shares the last ranks. In brackets: 5 % and 95 % quantiles where the seeds of every cell are drawn "
            "anew, with replacement (bootstrap, 2,000 replicates); with few seeds a rank may lie at their edge, or "
            f"just beyond. That is the uncertainty over seeds; other {self.problem}s would change the ranks, too."
        ]
        if found.left_out:
            names = ", ".join(" ".join(filter(None, key)) for key in found.left_out)
            texts.append(f"Not ranked, as they were not run in every {self.problem}: {names}.")
        return texts
