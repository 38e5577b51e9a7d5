"""What `decentral-study` wrote about a study at one scale: all that a report reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas

from decentral.errors import ConfigError
from decentral.report import spec
from decentral.report.entries import Entry, group, plain
from decentral.store.files import read_json

_NUMBERS = ("value", "lr", "worst", "mean", "averaged", "wall_s")
_FLAGS = ("chosen", "at_edge")
_TEXTS = ("metric", "status", "published", "run")
_COLUMNS = (*_NUMBERS, *_FLAGS, *_TEXTS, "seed")
_OTHERS = {*_COLUMNS, "step", "epoch"} - {"lr"}
"""What is not read as labels are. A study of learning rates has a label `lr` besides the column of that name."""
_CURVE_COLUMNS = ("metric", "worker", "seed", "step", "epoch", "value")


@dataclass(frozen=True)
class Results:
    """A study at one scale: study.json, values.csv and, where there is one, curves.csv."""

    directory: Path
    facts: dict[str, Any]
    values: pandas.DataFrame
    """values.csv with its labels as text (`plain`) and numbers as numbers."""

    @property
    def study(self) -> str:
        """Its name."""
        return str(self.facts["study"])

    @property
    def scale(self) -> str:
        """smoke, small or paper."""
        return str(self.facts["scale"])

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

    @property
    def comparable(self) -> bool:
        """Whether the paper's numbers can be compared with those of this scale."""
        return self.spec.published is not None and self.scale in self.spec.published.scales

    def entries(self, of: str = "value") -> list[Entry]:
        """The cells; `of`: value, worst, mean or averaged."""
        return group(self.values, self.labels, of)

    @cached_property
    def curves(self) -> pandas.DataFrame:
        """curves.csv or curves.csv.gz: labels and worker as text; empty if there is none."""
        for name in ("curves.csv", "curves.csv.gz"):
            path = self.directory / name
            if path.is_file():
                table = _read(path, [*self.labels, *_CURVE_COLUMNS])
                numbers = {column: _numbers(table[column]) for column in ("step", "epoch", "value")}
                return table.assign(**numbers, seed=_numbers(table["seed"]).astype(int))
        return pandas.DataFrame(columns=[*self.labels, *_CURVE_COLUMNS])


def read(directory: Path) -> Results:
    """Read a study at one scale. Raises ConfigError if something is missing or cannot be read."""
    facts = read_json(directory / "study.json")
    if facts is None or not {"study", "scale"} <= facts.keys():
        raise ConfigError(f"{directory} holds no results of a study (no study.json): run decentral-study first.")
    labels = list(facts.get("labels", []))
    taken = next((label for label in labels if label in (*_COLUMNS, *_CURVE_COLUMNS) and label != "lr"), None)
    if taken:
        raise ConfigError(f"study {facts['study']}: a label cannot be called '{taken}', values.csv has such a column.")
    table = _read(directory / "values.csv", [*labels, *_COLUMNS])
    changes: dict[str, Any] = {column: _numbers(table[column]) for column in _NUMBERS if column not in labels}
    changes |= {column: table[column].str.lower().isin(["true", "1"]) for column in _FLAGS}
    changes["seed"] = _numbers(table["seed"]).fillna(0).astype(int)
    return Results(directory, facts, table.assign(**changes))


def find(results_dir: Path) -> list[Path]:
    """All directories `<results_dir>/<paper>/<study>/<scale>` with results in them, sorted."""
    return sorted(path.parent for path in results_dir.glob("*/*/*/study.json"))


def _read(path: Path, columns: list[str]) -> pandas.DataFrame:
    try:
        table = pandas.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is missing: run decentral-study again, it writes it from the finished runs."
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): delete it and run decentral-study again.") from None
    absent = [column for column in columns if column not in table.columns]
    if absent:
        raise ConfigError(f"{path} has no column '{absent[0]}': run decentral-study again, it writes it anew.")
    return table.assign(**{name: _labels(table[name]) for name in columns if name not in _OTHERS})


def _labels(column: pandas.Series) -> pandas.Series:
    return column.map({value: plain(value) for value in column.unique()})


def _numbers(column: pandas.Series) -> pandas.Series:
    return pandas.to_numeric(column, errors="coerce").astype(float)
