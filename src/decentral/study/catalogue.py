"""The studies in conf/study/, one YAML each; and the conversion of a sweep to a study file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from decentral.config.parsing import build, folders_of, read_mapping
from decentral.errors import ConfigError, suggest
from decentral.measurements.measurement import Measurement
from decentral.registry import components
from decentral.store import read_metadata
from decentral.store.files import check_name, write_text
from decentral.study import SCALES
from decentral.study.measure import Measure, headed, titled
from decentral.study.measured import study_class
from decentral.study.study import SWEEPS, Study
from decentral.terminal.console import say


def names(config_dir: str | None = None) -> list[str]:
    """The names of all studies, ours and those in the user's folder."""
    return sorted({file.stem for folder in folders_of(config_dir) for file in (folder / "study").glob("*.yaml")})


def scales(name: str, config_dir: str | None = None) -> list[str]:
    """The scales at which a study is defined."""
    known = _read(name, config_dir).get("scales") or {}
    return [scale for scale in SCALES if scale in known]


def load(name: str, scale: str, config_dir: str | None = None, overrides: Sequence[str] = ()) -> Study:
    """A study at a scale: the keys of its YAML, replaced by those below `scales: {<scale>: ...}`, then by overrides.

    There, `base` is appended to what is at the top instead of replacing it. `like: <other study>` begins with all keys
    of another study, scale by scale; what is said here replaces them. An override is `key=<YAML>`, for example
    `seeds=[1,2]`. Raises ConfigError, with one sentence that names the file and the key, if a name is unknown or the
    file is not right.
    """
    values = _read(name, config_dir)
    known = values.pop("scales", None) or {}
    if scale not in SCALES:
        raise ConfigError(f"scale={scale} does not exist.{suggest(scale, SCALES)}")
    if scale not in known:
        what = f"use scale={' or scale='.join(known)}" if known else "its file defines no scales; add `scales:`"
        raise ConfigError(f"scale={scale} is not defined for {name}: {what}.")
    changes = known[scale] or {}
    base = [*(values.get("base") or []), *(changes.get("base") or [])]
    given = {key: _value(key, text) for key, _, text in (override.partition("=") for override in overrides)}
    return study_from(name, {**values, **changes, "base": base, **given})


def settings(name: str, scale: str, config_dir: str | None = None) -> list[str]:
    """Return the settings of a scale beyond the study's own, as text such as 'epochs=50' and 'seeds: 1'."""
    changes = dict((_read(name, config_dir).get("scales") or {}).get(scale) or {})
    words = [str(word) for word in changes.pop("base", None) or []]
    plain = {key: value for key, value in changes.items() if key not in ("needs", "rows", "report", "departures")}
    return words + [f"{key}: {json.dumps(value)}" for key, value in plain.items()]


def _value(key: str, text: str) -> Any:

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"study.{key}={text} is not valid YAML: write it as in [1,2].") from None


def study_from(what: str, values: dict[str, Any]) -> Study:
    """A study from plain values; `kind` chooses its class."""
    values = dict(values)
    kind, kinds = values.pop("kind", None), components("study.kinds") | components("measurements")
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"study {what}: kind={kind} does not exist.{suggest(str(kind), kinds)}")
    chosen = kinds[kind]
    return build(study_class(chosen) if issubclass(chosen, Measurement) else chosen, values, f"study {what}")


def _read(name: str, config_dir: str | None) -> dict[str, Any]:
    folders = [*([Path(config_dir)] if config_dir else []), *reversed(folders_of(None))]  # `names` checks all files
    file = next((path for folder in folders if (path := folder / "study" / f"{name}.yaml").is_file()), None)
    if file is None:
        raise ConfigError(f"there is no study {name}.{suggest(name, names(config_dir))}")
    values = read_mapping(file)
    name_of_model = values.pop("like", None)
    if not name_of_model:
        return values
    model = _read(str(name_of_model), config_dir)
    scales, theirs = values.get("scales"), model.get("scales") or {}
    if scales is not None:  # only those that it names itself
        theirs = {scale: {**(theirs.get(scale) or {}), **(own or {})} for scale, own in scales.items()}
    return {**model, **values, "scales": theirs}


def reserved(overrides: Sequence[str], key: str) -> tuple[str | None, list[str]]:
    """The last value given for `key`, and the overrides without it."""
    mine = [override for override in overrides if override.lstrip("+").startswith(f"{key}=")]
    given = mine[-1].partition("=")[2].strip("'\"") if mine else None
    return given, [override for override in overrides if override not in mine]


# -- from a sweep to a study -------------------------------------------------------------------------------------------

_HEAD = """\
# A sweep as a study: decentral-study {name} --config-dir {folder}
# docs/studies.md says what each key means. A `report:` section can also have claims, captions and more figures.
"""


