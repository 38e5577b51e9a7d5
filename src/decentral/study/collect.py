"""What a study found, as files that outlive the runs: values.csv, curves.csv and study.json."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from decentral.store.files import read_json, write_bytes, write_json, write_text
from decentral.study.study import Cell, Study, Value

_VALUE_COLUMNS = (
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
_CURVE_COLUMNS = ("metric", "worker", "seed", "step", "epoch", "value")
_COMPRESS_FROM_BYTES = 500_000


def collect(study: Study, cells: Sequence[Cell], directory: Path, facts: dict[str, Any]) -> None:
    """Write what the cells know now; replaces the files of an earlier call, each atomically.

    `facts` are the entries of study.json that the study itself does not know: command, commit, times, counts.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values = [value for cell in cells for value in cell.values()]
    labels = list(dict.fromkeys(label for cell in cells for label in cell.labels))
    _write_values(directory / "values.csv", labels, values)
    _write_curves(directory, labels, cells)
    counts = {
        "jobs": len({value.run for value in values if value.run}),
        "diverged": len({value.run for value in values if value.status == "diverged"}),
        "wanted": {json.dumps(cell.labels, sort_keys=True): cell.wanted() for cell in cells if cell.wanted()},
    }
    write_json(directory / "study.json", {**facts, **_described(study), "labels": labels, **counts})


def refresh(study: Study, directory: Path, at_this_scale: list[str]) -> None:
    """Let study.json say what the study's file says now: captions, claims, tolerances, departures."""
    facts = read_facts(directory)
    new = {**facts, **_described(study), "at_this_scale": at_this_scale}
    if new != facts:
        write_json(directory / "study.json", new)


def read_facts(directory: Path) -> dict[str, Any]:
    """What study.json says; empty if there is none."""
    return read_json(directory / "study.json") or {}


def digest(definition: dict[str, Any], finished: Iterable[str]) -> str:
    """12 hexadecimal digits for a study and the jobs of it that are finished: what collected files are made from."""
    text = json.dumps([definition, sorted(finished)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_current(directory: Path, definition: dict[str, Any], finished: Iterable[str]) -> bool:
    """Whether the collected files and their report are made from just this."""
    whole = all((directory / name).exists() for name in ("values.csv", "verdicts.csv"))
    return whole and read_facts(directory).get("digest") == digest(definition, finished)


def _described(study: Study) -> dict[str, Any]:
    keys = ("title", "paper", "item", "base", "departures", "needs", "report")
    return {"kind": study.name, **{key: getattr(study, key) for key in keys}}


def _write_values(path: Path, labels: list[str], values: Iterable[Value]) -> None:
    rows = []
    for value in values:
        fields = {**value._asdict(), "rate": value.lr}
        known = [value.labels.get(label, "") for label in labels]
        rows.append([*known, *(_cell(fields[key]) for key in _VALUE_COLUMNS)])
    write_text(path, _csv([*labels, *_VALUE_COLUMNS], rows))


def _write_curves(directory: Path, labels: list[str], cells: Iterable[Cell]) -> None:
    rows = [
        [*(curve.labels.get(label, "") for label in labels), curve.metric, curve.worker, curve.seed, *map(_cell, point)]
        for cell in cells
        for curve in cell.curves()
        for point in curve.points
    ]
    plain, packed = directory / "curves.csv", directory / "curves.csv.gz"
    text = _csv([*labels, *_CURVE_COLUMNS], rows)
    if not rows:
        written = None
    elif len(text) >= _COMPRESS_FROM_BYTES:
        write_bytes(packed, gzip.compress(text.encode(), mtime=0))
        written = packed
    else:
        write_text(plain, text)
        written = plain
    for path in (plain, packed):
        if path != written:
            path.unlink(missing_ok=True)


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue()


def _cell(value: Any) -> Any:
    """Numbers as people read them: nine digits are more than any run is worth."""
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else value
