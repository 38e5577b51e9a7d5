"""What the scenarios of a benchmark are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.report.listings.listing import Listing

if TYPE_CHECKING:
    from decentral.report.results import Results


@dataclass
class Scenarios(Listing):
    """The entries `scenarios` of study.json: task and cluster, target and reason, and the budget of a method."""

    name: str = "scenarios"
    left: ClassVar[int] = 3

    def lines(self, results: Results) -> list[list[str]]:
        """A row for each scenario."""
        head = ["scenario", "what", "target", "steps", "rates tried", "runs for tuning", "seeds"]
        rows = []
        for one in results.facts.get("scenarios") or []:
            rates, tuning = one["rates"], len(one["rates"]) * len(one["tune_seeds"])
            numbers = [str(one["steps"]), ", ".join(f"{rate:g}" for rate in rates), str(tuning), str(len(one["seeds"]))]
            rows.append([str(one["scenario"]), str(one["title"]), str(one["target"]), *numbers])
        return [head, *rows]

    def sentences(self, results: Results) -> list[str]:
        """Why these targets."""
        reasons: dict[str, list[str]] = {}
        for one in results.facts.get("scenarios") or []:
            reasons.setdefault(" ".join(str(one["because"]).split()), []).append(f"`{one['scenario']}`")
        return [f"Why the target of {', '.join(names)}: {reason}" for reason, names in reasons.items()]
