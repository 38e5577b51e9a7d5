"""Tables of the benchmark: scenarios, ranks of methods, and the best methods of each problem."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.errors import ConfigError, suggest
from decentral.report import style
from decentral.report.listings import Board, Listing

if TYPE_CHECKING:
    from decentral.report.results import Results

_REPLICATES = 2000


@dataclass
class Scenarios(Listing):
    """The entries `scenarios` of study.json: a row for each family, with its clocks, variants, target and budget."""

    name: str = "scenarios"
    left: ClassVar[int] = 5

    def lines(self, results: Results) -> list[list[str]]:
        """Return a row for each family."""
        lines = [["family", "what", "clocks", "held out", "target", "steps", "learning rates", "seeds"]]
        for name, problems in _families(results).items():
            first, clocks = problems[0], ", ".join(str(each["clock"]) for each in problems if "clock" in each)
            varied = "; ".join(str(each["held_out"]) for each in problems if "held_out" in each)
            rates = " to ".join(f"{rate:g}" for rate in first["rates"])
            texts = [name, str(first["title"]), clocks, varied, str(first["target"])]
            lines.append([*texts, str(first["steps"]), rates, str(len(first["seeds"]))])
        return lines

    def sentences(self, results: Results) -> list[str]:
        """Return the reasons for these targets."""
        reasons: dict[str, list[str]] = {}
        for name, (problem, *_) in _families(results).items():
            reasons.setdefault(" ".join(str(problem["because"]).split()), []).append(f"`{name}`")
        return [f"Target of {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def _families(results: Results) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in results.facts.get("scenarios") or []:
        found.setdefault(str(one["family"]), []).append(one)
    return found


@dataclass
class Entries(Listing):
    """The entries `entries` of study.json: the settings of each method, and the searched ones."""

    name: str = "entries"
    left: ClassVar[int] = 3

    def lines(self, results: Results) -> list[list[str]]:
        """Return a row for each method; one without a search is marked as fixed."""
        known = results.facts.get("entries") or []
        head = ["method", "settings", "searched beside the learning rate"]
        return [head, *([entry["method"], entry["base"], entry["searched"] or "nothing (fixed)"] for entry in known)]


@dataclass
class Trials(Listing):
    """The trials of each method in each family: searched settings, results, and the choice.

    end    metric with a trial's value at the end
    time   metric with the time at which a trial reached the target
    """

    name: str = "trials"
    end: str = "value at the end of a trial"
    time: str = "simulated seconds to the target"
    left: ClassVar[int] = 3

    def lines(self, results: Results) -> list[list[str]]:
        """Return a row for each trial; if clocks share its run, the times are in their order."""
        lines = [["family", "method", "setting", "at the end", "at the target (s)", "chosen for"]]
        values = results.values
        if "setting" not in values:
            return lines
        family = {
            one["scenario"]: (one.get("family", one["scenario"]), one.get("clock", ""))
            for one in results.facts.get("scenarios") or []
        }
        groups: dict[tuple[str, str, str], dict[str, list[str]]] = {}
        for row in values.itertuples():
            name, clock = family.get(row.scenario, (row.scenario, ""))
            own = groups.setdefault((name, row.method, row.setting), {"end": [], "time": [], "chosen": []})
            if row.chosen and row.metric == self.time and clock not in own["chosen"]:
                own["chosen"].append(clock)
            elif not row.chosen and row.metric == self.end:
                own["end"].append(f"{row.value:.4g}")
            elif not row.chosen and row.metric == self.time:
                own["time"].append(f"{row.value:.3g}" if np.isfinite(row.value) else "never")
        for key, own in groups.items():
            ends = list(dict.fromkeys(own["end"]))
            lines.append([*key, " / ".join(ends), " / ".join(own["time"]), ", ".join(own["chosen"])])
        return lines

    def on_page(self, rows: list[list[str]]) -> list[list[str]]:
        """Return the rows of methods without a trial that reaches the target, with at least one of the clocks."""
        times: dict[tuple[str, str], list[list[str]]] = {}
        for family, method, *_, at, _ in rows:
            times.setdefault((family, method), []).append(at.split(" / "))
        failed = {
            key
            for key, attempts in times.items()
            if any(set(clock) == {"never"} for clock in zip(*attempts, strict=False))
        }
        return [row for row in rows if (row[0], row[1]) in failed]

    def sentences(self, results: Results) -> list[str]:
        """Return an explanation of the rows."""
        return [
            f"Methods with no trial at the target on at least one clock; {self.file}.csv has all trials. "
            "Times are in the order of the clocks. Several final values: training differs between clocks."
        ]


# -- methods over problems ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """The cost of each method in each problem, by seed; infinite if it never reaches the target or diverges."""

    methods: list[tuple[str, ...]]
    problems: list[str]
    seeds: list[list[tuple[float, ...]]]
    """Costs as [method][problem]: a number for each seed."""
    left_out: list[tuple[str, ...]]
    """Methods that were not run in all problems, and cannot be compared."""
    families: list[str] = field(default_factory=list)
    """Family of each problem; a family has the weight of one problem. []: each problem is a family."""

    @cached_property
    def _of_family(self) -> np.ndarray:
        """Return the weight of each problem in its family: [families, problems]."""
        names = self.families or self.problems
        weights = np.array([[name == family for name in names] for family in dict.fromkeys(names)], dtype=float)
        return weights / weights.sum(axis=1, keepdims=True) if weights.size else weights

    @property
    def weights(self) -> np.ndarray:
        """Return the weights of the problems, which sum to 1: [problems]."""
        return self._of_family.mean(axis=0) if self.problems else np.empty(0)

    @cached_property
    def typical(self) -> np.ndarray:
        """[methods, problems]: the median over seeds, infinite where half of them never get there."""
        found = np.array([[np.median(one) for one in row] for row in self.seeds], dtype=float)
        return found.reshape(len(self.methods), len(self.problems))

    @cached_property
    def ratios(self) -> np.ndarray:
        """Return [methods, problems]: the cost relative to the best; infinite if no method reaches the target."""
        best = self.typical.min(axis=0, initial=math.inf)
        best = np.where(np.isfinite(best) & (best > 0), best, 1.0)
        return np.where(np.isfinite(self.typical), self.typical / best, math.inf)

    def profile(self, taus: list[float]) -> np.ndarray:
        """Return the share of problems in which a method takes at most tau times as much as the best: [methods, taus].

        Dolan & More, Mathematical Programming 91, 2002: rho_m(tau) = |{p : r_pm <= tau}| / |problems|, here with the
        problems' weights.
        """
        return np.stack([(self.ratios <= tau * (1 + 1e-9)) @ self.weights for tau in taus], axis=1)

    def ranks(self) -> np.ndarray:
        """Return the mean over problems of a method's rank, 1 for the best: [methods]. Ties share their mean rank.

        The last digits, which depend on the processor, are rounded off: tables show 10.05 alike everywhere.
        """
        ranks: np.ndarray = _ranks(self.typical[None])[0] @ self.weights if self.methods else np.empty(0)
        return ranks.round(9)

    def rank_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return [methods] each: 5 % and 95 % quantiles of the mean rank in a bootstrap over the families and the seeds
        of each cell (2,000 replicates)."""
        rng = np.random.default_rng(0)
        number = len(self._of_family)
        counts = rng.multinomial(number, np.full(number, 1 / number), size=_REPLICATES) / number
        drawn = np.empty((_REPLICATES, len(self.methods), len(self.problems)))
        for number, row in enumerate(self.seeds):
            for place, seeds in enumerate(row):
                picks = rng.integers(len(seeds), size=(_REPLICATES, len(seeds)))
                drawn[:, number, place] = np.median(np.array(seeds)[picks], axis=-1)
        means = np.einsum("rmp,rp->rm", _ranks(drawn), counts @ self._of_family)
        low, high = np.quantile(means, (0.05, 0.95), axis=0).round(9)
        return low, high

    def order(self) -> list[int]:
        """Return the methods' numbers, from the best mean rank to the worst."""
        ranks = self.ranks()
        return sorted(range(len(self.methods)), key=lambda number: (ranks[number], self.methods[number]))


