"""The study that does what a sweep does, as a file of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from decentral.errors import ConfigError
from decentral.store import read_metadata
from decentral.store.files import check_name, write_text

_HEAD = """\
# A sweep as a study: decentral-study {name} scale=laptop --config-dir {folder}
# docs/studies.md says what each key means. A `report:` section can also have claims, captions and more figures.
"""


def write_study(
    name: str, runs: Sequence[tuple[Sequence[str], Path]], rows: Sequence[str], columns: str, folder: Path
) -> Path:
    """Write `folder`/study/`name`.yaml for runs that are given as overrides and directory; returns its path.

    `rows` and `columns` are keys of the overrides, as in a table of the sweep; `lr` is tuned on all seeds where it has
    several values. Raises ConfigError if the name is none of a file, or no run has told what it is judged by.
    """
    check_name(name, "--save-study")
    metrics = next((known for _, path in runs if (known := read_metadata(path))), None)
    if metrics is None:
        raise ConfigError(f"--save-study={name} needs a run that has been evaluated, to know what counts.")
    metric = next(iter(metrics.values()))
    settings = [dict(_setting(word) for word in words) for words, _ in runs]
    values = {key: list(dict.fromkeys(one[key] for one in settings)) for key in settings[0]}
    lrs, seeds = values.get("lr", []), values.get("seed", [0])
    varied = {*rows, columns, "seed", *(["lr"] if len(lrs) > 1 else [])}
    form = "percent" if metric.percent else "plain"
    figure = {"kind": "curves", "worker": "worst", "x": "epoch", "lines": ["method", "topology"], "spread": "std"}
    study = {
        "kind": "comparison",
        "title": f"{metric.words[:1].upper()}{metric.words[1:]} by {', '.join(filter(None, [*rows, columns]))}",
        "paper": "sweeps",
        "base": [word for word in runs[0][0] if _setting(word)[0] not in varied],
        "rows": _rows(settings, rows, columns, values),
        "columns": {columns: values[columns]} if columns else {},
        "tune": {"rule": "grid", "values": lrs} if len(lrs) > 1 else {"rule": "fixed"},
        "tune_seeds": list(seeds),
        "seeds": seeds,
        "measure": {"split": metric.split, "metric": metric.name, "worker": "worst"},
        "curves": ["worst"],
        "scales": {"laptop": {}},
        "report": {
            "table": {"rows": ["method", "topology"], "columns": columns, "format": form},
            "figures": [{"name": "curves", "panels": columns, **figure}],
        },
    }
    path = folder / "study" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _HEAD.format(name=name, folder=folder) + yaml.safe_dump(study, sort_keys=False, width=110))
    return path


def _setting(word: str) -> tuple[str, Any]:
    key, _, value = word.lstrip("+").partition("=")
    return key, yaml.safe_load(value)


def _rows(
    settings: Sequence[dict[str, Any]], keys: Sequence[str], columns: str, values: dict[str, list[Any]]
) -> list[dict[str, Any]]:
    """A row for each combination of `keys` that there is, with the columns that it has, if it lacks some."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    at: dict[tuple[Any, ...], list[Any]] = {}
    for one in settings:
        topology = str(one["topology"]) if "topology" in keys else ""
        method = ", ".join(str(one[key]) for key in keys if key != "topology") or topology
        row = tuple(one[key] for key in keys)
        found[row] = {"method": method, "topology": topology, "base": [f"{key}={one[key]}" for key in keys]}
        at.setdefault(row, []).append(one.get(columns))
    for row, places in at.items():
        only = list(dict.fromkeys(places))
        if columns and only != values[columns]:
            found[row]["only"] = {columns: only}
    return list(found.values())
