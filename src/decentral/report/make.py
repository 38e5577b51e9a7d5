"""The report of one study at one scale: table, figures and verdicts, from what the study wrote."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.host.machine import num_cores
from decentral.host.processes import carried_out
from decentral.registry import blame, plugins
from decentral.report import tables, verdicts
from decentral.report.figures import canvas
from decentral.report.figures.figure import FORMATS, SCREEN, Output, caption
from decentral.report.pages import CAPTIONS, Item, Run, report_pages, skip
from decentral.report.results import find, read
from decentral.store.files import refuse_links, write_json, write_text
from decentral.store.provenance import is_seen_by_git
from decentral.terminal.console import aligned
from decentral.terminal.display import unless_quick

_MANY = 8  # reports, from which on several processes make them


@dataclass(frozen=True)
class Made(Run):
    """A created report."""

    files: list[Path]
    remarks: list[str] = field(default_factory=list)
    """Sentences on problems: a figure without data, a key without a published number."""

    def summary(self) -> str:
        """The first table and what it is about, the verdicts counted, and where everything is, for a terminal."""
        results, facts = self.results, self.results.facts
        lines = []
        for kind, words in (("number", "Numbers:  "), ("reference", "Computed: "), ("claim", "Claims:   ")):
            if counts := self.count(kind):
                told = verdicts.told(counts)
                if kind == "claim" and results.scale == "smoke":
                    told = f"{counts.total()}, not judged at scale=smoke, which only checks that the study runs"
                elif kind != "claim" and not results.comparable:
                    told = f"{counts.total()} in the paper, {results.incomparable}"
                lines.append(f"{words}{told}")
        lines += [f"Note:     {remark}" for remark in self.remarks]
        kept = ", to be committed" * is_seen_by_git(results.directory)
        lines += [f"Results:  {results.directory}{kept}", *(f"Figure:   {path}" for path in self.figures)]
        scale = f", scale={results.scale}" * bool(results.scale) + " (changed)" * bool(results.changes)
        head = f"{results.study}{scale}: {facts.get('title') or facts.get('item') or ''}".rstrip(": ")
        blocks = [head, textwrap.fill(tables.about(results), 100), tables.as_text(results)]
        for listing in results.spec.listings if results.spec.table is None else ():
            rows = listing.lines(results)
            table = [aligned(rows, left=listing.left), *listing.sentences(results)] if rows[1:] else ["No results yet."]
            blocks += [f"{listing.title}:", "\n".join(table)]
        blocks.append("\n".join(lines))
        return "\n\n".join(block for block in blocks if block)

    @property
    def figures(self) -> list[Path]:
        """One file of each figure, the PNG if there is one."""
        drawn = [path for path in self.files if path.suffix[1:] in FORMATS]
        return list({path.with_suffix(""): path for path in sorted(drawn, key=lambda p: p.suffix == ".png")}.values())


def make(directory: Path, output: Output = SCREEN, alone: bool = True) -> Made:
    """Write table.csv, .md and .tex, <listing>.csv and .md, verdicts.csv, the figures as `output` says
    (<figure>.png) and, last of all, what their captions say into `directory`; each replaced whole. What takes long says
    how far it is where the report is `alone`.

    Reads study.json, values.csv and curves.csv there and nothing else. The same results give the same bytes. Raises
    ConfigError if they are not there or their `report` section is wrong.
    """
    refuse_links(directory, above=2)
    results = read(directory)
    found, texts = verdicts.judge(results), tables.texts(results)
    for listing in results.spec.listings:
        texts |= listing.texts(results)
    for name, text in sorted(texts.items()):
        write_text(directory / name, text)
    write_text(directory / "verdicts.csv", verdicts.as_csv(found))
    files, remarks, captions = [directory / name for name in sorted(texts)], [], {}
    figures = results.spec.figures
    with unless_quick("Drawing figures", len(figures)) if alone else nullcontext(lambda _: None) as advance:
        for figure in figures:
            lines = figure.data(results)
            drawn = canvas.save(figure, results, lines, output)
            if drawn:
                captions[figure.file] = caption(figure, results, lines)
            else:
                remarks.append(f"{figure.file} is not drawn: it has no data yet.")
                for suffix in FORMATS:
                    (directory / f"{figure.file}.{suffix}").unlink(missing_ok=True)
            files += drawn
            advance(1)
    earlier = [directory / f"{name}.{suffix}" for name in captions for suffix in FORMATS[1:]]
    if kept := [path.name for path in earlier if path not in files and path.exists()]:
        remarks.append(
            f"{', '.join(kept)} {'is' if len(kept) == 1 else 'are'} of an earlier report; "
            f"figures.format=[{','.join(FORMATS)}] draws every format."
        )
    if figures:
        write_json(directory / CAPTIONS, captions)
    remarks += [*results.tried(), *results.spec.notes]
    if results.of_runs:
        remarks += [f"{note}." for note in results.facts.get("run_notes", [])]
    return Made(results, found, [*files, directory / "verdicts.csv"], remarks)


def report_all(
    results_dir: Path, names: Sequence[str] = (), scale: str = "", output: Output = SCREEN
) -> tuple[list[Made], list[str], list[Item]]:
    """Make the reports of all studies found in `results_dir` and the pages; or only those named, at one scale.

    Results that no report can be made of are left out, unless they were asked for by name: a remark says why. Also
    returns the items of the pages. Raises ConfigError if there are none.
    """
    found = [
        path
        for path in find(results_dir)
        if (not names or path.parent.name in names) and (not scale or path.name.partition("-")[0] == scale)
    ]
    if not found:
        what = f" of {' or '.join(names)}" * bool(names) + f" at scale={scale}" * bool(scale)
        raise ConfigError(
            f"results_dir={results_dir} has no results{what}: run decentral-study first, or give results_dir=results "
            "for the published reports."
        )
    tasks, processes = [(path, output) for path in found], num_cores() if len(found) >= _MANY else 1
    done: dict[int, dict[str, Any] | ConfigError] = {}
    with unless_quick(f"Making {len(found)} reports", len(found)) as advance:
        for i, one in carried_out(_facts_of, tasks, processes, partial(plugins.enter, plugins.passport())):
            done[i] = one
            advance(1)
    made, skipped = [], []
    for i, path in enumerate(found):
        if isinstance(one := done[i], dict):
            made.append(Made(read(path), **one))
        elif names:
            raise one
        else:
            skipped.append(skip(path, one))
    items, unreadable = ([], []) if names else report_pages(results_dir, made)
    return made, list(dict.fromkeys([*skipped, *unreadable])), items


def _facts_of(directory: Path, output: Output) -> dict[str, Any] | ConfigError:
    """Make a report and return what is known of it besides the results, which may not be picklable; or the error."""
    try:
        with blame.named():
            made = make(directory, output, alone=False)
    except ConfigError as error:
        return error
    return {"verdicts": made.verdicts, "files": made.files, "remarks": made.remarks}
