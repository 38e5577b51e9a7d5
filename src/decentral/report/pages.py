"""The pages of results: README.md, the scoreboard of all papers, and a README.md for each paper with all its items."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.report import published, spec, verdicts
from decentral.report.claims import MET, NOT_MET, NOT_RUN, WITHIN_NOISE
from decentral.report.published import paper as paper_of
from decentral.report.results import Results, find, read
from decentral.report.tables import harmless, markdown_row, markdown_table, word
from decentral.report.verdicts import Verdict
from decentral.store.files import alone, check_name, make_folder, read_json, refuse_links, write_text
from decentral.study import SCALES, catalogue
from decentral.terminal.console import duration

CAPTIONS = "captions.json"
"""Of a study's figures: what their lines and bands are, by the names of their files."""
MOST_TELLING_FIRST = tuple(reversed(SCALES))
_KINDS = ("number", "reference", "claim")
_SCORE_HEAD = ["paper", "items run", "at scale", "published numbers", "reference numbers", "claims"]
_HEAD = ["item", "study", "run at scale", "published numbers", "reference numbers", "claims", "time"]


@dataclass(frozen=True)
class Run:
    """A study at one scale, with its verdicts."""

    results: Results
    verdicts: list[Verdict]

    @property
    def place(self) -> str:
        """Directory of the run, as seen from the page of its paper."""
        return "/".join(self.results.directory.parts[-2:])

    @cached_property
    def captions(self) -> dict[str, Any]:
        """Return the known captions of its figures."""
        return read_json(self.results.directory / CAPTIONS) or {}

    @property
    def numbers(self) -> list[Verdict]:
        """The verdicts on published and reference numbers."""
        return [one for one in self.verdicts if one.kind not in ("claim", published.EXCLUDED)]

    @property
    def tolerance(self) -> str:
        """Distance from the published number that is tolerated, of the first one that was compared."""
        return next((one.tolerance for one in self.numbers if one.ours), "")

    @property
    def provenance(self) -> list[str]:
        """Commit, version, scale, number of runs, their time, what they ran on."""
        facts = self.results.facts
        commits = [str(one or "unknown")[:12] for one in facts.get("git_commits") or [facts.get("git_commit")]]
        dirty = " with uncommitted changes" if facts.get("git_dirty") else ""
        bad = ", ".join(f"{facts[key]} {key}" for key in ("failed", "diverged") if facts.get(key))
        machines = facts.get("machines") or [{"cores": facts.get("host_cores")}]  # older results know the cores alone
        # of all machines: also the runs whose numbers only led to others
        number = sum(one.get("runs", 0) for one in machines) or facts.get("jobs", "?")
        runs = f"{number} run{'s' * (number != 1)}"
        names = []
        for one in machines:
            cores = f"{one['cores']} cores" + f" of {one.get('cpu')}" * bool(one.get("cpu")) if one.get("cores") else ""
            name = one.get("gpu") or cores
            names.append(name if len(machines) == 1 else f"{one['runs']} of them on {name or 'an unknown machine'}")
        return [
            f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}{dirty}",
            f"version {facts.get('version')}",
            f"scale={self.results.scale}",
            runs + (f" ({bad})" if bad else ""),
            duration(float(facts.get("wall_s") or 0.0)),
            *filter(None, names),
        ]

    def text(self, name: str) -> str:
        """Return a table of its report; '' if there is none."""
        file = self.results.directory / f"{name}.md"
        return file.read_text(encoding="utf-8").strip() if file.is_file() else ""

    def count(self, kind: str) -> Counter[str]:
        """Count the verdicts of a kind."""
        return verdicts.count(self.verdicts, kind)