def costs(results: Results, metric: str, problem: str, lines: list[str]) -> Costs:
    """Return the costs in a metric of the study. `problem` is the label that distinguishes problems, `lines` are those
    that distinguish methods. Raises ConfigError for a metric or a label that the study does not have."""
    table = results.chosen
    if len(table):
        metrics = list(dict.fromkeys([*table["metric"], *(results.facts.get("metrics") or {})]))
        if metric.removesuffix(" (held out)") not in metrics:
            raise ConfigError(f"study {results.study} has no metric '{metric}'.{suggest(metric, metrics)}")
        for label in (problem, *lines):
            if label not in results.labels:
                raise ConfigError(f"study {results.study} has no label '{label}'.{suggest(label, results.labels)}")
    table = table[(table["metric"] == metric) & (table["status"] != "damaged")]
    table = table.assign(value=table["value"].where(np.isfinite(table["value"]), math.inf))
    found: dict[tuple[str, ...], dict[str, tuple[float, ...]]] = {}
    for key, values in table.groupby([*lines, problem], sort=False)["value"] if len(table) else ():
        found.setdefault(key[:-1], {})[key[-1]] = tuple(values)
    problems = list(table[problem].unique()) if len(table) else []
    whole = [method for method, by_problem in found.items() if by_problem.keys() == set(problems)]
    seeds = [[found[method][one] for one in problems] for method in whole]
    family = {one["scenario"]: str(one.get("family", one["scenario"])) for one in results.facts.get("scenarios") or []}
    left_out = [method for method in found if method not in whole]
    return Costs(whole, problems, seeds, left_out, [family.get(one, one) for one in problems])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks [replicates, methods, problems]; methods that never reach the target share the last ranks."""
    from scipy.stats import rankdata

    ranks: np.ndarray = rankdata(values, method="average", axis=1)
    return ranks


@dataclass
class Comparison(Listing):
    """A comparison of methods over many problems.

    metrics   metric -> heading of its column
    problem   label that distinguishes problems
    methods   labels that distinguish methods
    """

    metrics: dict[str, str] = field(default_factory=dict)
    problem: str = "scenario"
    methods: list[str] = field(default_factory=lambda: ["method"])

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError(f"the listing '{self.file}' needs `metrics`: a metric, and what its column is called.")

    def costs(self, results: Results) -> list[Costs]:
        """Return the costs in each metric."""
        return [costs(results, metric, self.problem, self.methods) for metric in self.metrics]

    def named(self, key: tuple[str, ...]) -> list[str]:
        """Return the displayed values of a method's labels."""
        return [style.pretty(label, value) for label, value in zip(self.methods, key, strict=True)]