def grid_study(
    name: str,
    words: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: str,
    best: str,
    algo: str,
    names: Mapping[str, str],
) -> dict[str, Any]:
    """Return the keys of a study that define its runs, for runs given by their overrides.

    `rows`, `columns` and `best`, which is tuned on all seeds, are keys of the overrides, as in a table of the sweep;
    `algo` is the method where no override names it. `names` replace values in labels.
    """
    check_name(name, "--save-study")
    settings = [dict(_setting(word) for word in own) for own in words]
    values = {key: list(dict.fromkeys(one[key] for one in settings if key in one)) for one in settings for key in one}
    tried, seeds = values.get(best, []), values.get("seed", [0])
    placed = {*rows, columns, best, "seed"}
    paired = [key for key, own in values.items() if len(own) > 1 and key not in placed]
    return {
        "kind": "comparison",
        "title": ", ".join(filter(None, [*rows, columns])),
        "paper": SWEEPS,
        "base": [word for word in words[0] if _setting(word)[0] not in {*placed, *paired}],
        "rows": _rows(settings, rows, paired, columns, values, algo, names),
        "columns": {columns: values[columns]} if columns in values else {},
        "tune": {"rule": "grid", **({"key": best} if best != "lr" else {}), "values": tried}
        if best
        else {"rule": "fixed"},
        "tune_seeds": list(seeds),
        "seeds": seeds,
    }


def judged_study(
    grid: dict[str, Any],
    runs: Sequence[Path],
    judge: tuple[str, str] | None,
    worker: str,
    shown: Mapping[str, Any],
    panels: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Return the study `grid` of these runs, judged by a metric of this worker, by default the first one.

    `shown` has keys of the figure, and `panels` split and name of metrics with a panel each. Raises ConfigError if no
    run has recorded the metric.
    """
    found = ((path, known) for path in runs if (known := read_metadata(path)) and (judge is None or judge in known))
    path, metrics = next(found, (Path(), {}))
    if not metrics:
        raise ConfigError("--save-study needs an evaluated run to select the metric.")
    judge = judge or next(iter(metrics))
    metric = metrics[judge]

    def whose(key: tuple[str, str]) -> str:
        return worker if Measure(*key, worker=worker).curves(path, [worker], {}, 0) else "mean"

    columns, best = (
        next(iter(grid["columns"]), ""),
        "" if grid["tune"]["rule"] == "fixed" else grid["tune"].get("key", "lr"),
    )
    also = [dict(split=one[0], metric=one[1], worker=whose(one)) for one in panels if one != judge]
    drawn = "worst" if {whose(key) for key in (judge, *panels)} == {"worst"} else "counted"
    heading = headed(metric.label, whose(judge))
    labels = ["method", *(["topology"] if any(row["topology"] for row in grid["rows"]) else [])]
    figure = {"ylabel": heading, "kind": "curves", "worker": drawn, "lines": labels, "spread": "std", **shown}
    workers = {metrics[key].label: whose(key) for key in (judge, *panels) if key in metrics}
    figure |= {"panels": "metric", "ylabel": "", **titled(workers)} if panels else {"panels": columns}
    return grid | {
        "title": f"{heading[:1].upper()}{heading[1:]}, by {grid['title']}",
        "measure": {"split": metric.split, "metric": metric.name, "worker": whose(judge)},
        "also": also,
        "curves": [drawn],
        "report": {
            "table": {
                **{"rows": labels, "columns": columns, "format": "percent" if metric.percent else "plain"},
                **{"precise": True, "heading": heading, "best": best},
            },
            "figures": [{"name": "curves", **figure}],
        },
    }


def save_study(name: str, config_dir: str | None, study: dict[str, Any]) -> None:
    """Write `study`/`name`.yaml, which defines the usual scale, into the user's folder, and say where it is."""
    check_name(name, "--save-study")
    folder = Path(config_dir or "conf")
    file = folder / "study" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({**study, "scales": {"small": {}}}, sort_keys=False, width=110)
    write_text(file, _HEAD.format(name=name, folder=folder) + text)
    say(f"Study:    {file}, to be committed  (decentral-study {name} --config-dir {folder})")


def _setting(word: str) -> tuple[str, Any]:
    key, _, value = word.lstrip("+").partition("=")
    return key, yaml.safe_load(value)


def _rows(
    settings: Sequence[dict[str, Any]],
    keys: Sequence[str],
    paired: Sequence[str],
    columns: str,
    values: dict[str, list[Any]],
    algo: str,
    names: Mapping[str, str],
) -> list[dict[str, Any]]:
    """A row for each combination of `keys` that there is, with its `paired` settings and the columns that it has, if it
    lacks some."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    at: dict[tuple[Any, ...], list[Any]] = {}
    for one in settings:
        method, topology = (str(one.get(key, usual)) for key, usual in (("algo", algo), ("topology", "")))
        given = {key: one[key] for key in (*keys, *paired) if one.get(key) is not None}
        further = [key for key in keys if key in given and key not in ("algo", "topology")]
        row = tuple(one.get(key) for key in keys)
        found[row] = {
            "method": ", ".join([names.get(method, method), *(f"{key}={given[key]}" for key in further)]),
            "topology": names.get(topology, topology) if "topology" in keys else "",
            "base": [f"{key}={value}" for key, value in given.items()],
        }
        at.setdefault(row, []).append(one.get(columns))
    for row, places in at.items():
        only = list(dict.fromkeys(places))
        if columns in values and only != values[columns]:
            found[row]["only"] = {columns: only}
    return list(found.values())
