"""Which method when: who is first in each problem, and who is never there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from decentral.errors import ConfigError
from decentral.report import profiles, style
from decentral.report.listings.listing import Listing

if TYPE_CHECKING:
    from decentral.report.profiles import Costs
    from decentral.report.results import Results


@dataclass
class Choices(Listing):
    """A row for each problem: by each metric the method that is first, with its number, and those that take at most
    `within` times as much.

    metrics   metric -> what its column is called
    problem   the label that tells problems apart
    methods   the labels that tell methods apart
    most      how many methods a place names
    """

    name: str = "choices"
    metrics: dict[str, str] = field(default_factory=dict)
    problem: str = "scenario"
    methods: list[str] = field(default_factory=lambda: ["method"])
    within: float = 1.1
    most: int = 3
    left: ClassVar[int] = 9

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError(f"the listing '{self.file}' needs `metrics`: a metric, and what its column is called.")

    def lines(self, results: Results) -> list[list[str]]:
        """The names of the best."""
        found = self._costs(results)
        first = next(iter(found.values()))
        head = [style.heading(self.problem), *(f"first in {word}" for word in self.metrics.values()), "never there"]
        titles = {one["scenario"]: one["title"] for one in results.facts.get("scenarios") or []}
        rows = []
        for place, problem in enumerate(first.problems if first.methods else []):
            never = [key for n, key in enumerate(first.methods) if math.isinf(first.typical[n, place])]
            best = [self._best(own, place) for own in found.values()]
            rows.append([str(titles.get(problem, problem)), *best, ", ".join(map(self._words, never))])
        return [head, *rows]

    def _best(self, found: Costs, place: int) -> str:
        factors = found.ratios[:, place].tolist()
        near = [n for n, factor in enumerate(factors) if factor <= self.within * (1 + 1e-9)]
        order = sorted(near, key=lambda n: factors[n])
        if not order:
            return "nobody"
        number = f"{found.typical[order[0], place]:.3g}"
        tied = [n for n in order if factors[n] <= 1 + 1e-9]
        words = [" = ".join(self._words(found.methods[n]) for n in tied[: self.most]) + f": {number}"]
        words += [f"{self._words(found.methods[n])} {factors[n]:.2f}x" for n in order[len(tied) : self.most]]
        more = len(order) - self.most
        return ", ".join(words) + (f" and {more} more" if more > 0 else "")

    def sentences(self, results: Results) -> list[str]:
        """Who is good everywhere."""
        texts = [
            f"The number is what the first one takes, the median over seeds; behind it whoever takes at most "
            f"{self.within:g} times as much. `a = b`: both take the same."
        ]
        for (_, word), found in zip(self.metrics.items(), self._costs(results).values(), strict=True):
            if found.methods:
                texts.append(self._overall(found, word))
        return texts

    def _overall(self, found: Costs, word: str) -> str:
        """The best mean rank, and who is nowhere far behind."""
        import numpy as np

        best, number = found.order()[0], len(found.problems)
        firsts = int((found.ratios[best] <= 1 + 1e-9).sum())
        text = (
            f"By {word}, **{self._words(found.methods[best])}** has the best mean rank ({found.ranks()[best]:.1f}): it "
            f"is first in {firsts} of {number}"
        )
        worst = np.where(np.isfinite(found.ratios).all(axis=1), found.ratios.max(axis=1), np.inf)
        safe = int(worst.argmin())
        if math.isinf(worst[safe]):
            return f"{text}. Nobody gets to the target in every {self.problem}."
        return (
            f"{text}. The safest choice, whose worst {self.problem} is the mildest, is "
            f"**{self._words(found.methods[safe])}**: nowhere more than {worst[safe]:.1f} times as much as the best."
        )

    def _costs(self, results: Results) -> dict[str, Costs]:
        return {metric: profiles.costs(results, metric, self.problem, self.methods) for metric in self.metrics}

    def _words(self, key: tuple[str, ...]) -> str:
        """For example 'D-PSGD (ring)'."""
        first, *more = [style.pretty(label, word) for label, word in zip(self.methods, key, strict=True) if word]
        return f"{first} ({', '.join(more)})" if more else first
