"""Tables of stored runs: settings in rows and columns, the best of one setting, mean ± std over another.

    decentral-report runs --rows algo --columns alpha --best lr --over seed --metric accuracy --worker worst

What it writes is what a study writes, study.json, values.csv and curves.csv, so that everything a report makes of a
study is made of it: the table as Markdown, CSV and LaTeX, bold type where a lead is more than noise, and figures.
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas
import yaml

from decentral.errors import ConfigError, suggest
from decentral.measurements.values import Meaning, Value
from decentral.registry import component
from decentral.registry.find import own_names
from decentral.registry.typed import typed
from decentral.report import style
from decentral.report.entries import plain
from decentral.report.figures.figure import METRIC
from decentral.report.figures.lines import AXIS_WORDS
from decentral.report.results import read
from decentral.report.series import choice_words, read_run, stored_runs
from decentral.report.tables import as_csv
from decentral.store import Metric, Status
from decentral.store.files import at_home, check_name, make_folder, read_json, stored_table, write_json
from decentral.store.run_store import found_run
from decentral.study.collect import write_curves, write_values
from decentral.study.measure import AGGREGATES, Measure, headed, titled
from decentral.study.tuning.rule import Choice, best_of

FREE = frozenset(
    (
        *(
            "results_dir",
            "run_dir",
            "device",
            "processes",
            "execution",
            "launcher",
            "logger",
            "progress",
            "rerun",
            "name",
        ),
        *(
            "save",
            "checkpoint_every_s",
            "restarts",
            "max_combinations",
            "sweeper",
            "trials",
            "record_operations",
            "evaluation",
        ),
    )
)
"""Settings in which runs that are averaged may differ."""
_LOG_FROM_RATIO = 10
_OPTION = re.compile(r"--(rows|columns|best|over|metric|worker|where)\b[ =]?")
"""An option, which in Python is an argument."""
_MOST_COLUMNS = 8
_OWN = {*Value._fields, "rate", "directory", "measure", "panels", "attendance"} - {"lr"}
"""Columns that are not settings."""


@dataclass(frozen=True)
class Layout:
    """The layout of a table of runs; settings have command-line names (`algo`, `lr`, `network.drop_probability`).

    rows, columns   settings that tell its rows apart, and the setting that has a column for each value ('': none)
    best            setting whose best value each cell takes, by the mean over `over`; '': none. A value with which a
                    run diverges does not count, unless all do.
    over            setting that repeats a run: mean and standard deviation (n - 1); '': none
    metric          'accuracy', or with its split 'train loss'; '': the metric that judges the runs
    worker          worker whose model counts: worst, mean, averaged, or a number; '': the worst, and in a table of a
                    study's results the one that the study measures
    where           'key=value': only runs with that setting
    throughput      whether to add how fast the runs trained, in examples or steps per second
    x               x axis of the curves: epochs, steps, bytes, tokens, or seconds (simulated, where time is simulated)
    panels          metrics of the curves, each with its own panel; (): the metric, with a panel for each column
    log             whether their y axis is logarithmic; otherwise where a metric that should fall spans two decades
    name            name of the table's folder; '': from rows and columns, for example 'algo_by_alpha'
    """

    rows: Sequence[str]
    columns: str = ""
    best: str = ""
    over: str = "seed"
    metric: str = ""
    worker: str = ""
    where: Sequence[str] = ()
    throughput: bool = False
    x: str = "epochs"
    log: bool = False
    panels: Sequence[str] = ()
    name: str = ""

    def __post_init__(self) -> None:
        wrong = next((one for one in self.where if "=" not in one), None)
        if wrong is not None:
            raise ConfigError(f"where={wrong} has no value: write KEY=VALUE, such as alpha=0.1.")
        if self.x not in AXIS_WORDS:
            raise ConfigError(f"--x={self.x} does not exist.{suggest(self.x, AXIS_WORDS)}")
        if self.name:
            check_name(self.name, "--name")

    @property
    def labels(self) -> list[str]:
        """The settings in rows and columns."""
        return [*self.rows, *([self.columns] if self.columns else [])]


def folder_of(tables: Path, layout: Layout, source: Path | Sequence[Path]) -> Path:
    """Return the folder for the table of these runs: that of its name, or one named after rows and columns, which has
    digits if another sweep has the one without."""
    name = "_".join(layout.rows) + (f"_by_{layout.columns}" if layout.columns else "")
    known, runs = read_json(tables / name / "study.json"), _sweep(source)
    if layout.name or known is None or known.get("sweep", []) == runs:
        return tables / (layout.name or name)
    return tables / f"{name}-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:8]}"


def runs_of(source: Path) -> tuple[Path | list[Path], dict[str, dict[str, str]]]:
    """Return the runs of the sweep whose table is in this folder, if they exist, and the names of their choices, see
    `collect_runs`; else the folder."""
    facts = read_json(source / "study.json") or {}
    chosen = facts.get("chosen", {})  # in the order of the sweep
    found = [source.resolve().parents[1] / "runs" / Path(name).name for name in chosen or facts.get("sweep", [])]
    return (found, chosen) if any(path.is_dir() for path in found) else (source, {})


def _sweep(source: Path | Sequence[Path]) -> list[str]:
    """Return the names of the runs of a sweep; none for a whole folder."""
    return [] if isinstance(source, Path) else sorted({path.name for path in source})


def collect_runs(
    source: Path | Sequence[Path],
    layout: Layout,
    directory: Path,
    chosen: Mapping[str, Mapping[str, str]],
) -> None:
    """Write the values of runs into `directory`, as a study writes them: `report.make` makes a table of them.

    `source` is a folder of results, that of a study, whose collected values are taken, or the directories of some runs.
    `chosen` has the names of choices by run, as the user gave them (availability=flaky). Raises ConfigError if there
    are no runs, if they have no such setting or metric, or if runs that differ in something else would share a cell.
    """
    if isinstance(source, Path) and stored_table(source / "values.csv"):
        frame, metrics, notes = _study_frame(source, layout)
    else:
        layout = replace(layout, worker=layout.worker or "worst")
        frame, metrics, notes = _runs_frame(source, layout, chosen)
    layout = resolved(layout, frame.columns)
    absent = {label: style.ABSENT if label == layout.columns else "" for label in layout.labels}
    frame[layout.labels] = frame[layout.labels].astype(object).fillna(absent)  # settings that a run does not have
    if isinstance(source, Path) and "directory" in frame:  # runs lie there in no order
        frame = frame.sort_values(layout.labels, key=_in_order, kind="stable")
    metric = next(iter(metrics))
    if layout.best:
        frame = _with_best(frame, layout, metric, bool(metrics[metric]["larger_is_better"]))
    if layout.over not in ("", "seed"):
        frame["seed"] = pandas.factorize(frame[layout.over])[0]
    names = list(dict.fromkeys(frame["metric"]))
    frame = frame.sort_values("metric", key=lambda column: column.map(names.index), kind="stable")
    judged = frame[frame["metric"] == metric]
    _refuse_mixed_cells(judged[judged["chosen"]], layout)
    form = "percent" if metrics[metric]["unit"] == "%" else "plain"
    heading = metrics[metric].get("heading", metric)
    own = {label: frame[f"own.{label}"].fillna("") for label in layout.labels if f"own.{label}" in frame}
    shown = own_names(pair for label in own for pair in zip(frame[label], own[label], strict=True))
    curves, whose = _curves(judged, layout) if "directory" in frame else ([], {})
    attendance = {*frame.get("attendance", ())} if "availability" not in layout.labels else set[str]()
    everywhere = f", with {attendance.pop()}" if len(attendance) == 1 and all(attendance) else ""
    facts = {
        "study": directory.name,
        "scale": "",
        "title": f"{heading[:1].upper()}{heading[1:]}, by {', '.join(layout.labels)}{everywhere}",
        "labels": layout.labels,
        "layout": asdict(layout),
        "sweep": _sweep(source),
        "chosen": chosen,
        **({"names": shown} if shown else {}),
        "run_notes": notes,
        "metrics": metrics,
        "report": {
            "table": {"rows": list(layout.rows), "columns": layout.columns, "format": form, "precise": True},
            "figures": _figures(judged, layout, metric, heading, whose),
            "repeats": layout.over or "run",
        },
    }
    make_folder(directory, above=2)
    write_values(directory, layout.labels, frame.to_dict("records"))
    if "directory" in frame:
        write_curves(directory, layout.labels, curves)
    write_json(directory / "study.json", facts)


def _curves(judged: pandas.DataFrame, layout: Layout) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the lines of curves.csv, and the worker shown by metric: the mean for metrics without a worst worker."""
    lines, whose = list[dict[str, Any]](), dict[str, str]()
    for run in judged[judged["chosen"]].to_dict("records"):
        labels = {label: run[label] for label in layout.labels}
        for measure in run["panels"] or [run["measure"]]:
            tried = dict.fromkeys([measure.worker, *["mean"] * bool(run["panels"])])
            found = ((one, measure.curves(run["directory"], [one], labels, run["seed"])) for one in tried)
            worker, curve = next((each for each in found if each[1]), ("", []))
            whose |= {row["metric"]: worker for row in curve}
            lines += [row | {"worker": measure.worker} for row in curve]
    return lines, whose


