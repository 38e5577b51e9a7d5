"""A study's table: as numbers (CSV), to read (Markdown, a terminal) and to print (LaTeX with booktabs)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from decentral.errors import ConfigError, suggest
from decentral.report import style
from decentral.report.claims import combined, noise
from decentral.report.entries import Entry, number_of, where
from decentral.report.figures.figure import natural
from decentral.report.published import PublishedNumber, numbers
from decentral.report.results import Results
from decentral.report.spec import Table
from decentral.store.files import csv_text
from decentral.terminal.console import aligned, printable

_NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\b")
_DIGITS = {"percent": 1, "steps": 1, "scientific": 1, "plain": 3}
_MOST_SHOWN = 4  # tables on a terminal: of a sweep those of the metric (also of own test sets) and its costs
_SURE = 0.975
"""Quantile for bold type: a two-sided test at 5 %."""
_CSV_COLUMNS = ("metric", "of", "mean", "std", "runs", "of_runs", "diverged", "rates", "at_edge", "published")
_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$",
    "ζ²": r"$\zeta^2$",
    "²": r"$^2$",
    "·": r"$\cdot$",
}
_ESCAPED = re.compile("|".join(map(re.escape, sorted(_ESCAPES, key=len, reverse=True))))

Place = tuple[tuple[str, ...], str]
"""A row, and a column."""


@dataclass(frozen=True)
class Grid:
    """A table of entries; there need not be one at every place."""

    table: Table
    heading: str
    rows: list[tuple[str, ...]]
    columns: list[str]
    cells: dict[Place, Entry]
    best: set[Place]
    """The cells in bold type."""
    tuned: str = ""
    """The setting whose best value was chosen; '' if the table does not show it."""
    chosen: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Row -> the chosen values of its columns."""
    size: float = 1.0
    """The unit of the cells: 10^6 for megabytes."""

    def text(self, place: Place) -> str:
        """Format a cell: '84.6 ± 0.3', 'diverged', '61.0 (1 of 3 diverged)', 'never' if no run got to its target, '-'
        if nothing was run; '*' at the edge of its grid."""
        entry = self.cells.get(place)
        if entry is None:
            return "-"
        wanted = entry.wanted or max(one.runs for one in self.cells.values())  # where the study does not say it
        if not entry.values:
            if entry.never == wanted:
                return "never"
            runs = f"n/a ({entry.runs} of {wanted} runs)"
            return f"diverged ({entry.diverged} of {wanted})" if entry.diverged else runs
        text = measured(entry.mean / self.size, entry.std and entry.std / self.size, self.table)
        notes = [f"{entry.diverged} of {entry.runs} diverged"] if entry.diverged else []
        notes += [f"{entry.never} of {entry.runs} never"] if entry.never else []
        notes += [f"{entry.runs} of {wanted} runs"] if entry.runs < wanted else []
        return text + "*" * entry.at_edge + (f" ({', '.join(notes)})" if notes else "")

    def lines(self, fill: Callable[[Place], str], label: Callable[[str], str] = str) -> list[list[str]]:
        """A head and rows, with labels as a person reads them: numbers as they are, topologies in words."""
        named = self.table.columns
        heads = [style.pretty(named, column) for column in self.columns] if named else [self.heading]
        tuned = [f"best {self.tuned}"] if self.tuned else []
        lines = [[*map(style.heading, self.table.rows), *heads, *tuned]]
        for row in self.rows:
            words = []
            for name, value in zip(self.table.rows, row, strict=True):
                words.append(label(value if number_of(value) is not None else style.pretty(name, value)))
            chosen = [label(self.chosen[row])] if self.tuned else []
            lines.append([*words, *(fill((row, column)) for column in self.columns), *chosen])
        return lines


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
        for metric in dict.fromkeys(entry.metric for entry in entries):
            heading, size = style.quantity(results.heading(metric)), 1.0
            if of in style.WORKERS:
                heading = f"{metric}, {style.WORKERS[of][0]}"
            own = [entry for entry in entries if entry.metric == metric]
            if metric.startswith("bytes_sent to "):
                size, unit = style.byte_unit(max((entry.mean for entry in own if entry.values), default=1.0))
                heading += f" ({unit})"
            found.append(replace(_grid(heading, own, table, results), size=size))
    return found


