"""Ours against theirs: a verdict for every published number and every claim."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace

from decentral.report.claims import MET, NOT_MET, NOT_RUN, WITHIN_NOISE, Cells, Finding, NotRun, at_most
from decentral.report.entries import Entry, where
from decentral.report.published import EXCLUDED, PublishedNumber, numbers
from decentral.report.results import Results
from decentral.report.spec import Published, Tolerance
from decentral.store.files import csv_text

NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class Verdict:
    """A line of verdicts.csv; `ours` and `spread` are '' where there is nothing."""

    kind: str
    """number (published), reference (a number that the paper does not give, computed by others), excluded (printed, but
    not what it is said to be) or claim."""
    what: str
    ours: str = ""
    spread: str = ""
    published: str = ""
    tolerance: str = ""
    verdict: str = NOT_RUN
    """met, not met or not run; not compared for what is excluded."""
    why: str = ""

    @property
    def shown(self) -> str:
        """Ours with its spread."""
        return f"{self.ours} ± {float(self.spread):.2g}" if self.spread else self.ours


def judge(results: Results) -> list[Verdict]:
    """All verdicts of a study at one scale: a number of the paper each, then the claims."""
    spec = results.spec.published
    if spec is None:
        return judge_claims(results)
    theirs = numbers(str(results.facts.get("paper", "")), spec.item, spec.keys)
    if not results.comparable:
        return [*(not_run(one, spec, results.incomparable) for one in theirs), *judge_claims(results)]
    ours: dict[str, list[Entry]] = {}
    for entry in results.entries():
        ours.setdefault(entry.published, []).append(entry)
    return [*(_judge(one, ours.get(one.key, []), results) for one in theirs), *judge_claims(results)]


def count(verdicts: Iterable[Verdict], kind: str) -> Counter[str]:
    """Count the verdicts that are met, not met and not run, and (WITHIN_NOISE) the met ones that may be chance."""
    found = [one for one in verdicts if one.kind == kind]
    counted = Counter(one.verdict for one in found)
    chance = sum(one.verdict == MET and one.why.startswith(WITHIN_NOISE) for one in found)
    return counted + Counter({WITHIN_NOISE: chance})


def told(counted: Counter[str]) -> str:
    """Format counts: '50 met, 5 not met, 0 not run' or '2 met (1 of them within the noise), ...'; 'none checked, 30 not
    run' where nothing was held against anything."""
    if not counted[MET] + counted[NOT_MET]:
        return f"none checked, {counted[NOT_RUN]} not run"
    met, *others = (f"{counted[verdict]} {verdict}" for verdict in (MET, NOT_MET, NOT_RUN))
    chance = f" ({counted[WITHIN_NOISE]} of them {WITHIN_NOISE})" if counted[WITHIN_NOISE] else ""
    return ", ".join([met + chance, *others])


def judge_claims(results: Results) -> list[Verdict]:
    """The study's claims, held against the mean over seeds; not at scale=smoke, whose numbers say nothing."""
    cells, spec, found = Cells(results.entries(), results.study), results.spec, []
    if results.scale == "smoke":
        why = "scale=smoke only checks that the study runs"
        return [Verdict("claim", claim.says, why=why) for claim in spec.claims]
    for claim in spec.claims:
        own = claim.larger_is_better
        direction = results.larger_is_better(claim.metric) if own is None else own
        try:
            verdict, ours, spread, tolerance, why = claim.check(cells, direction is not False)
        except NotRun as error:
            verdict, ours, spread, tolerance, why = Finding(NOT_RUN, why=str(error))
        if verdict == NOT_MET and (reason := results.reasons.get(claim.says)):
            why = f"{why}. {reason}"
        found.append(Verdict("claim", claim.says, _text(ours), _text(spread), "", tolerance, verdict, why))
    return found


def as_csv(verdicts: list[Verdict]) -> str:
    """verdicts.csv."""
    return csv_text([field.name for field in fields(Verdict)], map(astuple, verdicts))


