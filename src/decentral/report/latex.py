"""A study's table in LaTeX (with booktabs)."""

from __future__ import annotations

from decentral.report import style, tables
from decentral.report.results import Results
from decentral.report.tables import Grid

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


def as_latex(results: Results) -> str:
    """A table environment for each grid, to be included in a document that uses booktabs; '' without a table."""
    head = "% Needs \\usepackage{booktabs}\n"
    found = [_environment(grid, results) for grid in tables.grids(results)]
    return head + "\n".join(found) if found else ""


def escape(text: str) -> str:
    """Text as LaTeX shows it."""
    text = text.replace("ζ²", "\0")
    return "".join(_ESCAPES["ζ²"] if character == "\0" else _ESCAPES.get(character, character) for character in text)


def _environment(grid: Grid, results: Results) -> str:
    table = results.spec.table
    assert table is not None
    best = tables.bold(grid, results)
    columns = [grid.heading] if not table.columns else [style.pretty(table.columns, one) for one in grid.columns]
    lines = [" & ".join(escape(text) for text in (*[style.heading(label) for label in table.rows], *columns))]
    for row in grid.rows:
        texts = []
        for column in grid.columns:
            text = escape(tables.cell(grid.cells.get((row, column)), grid, table))
            texts.append(f"\\textbf{{{text}}}" if (row, column) in best else text)
        lines.append(" & ".join([*[escape(text) for text in tables.row_words(row, table)], *texts]))
    head, *body = [f"{line} \\\\" for line in lines]
    title = str(results.facts.get("title") or results.study)
    remarks = [note.replace("\\*", "*") for note in tables.notes(results, [grid]) if note]
    caption = " ".join([f"{title}: {grid.heading}.", *remarks]).replace(" In brackets: the published number.", "")
    return "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{escape(caption)}}}",
            f"\\begin{{tabular}}{{{'l' * len(table.rows)}{'r' * len(columns)}}}",
            "\\toprule",
            head,
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )
