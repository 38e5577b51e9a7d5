"""All items of the papers: those of the catalogue, and what was run of each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.report import published, spec, verdicts
from decentral.report.claims.claim import NOT_RUN
from decentral.report.results import Results, find, read
from decentral.report.verdicts import Verdict
from decentral.study import SCALES, catalogue

MOST_TELLING_FIRST = tuple(reversed(SCALES))


@dataclass(frozen=True)
class Run:
    """A study at one scale, with its verdicts."""

    results: Results

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """As in verdicts.csv."""
        return verdicts.judge(self.results)


@dataclass
class Item:
    """A table or figure of a paper: a study."""

    study: str
    paper: str
    item: str
    title: str
    needs: str
    """What its paper scale needs."""
    scale: str
    """The largest one that is defined."""
    report: dict[str, Any]
    departures: list[str]
    runs: dict[str, Run] = field(default_factory=dict)
    """By scale, the most telling first."""
    variants: list[Run] = field(default_factory=list)
    """Of the study with changes, which count for nothing."""

    @cached_property
    def spec(self) -> spec.ReportSpec:
        """Its `report:` section."""
        return spec.parse(self.report, self.study)

    @property
    def counted(self) -> dict[str, Run]:
        """What the scoreboard counts: smoke only shows that a study works."""
        return {scale: run for scale, run in self.runs.items() if scale != "smoke"}

    @property
    def shown(self) -> list[Run]:
        """What the pages show: smoke only if there is nothing else."""
        return list((self.counted or self.runs).values())

    @property
    def numbers(self) -> list[Verdict]:
        """Verdicts on published and reference numbers: of the run that can be compared, else 'not run'."""
        theirs = self.spec.published
        if theirs is None:
            return []
        run = next((run for run in self.counted.values() if run.results.comparable), None)
        if run is not None:
            return [one for one in run.verdicts if one.kind != "claim"]
        why = f"not run at scale={' or '.join(theirs.scales)}" + (f"; it needs {self.needs}" if self.needs else "")
        return verdicts.not_run(self.paper, theirs, why)

    @property
    def claims(self) -> list[Verdict]:
        """Verdicts on the claims: of the most telling run, else 'not run'."""
        for run in self.shown:
            return [one for one in run.verdicts if one.kind == "claim"]
        return [Verdict("claim", claim.says, "", "", "", "", NOT_RUN, "") for claim in self.spec.claims]

    @property
    def order(self) -> tuple[Any, ...]:
        """Papers by name; tables before figures or so, numbers as numbers: Table 2 before Table 10."""
        parts = re.split(r"(\d+)", self.item)
        return self.paper, [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts], self.study


def gather(results_dir: Path) -> tuple[list[Item], list[str]]:
    """Every study of the catalogue and every one with results in `results_dir`, in the order of the papers; and a
    remark for each directory there that cannot be read, which is left out.

    Raises ConfigError if the catalogue is wrong.
    """
    items, runs, skipped = {item.study: item for item in _catalogue()}, [], []
    for path in find(results_dir):
        try:
            run = Run(read(path))
            _ = run.verdicts
        except ConfigError as error:
            skipped.append(skip(path, error))
        else:
            runs.append(run)
    for run in sorted(runs, key=lambda one: _place(one.results.scale)):
        item = items.setdefault(run.results.study, _item_of(run.results))
        if run.results.values.empty:  # nothing was finished: the next smaller scale says more
            continue
        if run.results.original:
            item.runs[run.results.scale] = run
        else:
            item.variants.append(run)
    return sorted(items.values(), key=lambda item: item.order), skipped


def skip(path: Path, error: Exception) -> str:
    """The remark on a directory of which no report can be made."""
    return f"{'/'.join(path.parts[-3:])} is left out: {' '.join(str(error).split())}"


def uncompared(items: list[Item], paper: str) -> dict[str, int]:
    """Items of a paper's published numbers that no study compares itself with, and how many numbers each has."""
    if paper not in published.papers():
        return {}
    compared = {item.spec.published.item for item in items if item.paper == paper and item.spec.published}
    return {name: len(published.numbers(paper, name)) for name in published.items(paper) if name not in compared}


def _place(scale: str) -> int:
    return MOST_TELLING_FIRST.index(scale) if scale in SCALES else len(SCALES)


def _item_of(results: Results) -> Item:
    """As its results say; for a study that is not in the catalogue."""
    facts = results.facts
    return Item(
        results.study,
        str(facts.get("paper") or results.directory.parents[1].name),
        str(facts.get("item") or results.study),
        str(facts.get("title") or ""),
        str(facts.get("needs") or ""),
        results.scale,
        dict(facts.get("report") or {}),
        list(facts.get("departures") or []),
    )


def _catalogue() -> list[Item]:
    found = []
    for name in catalogue.names():
        defined = catalogue.scales(name)
        scale = next((scale for scale in MOST_TELLING_FIRST if scale in defined), "paper")
        study = catalogue.load(name, scale)
        found.append(Item(name, study.paper, study.item, study.title, study.needs, scale, **study.described()))
    return found
