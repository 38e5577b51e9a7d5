"""Results of studies as decentral-study would write them, made by hand: what reports are tested on."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from decentral.report.figures.figure import SCREEN, Output, StudyFigure
from decentral.report.results import Results

VALUE_COLUMNS = (
    *("metric", "value", "seed", "rate", "chosen", "at_edge", "status", "worst", "mean", "averaged"),
    *("published", "run", "wall_s"),
)
CURVE_COLUMNS = ("metric", "worker", "seed", "step", "epoch", "value")
LABELS = ("method", "topology", "alpha")
KEYS = {"RelaySGD": "relaysgd|dbt", "D-PSGD": "dpsgd|ring", "D2": "d2|ring"}


def value(method: str, topology: str, alpha: float, number: float | str, seed: int = 1, **more: Any) -> dict[str, Any]:
    """A line of values.csv of a study with labels method, topology and alpha."""
    row = {
        **{"method": method, "topology": topology, "alpha": alpha, "metric": "test accuracy (%)", "value": number},
        **{"seed": seed, "rate": 0.1, "chosen": True, "at_edge": False, "status": "done", "wall_s": 2.5},
        **{"worst": number, "mean": number, "averaged": number, "run": f"{method}-{seed}"},
        "published": f"{KEYS.get(method, method)}|alpha={alpha:g}",
    }
    return row | more


def write(
    directory: Path,
    values: Sequence[dict[str, Any]],
    report: dict[str, Any],
    curves: Sequence[Sequence[Any]] = (),
    labels: Sequence[str] = LABELS,
    **facts: Any,
) -> Path:
    """A study's files in `directory`, whose last three parts are paper, study and scale; returns it."""
    paper, study, scale = directory.parts[-3:]
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "values.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [*labels, *VALUE_COLUMNS], restval="")
        writer.writeheader()
        writer.writerows(values)
    if curves:
        with open(directory / "curves.csv", "w", newline="") as file:
            csv.writer(file).writerows([[*labels, *CURVE_COLUMNS], *curves])
    known = {
        **{"study": study, "scale": scale, "paper": paper, "item": "Table 1", "title": "Heterogeneous data"},
        **{"command": f"decentral-study {study} scale={scale}", "git_commit": "0123456789abcdef", "git_dirty": False},
        **{"version": "0.1.0", "ended": "2026-01-02T03:04:05+00:00", "wall_s": 61.0, "jobs": len(values)},
        **{"failed": 0, "diverged": 0, "host_cores": 2, "needs": "", "departures": ["Digits instead of CIFAR-10."]},
        **{"report": report, "labels": list(labels)},
        "metrics": {"test accuracy (%)": {"larger_is_better": True, "unit": "%", "chance": 10.0}},
    }
    (directory / "study.json").write_text(json.dumps(known | facts))
    return directory


TABLE: dict[str, Any] = {"rows": ["method", "topology"], "columns": "alpha", "format": "percent"}
PUBLISHED: dict[str, Any] = {"item": "table1", "tolerance": {"absolute": 0.5}, "because": "seeds differ by 0.3 points"}


def table1() -> list[dict[str, Any]]:
    """Two methods, two alphas, three seeds; one diverged run, one at the edge, one not chosen, one missing."""
    rows = [value("RelaySGD", "dbt", 1, 87.0 + seed / 10, seed) for seed in (1, 2, 3)]
    rows += [value("RelaySGD", "dbt", 0.01, 84.0 + seed, seed, at_edge=seed == 2) for seed in (1, 2, 3)]
    rows += [value("RelaySGD", "dbt", 0.01, 99.0, 1, chosen=False, rate=0.2)]
    rows += [value("D-PSGD", "ring", 1, 87.4, seed) for seed in (1, 2)]
    rows += [value("D-PSGD", "ring", 0.01, 50.0, 1), value("D-PSGD", "ring", 0.01, 52.0, 2)]
    rows += [value("D-PSGD", "ring", 0.01, "nan", 3, status="diverged")]
    return rows


def courses(method: str, topology: str, alpha: float, level: float, seeds: Sequence[int] = (1, 2)) -> list[list[Any]]:
    """Lines of curves.csv: worst worker, mean and two workers, at four steps."""
    return [
        [method, topology, alpha, "test accuracy (%)", worker, seed, step, step / 2, level * step / 30 + seed]
        for worker in ("worst", "mean", "0", "1")
        for seed in seeds
        for step in (0, 10, 20, 30)
    ]


def picture(figure: StudyFigure, results: Results, output: Output = SCREEN) -> Figure:
    """A figure of these results, drawn."""
    drawn = figure.draw(results, figure.data(results), output)
    FigureCanvasAgg(drawn)
    return drawn
