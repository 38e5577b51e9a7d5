"""A claim about rank correlations: does a prediction order the cells of a study as measurements do?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from decentral.report.claims import MET, NOT_MET, Cells, Claim, Finding, NotRun
from decentral.report.entries import plain


@dataclass
class Ranks(Claim):
    """`by` orders all cells with these labels more like `of` than `than` does (Spearman's rank correlation).

    All three are metrics of the study; a cell without a value ranks as the worst.
    """

    name: str = "ranks"
    cell: dict[str, Any] = field(default_factory=dict)
    of: str = ""
    by: str = ""
    than: str = ""
    needs: ClassVar = ("cell", "of", "by", "than")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the two correlations."""
        from pandas import DataFrame
        from scipy.stats import spearmanr

        wanted = {name: plain(value) for name, value in self.cell.items()}
        levels = [
            (str(entry.labels), entry.metric, entry.level(larger_is_better))
            for entry in cells.entries
            if wanted.items() <= entry.labels.items()
        ]
        table = DataFrame(levels, columns=["cell", "metric", "level"]).pivot(index="cell", columns="metric")["level"]
        table = table.reindex(columns=[self.of, self.by, self.than]).dropna()
        if len(table) < 3:
            raise NotRun(f"fewer than three cells have {self.of}, {self.by} and {self.than}")
        ours, theirs = (float(spearmanr(table[self.of], table[name]).statistic) for name in (self.by, self.than))
        return Finding(
            MET if ours > theirs else NOT_MET,
            ours,
            None,
            f"above {theirs:.3f}",
            f"rank correlation {ours:.3f} against {theirs:.3f}, over {len(table)} cells",
        )
