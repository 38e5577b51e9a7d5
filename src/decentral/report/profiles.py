"""Performance profiles and ranks: how methods compare over many problems, by what each takes to a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.errors import ConfigError, suggest

if TYPE_CHECKING:
    import numpy as np

    from decentral.report.results import Results

_REPLICATES = 2000
_QUANTILES = (0.05, 0.95)


@dataclass(frozen=True)
class Costs:
    """What each method takes in each problem, by seed; infinite where it never gets to the target, or diverges."""

    methods: list[tuple[str, ...]]
    problems: list[str]
    seeds: list[list[tuple[float, ...]]]
    """[method][problem] -> a number for each seed."""
    left_out: list[tuple[str, ...]]
    """Methods that were not run in all problems, and so cannot be compared."""

    @property
    def typical(self) -> np.ndarray:
        """[methods, problems]: the median over seeds, infinite where half of them never get there."""
        import numpy as np

        return np.array([[_median(np.array([one]))[0] for one in row] for row in self.seeds])

    @property
    def ratios(self) -> np.ndarray:
        """[methods, problems]: how many times as much as the best takes; infinite where nobody gets to the target."""
        return _ratios(self.typical)

    def profile(self, taus: list[float]) -> np.ndarray:
        """[methods, taus]: the share of problems in which a method takes at most tau times as much as the best.

        Dolan & More, Mathematical Programming 91, 2002: rho_m(tau) = |{p : r_pm <= tau}| / |problems|.
        """
        import numpy as np

        return np.stack([(self.ratios <= tau * (1 + 1e-9)).mean(axis=1) for tau in taus], axis=1)

    def ranks(self) -> np.ndarray:
        """[methods]: the mean over problems of a method's rank, 1 for the best; equals share their ranks' mean."""
        return _ranks(self.typical[None])[0]

    def rank_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """[methods] each: 5 % and 95 % quantiles of the mean rank where the seeds of each cell are drawn anew, with
        replacement (a bootstrap of 2,000 replicates). It says what other seeds would do, not what other problems
        would."""
        import numpy as np

        rng = np.random.default_rng(0)
        drawn = np.empty((_REPLICATES, len(self.methods), len(self.problems)))
        for number, row in enumerate(self.seeds):
            for place, seeds in enumerate(row):
                picks = rng.integers(len(seeds), size=(_REPLICATES, len(seeds)))
                drawn[:, number, place] = _median(np.array(seeds)[picks])
        low, high = np.quantile(_ranks(drawn), _QUANTILES, axis=0)
        return low, high

    def order(self) -> list[int]:
        """Methods from the best to the worst: by mean rank."""
        return sorted(range(len(self.methods)), key=lambda number: (self.ranks()[number], self.methods[number]))


def costs(results: Results, metric: str, problem: str, lines: list[str]) -> Costs:
    """Of the study's numbers of a metric. `problem`: the label that tells problems apart, `lines` those that tell
    methods. Raises ConfigError for a metric or a label that the study does not have."""
    table = results.values[results.values["chosen"]]
    metrics = list(dict.fromkeys(table["metric"]))
    if metrics and metric not in metrics:
        raise ConfigError(f"study {results.study}: there is no metric '{metric}'.{suggest(metric, metrics)}")
    for label in (problem, *lines):
        if len(table) and label not in results.labels:
            raise ConfigError(f"study {results.study} has no label '{label}'.{suggest(label, results.labels)}")
    table = table[(table["metric"] == metric) & (table["status"] != "damaged")]
    found: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for row in table.to_dict("records"):
        value = float(row["value"])
        own = found.setdefault(tuple(str(row[label]) for label in lines), {})
        own.setdefault(str(row[problem]), []).append(value if math.isfinite(value) else math.inf)
    problems = list(dict.fromkeys(str(one) for one in table[problem])) if len(table) else []
    whole = [method for method, own in found.items() if own.keys() == set(problems)]
    seeds = [[tuple(found[method][one]) for one in problems] for method in whole]
    return Costs(whole, problems, seeds, [method for method in found if method not in whole])


def _median(values: np.ndarray) -> np.ndarray:
    """[...] of [..., seeds], where infinity is a number: half of it is infinite, too."""
    import numpy as np

    ranked = np.sort(values, axis=-1)
    number = ranked.shape[-1]
    low, high = ranked[..., (number - 1) // 2], ranked[..., number // 2]
    return np.where(np.isinf(high), math.inf, (low + np.where(np.isinf(high), 0.0, high)) / 2)


def _ratios(typical: np.ndarray) -> np.ndarray:
    import numpy as np

    best = typical.min(axis=0, keepdims=True) if len(typical) else np.ones((1, typical.shape[-1]))
    reached = np.isfinite(typical)
    return np.where(reached, typical / np.where(np.isfinite(best) & (best > 0), best, 1.0), math.inf)


def _ranks(values: np.ndarray) -> np.ndarray:
    """[replicates, methods] of [replicates, methods, problems]; who never gets there shares the last ranks."""
    from scipy.stats import rankdata

    ranks: np.ndarray = rankdata(values, method="average", axis=1).mean(axis=2)
    return ranks