def _runs_frame(
    source: Path | Sequence[Path], layout: Layout, chosen: Mapping[str, Mapping[str, str]]
) -> tuple[pandas.DataFrame, dict[str, Any], list[str]]:
    """Return a row for each number of the runs that are done or diverged, the meanings of the metrics, and notes."""
    if isinstance(source, Path):
        runs, left_out = stored_runs(source)
    else:
        runs, left_out = [read_run(found_run(path)) for path in source if (path / "status.json").exists()], ""
    damaged = [run.reason for run, *_ in runs if run.reason]
    ended, rows, judged = [], [], []
    metrics = dict[str, Any]()
    for run, settings, known, _ in runs:
        if run.status in (Status.done, Status.diverged) and _wanted(settings, layout.where):
            ended.append((run.path, settings, run.facts, known))
    if not ended:
        which = f" with {' and '.join(layout.where)}" if layout.where else ""
        which += "".join(f" ({why.rstrip('.')})" for why in [*damaged[:1], left_out] if why)
        where = source if isinstance(source, Path) else "this sweep"
        raise ConfigError(f"{where} has no finished runs{which}: rerun decentral-run, or name another folder.")
    ended, repeated = _without_repeats(ended)
    asked = metric_named(layout.metric, [known for *_, known in ended])
    shown = [metric_named(words, [known for *_, known in ended], "--panels") for words in layout.panels]
    for path, settings, facts, known in ended:
        key = asked or next(iter(known), None)
        if key is None or key not in known:
            continue
        measure = Measure(*key, worker=layout.worker)
        about = {key: _cell(value) for key, value in settings.items()} | {"directory": path, "measure": measure}
        about |= chosen.get(path.name, {})
        about["attendance"] = choice_words(
            "availability",
            {key.partition(".")[2] or "name": value for key, value in settings.items() if key.startswith("availab")},
        )
        about["panels"] = [Measure(*each, worker=layout.worker) for each in shown if each in known]
        values = _values(path, settings, facts, known, measure, layout.throughput)
        judged.append(values[0])
        rows += [about | value._asdict() | {"lr": about.get("lr"), "rate": math.nan} for value in values]
        for value in values:
            more = {"heading": headed(value.metric, layout.worker)} if value.worst is not None else {}
            metrics[value.metric] = value.meaning._asdict() | more
        for metric in [known[each] for each in shown if each in known]:
            metrics.setdefault(metric.label, Meaning(metric.larger_is_better, "%" * metric.percent)._asdict())
    if not rows:
        raise ConfigError(f"{ended[0][0]} has recorded no metric: use a task that measures one.")
    names = list(dict.fromkeys(value.metric for value in judged))
    if len(names) > 1:
        raise ConfigError(
            f"these runs are judged by {' and '.join(names)}: select one with --metric '{names[0]}' or with --where."
        )
    lacking = len(ended) - len(judged)
    notes = [f"{lacking} run{'s' * (lacking > 1)} without {names[0]} left out"] if lacking else []
    notes += [left_out] if left_out else []
    if repeated:
        notes.append(f"{repeated} repeated run{'s' * (repeated > 1)} left out: the newest of equal settings counts")
    if damaged:
        notes.append(f"{len(damaged)} unreadable run{'s' * (len(damaged) > 1)} left out: {damaged[0].rstrip('.')}")
    return pandas.DataFrame(rows), metrics, notes