@dataclass
class Ranks(Comparison):
    """A row for each method, from the best mean rank of the first metric to the worst: the mean rank by each metric,
    the number of problems in which it reaches the target, and the number in which it takes at most `within` times as
    much as the best.

    metrics   metric -> heading of its column
    problem   label that distinguishes problems
    methods   labels that distinguish methods
    """

    name: str = "ranks"
    within: float = 2.0
    left: ClassVar[int] = 2

    def lines(self, results: Results) -> list[list[str]]:
        """Return mean ranks with 5 % and 95 % quantiles of the bootstrap."""
        first, *_ = by_metric = self.costs(results)
        words = list(self.metrics.values())
        head = [*(style.heading(label) for label in self.methods), *(f"rank, {one}" for one in words)]
        lines = [[*head, "at the target", f"within {self.within:g}x in {words[0]}"]]
        if not first.methods:
            return lines
        columns = []
        for one in by_metric:
            numbers = zip(one.methods, one.ranks(), *one.rank_bounds(), strict=True)
            columns.append({key: f"{rank:.1f} ({low:.1f} to {high:.1f})" for key, rank, low, high in numbers})
        reached = np.isfinite(first.typical).sum(axis=1)
        close = (first.ratios <= self.within * (1 + 1e-9)).sum(axis=1)
        for number in first.order():
            key = first.methods[number]
            counts = [f"{count[number]} of {len(first.problems)}" for count in (reached, close)]
            lines.append([*self.named(key), *(column[key] for column in columns), *counts])
        return lines

    def sentences(self, results: Results) -> list[str]:
        """Return an explanation of the numbers."""
        found = self.costs(results)[0]
        number, families = len(found.problems), len(set(found.families))
        problems = f"{number} {self.problem}{'s' if number != 1 else ''}"
        weights = f" in {families} equally weighted families" if families < number else ""
        texts = [
            f"Mean rank (1: best) over {problems}{weights}, by the median over seeds; methods that never reach the "
            "target share the last ranks. In brackets: 5 % and 95 % quantiles of a bootstrap over families and over "
            "each cell's seeds (2,000 replicates)."
        ]
        if found.left_out:
            names = ", ".join(" ".join(filter(None, key)) for key in found.left_out)
            texts.append(f"Not ranked, since not run in every {self.problem}: {names}.")
        return texts

    def board(self, results: Results) -> Board | None:
        """Return ranks with submissions, performance profiles, and the curves of each scenario."""
        from decentral.plugins.benchmark import leaderboard

        return leaderboard.board(results, self)