@dataclass
class Item:
    """A table or figure of a paper: a study."""

    study: str
    paper: str
    item: str
    title: str
    needs: str
    """Requirements of its paper scale."""
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
        """The study's `report:` section."""
        return spec.parse(self.report, self.study)

    @property
    def counted(self) -> dict[str, Run]:
        """The runs counted by the scoreboard: smoke only shows that a study works."""
        return {scale: run for scale, run in self.runs.items() if scale != "smoke"}

    @property
    def shown(self) -> list[Run]:
        """The runs shown on the pages: smoke only if there is nothing else."""
        return list((self.counted or self.runs).values())

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts on published and reference numbers, of the run that can be compared, and on the claims, of the most
        telling run; else 'not run'."""
        theirs, found = self.spec.published, []
        if theirs is not None:
            run = next((run for run in self.counted.values() if run.results.comparable), None)
            why = f"not run at scale={' or '.join(theirs.scales)}" + (f"; it needs {self.needs}" if self.needs else "")
            found = (
                run.numbers
                if run is not None
                else [
                    verdicts.not_run(one, theirs, why)
                    for one in published.numbers(self.paper, theirs.item, theirs.keys)
                ]
            )
        if self.shown:
            return found + [one for one in self.shown[0].verdicts if one.kind == "claim"]
        return found + [Verdict("claim", claim.says) for claim in self.spec.claims]

    @property
    def order(self) -> tuple[Any, ...]:
        """Papers by name; tables before figures or so, numbers as numbers: Table 2 before Table 10."""
        parts = re.split(r"(\d+)", self.item)
        return self.paper, [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts], self.study


def report_pages(results_dir: Path, made: Iterable[Run] = ()) -> tuple[list[Item], list[str]]:
    """Write `results_dir/README.md` (the scoreboard) and a README.md for each paper, which begins with the summary.md
    of its folder, written by hand, if there is one.

    They show what `make` has left in the studies' directories; of `made`, results and verdicts are known. Returns all
    items, and a remark for each directory that cannot be read. The same results give the same bytes. Of several
    processes that do so at once, one waits for the other.
    """
    from jinja2 import Environment, PackageLoader

    make_folder(results_dir)
    templates = Environment(loader=PackageLoader("decentral.report"), trim_blocks=True, lstrip_blocks=True)
    templates.filters |= {"word": word, "told": verdicts.told, "row": markdown_row}
    with alone(results_dir):
        items, skipped = gather(results_dir, {run.results.directory: run for run in made})
        papers = {paper: [item for item in items if item.paper == paper] for paper in {item.paper: 0 for item in items}}
        pages: dict[Path, str] = {}
        for paper, own in papers.items():
            check_name(paper, "paper")
            folder = results_dir / paper
            refuse_links(folder)
            folder.mkdir(exist_ok=True)
            summary = folder / "summary.md"
            facts = {
                "title": paper_of(paper).title,
                "summary": summary.read_text(encoding="utf-8").strip() if summary.is_file() else "",
                "table": _table(own, above=""),
                "missing": ", ".join(f"{name} ({count})" for name, count in uncompared(own, paper).items()),
            }
            pages[folder / "README.md"] = templates.get_template("paper.md.j2").render(items=own, **facts)
        tables = [(paper, paper_of(paper).title, _table(own, above=f"{paper}/")) for paper, own in papers.items()]
        page = templates.get_template("scoreboard.md.j2")
        pages[results_dir / "README.md"] = page.render(scores=scores(papers), skipped=skipped, papers=tables)
        for path, markdown in pages.items():
            write_text(path, harmless(re.sub(r"\n{3,}", "\n\n", markdown).strip() + "\n"))
    return items, skipped


def gather(results_dir: Path, known: dict[Path, Run]) -> tuple[list[Item], list[str]]:
    """Every study of the catalog and every one with results in `results_dir`, in the order of the papers; and a
    remark for each directory there that cannot be read, which is left out.

    Raises ConfigError if the catalog is wrong.
    """
    items: dict[str, Item] = {}
    for name in catalogue.names():
        scale = (catalogue.scales(name) or ["paper"])[-1]
        study = catalogue.load(name, scale)
        items[name] = Item(name, study.paper, study.item, study.title, study.needs, scale, **study.described())
    runs, skipped = [], []
    for path in find(results_dir):
        try:
            results = read(path) if path not in known else known[path].results
            runs.append(known.get(path) or Run(results, verdicts.judge(results)))
        except ConfigError as error:
            skipped.append(skip(path, error))
    for run in sorted(runs, key=lambda one: [*MOST_TELLING_FIRST, one.results.scale].index(one.results.scale)):
        results, facts = run.results, run.results.facts
        item = Item(
            results.study,
            str(facts.get("paper") or results.directory.parents[1].name),
            str(facts.get("item") or results.study),
            str(facts.get("title") or ""),
            str(facts.get("needs") or ""),
            results.scale,
            dict(facts.get("report") or {}),
            list(facts.get("departures") or []),
        )
        item = items.setdefault(results.study, item)
        if results.values.empty:  # nothing was finished: the next smaller scale says more
            continue
        if results.original:
            item.runs[results.scale] = run
        else:
            item.variants.append(run)
    return sorted(items.values(), key=lambda item: item.order), skipped


def skip(path: Path, error: Exception) -> str:
    """The remark on a directory of which no report can be made."""
    return f"{'/'.join(path.parts[-3:])} is skipped: {' '.join(str(error).split())}"


def uncompared(items: list[Item], paper: str) -> dict[str, int]:
    """Items of a paper's published numbers that no study compares itself with, and how many numbers each has."""
    if paper not in published.papers():
        return {}
    compared = {item.spec.published.item for item in items if item.spec.published}
    return {name: len(published.numbers(paper, name)) for name in published.items(paper) if name not in compared}