def _judge(theirs: PublishedNumber, ours: list[Entry], results: Results) -> Verdict:
    spec, needs = results.spec.published, str(results.facts.get("needs") or "")
    assert spec is not None
    unfinished = [entry.unfinished for entry in ours if entry.unfinished]
    none = Verdict(theirs.kind, theirs.key, published=theirs.text)
    if unfinished or not ours or theirs.kind == EXCLUDED:
        why = "the study has not run it" + (f"; it needs {needs}" if needs else "")
        return not_run(theirs, spec, unfinished[0] if unfinished else why)
    if theirs.value is None:
        return replace(none, **_judge_failure(ours, results.meaning().get("chance")))
    value = theirs.value
    entry = max(ours, key=lambda e: abs(e.mean - value) if e.values else math.inf)
    none = replace(none, published=_text(value), tolerance=_told(spec.tolerance, theirs), verdict=NOT_MET)
    if not entry.values:
        return replace(none, why=f"all {entry.runs} runs diverged or have no value")
    notes = [
        f"ours - theirs = {entry.mean - value:+.4g} {'points' if theirs.unit == '%' else theirs.unit}".strip(),
        f"{len(entry.values)} run{'s' * (len(entry.values) != 1)}",
    ]
    notes += [f"{entry.diverged} of {entry.runs} diverged"] if entry.diverged else []
    notes += [f"the farthest of {len(ours)} cells: {where(entry.labels)}"] if len(ours) > 1 else []
    notes += ["the learning rate is at the edge of the grid"] if entry.at_edge else []
    notes += [f"theirs: {theirs.note}"] if theirs.note else []
    verdict = MET if _within(entry.mean, theirs, spec.tolerance) else NOT_MET
    why = "; ".join([*notes, spec.because])
    return replace(none, ours=_text(entry.mean), spread=_text(entry.std), verdict=verdict, why=why)


def _judge_failure(ours: list[Entry], guessing: float | None) -> dict[str, str]:
    """Judge runs that the paper reports as diverging: more than half of ours should diverge, too, or end with less than
    twice what guessing gives, which is as good as nothing."""
    runs, diverged = sum(entry.runs for entry in ours), sum(entry.diverged for entry in ours)
    near_chance = 2 * (guessing or 0.0)
    low = sum(value < near_chance for entry in ours for value in entry.values) if near_chance else 0
    lost = max(diverged, min(diverged, sum(entry.lost for entry in ours)) + low)
    below = f"{near_chance:g} %"
    return {
        "ours": _text(ours[0].mean) if ours[0].values else "diverges",
        "spread": _text(ours[0].std),
        "tolerance": "more than half of the runs diverge" + (f" or end below {below}" if near_chance else ""),
        "verdict": MET if 2 * lost > runs else NOT_MET,
        "why": f"{diverged} of {runs} runs diverged" + (f", {low} ended below {below}" if near_chance else ""),
    }


def _within(ours: float, theirs: PublishedNumber, tolerance: Tolerance) -> bool:
    value = theirs.value or 0.0
    limit = max((tolerance.relative or 0.0) * abs(value), tolerance.absolute or 0.0, theirs.spread or 0.0)
    rounding = 1e-9 * max(abs(value), abs(ours))
    if abs(ours - value) <= limit + rounding:
        return True
    factor = tolerance.factor
    return factor is not None and ours * value > 0 and at_most(max(ours / value, value / ours), factor)


def _told(tolerance: Tolerance, theirs: PublishedNumber) -> str:
    parts = [f"{100 * tolerance.relative:g} % of the published value"] if tolerance.relative is not None else []
    unit = "percentage points" if theirs.unit == "%" else theirs.unit
    parts += [f"{tolerance.absolute:g} {unit}".strip()] if tolerance.absolute is not None else []
    parts += [f"a factor of {tolerance.factor:g}"] if tolerance.factor is not None else []
    parts += [f"the published spread of {theirs.spread:g}"] if theirs.spread else []
    return " or ".join(parts)


def not_run(theirs: PublishedNumber, spec: Published, why: str) -> Verdict:
    """Return the verdict on a number of which nothing was run."""
    line = Verdict(theirs.kind, theirs.key, published=theirs.text)
    if theirs.kind == EXCLUDED:
        return replace(line, verdict=NOT_COMPARED, why=theirs.note)
    return replace(line, tolerance=_told(spec.tolerance, theirs), why=why)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
