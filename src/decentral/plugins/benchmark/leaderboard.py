"""The leaderboard in report.html of a benchmark, instead of cells: ranks with submissions, profiles, and a plot per
scenario."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from decentral.errors import ConfigError
from decentral.plugins.benchmark import submission
from decentral.report.listings import Board
from decentral.report.results import Results, read
from decentral.store.files import read_json

if TYPE_CHECKING:
    from decentral.plugins.benchmark.listings.ranking import Ranks

FOLDER = "submissions"
"""Name of the folder beside the benchmark's, with a folder for each submission."""
AXES = {
    "factor": "performance ratio to the best, at most",
    "simulated_s": "simulated seconds",
    "bytes_sent": "MB sent by a worker",
    "step": "step",
}
_FACTORS = np.geomspace(1, 8, 61)


def board(results: Results, ranks: Ranks) -> Board | None:
    """Return the page of a study with numbers of some methods; None without any."""
    if results.values.empty:
        return None
    whole, curves, submitted, by_method = _with_submissions(results)
    head, *rows = ranks.lines(whole)
    if submitted:
        head, rows = [*head, "submission"], [[*row, by_method.get(row[0], "")] for row in rows]
    shown = [[(text, _key(text)) for text in row] for row in rows]
    return Board(head, shown, [*_profiles(whole, ranks), *_courses(curves, rows)], AXES, submitted)


def _key(text: str) -> Any:
    """Return the sort key of texts such as '1.2 (1.0 to 1.5)' and '13 of 16': the leading number, if any."""
    found = re.match(r"\d+(\.\d+)?(?= |$)", text)
    return float(found[0]) if found else text


def _profiles(results: Results, ranks: Ranks) -> list[dict[str, Any]]:
    found = []
    for word, costs in zip(ranks.metrics.values(), ranks.costs(results), strict=True):
        if not costs.methods:
            continue
        shares = costs.profile(list(_FACTORS))
        for number in costs.order():
            found.append({
                "name": ", ".join(filter(None, ranks.named(costs.methods[number]))),
                "metric": f"performance profile, {word}: share of scenarios (%)",
                "factor": [round(float(factor), 4) for factor in _FACTORS],
                "value": [round(100 * float(share), 2) for share in shares[number]],
            })  # fmt: skip
    return found


def _courses(curves: pandas.DataFrame, rows: list[list[str]]) -> list[dict[str, Any]]:
    """Return the curves of the first seed of each method in each scenario, in the order of the ranks."""
    order = {row[0]: number for number, row in enumerate(rows)}
    courses = []
    for (scenario, method, metric), metric_rows in curves.groupby(["scenario", "method", "metric"], sort=False):
        places = {
            axis: list(map(_number, metric_rows[axis]))
            for axis in AXES
            if axis in metric_rows and metric_rows[axis].notna().any()
        }
        head = {"name": str(method), "metric": f"{scenario}: {metric}"}
        courses.append({**head, **places, "value": list(map(_number, metric_rows["value"]))})
    return sorted(courses, key=lambda one: (one["metric"], order.get(one["name"], len(order))))


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _with_submissions(results: Results) -> tuple[Results, pandas.DataFrame, list[list[str]], dict[str, str]]:
    """Return the results with the rows of complete submissions of the same scale and rules; their curves; a table of
    all submissions; and the submission of each method."""
    tables, curves, by_method = [results.values], [results.curves], dict[str, str]()
    lines = [["method", "hash", "version", "verified"]]
    for path in sorted((results.directory.parents[1] / FOLDER).glob(f"*/{submission.FACTS}")):
        try:
            facts, one = submission.read(path.parent), read(path.parent)
        except ConfigError as error:
            lines.append([path.parent.name, "", "", f"not shown: {error}"])
            continue
        digest, rules = str(facts["hash"])[:12], (results.facts.get("rules") or {}).get("version")
        titles = [str(method["title"]) for method in facts["methods"]]
        if facts["scale"] != results.scale:
            continue
        wrong = submission.damage(path.parent, facts)
        if facts["rules"] != rules:
            wrong.append(f"it follows version {facts['rules']} of the rules")
        if taken := {*titles} & {*map(str, pandas.concat(tables)["method"])}:
            wrong.append(f"{min(taken)} is the name of another method here")
        verified = f"not shown: {wrong[0]}" if wrong else _verified(path.parent, digest)
        lines.append([", ".join(titles), digest, str(facts["version"]), verified])
        if not wrong:
            tables.append(one.values)
            curves.append(one.curves)
            by_method |= dict.fromkeys(titles, f"{digest}, {verified.partition(',')[0]}")
    whole = replace(results, values=pandas.concat(tables, ignore_index=True), known={})
    drawn = [table for table in curves if len(table)]
    return whole, pandas.concat(drawn) if drawn else results.curves, lines if len(lines) > 1 else [], by_method


def _verified(folder: Path, digest: str) -> str:
    found = read_json(folder / submission.VERIFIED) or {}
    if not str(found.get("hash")).startswith(digest):
        return "not verified"
    how = (
        f"{found.get('done') or 'nothing repeated'}, {str(found.get('reported'))[:10]}, version {found.get('version')}"
    )
    return f"{'agrees' if found.get('agrees') else 'does not agree'}, {how}"