def _grid(heading: str, entries: list[Entry], table: Table, results: Results) -> Grid:
    cells: dict[Place, Entry] = {}
    for entry in entries:
        place = tuple(entry.labels[label] for label in table.rows), entry.labels.get(table.columns, "")
        if place in cells:
            both = " and ".join(", ".join(f"{k}={v}" for k, v in e.labels.items()) for e in (cells[place], entry))
            where = f"study {results.study}: report.table has one place for both {both}"
            raise ConfigError(f"{where}: name more labels in rows.")
        cells[place] = entry
    rows, columns = (list(dict.fromkeys(places)) for places in zip(*cells, strict=True))
    columns = columns if "" in columns else [column for (column,) in natural((column,) for column in columns)]
    best: set[Place] = set()
    larger, chance = results.larger_is_better(entries[0].metric), results.meaning(entries[0].metric).get("chance")
    if table.bold and larger is not None:
        spreads = any(entry.std is not None for entry in entries)
        for column in columns:
            inside = {place: entry for place, entry in cells.items() if place[1] == column}
            best |= _best(inside, larger, chance, spreads)
    best_setting = str(results.facts["layout"]["best"]) if results.of_runs else table.best
    tuned = best_setting if entries[0].metric == results.metric else ""
    chosen: dict[tuple[str, ...], str] = {}
    for row in rows if tuned else ():
        values = [chosen_values(results, cells[row, column]) if (row, column) in cells else "-" for column in columns]
        chosen[row] = " / ".join(values if len(set(values)) > 1 else values[:1])
    return Grid(table, heading, rows, columns, cells, best, tuned, chosen)


def chosen_values(results: Results, entry: Entry) -> str:
    """Return the chosen values of a cell: '0.1', or '0.4 (highest tried)' where a better one may lie beyond; '-' where
    a single one was tried."""
    own = results.values
    for label, value in entry.labels.items():
        own = own[own[label] == value]
    rates, tried = entry.rates, own["rate"].dropna()
    if tried.nunique() < 2:
        return "-"
    end = " (lowest tried)" if rates and rates[0] <= tried.min() else " (highest tried)"
    return ", ".join(f"{rate:.4g}" for rate in rates) + end * entry.at_edge


def _best(column: dict[Place, Entry], larger: bool, chance: float | None, spreads: bool) -> set[Place]:
    """The place of the best mean of two or more, where all its runs have a value, it is ahead of all others by more
    than the noise of the difference (by Student's t at 95 %; it has to be known where the table has `spreads`), and
    is more than twice what guessing gives; or none."""
    ranked = [(entry.level(larger), place, entry) for place, entry in column.items()]
    ranked = sorted((one for one in ranked if math.isfinite(one[0])), key=lambda one: one[0], reverse=larger)
    if len(column) < 2 or not ranked:
        return set()
    level, place, first = ranked[0]
    if first.lost or (larger and chance is not None and first.mean <= 2 * chance):
        return set()
    for other_level, _, other in ranked[1:]:
        error = combined((1, first), (-1, other))
        least = noise(error, [first, other], _SURE) if error is not None else math.inf if spreads else 0.0
        if abs(level - other_level) <= least:
            return set()
    return {place}


def show(value: float, table: Table) -> str:
    """A number in the table's format."""
    digits = _DIGITS[table.format] if table.digits is None else table.digits
    if not math.isfinite(value):
        return "n/a"
    return f"{value:.{digits}{'e' if table.format == 'scientific' else 'f'}}"


def measured(mean: float, std: float | None, table: Table) -> str:
    """A mean with its spread, if there is one, in the table's format: '84.6 ± 0.3'."""
    table = _precise(mean, std or 0.0, table) if table.precise else table
    return show(mean, table) + ("" if std is None else f" ± {show(std, table)}")


def _precise(mean: float, std: float, table: Table) -> Table:
    """The format of one cell: at least two significant digits of the spread, or three of a fraction without one; tiny
    and huge numbers as powers of ten."""
    of_mean, of_std = (math.floor(math.log10(abs(one))) if one and math.isfinite(one) else None for one in (mean, std))
    if of_mean is not None and not -4 < of_mean < 7:
        return replace(
            table, format="scientific", digits=min(8, max(1, of_mean - (of_mean if of_std is None else of_std) + 1))
        )
    least = _DIGITS[table.format] if table.digits is None else table.digits
    if table.format == "scientific" or of_mean is None or (of_std is None and mean.is_integer()):
        return table
    return replace(table, digits=min(12, max(least, 2 - of_mean if of_std is None else 1 - of_std)))


