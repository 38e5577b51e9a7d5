"""A study's table: as numbers (CSV), to read (Markdown) and to print (LaTeX)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from decentral.errors import ConfigError, suggest
from decentral.report import style
from decentral.report.claims.weighing import combined, noise
from decentral.report.entries import Entry, number_of
from decentral.report.published import PublishedNumber, numbers
from decentral.report.results import Results
from decentral.report.spec import Table
from decentral.store.files import csv_text
from decentral.terminal.text import aligned

_NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\b")
_DIGITS = {"percent": 1, "steps": 1, "scientific": 1, "plain": 3}
_WORDS = {"worst": "worst worker", "mean": "mean over workers", "averaged": "averaged model"}
_CSV_COLUMNS = ("metric", "of", "mean", "std", "runs", "of_runs", "diverged", "rates", "at_edge", "published")


@dataclass(frozen=True)
class Grid:
    """A table of entries: None where there is no such cell."""

    heading: str
    rows: list[tuple[str, ...]]
    columns: list[str]
    cells: dict[tuple[tuple[str, ...], str], Entry]
    metric: str
    runs: int
    """How many runs a complete cell has, where the study does not say it."""

    def best(self, larger_is_better: bool | None, chance: float | None = None) -> set[tuple[tuple[str, ...], str]]:
        """The places of the best mean in each column of two cells or more, where all its runs have a value, it is ahead
        of all others by more than the noise of the difference, and is more than twice what guessing gives."""
        found: set[tuple[tuple[str, ...], str]] = set()
        if larger_is_better is None:
            return found
        spreads = any(entry.std is not None for entry in self.cells.values())
        for column in self.columns:
            entries = [(row, self.cells[row, column]) for row in self.rows if (row, column) in self.cells]
            if len(entries) < 2:
                continue
            ranked = sorted(
                ((row, entry) for row, entry in entries if math.isfinite(entry.level(larger_is_better))),
                key=lambda pair: pair[1].level(larger_is_better) * (-1 if larger_is_better else 1),
            )
            if ranked and (chance is None or not larger_is_better or ranked[0][1].mean > 2 * chance):
                row, first = ranked[0]
                if not first.lost and all(_ahead(first, other, larger_is_better, spreads) for _, other in ranked[1:]):
                    found.add((row, column))
        return found


def _ahead(first: Entry, other: Entry, larger_is_better: bool, spreads: bool) -> bool:
    """Whether they differ by more than the noise, which has to be known where the table has `spreads`."""
    error = combined((1, first), (-1, other))
    least = noise(error, [first, other]) if error is not None else math.inf if spreads else 0.0
    return abs(first.level(larger_is_better) - other.level(larger_is_better)) > least


def bold(grid: Grid, results: Results) -> set[tuple[tuple[str, ...], str]]:
    """The places that are bold: the best of a column, if the table wants that and it can be told."""
    if results.spec.table is None or not results.spec.table.bold:
        return set()
    return grid.best(results.larger_is_better(grid.metric), results.chance(grid.metric))


def grids(results: Results) -> list[Grid]:
    """A grid for each metric and each of `table.of`. Raises ConfigError if the table names a label that does not
    exist or does not tell cells apart."""
    table = results.spec.table
    if table is None or results.values.empty:
        return []
    for label in (*table.rows, *([table.columns] if table.columns else [])):
        if label not in results.labels:
            known = suggest(label, results.labels)
            raise ConfigError(f"study {results.study}: report.table uses a label '{label}'.{known}")
    found = []
    for of in table.of:
        entries = results.entries(of)
        metrics = list(dict.fromkeys(entry.metric for entry in entries))
        for metric in metrics:
            heading = f"{metric}, {_WORDS[of]}" if of in _WORDS else metric
            found.append(_grid(heading, [entry for entry in entries if entry.metric == metric], table, results.study))
    return found


def _grid(heading: str, entries: list[Entry], table: Table, study: str) -> Grid:
    cells: dict[tuple[tuple[str, ...], str], Entry] = {}
    for entry in entries:
        place = tuple(entry.labels[label] for label in table.rows), entry.labels.get(table.columns, "")
        if place in cells:
            both = " and ".join(", ".join(f"{k}={v}" for k, v in e.labels.items()) for e in (cells[place], entry))
            raise ConfigError(f"study {study}: report.table has one place for both {both}: name more labels in rows.")
        cells[place] = entry
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = _in_order(list(dict.fromkeys(column for _, column in cells)))
    metric = entries[0].metric if entries else ""
    return Grid(heading, rows, columns, cells, metric, max((entry.runs for entry in entries), default=0))


def _in_order(columns: list[str]) -> list[str]:
    """As the study has them; numbers that neither rise nor fall there are sorted."""
    try:
        numbers = [float(column) for column in columns]
    except ValueError:
        return columns
    return columns if numbers in (sorted(numbers), sorted(numbers, reverse=True)) else sorted(columns, key=float)


def show(value: float, table: Table) -> str:
    """A number in the table's format."""
    digits = _DIGITS[table.format] if table.digits is None else table.digits
    if not math.isfinite(value):
        return "n/a"
    return f"{value:.{digits}e}" if table.format == "scientific" else f"{value:,.{digits}f}".replace(",", "")