def totals(items: list[Item]) -> str:
    """A few sentences: how many of the published numbers and of the claims are met."""
    parts = [f"{sum(bool(item.counted) for item in items)} of {len(items)} items were run"]
    for kind, words in (("number", "Published numbers"), ("reference", "Reference numbers"), ("claim", "Claims")):
        parts.append(f"{words}: {verdicts.told(_count(items, kind))}")
    return ". ".join(parts) + "."


def scores(papers: dict[str, list[Item]]) -> str:
    """A row for each paper, and one for all: items run, their largest scales, and what was met of what was compared."""
    lines = [_SCORE_HEAD]
    rows = {f"[{paper_of(paper).short}]({paper}/README.md)": own for paper, own in papers.items()}
    published_ = [
        item for paper, own in papers.items() if paper in published.papers() and published.items(paper) for item in own
    ]
    rows |= {"**Papers**": published_, "**All**": [item for own in papers.values() for item in own]}
    for name, items in rows.items():
        scales = Counter(next(iter(item.counted)) for item in items if item.counted)
        cells = [name, f"{scales.total()} of {len(items)}"]
        cells.append(", ".join(f"{scales[scale]} {scale}" for scale in MOST_TELLING_FIRST if scales[scale]))
        lines.append([*cells, *(_met(_count(items, kind)) for kind in _KINDS)])
    return markdown_table(lines, left=3)


def _count(items: list[Item], kind: str) -> Counter[str]:
    return sum((verdicts.count(item.verdicts, kind) for item in items), Counter())


def _met(counted: Counter[str]) -> str:
    """Return 'met / compared / all', and how many are within the noise; '' if there are none."""
    compared = counted[MET] + counted[NOT_MET]
    chance = f" ({counted[WITHIN_NOISE]} {WITHIN_NOISE})" if counted[WITHIN_NOISE] else ""
    everything = compared + counted[NOT_RUN]
    return f"{counted[MET]} / {compared} / {everything}{chance}" if everything else ""


def _table(items: list[Item], above: str) -> str:
    """A row for each item; links go through the folder `above`."""
    lines = [_HEAD]
    for item in items:
        counts = [_met(verdicts.count(item.verdicts, kind)) for kind in _KINDS]
        reasons = ["only scale=smoke"] * bool(item.runs) + [f"needs {item.needs}"] * bool(item.needs)
        missing = "not run" + (f" ({'; '.join(reasons)})" if reasons else "")
        wall = sum(float(run.results.facts.get("wall_s") or 0.0) for run in item.counted.values())
        link = f"[{word(item.item)}]({f'{above}README.md' if above else ''}#{item.study})"
        time = duration(wall) if item.counted else ""
        lines.append([link, word(item.title), ", ".join(item.counted) or missing, *counts, time])
    return markdown_table(lines, left=3)