def _values(path: Path, settings: Mapping[str, Any], facts: Mapping[str, Any], known: Collection[tuple[str, str]],
            measure: Measure, speed: bool) -> list[Value]:  # fmt: skip
    """Return what a run reached, also on the workers' own test sets, and what it cost."""
    own = replace(measure, split="local")
    measures = [measure, own] if measure.split == "test" and (own.split, own.metric) in known else [measure]
    found = [each.of(path, seed=settings.get("seed", 0))._replace(run=facts.get("run_id", "")) for each in measures]
    cost = found[0]._replace(worst=None, mean=None, averaged=None, meaning=Meaning())
    costs = dict[str, float]()
    if speed:
        unit, fast = list(throughput(settings, facts).items())[-1]
        costs[f"throughput ({unit})"] = fast
    if facts.get("simulated_s") is not None:
        costs["simulated time (s)"] = facts["simulated_s"]
    return [*found, *(cost._replace(metric=metric, value=value) for metric, value in costs.items())]


def _without_repeats(ended: list[Any]) -> tuple[list[Any], int]:
    """Drop all but the newest of runs with a model or data from Python that have equal settings and no name; and how
    many were dropped."""
    newest: dict[Any, Any] = {}
    for one in sorted(ended, key=lambda run: str(run[2].get("updated"))):
        path, settings, *_ = one
        is_new_each_time = "given" in (settings.get("model"), settings.get("data")) and settings.get("name") is None
        what = [f"{key}={value}" for key, value in settings.items() if key.partition(".")[0] not in FREE]
        newest[tuple(what) if is_new_each_time else path] = one
    kept = {path for path, *_ in newest.values()}
    return [one for one in ended if one[0] in kept], len(ended) - len(newest)