def cell(entry: Entry | None, grid: Grid, table: Table) -> str:
    """For example '84.6 ± 0.3', 'diverged', '61.0 (1 of 3 diverged)', 'never' where no run got to its target; '-' where
    nothing was run; '*' at the edge of its grid."""
    if entry is None:
        return "-"
    wanted = entry.wanted or grid.runs
    if not entry.values and entry.never == wanted:
        return "never"
    if not entry.values:
        return f"diverged ({entry.diverged} of {wanted})" if entry.diverged else f"n/a ({entry.runs} of {wanted} runs)"
    text = show(entry.mean, table)
    if entry.std is not None:
        text += f" ± {show(entry.std, table)}"
    if entry.at_edge:
        text += "*"
    notes = [f"{entry.diverged} of {entry.runs} diverged"] if entry.diverged else []
    notes += [f"{entry.never} of {entry.runs} never"] if entry.never else []
    notes += [f"{entry.runs} of {wanted} runs"] if entry.runs < wanted else []
    return f"{text} ({', '.join(notes)})" if notes else text


def as_text(results: Results) -> str:
    """The first table, and the second where there are no more than two, for a terminal; '' if there is none."""
    table, found = results.spec.table, grids(results)
    blocks: list[str] = []
    for grid in found if len(found) <= 2 else found[:1]:
        assert table is not None
        lines = _heads(grid, table)
        for row in grid.rows:
            cells = [cell(grid.cells.get((row, column)), grid, table) for column in grid.columns]
            lines.append([*row_words(row, table), *cells])
        blocks += [f"{_capital(grid.heading)}:"] * bool(blocks) + [aligned(lines, left=len(table.rows))]
    return "\n\n".join(blocks)


def as_csv(results: Results) -> str:
    """One line per cell, numbers unrounded."""
    table = results.spec.table
    theirs, rows = published(results), []
    for of in table.of if table else ():
        entries = results.entries(of)
        most = max((entry.runs for entry in entries), default=0)
        for entry in entries:
            one, runs = theirs.get(entry.published), entry.wanted or most
            numbers_ = [entry.mean, "" if entry.std is None else entry.std, len(entry.values), runs, entry.diverged]
            rates = " ".join(f"{rate:.6g}" for rate in entry.rates)
            row = [*entry.labels.values(), entry.metric, of, *numbers_, rates, entry.at_edge, one.text if one else ""]
            rows.append(row)
    return csv_text([*results.labels, *_CSV_COLUMNS], rows)


def published(results: Results) -> dict[str, PublishedNumber]:
    """key -> the published number, at any scale; whether they can be compared is another question."""
    spec = results.spec.published
    return {one.key: one for one in numbers(str(results.facts.get("paper", "")), spec.item)} if spec else {}


def as_markdown(results: Results) -> str:
    """The table with its caption and notes; the published numbers in brackets where they can be compared."""
    table = results.spec.table
    if table is None:
        return ""
    theirs, blocks = published(results), [results.spec.caption] if results.spec.caption else []
    found = grids(results)
    for grid in found:
        blocks.append(f"**{_capital(grid.heading)}**")
        blocks.append(_markdown_grid(grid, results, theirs if results.comparable and table.of[0] == "value" else {}))
    blocks += notes(results, found)
    blocks += results.tried()
    if theirs and not results.comparable and found and any(e.published in theirs for e in found[0].cells.values()):
        blocks.append(_orientation(found[0], results, theirs))
    return harmless("\n\n".join(block for block in blocks if block) + "\n")


def _markdown_grid(grid: Grid, results: Results, theirs: dict[str, PublishedNumber]) -> str:
    table = results.spec.table
    assert table is not None
    best = bold(grid, results)
    lines = _heads(grid, table)
    for row in grid.rows:
        texts = []
        for column in grid.columns:
            entry = grid.cells.get((row, column))
            text = cell(entry, grid, table)
            text = f"**{text}**" if (row, column) in best else text
            one = theirs.get(entry.published) if entry else None
            texts.append(f"{text} [{_their(one, table)}]" if one else text)
        lines.append([*map(word, row_words(row, table)), *texts])
    return markdown_table(lines, len(table.rows))


def _orientation(grid: Grid, results: Results, theirs: dict[str, PublishedNumber]) -> str:
    """The paper's own numbers in the same places, folded away: not comparable at this scale."""
    table = results.spec.table
    assert table is not None and results.spec.published is not None
    lines = _heads(grid, table)
    for row in grid.rows:
        entries = [grid.cells.get((row, column)) for column in grid.columns]
        found = [theirs.get(entry.published) if entry else None for entry in entries]
        lines.append([*row_words(row, table), *[_their(one, table) if one else "" for one in found]])
    scales = " or ".join(results.spec.published.scales)
    head = f"The numbers to compare with at scale={scales}, in the same places"
    return f"<details><summary>{head}</summary>\n\n{markdown_table(lines, len(table.rows))}\n\n</details>"