def about(results: Results) -> str:
    """Describe the numbers of the first table: 'Test accuracy (%): mean ± standard deviation over seeds.'; '' if there
    is none."""
    found = grids(results)
    if not found:
        return ""
    words, cells = f"{found[0].heading[:1].upper()}{found[0].heading[1:]}", found[0].cells.values()
    if any(one.std is not None for one in cells):
        words += f": mean ± standard deviation over {results.spec.repeats}s"
    if len(found) > _MOST_SHOWN:
        words += f"; the first of {len(found)} tables in table.md"
    if any(one.at_edge for one in cells):
        words += ". * The best learning rate is at the edge of the grid"
    return f"{words}."


def as_text(results: Results) -> str:
    """Return the tables, or the first of more than four, for a terminal; '' if there is none."""
    found = grids(results)
    blocks: list[str] = []
    for grid in found if len(found) <= _MOST_SHOWN else found[:1]:
        blocks += [f"{_capital(grid.heading)}:"] * bool(blocks)
        blocks.append(aligned(grid.lines(grid.text), left=len(grid.table.rows)))
    return "\n\n".join(blocks)


def texts(results: Results) -> dict[str, str]:
    """The table's files by their names; none if the report has no table."""
    if results.spec.table is None:
        return {}
    found = grids(results)
    tables = map(partial(_environment, results), range(len(found)), found)
    latex = "\n".join(["% Needs \\usepackage{booktabs}", *tables] if found else [])
    return {"table.csv": as_csv(results), "table.md": as_markdown(results), "table.tex": latex}


def as_csv(results: Results) -> str:
    """Return one line per cell, numbers of nine digits."""
    table = results.spec.table
    theirs, rows = published(results), []
    for of in table.of if table else ():
        entries = results.entries(of)
        most = max((entry.runs for entry in entries), default=0)
        for entry in entries:
            one, runs = theirs.get(entry.published), entry.wanted or most
            numbers_ = [
                f"{entry.mean:.9g}",
                "" if entry.std is None else f"{entry.std:.9g}",
                len(entry.values),
                runs,
                entry.diverged,
            ]
            rates = " ".join(f"{rate:.6g}" for rate in entry.rates)
            named = (results.settings.get(label, label) for label in entry.labels.values())
            rows.append([*named, entry.metric, of, *numbers_, rates, entry.at_edge, one.text if one else ""])
    return csv_text([*results.labels, *_CSV_COLUMNS], rows)


def published(results: Results) -> dict[str, PublishedNumber]:
    """key -> the published number, at any scale; whether they can be compared is another question."""
    spec = results.spec.published
    return {one.key: one for one in numbers(str(results.facts.get("paper", "")), spec.item)} if spec else {}


def as_markdown(results: Results) -> str:
    """The table with its caption and notes; the published numbers in brackets where they can be compared."""
    table, found = results.spec.table, grids(results)
    if table is None:
        return ""
    theirs, blocks = published(results), [results.spec.caption]
    beside = theirs if results.comparable and table.of[0] == "value" else {}
    for grid in found:

        def fill(place: Place, grid: Grid = grid) -> str:
            text = f"**{grid.text(place)}**" if place in grid.best else grid.text(place)
            return f"{text} [{their}]" if (their := _their(grid, place, beside)) else text

        blocks += [f"**{_capital(grid.heading)}**", markdown_table(grid.lines(fill, word), len(table.rows))]
    blocks += [*notes(results, found), *results.tried()]
    if theirs and not results.comparable and found and any(e.published in theirs for e in found[0].cells.values()):
        scales = " or ".join(results.spec.published.scales if results.spec.published else [])
        head = f"Numbers to compare with at scale={scales}"
        lines = found[0].lines(lambda place: _their(found[0], place, theirs))
        folded = markdown_table(lines, len(table.rows))
        blocks.append(f"<details><summary>{head}</summary>\n\n{folded}\n\n</details>")
    return harmless("\n\n".join(block for block in blocks if block) + "\n")


def _their(grid: Grid, place: Place, theirs: dict[str, PublishedNumber]) -> str:
    """The published number of a place; '' if there is none."""
    one = theirs.get(grid.cells[place].published) if place in grid.cells else None
    if one is None or one.value is None:
        return one.text if one else ""
    return show(one.value, grid.table) + (f" ± {show(one.spread, grid.table)}" if one.spread else "")


