"""The results of a study, in files that outlive the runs: values.csv, curves.csv and study.json."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from decentral import __version__
from decentral.measurements.values import Meaning, Row, Value
from decentral.store import AXES
from decentral.store.files import (
    csv_text,
    from_csv_cell,
    read_json,
    read_table,
    refuse_links,
    remove_table,
    write_json,
    write_table,
)
from decentral.study.study import Cell, Study
from decentral.terminal.display import unless_quick

VALUE_COLUMNS = (
    "metric",
    "value",
    "seed",
    "rate",
    "chosen",
    "at_edge",
    "status",
    "worst",
    "mean",
    "averaged",
    "published",
    "run",
    "wall_s",
)
_WORDS = ("title", "paper", "item", "departures", "needs", "report")
"""Keys of a study that change no run and no value."""
_PROVENANCE = (
    "run_notes",
    "git_commit",
    "version",
    "python",
    "packages",
    "git_commits",
    "git_dirty",
    "machines",
    "started",
    "ended",
)


def collect(study: Study, cells: Sequence[Cell], directory: Path, facts: dict[str, Any]) -> None:
    """Write what the cells know now; replaces the files of an earlier call, each atomically.

    `facts` are the entries of study.json that the study itself does not know: command, commit, times, counts.
    """
    refuse_links(directory, above=2)
    directory.mkdir(parents=True, exist_ok=True)
    values: list[Value] = []
    with unless_quick("Collecting results", len(cells)) as advance:
        for cell in cells:
            values += cell.values()
            advance(1)
    labels = list(dict.fromkeys(label for cell in cells for label in cell.labels))
    write_values(directory, labels, [value.labels | value._asdict() | {"rate": value.lr} for value in values])
    write_curves(directory, labels, [line for cell in cells for line in cell.curves()])
    counts = {
        "jobs": len({value.run for value in values if value.run}),
        "diverged": len({value.run for value in values if value.status == "diverged"}),
        "wanted": {json.dumps(cell.labels, sort_keys=True): cell.wanted() for cell in cells if cell.wanted()},
    }
    meanings = {value.metric: value.meaning._asdict() for value in values if value.meaning != Meaning()}
    known = {"labels": labels, "metrics": meanings, **counts}
    write_json(directory / "study.json", {**facts, **_described(study), **known})


def refresh(study: Study, directory: Path, at_this_scale: list[str], definition: dict[str, Any]) -> bool:
    """Update study.json from the study's file (captions, claims, tolerances, departures); return whether that is valid.

    It is not if the values belong to another definition of the study: they keep its texts, and study.json says so.
    """
    facts = read_facts(directory)
    if not facts:  # nothing to update: a report says what is wrong
        return True
    current = bool(facts.get("setup") == setup(definition))
    facts.pop("earlier_definition", None)
    told = {**_described(study), "at_this_scale": at_this_scale} if current else {"earlier_definition": True}
    write_json(directory / "study.json", facts | told)
    return current


def setup(definition: dict[str, Any]) -> str:
    """12 hexadecimal digits for what of a study's definition decides its runs and values: all but its words."""
    decides = {key: value for key, value in definition.items() if key not in _WORDS}
    return _digest(_without(decides, "because"), [])


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:12]


def report_digest(directory: Path, definition: dict[str, Any], finished: Iterable[str]) -> dict[str, str]:
    """Return 12 hexadecimal digits for the tables in a folder and what they come from, as an entry of study.json.

    A finished report adds it to study.json, and collecting results removes it.
    """
    tables = {path.name: path.read_bytes() for path in directory.glob("*") if path.suffix in (".csv", ".gz", ".md")}
    return {"digest": _digest(__version__, definition, sorted(finished), tables)}


def _without(value: Any, gone: str) -> Any:
    """The same without this key, wherever it stands."""
    if isinstance(value, dict):
        return {key: _without(one, gone) for key, one in value.items() if key != gone}
    return [_without(one, gone) for one in value] if isinstance(value, list | tuple) else value


def read_facts(directory: Path) -> dict[str, Any]:
    """Read study.json; empty if there is none."""
    return read_json(directory / "study.json") or {}