def _their(one: PublishedNumber, table: Table) -> str:
    text = show(one.value, table) if one.value is not None else one.text
    return f"{text} ± {show(one.spread, table)}" if one.spread else text


def _heads(grid: Grid, table: Table) -> list[list[str]]:
    only = [grid.heading] if not table.columns else [style.pretty(table.columns, column) for column in grid.columns]
    return [[*[style.heading(label) for label in table.rows], *only]]


def row_words(row: tuple[str, ...], table: Table) -> list[str]:
    """The labels of a row as a person reads them: numbers as they are, topologies in words."""
    pairs = zip(table.rows, row, strict=True)
    return [value if number_of(value) is not None else style.pretty(label, value) for label, value in pairs]


def notes(results: Results, found: list[Grid]) -> list[str]:
    """What a reader of the table has to know."""
    entries = [entry for grid in found for entry in grid.cells.values()]
    parts = [f"{_capital(note)}." for note in together(results.facts.get("run_notes") or [])]
    if any(entry.std is not None for entry in entries):
        parts.append(f"Mean ± standard deviation over {results.spec.repeats}s (n - 1).")
    if any(entry.std is None and entry.runs == 1 for entry in entries):
        parts.append("Where there is no ±, there is one run.")
    if any(bold(grid, results) for grid in found):
        beyond = ", where it is ahead by more than the noise" if any(entry.std is not None for entry in entries) else ""
        parts.append(f"Bold: the best of a column{beyond}.")
    if results.comparable:
        parts.append("In brackets: the published number.")
    if any(entry.lost for entry in entries):
        parts.append("Runs that diverged without a value, or never got to the target, are counted but not in the mean.")
    if told := _tuned(results):
        parts.append(told)
    blocks = [" ".join(parts)]
    edge = sorted({entry.where for entry in entries if entry.at_edge})
    if edge:
        blocks.append(f"\\* The best learning rate lies at the edge of the grid that was searched: {'; '.join(edge)}.")
    return blocks


def _tuned(results: Results) -> str:
    """A sentence on the runs by which learning rates were chosen, if there are any."""
    searched = results.values[~results.values["chosen"]]
    if searched.empty:
        return ""
    seeds = sorted({int(seed) for seed in searched["seed"]})
    counted = {int(seed) for seed in results.values[results.values["chosen"]]["seed"]} & set(seeds)
    named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    also = ", which counts, too" if counted and len(seeds) == 1 else ", some of which count, too" if counted else ""
    return f"Learning rates were chosen by the numbers shown here (nothing is held out for that), with {named}{also}."


def together(remarks: Sequence[str]) -> list[str]:
    """Remarks that differ in numbers only as one of them, which says from where to where the numbers go.

    >>> together(["ended after 9 of 40 steps", "the data are old", "ended after 12 of 40 steps"])
    ['ended after 9 to 12 of 40 steps', 'the data are old']
    """
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for remark in remarks:
        words = _NUMBER.split(remark)  # text, number, text, ...
        alike.setdefault(tuple(words[::2]), []).append(words[1::2])
    found = []
    for texts, values in alike.items():
        ranges = [_range(slot) for slot in zip(*values, strict=True)]
        found.append("".join(chain.from_iterable(zip_longest(texts, ranges, fillvalue=""))))
    return found


def _range(values: Sequence[str]) -> str:
    least, most = min(values, key=float), max(values, key=float)
    return least if least == most else f"{least} to {most}"


def markdown_table(lines: list[list[str]], left: int) -> str:
    """A Markdown table: a head and rows, the first `left` columns to the left, the others to the right."""
    head, *rows = [[" ".join(text.split()).replace("|", "\\|") for text in line] for line in lines]
    rule = ["---" if number < left else "---:" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def word(text: Any) -> str:
    """A title or label as Markdown that shows just this text, in one line."""
    return re.sub(r"([\\`*\[\]])", r"\\\1", " ".join(str(text).split()))


def harmless(markdown: str) -> str:
    """Markdown without tags but those that pages are made of, and without links but to web pages and files beside."""
    ours = r"/?(?:sub|details|summary|a)>|a id=\"[\w.-]*\">"
    markdown = re.sub(rf"<(?=[A-Za-z/!?])(?!{ours})", "&lt;", markdown)
    markdown = re.sub(r"!(\[[^\]]*\]\(\s*\w+:)", r"\1", markdown)  # a picture from elsewhere tells who looks at it
    return re.sub(r"\]\((?!\s*(?:https?://|[\w ./+=,#-]*\)))", r"]\\(", markdown)


def _capital(text: str) -> str:
    """The beginning of a sentence; a setting stays as it is written."""
    return text if "=" in text.split(" ")[0] else text[:1].upper() + text[1:]
