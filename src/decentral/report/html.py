"""A page of a study or a table of runs that works without a server and a network: report.html beside its table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from jinja2 import Environment, PackageLoader

from decentral.algorithms.features import Feature
from decentral.config.parsing import read as read_run
from decentral.errors import ConfigError
from decentral.report import tables
from decentral.report.results import Results
from decentral.store import AXES, read_metadata, read_metrics
from decentral.store.files import write_text
from decentral.study.measure import headed
from decentral.topology.rounds import all_edges

FILE = "report.html"
_COLUMNS = ("metric", "mean", "std", "runs", "diverged", "rates")
_MOST_POINTS = 300  # of a curve
_MOST_DRAWN, _MOST_WORKERS = 12, 64


def write_page(results: Results) -> Path:
    """Write report.html into the directory of the results, and return its path."""
    path = results.directory / FILE
    write_text(path, page(results))
    return path


def page(results: Results) -> str:
    """Return a table that can be sorted, curves whose axis can be chosen, and the topologies of the runs that are still
    there; or the board of one of the study's listings."""
    templates = Environment(loader=PackageLoader("decentral.report"), autoescape=True, trim_blocks=True)
    shown = next((board for listing in results.spec.listings if (board := listing.board(results))), None)
    curves = list(_curves(results)) if shown is None else shown.curves
    words = AXES if shown is None else shown.axes
    axes = {axis: told for axis, told in words.items() if any(axis in one for one in curves)}
    names = list(dict.fromkeys(one["name"] for one in curves))
    data = json.dumps({"axes": axes, "names": names, "curves": curves}, allow_nan=False).replace("<", "\\u003c")
    return templates.get_template("page.html.j2").render(
        title=str(results.facts.get("title") or results.study),
        about=tables.about(results),
        heads=[*results.labels, *_COLUMNS] if shown is None else shown.heads,
        texts=len(results.labels) + 1 if shown is None else 1,
        rows=_rows(results) if shown is None else shown.rows,
        submissions=[] if shown is None else shown.submissions,
        curves=curves,
        means=shown is None,
        topologies=list(_topologies(results)) if shown is None else [],
        data=data,
    )


def _rows(results: Results) -> list[list[tuple[str, Any]]]:
    """Return a row for each cell: what is shown, and what it is sorted by."""
    rows = []
    for one in results.entries():
        numbers = [one.mean, math.nan if one.std is None else one.std]
        rates = " ".join(f"{rate:.6g}" for rate in one.rates)
        rows.append(
            [(label, label) for label in (*one.labels.values(), results.heading(one.metric))]
            + [(_shown(value), value) if math.isfinite(value) else ("", "") for value in numbers]
            + [(str(value), value) for value in (one.runs, one.diverged)]
            + [(f"{rates}{'*' * one.at_edge}", one.rates[0] if one.rates else "")]
        )
    return rows


def _shown(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def _curves(results: Results) -> Iterator[dict[str, Any]]:
    """The mean over runs of each cell, metric and worker, over each axis, thinned out; single workers come last."""
    heads = [*results.labels, "metric", "worker"]
    lines = pandas.DataFrame([*results.curves.to_dict("records"), *_further(results)], columns=results.curves.columns)
    workers = {metric: list(own.unique()) for metric, own in lines.groupby("metric")["worker"]}
    lines = lines.sort_values("worker", key=lambda worker: worker.str.isdigit(), kind="stable")
    for head, own in lines.groupby(heads, sort=False):
        mean = own.groupby("step")[[*(axis for axis in AXES if axis != "step"), "value"]].mean().reset_index()
        mean = mean.iloc[np.unique(np.linspace(0, len(mean) - 1, _MOST_POINTS).astype(int))]
        *labels, metric, worker = map(str, head)
        numbers = {key: list(map(_number, mean[key])) for key in (*AXES, "value") if mean[key].notna().any()}
        several = len(workers[metric]) > 1
        name = ", ".join(filter(None, labels)) + f" ({worker})" * several
        yield {"name": name, "metric": metric if several else headed(metric, worker), "value": []} | numbers


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _further(results: Results) -> Iterator[dict[str, Any]]:
    """Lines as those of curves.csv, of all other metrics with a direction of the runs that are still there, and of the
    same workers."""
    known, workers = set(results.curves["metric"]), set(results.curves["worker"]) - {"counted"} or {"worst"}
    for run in results.chosen.drop_duplicates("run").to_dict("records"):
        directory = _runs(results) / run["run"]
        try:
            rows = sorted(read_metrics(directory), key=itemgetter("step"))
        except (ConfigError, OSError):
            continue
        metrics = read_metadata(directory, {(row["split"], row["metric"]) for row in rows})
        for row in rows:
            metric = metrics[row["split"], row["metric"]]
            if metric.larger_is_better is not None and metric.label not in known and str(row["worker"]) in workers:
                place = {axis: row.get(axis, math.nan) for axis in AXES}
                value = row["value"] * (100 if metric.percent else 1)
                head = {key: run[key] for key in (*results.labels, "seed")}
                yield head | place | {"metric": metric.label, "worker": str(row["worker"]), "value": value}


def _runs(results: Results) -> Path:
    """The folder of the runs, which may be gone."""
    found = (parent / "runs" for parent in results.directory.resolve().parents)
    return next((path for path in found if path.is_dir()), results.directory / "runs")


def _topologies(results: Results) -> Iterator[tuple[str, int, list[Any], list[Any]]]:
    """Name, number of workers, places of nodes and of edges, of each topology of the runs that are still there."""
    seen = set()
    for run in results.chosen["run"].unique():
        try:
            config = read_run(_runs(results) / run / "config.yaml")
            graph = all_edges(config.rounds()) if Feature.topology in config.algo.supports else None
        except ConfigError:  # gone, or with code of the user's
            continue
        n = config.num_workers or 0
        if graph is None or n > _MOST_WORKERS or (config.topology.name, tuple(graph.keys)) in seen:
            continue
        seen.add((config.topology.name, tuple(graph.keys)))
        turns = (2 * math.pi * i / n for i in range(n))
        nodes = [(round(100 + 85 * math.sin(turn), 1), round(100 - 85 * math.cos(turn), 1)) for turn in turns]
        pairs = sorted({tuple(sorted(pair)) for pair in zip(graph.src.tolist(), graph.dst.tolist(), strict=True)})
        yield config.topology.name, n, nodes, [(*nodes[one], *nodes[other]) for one, other in pairs]
        if len(seen) >= _MOST_DRAWN:
            return
