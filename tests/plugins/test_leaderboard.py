"""What report.html and the README's table show of a benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from decentral.plugins.benchmark import submission
from decentral.report.html import write_page
from decentral.report.results import read
from handmade import value, write
from test_report_pages import WICKED, Page


def leaderboard(folder: Path) -> Path:
    """Results of a benchmark with two methods in two families, and the submission of a third one."""
    metric = "simulated seconds to the target"
    listings = [{"name": name, "kind": kind, "metrics": {metric: "time"}} for name, kind in LISTINGS.items()]
    families = [{"scenario": f"{one}.even", "family": one} for one in ("p", "q")]
    facts = {"scenarios": families, "rules": {"version": 2}, "metrics": {metric: {"larger_is_better": False}}}

    def row(method: str, family: str, number: float | str) -> dict[str, Any]:
        status = "not reached" if number == "" else "done"
        known = {key: one for key, one in value(method, "", 1, number).items() if key not in ("topology", "alpha")}
        return known | {"scenario": f"{family}.even", "metric": metric, "status": status}

    def made(where: str, numbers: dict[str, tuple[float | str, float | str]]) -> Path:
        rows = [
            row(one, family, number) for one, pair in numbers.items() for family, number in zip("pq", pair, strict=True)
        ]
        curves = [
            [f"{family}.even", one, "test accuracy", "mean", 1, step, step / 2, step]
            for one in numbers
            for family in "pq"
            for step in range(9)
        ]
        labels = ["scenario", "method"]
        return write(folder / where, rows, {"listings": listings}, curves, labels, **facts)

    directory = made("benchmark/benchmark_methods/small", {"A": (1, 4), WICKED: (2, "")})
    theirs = made("benchmark/benchmark_methods/theirs", {"C": (4, 2)})
    there = folder / "benchmark" / "submissions" / "c"
    there.parent.mkdir()
    facts_of_study = json.loads((theirs / "study.json").read_text()) | {"scale": "small"}
    (theirs / "study.json").write_text(json.dumps(facts_of_study))
    theirs.rename(there)
    told = {"scale": "small", "rules": 2, "version": "2.3.0", "methods": [{"title": "C"}], "cells": []}
    name = submission.seal(there, told)
    found = {"hash": name, "agrees": True, "done": "3 runs repeated", "reported": "2026-11-26T", "version": "2.3.0"}
    (there / "verification.json").write_text(json.dumps(found))
    return directory


LISTINGS = {"ranks": "ranks", "leaderboard": "overview"}


def test_a_leaderboard_has_ranks_profiles_curves_and_submissions(tmp_path: Path) -> None:
    directory = leaderboard(tmp_path)
    text = write_page(read(directory)).read_text()
    found = Page(text)
    assert found.open == [] and found.loads == [] and "b" not in found.texts
    assert found.texts["th"] == ["method", "rank, time", "at the target", "within 2x in time", "submission"]
    rows = [found.texts["td"][i : i + 5] for i in range(0, 15, 5)]
    assert [(row[0], row[1][:3], row[2]) for row in rows] == [
        ("A", "1.5", "2 of 2"), ("C", "2.0", "2 of 2"), (WICKED, "2.5", "1 of 2"),
    ]  # fmt: skip
    name = json.loads((tmp_path / "benchmark/submissions/c/submission.json").read_text())["hash"][:12]
    assert [row[4] for row in rows] == ["", f"{name}, agrees", ""]
    assert found.texts["td"][-4:] == ["C", name, "2.3.0", "agrees, 3 runs repeated, 2026-11-26, version 2.3.0"]
    data = re.search(r"const DATA = (.*);", text)
    assert data is not None
    drawn = {(one["metric"], one["name"]): one for one in json.loads(data[1])["curves"]}
    profile = drawn["performance profile, time: share of scenarios (%)", "C"]
    assert (profile["factor"][0], profile["value"][0], profile["value"][-1]) == (1, 50, 100)
    assert {name for metric, name in drawn if metric == "p.even: test accuracy"} == {"A", "C", WICKED}

    there = tmp_path / "benchmark" / "submissions" / "c"
    (there / "values.csv").write_text((there / "values.csv").read_text().replace(",4,", ",1,", 1))
    found = Page(write_page(read(directory)).read_text())
    assert found.texts["td"][-1] == "not shown: values.csv was changed since it was submitted."
    assert len(found.texts["td"]) == 2 * 5 + 2 * 4


def test_the_table_for_a_readme_is_short(tmp_path: Path) -> None:
    directory = leaderboard(tmp_path)
    listing = next(one for one in read(directory).spec.listings if one.name == "overview")
    lines = listing.texts(read(directory))["leaderboard.md"].splitlines()
    assert lines[4] == "| A | 1.0 | 1.00x | 1.00x |" and "| never |" in lines[5] and len(lines) < 100
    with open(directory / "values.csv", "a") as file:
        own = [line for line in (directory / "values.csv").read_text().splitlines() if ",A," in line]
        file.writelines(line.replace(",A,", f",A{number},") + "\n" for number in range(200) for line in own)
    assert 90 < len(listing.texts(read(directory))["leaderboard.md"].splitlines()) <= 100