def _cell(value: Any) -> Any:
    """Return a setting as the value of a label; a list becomes text."""
    return "null" if value is None else value if isinstance(value, bool | int | float) else str(value)


@typed("results_dir", "rows", "where")
def table(
    results_dir: str | Path = "results",
    *,
    rows: str | Sequence[str],
    columns: str = "",
    best: str = "",
    over: str = "seed",
    metric: str = "",
    worker: str = "",
    where: str | Sequence[str] | Mapping[str, Any] = (),
    throughput: bool = False,
) -> pandas.DataFrame:
    """Return the numbers of a table of stored runs, a row per cell; `decentral-report runs` prints and draws the same.

    Its columns are the settings in `rows` and `columns`, then metric, mean, std (n - 1), runs, diverged, rates (the
    chosen values of `best`) and at_edge: whether one of these is at the edge of the tried values. `table(...).pivot`
    gives any other shape. `where` has 'alpha=0.1', or is {"alpha": 0.1}. `results_dir` is a folder of results, or that
    of a study; the settings are those of `Layout`. Raises ConfigError as `collect_runs` does.

    >>> decentral.table(rows="algo", columns="alpha", best="lr")  # doctest: +SKIP
    """
    if isinstance(where, Mapping):
        where = [f"{key}={value}" for key, value in where.items()]
    named = [[one] if isinstance(one, str) else list(one) for one in (rows, where)]
    layout = Layout(named[0], columns, best, over, metric, worker, named[1], throughput)
    with TemporaryDirectory() as folder:
        try:
            runs, chosen = runs_of(at_home(results_dir))
            collect_runs(runs, layout, Path(folder), chosen)
        except ConfigError as error:
            raise ConfigError(_OPTION.sub(r"\1=", str(error))) from None
        results = read(Path(folder))
    for note in results.facts["run_notes"]:
        if " without " not in note:  # damaged runs and copies, not runs that lack the metric
            warnings.warn(_OPTION.sub(r"\1=", f"{note}."), stacklevel=2)
    return pandas.read_csv(StringIO(as_csv(results)))


def layout_of(runs: Sequence[Mapping[str, Any]], together: Collection[str] = ()) -> Layout:
    """The table of a sweep over these runs, each key -> value in the order in which the user gave them.

    Seeds are averaged and the best learning rate is taken, where something else differs, too. The last of the others is
    in the columns, if it has few values, and others than go without saying by the rest: a topology that each algorithm
    has of its own is in the rows, and so are settings that vary `together`.
    """
    values = {key: {run[key] for run in runs if key in run} for run in runs for key in run}
    varied = [key for key, own in values.items() if len(own) > 1]
    rest = [key for key in varied if key not in ("seed", "lr")]
    best = "lr" if "lr" in varied and rest else ""
    rows = rest or [key for key in varied if key != "seed"] or ["algo"]
    for key in reversed(rows):
        others = [one for one in rows if one != key]
        free = len({tuple(map(run.get, others)) for run in runs}) < len({tuple(map(run.get, rows)) for run in runs})
        if others and free and key not in together and len(values[key]) <= _MOST_COLUMNS:
            return Layout(others, key, best)
    return Layout(rows, "", best)


