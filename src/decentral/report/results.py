"""The output of `decentral-study` for a study at one scale: the input of a report."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas

from decentral.config.parsing import read_yaml
from decentral.errors import ConfigError
from decentral.report import spec
from decentral.report.entries import Entry, Wanted, group, plain, where
from decentral.store import AXES
from decentral.store.files import check_name, from_csv_cell, load_json, read_table, stored_table

_NUMBERS = ("value", "rate", "worst", "mean", "averaged", "wall_s")
_LISTED = 6  # cells whose search goes on
_SAME_CELLS = ("study.seeds=", "study.tune_seeds=", "study.columns=", "study.num_workers=")
"""Changes of a study that leave each of its cells as it is."""
_FLAGS = ("chosen", "at_edge")
_TEXTS = ("metric", "status", "published", "run")
_COLUMNS = (*_NUMBERS, *_FLAGS, *_TEXTS, "seed")
_CURVE_COLUMNS = ("metric", "worker", "seed", "value")


@dataclass(frozen=True)
class Results:
    """A study at one scale: study.json, values.csv and, where there is one, curves.csv; .gz where these are long."""

    directory: Path
    facts: dict[str, Any]
    values: pandas.DataFrame
    """values.csv with its labels as text (`plain`) and numbers as numbers."""
    known: dict[str, list[Entry]] = field(default_factory=dict, repr=False)
    """A cache of the cells, by `of`."""

    @property
    def study(self) -> str:
        """Name of the study."""
        return str(self.facts["study"])

    @property
    def scale(self) -> str:
        """smoke, small, laptop or paper."""
        return str(self.facts.get("scale", ""))

    @property
    def labels(self) -> list[str]:
        """The label columns, in order."""
        return list(self.facts.get("labels", []))

    @property
    def metric(self) -> str:
        """The first of the study's metrics: what it is about."""
        return str(self.values["metric"].iloc[0]) if len(self.values) else ""

    @cached_property
    def spec(self) -> spec.ReportSpec:
        """The study's `report:` section. Raises ConfigError if it is wrong."""
        return spec.parse(self.facts.get("report"), self.study)

    @cached_property
    def reasons(self) -> dict[str, str]:
        """Read reasons.yaml: handwritten sentences on why claims are not met here; {} if there is none. Raises
        ConfigError if it is invalid."""
        path = self.directory / "reasons.yaml"
        if not path.is_file():
            return {}
        found = read_yaml(path) or {}
        if not isinstance(found, dict) or not all(isinstance(text, str) for pair in found.items() for text in pair):
            raise ConfigError(f"{path} is invalid: use lines such as 'claim: a sentence'.")
        return found

    def meaning(self, metric: str = "") -> dict[str, Any]:
        """Return the entry of study.json on a metric, by default the first, as far as the runs said it: its direction
        (`larger_is_better`), `unit`, and `chance`, the level of guessing."""
        found: dict[str, Any] = (self.facts.get("metrics") or {}).get(metric or self.metric, {})
        return found

    def larger_is_better(self, metric: str = "") -> bool | None:
        """The direction of a metric, by default the first: as the report says of that one, or as the runs said; None
        if it is not known."""
        said, wanted = self.meaning(metric).get("larger_is_better"), self.spec.larger_is_better
        decided = metric in ("", self.metric) and wanted is not None
        return wanted if said is None or decided else bool(said)

    def heading(self, metric: str) -> str:
        """A metric, in a table of runs with whose model counts: 'test accuracy (%) of the worst worker'."""
        own = self.spec.table.heading if self.spec.table and metric == self.metric else ""
        return own or str(self.meaning(metric).get("heading", metric))

    @property
    def settings(self) -> dict[str, str]:
        """The label that is shown for a class of a module -> module:Class, as settings name it."""
        return {shown: name for name, shown in self.facts.get("names", {}).items()}

    @property
    def of_runs(self) -> bool:
        """True for a table of runs instead of a study."""
        return "layout" in self.facts

    @property
    def changes(self) -> list[str]:
        """Overrides with which it was started that make it another study than the one in conf/study."""
        return [str(one) for one in self.facts.get("changed") or []]

    @property
    def original(self) -> bool:
        """True for the study itself at this scale, False for a variant of it in a directory beside."""
        return not self.facts.get("changed") and self.directory.name == self.scale

    @property
    def incomparable(self) -> str:
        """Why the paper's numbers cannot be compared with these; '' if they can."""
        scales = self.spec.published.scales if self.spec.published else []
        if self.scale not in scales:
            return f"compared at scale={' or '.join(scales)} only; this is scale={self.scale}"
        if self.facts.get("changed"):
            return f"the study was changed: {' '.join(self.changes)}".rstrip(": ")
        return ""

    @property
    def comparable(self) -> bool:
        """True if the paper's numbers can be compared with these."""
        return self.spec.published is not None and not self.incomparable

    @property
    def marked(self) -> bool:
        """True if the paper's numbers apply to the cells that have some, also with other seeds or columns."""
        scales = self.spec.published.scales if self.spec.published else []
        return self.scale in scales and all(change.startswith(_SAME_CELLS) for change in self.changes)

    @cached_property
    def wanted(self) -> Wanted:
        """The final numbers of runs of cells, as far as study.json has them."""
        wanted = self.facts.get("wanted") or {}
        try:
            cells = [json.loads(key).items() for key in wanted]
        except (ValueError, AttributeError):
            raise ConfigError(f"{self.directory / 'study.json'} is damaged: 'wanted' must name cells.") from None
        known = zip(cells, wanted.values(), strict=True)
        return [({name: plain(value) for name, value in own}, int(number)) for own, number in known]

    @cached_property
    def chosen(self) -> pandas.DataFrame:
        """The values that count, without the runs of searches for a learning rate."""
        return self.values[self.values["chosen"]]

    def entries(self, of: str = "value") -> list[Entry]:
        """Return the cells; `of`: value, worst, mean or averaged."""
        if of not in self.known:
            self.known[of] = group(self.chosen, self.labels, of, self.wanted)
        return self.known[of]

    def tried(self) -> list[str]:
        """Return a sentence on each cell of which no run that counts has ended, with what the learning rates of its
        search gave; of many, the others are only counted."""
        tried = self.values[~self.values["chosen"] & (self.values["rate"].abs() < math.inf)]
        found, ended = [], set(self.chosen[self.labels].itertuples(index=False, name=None))
        for labels, runs in tried.groupby(self.labels, sort=False) if len(tried) else ():
            if labels in ended:
                continue
            finite = runs["value"].where(runs["value"].abs() < math.inf)
            means = finite.groupby(runs["rate"]).mean()
            words = [
                f"{rate:.6g} ({'no value' if math.isnan(mean) else f'{mean:.4g}'})" for rate, mean in means.items()
            ]
            told = f"rates tried so far: {', '.join(words)}"
            found.append(f"No final run of {where(dict(zip(self.labels, labels, strict=True)))} has ended; {told}.")
        more = len(found) - _LISTED
        return found if more <= 0 else [*found[:_LISTED], f"The same holds for {more} more cells."]

    @cached_property
    def curves(self) -> pandas.DataFrame:
        """curves.csv: labels and worker as text, axes without a place nan; empty if there is none."""
        if stored_table(self.directory / "curves.csv") is None:
            return pandas.DataFrame(columns=[*self.labels, *_CURVE_COLUMNS, *AXES])
        table = _read(self.directory / "curves.csv", [*self.labels, *_CURVE_COLUMNS], self.facts.get("names"))
        known = {axis: _numbers(table[axis]) if axis in table.columns else math.nan for axis in AXES}
        return table.assign(**known, value=_numbers(table["value"]), seed=_numbers(table["seed"]).fillna(0).astype(int))