@dataclass
class Overview(Comparison):
    """A table of at most a hundred lines for the README of a paper: each method's mean ranks, and for each family of
    problems its cost in the first metric relative to the best.

    metrics   metric -> heading of its column
    problem   label that distinguishes problems
    methods   labels that distinguish methods
    """

    name: str = "overview"
    most: ClassVar[int] = 90

    def lines(self, results: Results) -> list[list[str]]:
        """Return the methods from the best mean rank by the first metric."""
        first, *_ = by_metric = self.costs(results)
        families = list(dict.fromkeys(first.families))
        lines = [["method", *(f"rank, {one}" for one in self.metrics.values()), *families]]
        ranks = [dict(zip(one.methods, one.ranks(), strict=True)) for one in by_metric if one.methods]
        for number in first.order()[: self.most] if first.methods else []:
            key = first.methods[number]
            lines.append([", ".join(filter(None, self.named(key))), *(f"{one[key]:.1f}" for one in ranks)])
            for family in families:
                own = [name == family for name in first.families]
                factor = float(np.median(first.ratios[number, own]))
                lines[-1].append("never" if math.isinf(factor) else f"{factor:.2f}x")
        return lines

    def sentences(self, results: Results) -> list[str]:
        """Return an explanation of the table and its source."""
        facts, one = results.facts, next(iter(self.metrics.values()))
        rules = (facts.get("rules") or {}).get("version")
        return [
            f"Ranks: means over all {self.problem}s, 1 is the best. Other columns: {one} relative to the best, the "
            f"median over the {self.problem}s of a family; *never*: target missed in half of them.",
            f"`decentral-benchmark scale={results.scale}`, version {rules} of its rules; decentral "
            f"{facts.get('version')}.",
        ]


@dataclass
class Choices(Comparison):
    """A row for each problem: by each metric the best method, with its number, and the methods that take at most
    `within` times as much.

    metrics   metric -> heading of its column
    problem   label that distinguishes problems
    methods   labels that distinguish methods
    most      maximum number of methods per place
    """

    name: str = "choices"
    within: float = 1.1
    most: int = 3
    left: ClassVar[int] = 9

    def lines(self, results: Results) -> list[list[str]]:
        """Return the names of the best methods."""
        first, *_ = found = self.costs(results)
        titles = {
            one["scenario"]: f"{one.get('title', '')}, {str(one.get('clock', '')).replace('_', ' ')}".rstrip(", ")
            for one in results.facts.get("scenarios") or []
        }
        heads = [f"best by {one}" for one in self.metrics.values()]
        lines = [[style.heading(self.problem), *heads, "never at the target"]]
        for number, problem in enumerate(first.problems if first.methods else []):
            never = [key for key, row in zip(first.methods, first.typical, strict=True) if math.isinf(row[number])]
            best = [self._best(one, number) for one in found]
            lines.append([str(titles.get(problem, problem)), *best, ", ".join(map(self._words, never))])
        return lines

    def _best(self, found: Costs, place: int) -> str:
        factors = found.ratios[:, place].tolist()
        near = [number for number, factor in enumerate(factors) if factor <= self.within * (1 + 1e-9)]
        order = sorted(near, key=lambda number: factors[number])
        if not order:
            return "none"
        tied = [number for number in order if factors[number] <= 1 + 1e-9]
        first = " = ".join(self._words(found.methods[number]) for number in tied[: self.most])
        words = [f"{first}: {found.typical[order[0], place]:.3g}"]
        words += [f"{self._words(found.methods[n])} {factors[n]:.2f}x" for n in order[len(tied) : self.most]]
        more = len(order) - self.most
        return ", ".join(words) + (f" and {more} more" if more > 0 else "")

    def sentences(self, results: Results) -> list[str]:
        """Return an explanation of the numbers, and by each metric the method with the best mean rank and the one with
        the smallest worst case."""
        texts = [
            f"The number is the best method's cost, the median over seeds. Methods within {self.within:g} times the "
            "best follow. `a = b`: a tie."
        ]
        for one, found in zip(self.metrics.values(), self.costs(results), strict=True):
            if not found.methods:
                continue
            best = found.order()[0]
            firsts = int((found.ratios[best] <= 1 + 1e-9).sum())
            text = (
                f"By {one}, **{self._words(found.methods[best])}** has the best mean rank ({found.ranks()[best]:.1f}) "
                f"and is best in {firsts} of {len(found.problems)}"
            )
            worst = found.ratios.max(axis=1)
            safe = int(worst.argmin())
            if math.isinf(worst[safe]):
                texts.append(f"{text}. No method reaches the target in every {self.problem}.")
                continue
            name = f"**{self._words(found.methods[safe])}**"
            texts.append(f"{text}. {name} has the smallest worst case: at most {worst[safe]:.1f} times the best.")
        return texts

    def _words(self, key: tuple[str, ...]) -> str:
        """Return a method's name, for example 'D-PSGD (ring)'."""
        first, *more = filter(None, self.named(key))
        return f"{first} ({', '.join(more)})" if more else first