def _in_order(column: pandas.Series) -> pandas.Series:
    """Sort numbers by value, anything else alphabetically."""
    numbers = pandas.to_numeric(column.mask(column == "", -math.inf), errors="coerce")
    return column.astype(str) if numbers.isna().any() else numbers


def metric_named(
    wanted: str, runs: Sequence[dict[tuple[str, str], Metric]], option: str = "--metric"
) -> tuple[str, str] | None:
    """Return the split and name of the metric that is called so in some of the runs: by both, or by its name alone,
    then on test data if there is one; None if the user named none."""
    if not wanted:
        return None
    known = {key: metric for metrics in runs for key, metric in metrics.items()}
    words = wanted.removesuffix("(%)").strip().replace("_", " ")
    exact = {key: f"{' '.join(key)}\n{metric.words}".replace("_", " ") for key, metric in known.items()}
    named = [key for key, both in exact.items() if {words, f"{key[0]} {words}"} & {*both.splitlines()}]
    named.sort(key=lambda key: key[0] != "test")
    if not named:
        raise ConfigError(
            f"{option}={wanted} is in none of these runs.{suggest(wanted, [metric.words for metric in known.values()])}"
        )
    return named[0]


def throughput(settings: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, float]:
    """Return how fast a run with these settings and this status trained: steps/s, and if known examples/s, tokens/s."""
    steps, wall_s = facts.get("step", 0), facts.get("wall_s", 0.0)
    found = {"steps/s": steps / wall_s if wall_s else math.nan}
    if wall_s and "model" in getattr(component("tasks", str(settings.get("task")), trust=False), "uses", ()):
        each = settings["batch_size"] * settings.get("accumulate", 1)
        examples = facts.get("examples_per_worker") or [steps * each] * (settings["num_workers"] or 1)
        found["examples/s"] = sum(examples) / wall_s
        found |= {"tokens/s": facts["tokens"] / wall_s} if "tokens" in facts else {}
    return found


def _wanted(settings: dict[str, Any], where: Sequence[str]) -> bool:
    """Return whether a run has all of these settings, each given as key=value, in text or YAML; a class of a module is
    also called by its own name."""
    for key, _, value in (one.partition("=") for one in where):
        try:
            meant = yaml.safe_load(value)
        except yaml.YAMLError:
            meant = value
        known = {plain(settings.get(name, settings.get(key, ""))) for name in (key, f"own.{key}")}
        if known.isdisjoint((plain(value), plain(meant))):
            return False
    return True


def _study_frame(folder: Path, layout: Layout) -> tuple[pandas.DataFrame, dict[str, Any], list[str]]:
    """Return the collected values of a study, for its first metric or the requested one; rates are chosen."""
    found = read(folder)
    names = list(dict.fromkeys(found.values["metric"]))
    words = layout.metric.replace("_", " ")
    metric = next((name for name in names if words in name), None)
    if metric is None:
        raise ConfigError(f"--metric={layout.metric} is not in {folder}.{suggest(layout.metric, names)}")
    frame = found.values[found.values["metric"] == metric].assign(lr=found.values["rate"]).replace(found.settings)
    named = {}
    if layout.worker not in ("", *AGGREGATES):
        raise ConfigError(f"--worker={layout.worker} is not in {folder}: use {', '.join(AGGREGATES)}.")
    if layout.worker:
        if frame[layout.worker].notna().any():
            named = {"heading": headed(metric, layout.worker)}
        frame = frame.assign(value=frame[layout.worker].fillna(frame["value"]))
    frame = frame[[_wanted(dict(row), layout.where) for _, row in frame.iterrows()]]
    meaning = {"unit": "", "chance": None} | found.meaning(metric) | named
    meaning["larger_is_better"] = found.larger_is_better(metric)
    return (frame[frame["chosen"]] if layout.best == "lr" else frame), {metric: meaning}, []