def read(directory: Path) -> Results:
    """Read a study at one scale. Raises ConfigError if something is missing or cannot be read."""
    try:
        facts = load_json(directory / "study.json")
    except ConfigError as error:
        why = str(error).rstrip(".") if (directory / "study.json").exists() else "no study.json"
        raise ConfigError(f"{directory} has no results of a study ({why}): run decentral-study first.") from None
    for key in ("study", "scale", "paper"):
        if facts.get(key, "") != "" or key == "study":
            check_name(facts.get(key), f"{directory}/study.json: {key}")
    labels = facts.get("labels", [])
    taken = next((label for label in labels if label in (*_COLUMNS, *_CURVE_COLUMNS, *AXES)), None)
    if taken:
        raise ConfigError(
            f"study {facts['study']}: a label cannot be named '{taken}', which is a column of values.csv."
        )
    table = _read(directory / "values.csv", [*labels, *_COLUMNS], facts.get("names"))
    changes: dict[str, Any] = {column: _numbers(table[column]) for column in _NUMBERS}
    changes |= {column: table[column].str.lower().isin(["true", "1"]) for column in _FLAGS}
    changes["seed"] = _numbers(table["seed"]).fillna(0).astype(int)
    return Results(directory, facts, table.assign(**changes))


def find(results_dir: Path) -> list[Path]:
    """All directories `<results_dir>/<paper>/<study>/<scale>` with results in them, sorted; variants of a study are in
    `<scale>-<digits>`."""
    return sorted(path.parent for path in results_dir.glob("*/*/*/study.json"))


def _read(path: Path, columns: list[str], names: dict[str, str] | None) -> pandas.DataFrame:
    """Read a table with text as labels, in which `names` replace values."""
    try:
        table = pandas.read_csv(io.StringIO(read_table(path)), dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        file = stored_table(path) or path
        raise ConfigError(f"{file} cannot be read ({error}): rerun decentral-study, which writes it.") from None
    table.columns = pandas.Index(map(from_csv_cell, table.columns))
    absent = [column for column in columns if column not in table.columns]
    if absent:
        raise ConfigError(f"{path} has no column '{absent[0]}': rerun decentral-study, which rewrites it.")
    texts = [name for name in columns if name not in _COLUMNS or name == "metric"]
    words = {text: plain(from_csv_cell(text)) for name in texts for text in table[name].unique()}
    return table.assign(**{name: table[name].map(words).replace(names or {}) for name in texts})


def _numbers(column: pandas.Series) -> pandas.Series:
    return pandas.to_numeric(column, errors="coerce").astype(float)