def notes(results: Results, found: list[Grid]) -> list[str]:
    """Return what a reader of the table has to know."""
    entries = [entry for grid in found for entry in grid.cells.values()]
    parts = [f"{_capital(note)}." for note in together(results.facts.get("run_notes") or [])]
    spreads = any(entry.std is not None for entry in entries)
    if spreads:
        parts.append(f"Mean ± standard deviation over {results.spec.repeats}s (n - 1).")
    if any(entry.std is None and entry.runs == 1 for entry in entries):
        parts.append("Entries without ± are single runs.")
    if any(grid.best for grid in found):
        ahead = (
            ", if its lead exceeds the noise (standard error of the difference over seeds, times Student's t for 95 %)"
        )
        parts.append(f"Bold: best of its column{ahead * spreads}.")
    if results.comparable:
        parts.append("In brackets: the published number.")
    if any(entry.lost for entry in entries):
        parts.append("Means leave out runs that diverged or never reached the target; the counts include them.")
    if seeds := sorted(set(results.values[~results.values["chosen"]]["seed"])):
        counted = set(results.chosen["seed"])
        named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        if counted.issuperset(seeds):
            named = f"the reported {named}" if len(seeds) > 1 else f"{named}, which is also reported"
        elif counted.intersection(seeds):
            named += ", some also reported"
        held_out = any("validation half" in part for part in parts)
        data = "on the validation half" if held_out else "(no held-out data)"
        parts.append(f"Learning rates were chosen on the metric shown here {data}, with {named}.")
    blocks = [" ".join(parts)]
    if edge := sorted({where(entry.labels) for entry in entries if entry.at_edge}):
        blocks.append(f"\\* The best learning rate is at the edge of the grid: {'; '.join(edge)}.")
    return blocks


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
        ends = [(min(slot, key=float), max(slot, key=float)) for slot in zip(*values, strict=True)]
        ranges = [least if least == most else f"{least} to {most}" for least, most in ends]
        found.append("".join(chain.from_iterable(zip_longest(texts, ranges, fillvalue=""))))
    return found


def _environment(results: Results, number: int, grid: Grid) -> str:
    """The table environment in LaTeX of the table with this number."""

    def fill(place: Place) -> str:
        text = escape(grid.text(place))
        return f"\\textbf{{{text}}}" if place in grid.best else text

    heads, *rows = grid.lines(fill, escape)
    title = str(results.facts.get("title") or results.study)
    remarks = [note.replace("\\*", "*") for note in notes(results, [grid]) if note]
    words = title if grid.heading == grid.table.heading else f"{title}: {grid.heading}"
    if results.of_runs or (number and grid.table.heading):  # whose titles are of the first metric
        words = f"{_capital(grid.heading)}, by {', '.join(results.labels)}"
    caption = " ".join([f"{words}.", *remarks]).replace(" In brackets: the published number.", "")
    label = results.study + f"-{number + 1}" * bool(number)
    return latex_table([[escape(text) for text in heads], *rows], len(grid.table.rows), caption, label)


def latex_table(lines: list[list[str]], left: int, caption: str, label: str) -> str:
    """Return a table environment in LaTeX: a head and rows, whose texts are escaped, the first `left` columns to the
    left, the others to the right; \\ref{tab:LABEL} refers to it."""
    head, *body = [f"{' & '.join(line)} \\\\" for line in lines]
    parts = [
        *("\\begin{table}", "\\centering", f"\\caption{{{escape(caption)}}}", f"\\label{{tab:{label}}}"),
        f"\\begin{{tabular}}{{{'l' * left}{'r' * (len(lines[0]) - left)}}}",
        *("\\toprule", head, "\\midrule", *body, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""),
    ]
    return "\n".join(parts)


def escape(text: str) -> str:
    """Text as LaTeX shows it."""
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], printable(text))


def markdown_table(lines: list[list[str]], left: int) -> str:
    """A Markdown table: a head and rows, the first `left` columns to the left, the others to the right."""
    rule = ["---" if number < left else "---:" for number in range(len(lines[0]))]
    return "\n".join(markdown_row(line) for line in (lines[0], rule, *lines[1:]))


def markdown_row(texts: Iterable[str]) -> str:
    """A line of a Markdown table."""
    cells = [" ".join(printable(text).split()).replace("|", "\\|") for text in texts]
    return f"| {' | '.join(cells)} |"


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