def resolved(layout: Layout, known: Collection[str]) -> Layout:
    """Return the layout with the `known` names of settings in full. Raises ConfigError for others."""

    def named(option: str, key: str) -> str:
        ending = [name for name in known if name == key or name.endswith(f".{key}")]
        if not key or key in ending:
            return key
        if len(ending) != 1:
            raise ConfigError(
                f"{option} {key} is not a setting of the runs that are done.{suggest(key, ending or known)}"
            )
        return str(ending[0])

    rows = [named("--rows", key) for key in layout.rows]
    found = replace(layout, rows=rows, columns=named("--columns", layout.columns), best=named("--best", layout.best),
                    over=named("--over", layout.over))  # fmt: skip
    twice = [key for key in found.labels if [*found.labels, found.best, found.over].count(key) > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice: use a setting once, in rows, columns, best or over.")
    return found


def _with_best(frame: pandas.DataFrame, layout: Layout, metric: str, larger_is_better: bool) -> pandas.DataFrame:
    """Mark as `chosen` the runs with the best value of `best` in each cell, and say whether it is at the edge of those
    that were tried."""
    parts = []
    for _, cell in frame.groupby(layout.labels, sort=False, dropna=False):
        judged = cell[cell["metric"] == metric]
        score = judged["value"].mask(judged["status"] == Status.diverged) * (1 if larger_is_better else -1)
        tried = score.groupby(judged[layout.best])
        fewer = tried.size() < tried.size().max()  # runs, such as those of a search for the best value
        scores = tried.agg(lambda values: values.mean(skipna=False)).mask(fewer).to_dict()
        numbers = all(isinstance(value, int | float) for value in scores)
        best, at_edge = best_of(scores) or Choice(min(scores, key=lambda value: (isinstance(value, str), value)), True)
        rate = cell[layout.best] if numbers else math.nan
        counts = cell[layout.best] == best
        at_edge = counts & (cell["metric"] == metric) & (at_edge and numbers and len(scores) > 1)
        parts.append(cell.assign(chosen=counts, at_edge=at_edge, rate=rate))
    return pandas.concat(parts)


def _refuse_mixed_cells(chosen: pandas.DataFrame, layout: Layout) -> None:
    """Raise ConfigError where runs of one cell differ in a setting that the layout does not name, or are repeated."""
    named = {*layout.labels, layout.best, layout.over}
    settings = [key for key in chosen.columns if key not in named and key.partition(".")[0] not in FREE | _OWN]
    for _, cell in chosen.groupby(layout.labels, sort=False, dropna=False):
        is_repeated = "name" in cell and cell[layout.over or "seed"].duplicated().any()
        keys = [*settings, "name"] if is_repeated else settings
        text = cell[keys].astype(str)
        for key in keys:
            if text[key].nunique() > 1:
                values = ", ".join(text[key].unique()[:3])
                raise ConfigError(
                    f"runs of one cell differ in {key} ({values}): name it in --rows, or select with --where {key}=..."
                )


def _figures(frame: pandas.DataFrame, layout: Layout, metric: str, heading: str,
             whose: Mapping[str, str]) -> list[dict[str, Any]]:  # fmt: skip
    """The values over the columns, where these are numbers, and the metric over epochs."""
    common: dict[str, Any] = {"lines": list(layout.rows), "spread": "std", "metric": metric, "ylabel": heading}
    found: list[dict[str, Any]] = []
    places = pandas.to_numeric(frame[layout.columns], errors="coerce") if layout.columns else pandas.Series([math.nan])
    if places.notna().all() and places.nunique() > 1:
        logx = bool(places.min() > 0 and places.max() >= _LOG_FROM_RATIO * places.min())
        found.append({"name": "values", "kind": "scaling", "x": layout.columns, "logx": logx, **common})
    if "directory" in frame:
        curves = {"worker": layout.worker, "x": layout.x, "panels": layout.columns, "logy": layout.log or None}
        if layout.panels:
            common |= {"lines": layout.labels, "metric": "", "ylabel": "", **titled(whose)}
            curves["panels"] = METRIC
        name = "curves" if layout.x == "epochs" else f"curves_{layout.x}"  # keeps the figures over other axes
        found.append({"name": name, "kind": "curves", **curves, **common})
    return found