def provenance(directories: Iterable[Path], beside: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the provenance of the numbers, as recorded by the finished runs in these directories.

    `started` is the start of the first run and `ended` the end of the last; commit and versions are those of the run
    that began last, and `git_commits` lists all commits if there are several. `machines` are those of the runs, the
    most frequent first: rounding, and with it the outcome of a run, differs between processors. `run_notes` has notes
    for readers, such as that images were JPEG-compressed.

    `beside`: the facts of an earlier call, some of whose numbers remain although their runs are gone.
    """
    runs = [(read_json(path / "provenance.json") or {}, read_json(path / "status.json") or {}) for path in directories]
    known = sorted((facts for facts, _ in runs if facts.get("started")), key=lambda facts: str(facts["started"]))
    before = {key: beside[key] for key in _PROVENANCE if key in beside} if beside else {}
    if not known:
        return before
    last = known[-1]
    earlier_commits = before.get("git_commits") or [before["git_commit"]] if before.get("git_commit") else []
    commits = list(dict.fromkeys([*earlier_commits, *(facts.get("git_commit") for facts in known)]))
    told = [*before.get("run_notes", []), *(note for _, status in runs for note in status.get("notes") or [])]
    notes = list(dict.fromkeys(told))
    return {
        **({"run_notes": notes} if notes else {}),
        **{key: last.get(key) for key in ("git_commit", "version", "python", "packages")},
        "git_commits": commits if len(commits) > 1 else [],
        "git_dirty": any(facts.get("git_dirty") for facts in [before, *known]),
        "machines": _machines(known, before.get("machines", [])),
        "started": min(str(facts["started"]) for facts in [before, *known] if facts.get("started")),
        "ended": max(str(before.get("ended") or ""), *(str(status.get("updated") or "") for _, status in runs)),
    }


def _machines(runs: Iterable[dict[str, Any]], before: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the machines of runs with these provenances, GPUs or processor cores, with run counts; including those of
    `before`, which may count some of the same runs."""
    found = Counter(
        (", ".join(dict.fromkeys(facts.get("gpus") or [])), facts.get("cores"), facts.get("cpu")) for facts in runs
    )
    found |= Counter({(one.get("gpu", ""), one.get("cores"), one.get("cpu")): one["runs"] for one in before})
    return [
        {**({"gpu": gpu} if gpu else {"cores": cores, "cpu": cpu}), "runs": runs}
        for (gpu, cores, cpu), runs in found.most_common()
    ]


def _described(study: Study) -> dict[str, Any]:
    own = {key: getattr(study, key) for key in ("base", *_WORDS)}
    return {"kind": study.name, **own, **study.described(), **study.further_facts()}


def write_values(directory: Path, labels: Sequence[str], rows: Sequence[Row]) -> None:
    """Write values.csv from rows with these labels and the fields of a `Value`, whose `lr` is the `rate`."""
    columns = [*VALUE_COLUMNS, *(["setting"] if any(row.get("setting") for row in rows) else [])]
    lines = [[*(row.get(label, "") for label in labels), *(_cell(row[key]) for key in columns)] for row in rows]
    write_table(directory / "values.csv", csv_text([*labels, *columns], lines))


def write_curves(directory: Path, labels: Sequence[str], lines: Sequence[Row]) -> None:
    """Write curves.csv, with a column for each axis that has values."""
    axes = [axis for axis in AXES if any(axis in line for line in lines)]
    heads, places = [*labels, "metric", "worker", "seed"], [*axes, "value"]
    rows = ([*(line.get(key, "") for key in heads), *(_cell(line.get(key)) for key in places)] for line in lines)
    if lines:
        write_table(directory / "curves.csv", csv_text([*heads, *places], rows))
    else:
        remove_table(directory / "curves.csv")


def _cell(value: Any) -> Any:
    """Numbers as people read them: nine digits are more than any run is worth."""
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else value


def read_rows(path: Path) -> Iterable[dict[str, str]]:
    """Yield the lines of values.csv or curves.csv, as text."""
    for row in csv.DictReader(io.StringIO(read_table(path), newline="")):
        yield {from_csv_cell(key): from_csv_cell(value or "") for key, value in row.items() if isinstance(key, str)}
