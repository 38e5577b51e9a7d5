"""The report of one study at one scale: table, figures and verdicts, from what the study wrote."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from decentral.errors import ConfigError
from decentral.host.devices import num_cores
from decentral.host.pool import carried_out
from decentral.registry import blame, own
from decentral.report import latex, tables, verdicts
from decentral.report.figures import canvas
from decentral.report.figures.output import FORMATS, SCREEN, Output
from decentral.report.items import skip
from decentral.report.pages import report_pages
from decentral.report.results import Results, find, read
from decentral.report.verdicts import Verdict
from decentral.store.files import refuse_links, write_text
from decentral.terminal.display import counted

_MANY = 8  # reports, from which on several processes make them, and say how far they are
_WIDTH = 100
"""Columns of what is said on a terminal about a table."""

_Told = tuple[list[Path], list[Verdict], list[str]]
"""Files, verdicts and remarks of a report."""


@dataclass(frozen=True)
class Made:
    """What a report consists of."""

    results: Results
    files: list[Path]
    verdicts: list[Verdict]
    remarks: list[str] = field(default_factory=list)
    """What is odd about it, a sentence each: a figure without data, a key without a published number."""

    def summary(self) -> str:
        """The first table and what it is about, the verdicts counted, and where everything is, for a terminal."""
        facts = self.results.facts
        scale = f", scale={self.results.scale}" * bool(self.results.scale) + " (changed)" * bool(self.results.changes)
        head = f"{self.results.study}{scale}: {facts.get('title') or facts.get('item') or ''}"
        blocks = [head.rstrip(": "), _about(self.results), tables.as_text(self.results)]
        lines = [
            f"{words}{self._told(kind)}"
            for kind, words in (("number", "Numbers:  "), ("reference", "Computed: "), ("claim", "Claims:   "))
            if any(one.kind == kind for one in self.verdicts)
        ]
        lines += [f"Note:     {remark}" for remark in self.remarks]
        lines += [f"Results:  {self.results.directory}"]
        lines += [f"Figure:   {path}" for path in self.figures]
        return "\n\n".join(block for block in [*blocks, "\n".join(lines)] if block)

    def _told(self, kind: str) -> str:
        """How many verdicts of a kind there are of each, or why there are none."""
        counted, results = verdicts.count(self.verdicts, kind), self.results
        if kind == "claim" and results.scale == "smoke":
            return f"{counted.total()}, not judged at scale=smoke, which only shows that the study works"
        if kind != "claim" and not results.comparable:
            return f"{counted.total()} in the paper, {results.incomparable}"
        return verdicts.told(counted)

    @property
    def figures(self) -> list[Path]:
        """One file of each figure, the PNG if there is one."""
        known = {path.with_suffix(""): path for path in self.files if path.suffix in (".pdf", ".svg")}
        known |= {path.with_suffix(""): path for path in self.files if path.suffix == ".png"}
        return list(known.values())


def make(directory: Path, output: Output = SCREEN) -> Made:
    """Write table.csv, .md and .tex, <listing>.csv and .md, the figures as `output` says (<figure>.png and .svg), and,
    last of all, verdicts.csv into `directory`; each replaced whole.

    Reads study.json, values.csv and curves.csv there and nothing else. The same results give the same bytes. Raises
    ConfigError if they are not there or their `report` section is wrong.
    """
    refuse_links(directory, above=2)
    results = read(directory)
    spec, files, remarks = results.spec, [], []
    found = verdicts.judge(results)
    texts: dict[str, str] = {}
    if spec.table is not None:
        texts |= {
            "table.csv": tables.as_csv(results),
            "table.md": tables.as_markdown(results),
            "table.tex": latex.as_latex(results),
        }
    for listing in spec.listings:
        texts |= {
            f"{listing.file}.csv": listing.as_csv(results),
            f"{listing.file}.md": listing.as_markdown(results),
        }
    for name, text in sorted(texts.items()):
        write_text(directory / name, text)
        files.append(directory / name)
    for figure in spec.figures:
        drawn = canvas.save(figure, results, output)
        if not drawn:
            remarks.append(f"{figure.file} has no data yet, so it was not drawn.")
            for suffix in FORMATS:
                (directory / f"{figure.file}.{suffix}").unlink(missing_ok=True)
        files += drawn
    write_text(directory / "verdicts.csv", verdicts.as_csv(found))
    files.append(directory / "verdicts.csv")
    remarks += results.tried()
    extra = verdicts.unknown_keys(results)
    if extra:
        item = spec.published.item if spec.published else ""
        remarks.append(f"{len(extra)} of our cells have no number in {item}, for example '{extra[0]}'.")
    remarks += [
        f"reasons.yaml says why '{says}' is not met, but there is no such claim, or it is met."
        for says in verdicts.idle_reasons(results, found)
    ]
    return Made(results, files, found, remarks)


def _about(results: Results) -> str:
    """What the numbers of the first table are: 'Test accuracy (%): mean ± standard deviation over seeds.'; '' if there
    is none."""
    found = tables.grids(results)
    if not found:
        return ""
    heading, cells = found[0].heading, found[0].cells.values()
    words = f"{heading[:1].upper()}{heading[1:]}"
    if any(one.std is not None for one in cells):
        words += f": mean ± standard deviation over {results.spec.repeats}s"
    if len(found) > 2:
        words += f"; the first of {len(found)} tables in table.md"
    if any(one.at_edge for one in cells):
        words += ". * The best learning rate lies at the edge of those that were tried"
    return textwrap.fill(f"{words}.", _WIDTH)


def report_all(
    results_dir: Path, names: Sequence[str] = (), scale: str = "", output: Output = SCREEN
) -> tuple[list[Made], list[str]]:
    """Make the reports of all studies found in `results_dir` (or of those named, at one scale) and the pages.

    Results that no report can be made of are left out, unless they were asked for by name: a remark says why. Raises
    ConfigError if there are none.
    """
    found = [path for path in find(results_dir) if not names or path.parent.name in names]
    found = [path for path in found if not scale or path.name.partition("-")[0] == scale]
    if not found:
        what = f" of {' or '.join(names)}" if names else ""
        what += f" at scale={scale}" if scale else ""
        raise ConfigError(f"results_dir={results_dir} holds no results{what}: run decentral-study first.")
    several = num_cores() if len(found) >= _MANY else 1
    done: dict[int, _Told | ConfigError] = {}
    with counted(f"Making {len(found)} reports", len(found), show=len(found) >= _MANY) as advance:
        begin = partial(own.enter, own.passport())
        for i, one in carried_out(_made, [(path, output) for path in found], several, begin):
            done[i] = one
            advance()
    made, skipped = [], []
    for i, path in enumerate(found):
        one = done[i]
        if not isinstance(one, ConfigError):
            made.append(Made(read(path), *one))
        elif names:
            raise one
        else:
            skipped.append(skip(path, one))
    report_pages(results_dir)
    return made, skipped


def _made(directory: Path, output: Output) -> _Told | ConfigError:
    """What is known of a report but its results, which may hold what is not to be pickled; or why there is none."""
    try:
        with blame.named():
            made = make(directory, output)
    except ConfigError as error:
        return error
    return made.files, made.verdicts, made.remarks
